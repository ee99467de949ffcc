"""Device samples are not asked for meanwhile."""

from __future__ import annotations

from tailrate.analysis.steps.faults import Reach

REACH = Reach(endpoint=False)
