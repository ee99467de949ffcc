"""What each fault did to users, as a table and in sentences; the time line marks the faults themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.html.table import TableCell, table
from tailrate.analysis.pages.report.charts.time_chart import moment
from tailrate.analysis.pages.report.sections.section import Section, bullets
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text import words

HEADS = (
    "fault", "endpoint", "at", "lasted", "requests", "failed", "under way (failed)", "failed after",
    "P50 before, ms", "during", "after", "P99 before, ms", "during", "after", "as before after",
)  # fmt: skip
NOTE = (
    "During: what was under way when the fault struck, and what was due until it was over and served as before. "
    "Percentiles are of the successes; failures are counted beside them."
)


def fault_rows(view: View) -> list[list[TableCell]]:
    """Under `HEADS`; a fault that could not be injected has no figures."""
    return [[TableCell(shown, value) for shown, value in _row(effect)] for effect in view.report.get("faults") or ()]


def _row(effect: Mapping[str, Any]) -> list[tuple[str, float | str | None]]:
    seen = bool(effect["endpoint"])
    name = effect["fault"] + (f" {effect['target']}" if effect["target"] else "")

    def number(key: str) -> tuple[str, float | None]:
        return (words.significant(effect[key]), effect[key]) if seen else (words.ABSENT, None)

    def counted(key: str) -> tuple[str, float | None]:
        return (words.count(effect[key]), effect[key]) if seen else (words.ABSENT, None)

    lasted, recovered = effect["seconds"], effect["recovered_s"]
    of_them = f"{effect['in_flight']} ({effect['in_flight_failed']})" if seen else words.ABSENT
    return [
        (str(name), str(name)),
        (effect["endpoint"] or words.ABSENT, effect["endpoint"]),
        (moment(effect["start_s"]), effect["start_s"]),
        (words.ABSENT if lasted is None else "at once" if lasted < 1 else f"{words.significant(lasted)} s", lasted),
        counted("n"),
        counted("errors"),
        (of_them, effect["in_flight"] if seen else None),
        counted("errors_after"),
        *(number(f"ok_{p}_{when}_ms") for p in ("p50", "p99") for when in ("before", "during", "after")),
        (f"{words.significant(recovered)} s" if recovered is not None else words.ABSENT, recovered),
    ]


def fault_section(view: View) -> Html | None:
    """None for a run in which nothing was broken on purpose."""
    rows = fault_rows(view)
    if not rows:
        return None
    said = tag("ul", (tag("li", sentence) for sentence in _sentences(view)))
    return join([tag("p", NOTE), table(HEADS, rows, "What users saw of each fault", numbers_from=2), said])


def _sentences(view: View) -> list[str]:
    return [str(effect["sentence"]) for effect in view.report.get("faults") or ()]


def _lines(view: View) -> list[str]:
    said = _sentences(view)
    return bullets(said) if said else []


def fault_event(event: Mapping[str, Any]) -> str:
    """`cpu_taken 4 was injected: 4 busy processes`"""
    name = " ".join(str(event[key]) for key in ("fault", "target") if event.get(key))
    if event.get("phase") == "end":
        return f"{name} is over"
    return f"{name} {'was not' if event.get('phase') == 'refused' else 'was'} injected: {event.get('sentence') or ''}"


FAULTS = Section("faults", "Faults", fault_section, _lines)
