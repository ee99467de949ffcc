"""What a load process had to send is not sent."""

from __future__ import annotations

from tailrate.analysis.steps.faults import Reach

REACH = Reach(endpoint=False, load=True)
