"""First tokens, time per token, gaps and tokens per second of each step, of endpoints that answer token by token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrate.analysis.pages.html.markup import Html
from tailrate.analysis.pages.html.table import table
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text import markdown
from tailrate.analysis.text.words import ABSENT, significant

HEADS = (
    "endpoint", "offered/s", "TTFT P50 ms", "P99", "its interval", "TPOT P50 ms", "P99", "its interval", "gap P50 ms",
    "P99", "stall P99 ms", "tokens/s",
)  # fmt: skip
ABOUT = (
    "TTFT: from the intended start to the first token, failures as infinite; TPOT: from there to the last one, by "
    "token; stall: the longest gap of an answer"
)


def _rows(view: View) -> list[list[str]]:
    return [
        [
            str(row["endpoint"]), significant(row["offered_rps"]),
            *(_ms(row, name) for name in ("ttft_p50_ms", "ttft_p99_ms")), _between(row, "ttft"),
            *(_ms(row, name) for name in ("tpot_p50_ms", "tpot_p99_ms")), _between(row, "tpot"),
            *(_ms(row, name) for name in ("gap_p50_ms", "gap_p99_ms", "stall_p99_ms", "tokens_out_rps")),
        ]
        for row in view.steps
        if row.get("tokens_out_rps") is not None
    ]  # fmt: skip


def _ms(row: Mapping[str, Any], name: str) -> str:
    return significant(row[name]) if row.get(name) is not None else ABSENT


def _between(row: Mapping[str, Any], figure: str) -> str:
    low, high = (_ms(row, f"{figure}_p99_{end}_ms") for end in ("low", "high"))
    return ABSENT if low == ABSENT else f"≥ {low}" if high in (ABSENT, "∞") else f"{low}–{high}"


def _html(view: View) -> Html | None:
    rows = _rows(view)
    return table(HEADS, rows, ABOUT) if rows else None


def _lines(view: View) -> list[str]:
    rows = _rows(view)
    return markdown.table(HEADS, rows) if rows else []


TOKENS_SECTION = Section("tokens", "Tokens", _html, _lines)
