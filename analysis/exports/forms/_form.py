"""What the forms of a report share: its steps with what was asked of them, and the file that a text goes to.

The texts are pure functions from the content of `report.json` and the manifest. Judges nothing: verdict, trust and
reasons are the report's.
"""

from __future__ import annotations

import math
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
    kept: bool | None
    """Whether all rounds of its rate together keep the objectives; of one without arrivals nobody knows."""
    arrivals: int
    """Of all these rounds."""
    said: str
    """What they say together, where there are several."""

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
        return words.sentence_list(filter(None, [self.said, *self.row["reasons"]])) or "no reason was recorded"


def steps_of(report: Report, manifest: Manifest) -> Iterator[ExportedStep]:
    plans = {plan["index"]: plan for plan in manifest.scenario["steps"]}
    stopped_ns = manifest.finished_ns if manifest.status != "complete" else 0
    rates = {(rate["endpoint"], index): rate for rate in report["rates"] for index in rate["steps"]}
    arrived = {(row["endpoint"], row["index"]): row["n"] for row in report["steps"]}
    for row in report["steps"]:
        plan = plans.get(row["index"], {})
        begin, end = plan.get("start_ns", 0), plan.get("end_ns", 0)
        rate = float(plan.get("rate") or row["offered_rps"] or 0.0)
        ended_ns = max(begin, min(end, stopped_ns or end))
        concurrency, judged = int(plan.get("concurrency") or 0), rates.get((row["endpoint"], row["index"]))
        rounds = judged["steps"] if judged else [row["index"]]
        yield ExportedStep(
            restored(row), rate, concurrency, begin, ended_ns,
            kept=judged["kept"] if judged and row["n"] else None,
            arrivals=sum(arrived.get((row["endpoint"], index), 0) for index in rounds),
            said=judged["sentence"] if judged and len(rounds) > 1 else "",
        )  # fmt: skip


def written(value: float | None, form: str = "") -> str:
    return "unknown" if value is None else "infinite" if math.isinf(value) else f"{value:{form}}"


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
