"""What the forms of a report share: its steps with what was asked of them, and the file that a text goes to.

The texts are pure functions from the content of `report.json` and the manifest. Judges nothing: verdict, trust and
reasons are the report's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tailrate.analysis.records.folder import write_atomically
from tailrate.analysis.records.infinities import restored
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.text import words

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

Report: TypeAlias = Mapping[str, Any]

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""


@dataclass(frozen=True, slots=True)
class ExportedStep:
    row: dict[str, Any]
    """Of the report, infinities restored."""
    rate: float
    concurrency: int
    begin_ns: int
    end_ns: int
    """When it was asked to end, or the run did."""

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9

    @property
    def asked(self) -> str:
        return words.load(self.rate, self.concurrency)

    @property
    def name(self) -> str:
        return f"step {self.row['index']} at {self.asked}"

    @property
    def why(self) -> str:
        return words.sentence_list(self.row["reasons"]) or "no reason was recorded"


def steps_of(report: Report, manifest: Manifest) -> Iterator[ExportedStep]:
    plans = {plan["index"]: plan for plan in manifest.scenario["steps"]}
    stopped_ns = manifest.finished_ns if manifest.status != "complete" else 0
    for row in report["steps"]:
        plan = plans.get(row["index"], {})
        begin, end = plan.get("start_ns", 0), plan.get("end_ns", 0)
        rate = float(plan.get("rate") or row["offered_rps"] or 0.0)
        ended_ns = max(begin, min(end, stopped_ns or end))
        yield ExportedStep(restored(row), rate, int(plan.get("concurrency") or 0), begin, ended_ns)


def one_line(text: object) -> str:
    """One line that every form can hold."""
    return " ".join(_NO_XML.sub("\ufffd", str(text)).split())


@dataclass(frozen=True, slots=True)
class TextForm:
    """A form that is a text: the name of its file in the run folder, and what writes it."""

    name: str
    text: Callable[[Report, Manifest], str]

    def __call__(self, run: Run, report: Report) -> Path:
        path = run.folder / self.name
        write_atomically(path, self.text(report, run.manifest))
        return path
