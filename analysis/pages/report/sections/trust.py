"""What the figures rest on: the load generator, the ledger of arrivals, and how to read what is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.html.table import table
from tailrate.analysis.pages.report.sections.section import Section, bullets, named
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text import words

LEDGER_HEADS = (
    "step", "asked", "scheduled", "sent", "ok", "refused", "failed", "timed out", "unreachable", "dropped", "lost",
    "late P50, ms", "late P99, ms", "latest, ms",
)  # fmt: skip

MOST_NAMED = 6
_TRUST = {
    "lateness": "lateness of the load generator",
    "ledger": "arrivals",
    "load_cpu_pct": "busiest load process",
    "self_check": "self-check",
    "clock": "clocks against the load generator's",
    "devices": "device samples",
    "join": "requests matched to device samples",
    "settle_s": "left out at the start of a step",
    "untrusted_steps": "steps not to be trusted",
    "overloaded_steps": "steps overloaded",
    "small_steps": "steps too small for their percentile",
}


def _html(view: View) -> Html:
    known = _facts(view)
    ledger = _ledger(view)
    why = _exceptions(view)
    return join(
        [
            named(known) if known else None,
            tag("h3", "Steps with a reservation") if why else None,
            tag("ul", (tag("li", line) for line in why)) if why else None,
            tag("h3", "What became of every arrival") if ledger else None,
            table(LEDGER_HEADS, ledger, "Settle time included", numbers_from=2) if ledger else None,
            tag("h3", "How to read the numbers"),
            tag("ul", (tag("li", line) for line in _pitfalls(view))),
        ]
    )


def _lines(view: View) -> list[str]:
    why = _exceptions(view)
    return [
        *bullets(f"{name}: {value}" for name, value in _facts(view)),
        *(["Steps with a reservation:", "", *bullets(why)] if why else []),
    ]


def _facts(view: View) -> list[tuple[str, str]]:
    """What the figures rest on; what nobody measured is left out."""
    known = {key: value for key, value in view.report["trust"].items() if value is not None and key != "status"}
    if isinstance(known.get("self_check"), Mapping):
        known["self_check"] = _self_check(known["self_check"])
    known |= {key: _which(view, known[key]) for key in known if key.endswith("_steps")}
    return [(_TRUST.get(key) or words.fact(key, value)[0], words.fact(key, value)[1]) for key, value in known.items()]


def _which(view: View, indices: Sequence[int]) -> str:
    found = [f"{row['endpoint']} at {row['asked']}" for row in view.steps if row["index"] in indices]
    named, more = found[:MOST_NAMED], len(found) - MOST_NAMED
    return (words.sentence_list(named) or "none") + (f" and {more} more" if more > 0 else "")


def _self_check(found: Mapping[str, Any]) -> str:
    did = "reached" if found.get("closed") else "kept"
    return (
        f"at a null server the load side {did} {words.rate(found.get('safe_rps'))} "
        f"(P50 {words.ms(found.get('p50_ms'))}, P99 {words.ms(found.get('p99_ms'))}, late P99 "
        f"{words.ms(found.get('late_p99_ms'))}, CPU {words.significant(found.get('cpu_pct'))} %)"
    )


def _ledger(view: View) -> list[list[str]]:
    """What became of every arrival, under `LEDGER_HEADS`, settle time included."""
    asked = {row["index"]: row["asked"] for row in view.steps}
    counts = ("scheduled", "sent", "ok", "refused", "failed", "timed_out", "unreachable", "dropped", "lost")
    return [
        [
            row["endpoint"],
            asked.get(row["index"], words.ABSENT),
            *(words.count(row[key]) for key in counts),
            *(words.significant(row[key]) for key in ("late_p50_ms", "late_p99_ms", "late_max_ms")),
        ]
        for row in view.report["ledger"]
    ]


def _exceptions(view: View) -> list[str]:
    """One line per step that is not to be taken as it is."""
    return [
        f"{row['endpoint']} at {row['asked']}: {words.sentence_list(row['reasons'])}"
        for row in view.steps
        if row.get("reasons")
    ]


def _pitfalls(view: View) -> list[str]:
    """What a reader could misread in this run, said plainly."""
    found = [
        "Latency counts from the instant at which a request was meant to be sent, so a late load generator makes it "
        "worse and never better.",
        "A failed, timed-out or dropped request is infinitely late; the P99 of successes alone stands beside it.",
    ]
    if view.has_gpu():
        found.append(
            "GPU utilisation is the share of time in which any kernel ran at all: 100 % does not mean that the GPU "
            "could do no more."
        )
    if any(row.get("joules") is not None for row in view.steps):
        found.append("Energy is that of the whole device, whoever else used it.")
    if any((words.finite(r.get("early_stop_n")) or 0) > (words.finite(r.get("n")) or 0) for r in view.steps):
        found.append("Some steps have fewer samples than their P99 needs: see n and n needed in the table of steps.")
    return found


TRUST = Section("trust", "Can this be trusted?", _html, _lines)
