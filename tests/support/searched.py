"""Run folders of a search for the knee, as it came out; an answer is a stream of one event."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from folders import Load, make_run, rewrite

from tailrate import analysis
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.verdicts.run import Run


def knee_run(folder: Path, probes: Sequence[Load], slos: Sequence[str], cut: int | None = None, **knee: Any) -> Run:
    """`knee`: what the search says of its answer. The probe of the number `cut` was cut, as its queue grew."""
    made = make_run(folder, probes, slo=slos, mode="knee")
    rewrite(folder, made.requests.assign(first_ns=made.requests["done_ns"], last_ns=made.requests["done_ns"], events=1))
    for entry in made.manifest.endpoints:
        entry["streams"] = True
    made.manifest.write(folder)
    if cut is not None:
        append_event(folder, "step_cut", step=cut, sentence="the queue grows without bound")
    append_event(folder, "knee", **{"endpoint": probes[0].endpoint, "reason": None} | knee)
    return analysis.load(folder)
