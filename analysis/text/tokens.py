"""The table of what steps say of tokens, for the page, for Markdown and for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tailrate.analysis.text.words import ABSENT, significant

HEADS = (
    "endpoint", "offered/s", "TTFT P50 ms", "P99", "its interval", "TPOT P50 ms", "P99", "its interval", "gap P50 ms",
    "P99", "stall P99 ms", "tokens/s",
)  # fmt: skip


def token_rows(steps: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Of those that streamed."""
    return [
        [
            str(row["endpoint"]), significant(row["offered_rps"]),
            *(shown(row, name) for name in ("ttft_p50_ms", "ttft_p99_ms")), _between(row, "ttft"),
            *(shown(row, name) for name in ("tpot_p50_ms", "tpot_p99_ms")), _between(row, "tpot"),
            *(shown(row, name) for name in ("gap_p50_ms", "gap_p99_ms", "stall_p99_ms", "tokens_out_rps")),
        ]
        for row in steps
        if row.get("tokens_out_rps") is not None
    ]  # fmt: skip


def shown(row: Mapping[str, Any], name: str) -> str:
    return significant(row[name]) if row.get(name) is not None else ABSENT


def _between(row: Mapping[str, Any], figure: str) -> str:
    low, high = (shown(row, f"{figure}_p99_{end}_ms") for end in ("low", "high"))
    return ABSENT if low == ABSENT else f"≥ {low}" if high in (ABSENT, "∞") else f"{low}–{high}"
