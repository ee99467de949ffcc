"""Made-up runs of one endpoint for a history, and what is called of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from folders import DAY_NS, START_NS

from tailrate.analysis.history.figure_series import KINDS, lineages
from tailrate.analysis.history.regression import FigureVerdict, judge
from tailrate.analysis.history.run_summary import Entry, Level, StartFacts, SustainedRate
from tailrate.analysis.text import words


def run_of(
    day: int = 0, name: str = "", *, by: dict[str, float] | None = None, errors: int = 5, rate: float = 100,
    facts: dict[tuple[str, str], str] | None = None, endpoints: Sequence[str] = ("m/a",), **more: Any,
) -> Entry:  # fmt: skip
    """A run with round figures, each times what `by` says."""
    times = {key: (by or {}).get(key, 1.0) for key in KINDS}
    p50, p99, joules = 10 * times["p50"], 40 * times["p99"], 0.5 * times["joules"]
    figures = {"offered_rps": rate, "achieved_rps": rate, "p50_ms": p50, "p99_ms": p99, "joules_per_request": joules}
    figures |= {"p99_low_ms": 0.97 * p99, "p99_high_ms": 1.03 * p99}
    known: dict[str, Any] = {
        "levels": [Level(one, rate, 0, dict(figures), errors, True, False, 1, 5000) for one in endpoints],
        "kept": {one: SustainedRate(800 * times["capacity"], 816 * times["capacity"], None, True) for one in endpoints},
        "opened": {one: StartFacts("warm", 12 * times["start"], 1e-3 * times["parity"]) for one in endpoints},
        "mode": "knee",
        "origin": {("m/a", "device name"): "NVIDIA H200", ("m/a", "torch"): "2.11.0"} | (facts or {}),
    }
    name = name or f"run-{day:03d}"
    start = START_NS + day * DAY_NS
    return Entry(
        name, start, words.clock_time(start), "pass", "", objective="p99<50ms", scenario="m", endpoints=list(endpoints),
        **(known | more),
    )  # fmt: skip


def noisy(seed: int, runs: int, *, worse: Sequence[str] = (), times: float = 1.1, last: int = 1) -> list[Entry]:
    """Figures that differ by 3 % from run to run; those named are worse by so much in the last runs."""
    rng = np.random.default_rng(seed)
    found = []
    for day in range(runs + last):
        by = {key: float(np.exp(0.03 * rng.normal())) for key in ("p50", "p99", "joules", "capacity", "start")}
        for key in worse if day >= runs else ():
            by[key] *= times ** -KINDS[key].better
        found.append(run_of(day, by=by, errors=int(rng.binomial(5000, 0.001))))
    return found


def judged(entries: Sequence[Entry], **more: Any) -> dict[str, FigureVerdict]:
    """By figure, of the one lineage there is."""
    ((_, found),) = judge(lineages(entries), **more)
    return {one.track.key: one for one in found}


def calls(entries: Sequence[Entry], **more: Any) -> dict[str, str]:
    return {key: one.call for key, one in judged(entries, **more).items()}
