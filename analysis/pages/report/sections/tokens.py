"""First tokens, time per token, gaps and tokens per second of each step, of endpoints that answer token by token.

Then the gaps by their place in the answer, and what depends on how long prompts and answers are, and on the turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrate.analysis.counting.answer_shape import TURNS
from tailrate.analysis.pages.html.markup import Html, join
from tailrate.analysis.pages.html.table import folded, table
from tailrate.analysis.pages.report.charts.answers import gaps_by_position
from tailrate.analysis.pages.report.charts.by_rate import Figure, hockey_stick
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.objective import overall
from tailrate.analysis.text import markdown, words
from tailrate.analysis.text.tokens import HEADS, shown, token_rows

ABOUT = (
    "TTFT: from the intended start to the first token, failures as infinite; TPOT: from there to the last one, by "
    "token; stall: the longest gap of an answer"
)

TTFT = Figure(
    "ttft_", "First token", "From the intended start to the first token, over requests offered per second", "ttft"
)
TPOT = Figure(
    "tpot_", "Time per token", "Mean time of an answer's tokens after the first, over requests offered", "tpot"
)
GAP = Figure("gap_", "Gap between tokens", "From one content event to the next of successes, over requests offered")
LENGTHS = (
    ("by_prompt", "prompt", {"ttft_p50_ms": "TTFT P50", "ttft_p99_ms": "P99"}),
    (
        "by_answer", "answer",
        {"tpot_p50_ms": "TPOT P50", "tpot_p99_ms": "P99", "p50_ms": "latency P50", "p99_ms": "P99"},
    ),
)  # fmt: skip
_MOST = 12


def _html(view: View) -> Html | None:
    rows = token_rows(view.steps)
    if not rows:
        return None
    slos, drawn = overall(view.run.manifest.slos), [row for row in view.drawn if row.get("ttft_p50_ms") is not None]
    charts = [
        hockey_stick(known, view.series, slos, f"{of.prefix}rates", of)
        for of in (TTFT, TPOT, GAP)
        if (known := [row for row in drawn if row[f"{of.prefix}p50_ms"] is not None])
    ]
    return join(
        [
            *charts,
            gaps_by_position(_asked(view, "by_position"), view.series),
            table(HEADS, rows, ABOUT),
            *(
                folded(found, caption, table(heads, found, caption), most=_MOST)
                for caption, heads, found in (*_by_length(view), *_by_turn(view), *_beside_prompts(view))
            ),
        ]
    )


def _asked(view: View, what: str) -> dict[str, list[Mapping[str, Any]]]:
    """These rows of the report by the load that was asked for, lowest first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(view.report["answers"][what], key=lambda row: (row["rate"], row["concurrency"])):
        found.setdefault(words.load(row["rate"], row["concurrency"]), []).append(row)
    return found


def _by_length(view: View) -> Iterator[tuple[str, Sequence[str], list[list[str]]]]:
    """Caption, heads and rows of what depends on a length, where there are several."""
    for what, of, figures in LENGTHS:
        rows = [
            [
                row["endpoint"], asked, words.count(row["least"]) if row["least"] == row["most"]
                else f"{words.count(row['least'])}–{words.count(row['most'])}",
                words.count(row["answers"]), *(shown(row, name) for name in figures),
            ]
            for asked, found in _asked(view, what).items()
            for row in found
        ]  # fmt: skip
        if len({row[2] for row in rows}) > 1:
            yield (
                f"By the length of the {of}, ms",
                ("endpoint", "at", f"{of}'s tokens", "answers", *figures.values()),
                rows,
            )


def _by_turn(view: View) -> Iterator[tuple[str, Sequence[str], list[list[str]]]]:
    """The same of the turns of sessions: each carries all that was said before, which a server may have kept."""
    rows = [
        [
            row["endpoint"], asked, f"{row['turn'] + 1}{' and later' if row['turn'] == TURNS - 1 else ''}",
            words.count(row["answers"]), shown(row, "prompt_tokens"), shown(row, "cached_pct"),
            shown(row, "ttft_p50_ms"), shown(row, "ttft_p99_ms"),
        ]
        for asked, found in _asked(view, "by_turn").items()
        for row in found
    ]  # fmt: skip
    if rows:
        heads = ("endpoint", "at", "turn", "answers", "tokens of a prompt", "held in a cache, %", "TTFT P50", "P99")
        yield "By the turn of the session, ms", heads, rows


def _beside_prompts(view: View) -> Iterator[tuple[str, Sequence[str], list[list[str]]]]:
    """What answers wait for others' prompts, where the server says when it read them."""
    asked = {step.summary.index: step.asked for step in view.run.measured}
    rows = [
        [
            row["endpoint"], asked[row["index"]], words.count(row["gaps"]), shown(row, "p50_ms"), shown(row, "p99_ms"),
            words.count(row["beside"]), shown(row, "beside_p50_ms"), shown(row, "beside_p99_ms"),
        ]
        for row in view.report["answers"]["beside_prompts"]
    ]  # fmt: skip
    if rows:
        heads = ("endpoint", "at", "gaps without", "P50", "P99", "gaps beside a prompt", "P50", "P99")
        yield "Gaps while another's prompt was read, and all others, ms", heads, rows


def _lines(view: View) -> list[str]:
    rows = token_rows(view.steps)
    if not rows:
        return []
    found = [*markdown.table(HEADS, rows)]
    for caption, heads, by in (*_by_length(view), *_by_turn(view), *_beside_prompts(view)):
        found += ["", f"{caption}:", "", *markdown.table(heads, by)]
    return found


TOKENS_SECTION = Section("tokens", "Tokens", _html, _lines)
