"""A column of a table of figures: its group, its heading, what it means, what works it out, how a value is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrate.analysis.text.words import ABSENT, count, significant

Show = Callable[[Any], str]

GROUPS = STEP, RATE, ARRIVALS, LATENCY, TOKENS, SAMPLE, STAGES, DEVICE, SEEN, STEADINESS, JUDGED = (
    "step", "rate, /s", "arrivals", "latency, ms", "tokens", "sample", "server stages, mean ms", "device",
    "device as requests saw it", "steadiness", "judged",
)  # fmt: skip
"""In the order of the page."""


@dataclass(frozen=True, slots=True)
class Column:
    """One field of `StepSummary`."""

    name: str
    kind: str
    """Its type, in the words of the field."""
    group: str
    head: str
    """Empty where the page does not show it."""
    meaning: str
    value: Callable[[Any], Any]
    show: Show
    """How a value is written."""
    brief: bool
    """Also in the short table of `report.md`."""
    after: str
    """The column that it follows on the page, where that is another than in the files."""


def text(value: Any) -> str:
    return ABSENT if value is None else str(value)


def met(value: Any) -> str:
    """The core says True, False, None or a word; a reader sees a word."""
    return {"True": "met", "False": "missed", "None": ABSENT}.get(str(value), str(value))


def yes(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, ABSENT)


KINDS: dict[str, tuple[Show, str]] = {
    "int": (count, "int64"),
    "int | None": (count, "float64"),
    "float | None": (significant, "float64"),
    "bool": (yes, "bool"),
    "bool | None": (yes, "object"),
}
"""How values of a type are written, and what they are in a frame; texts are as they are."""
