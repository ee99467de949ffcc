"""Device samples of the meantime are lost."""

from __future__ import annotations

from tailrate.analysis.steps.faults import Reach

REACH = Reach(endpoint=False)
