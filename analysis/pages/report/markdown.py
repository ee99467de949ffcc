"""`report.md`: the report as one page for a pull request or a wiki.

The same words and columns as the page, without pictures. Text out of the run is escaped so that neither
Markdown nor HTML in it takes effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tailrate.analysis.pages.report import columns, facts
from tailrate.analysis.pages.report.charts.batches import HEADS, batch_rows
from tailrate.analysis.pages.report.faults import fault_sentences
from tailrate.analysis.pages.report.model_identity import sameness
from tailrate.analysis.pages.report.soak import VISIBLE_HEADS, soak_sentences, visible_rows
from tailrate.analysis.pages.report.view import View
from tailrate.analysis.text import words
from tailrate.analysis.text.markdown import table, text


def _batches(batches: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """None where all are of one size, in which there is nothing to compare."""
    most: dict[str, int] = {}
    for row in batches:
        most[row["endpoint"]] = max(row["batch_rows"], most.get(row["endpoint"], 0))
    if len({row["batch_rows"] for row in batches}) < 2:
        return []
    return batch_rows(
        [row for row in batches if row["batch_rows"] in (most[row["endpoint"]], _power(row["batch_rows"]))]
    )


def _power(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()


def _bullets(lines: Iterable[str]) -> list[str]:
    return [*(f"- {text(line)}" for line in lines), ""]


def markdown(view: View) -> str:
    """The whole page of Markdown."""
    manifest, report = view.run.manifest, view.report
    out = [f"# Load test of {text(manifest.scenario.get('name') or manifest.id)}", ""]
    if view.unfinished:
        out += [f"**{view.unfinished}**", ""]
    verdict = words.VERDICTS.get(report["verdict"], str(report["verdict"]))
    out += [f"**{text(report['conclusion'])}**", "", f"Verdict: **{text(verdict)}**", ""]
    if report["reasons"]:
        out += _bullets(report["reasons"])
    if view.steps:
        shown = columns.present(view.steps, brief=True)
        rows = [[column.show(row.get(column.key)) for column in shown] for row in view.steps]
        out += ["## Steps", "", "Rates in requests per second, latency in milliseconds from the intended start.", ""]
        out += table([column.head for column in shown], rows)
    if report["pairs"]:
        pairs = [
            (
                f"{p['a']} against {p['b']}",
                words.load(p["rate"], p["concurrency"]),
                words.pair_sentence(p),
                words.count(p["rounds"]),
            )
            for p in report["pairs"]
        ]
        out += [
            "## One variant against another",
            "",
            *table(("pair", "at", "in words", "rounds"), pairs, texts=3),
        ]
    if rates := facts.capacity_rows(view):
        out += ["## How much it can take", "", *table(facts.CAPACITY_HEADS, rates, texts=9)]
    if brought := soak_sentences(view):
        out += ["## What hours brought to light", "", *_bullets(brought)]
        out += table(VISIBLE_HEADS, visible_rows(view), texts=2)
    if told := fault_sentences(view):
        out += ["## Faults", "", *_bullets(told)]
    if sizes := _batches(report["batches"]):
        out += ["## Batches", "", "Over all steps: sizes that are powers of two, and the largest.", ""]
        out += table(HEADS, sizes)
    same = sameness(view)
    if same.rows:
        rows = [[cell.shown for cell in row] for row in same.rows]
        out += ["## Is it still the same model?", "", *table(same.heads, rows, texts=same.numbers_from)]
    if risks := facts.risks(view):
        lines = (f"- **{facts.SEVERITIES[severity].word}**: {text(sentence)}" for severity, sentence in risks)
        out += ["## Risks and limits", "", *lines, ""]
    out += ["## What ran", "", *_bullets(f"{name}: {value}" for name, value in facts.environment(view))]
    out += ["## Can this be trusted?", "", *_bullets(f"{name}: {value}" for name, value in facts.trust_facts(view))]
    if why := facts.exceptions(view):
        out += ["Steps with a reservation:", "", *_bullets(why)]
    if said := facts.command(view):
        fence = "`" * (max((len(run) for run in re.findall("`+", said)), default=2) + 1)
        out += [
            "## How to repeat it",
            "",
            fence if len(fence) > 2 else "```",
            said,
            fence if len(fence) > 2 else "```",
            "",
        ]
    return "\n".join(out).rstrip() + "\n"
