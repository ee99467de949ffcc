"""Reads run folders and says what they prove; needs pandas, and neither locust, ray nor torch.

>>> run = analysis.load("runs/20261120T101500Z-bert")  # doctest: +SKIP
>>> run.steps[["endpoint", "offered_rps", "p99_ms"]]  # doctest: +SKIP

The data path: `run` (a sealed folder, read) → `counting` (one pass: join, sums, percentiles) → `steps` → `verdicts` →
`exports` (`report.json` …) and `pages`. `judging` says for all of them whether an objective is kept; `stats` has the
intervals. `records`, which load processes share, needs only Python.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run


def load(folder: str | Path) -> Run:
    """The run in this folder, sealed or not; nothing is written."""
    # imported here, because a load process that imports `tailrate.analysis.records` must not pay for pandas
    from tailrate.analysis.verdicts.run import Run

    return Run.load(folder)
