"""Variants against each other at the same load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.html.table import table
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.objective import STREAM_FIGURES
from tailrate.analysis.text import markdown, words


def _html(view: View) -> Html | None:
    rows = view.report["pairs"]
    if not rows:
        return None
    streams = any(pair["ttft_ratio"] or pair["tpot_ratio"] for pair in rows)
    heads = (
        "pair", "at", "in words", "P50 ratio", "interval", "P99 ratio", "interval", "smallest visible",
        *(("TTFT P99 ratio", "interval", "TPOT P99 ratio", "interval") if streams else ()), "J/request", "rounds",
    )  # fmt: skip
    cells = [
        (
            f"{pair['a']} against {pair['b']}",
            words.load(pair["rate"], pair["concurrency"]),
            words.pair_sentence(pair),
            words.significant(pair["p50_ratio"]),
            words.interval(pair["p50_low"], pair["p50_high"]),
            words.significant(pair["p99_ratio"]),
            words.interval(pair["ratio_low"], pair["ratio_high"]),
            words.ABSENT
            if pair["smallest_visible"] is None
            else f"{words.significant(100 * pair['smallest_visible'])} %",
            *(_of_streams(pair) if streams else ()),
            words.significant(pair["joules_ratio"]),
            words.count(pair["rounds"]),
        )
        for pair in rows
    ]
    note = "Ratios are the first one's latency over the second one's: above 1 the second is faster."
    return join([tag("p", note), table(heads, cells, "Pairs at the same offered rate", numbers_from=3, class_="pairs")])


def _of_streams(pair: Mapping[str, Any]) -> Iterator[str]:
    for figure in STREAM_FIGURES:
        yield words.significant(pair[f"{figure}_ratio"])
        yield words.interval(pair[f"{figure}_low"], pair[f"{figure}_high"])


def _lines(view: View) -> list[str]:
    rows = [
        (
            f"{pair['a']} against {pair['b']}",
            words.load(pair["rate"], pair["concurrency"]),
            words.pair_sentence(pair),
            words.count(pair["rounds"]),
        )
        for pair in view.report["pairs"]
    ]
    return markdown.table(("pair", "at", "in words", "rounds"), rows, texts=3) if rows else []


PAIRS = Section("pairs", "One variant against another", _html, _lines)
