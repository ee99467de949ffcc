"""GitHub's step summary."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from tailrate.analysis.exports.forms._form import ExportedStep, Report, TextForm, one_line, steps_of
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.text import markdown, words

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

MOST_BYTES = 1_000_000
"""GitHub drops a summary of more than 1 MiB."""

_SYMBOLS = {"pass": "✅", "fail": "❌", "inconclusive": "⚠️", "measured": "📏"}
_HEADS = "step|endpoint|rate|achieved, /s|P50, ms|P99, ms|errors|objective|trusted"


def github(report: Report, manifest: Manifest) -> str:
    """Markdown for `$GITHUB_STEP_SUMMARY`; what does not fit is left out and counted."""
    verdict, steps = report["verdict"], list(steps_of(report, manifest))
    remarks = [*report["reasons"], *(f"{s.row['endpoint']}, {s.name}: {s.why}" for s in steps if s.row["reasons"])]
    pairs = ((p["a"], p["b"], words.load(p["rate"], p["concurrency"]), words.pair_sentence(p)) for p in report["pairs"])
    parts = [
        _table("Steps", _HEADS, map(_shown, steps)),
        _table("One variant against another", "a|b|at|in words", pairs),
        _table("Capacity", "endpoint|objective|kept up to|missed from|limited by", map(_limit, report["capacity"])),
        (["### Remarks", ""], [f"- {_text(remark)}" for remark in remarks]),
    ]
    name = _text(str(manifest.scenario.get("name") or report["run"])[:200])
    said = f"{_SYMBOLS.get(verdict, '')} {words.VERDICTS.get(verdict, verdict)}".strip()
    out, left = [f"## {said}: load test of {name}", "", _text(report["conclusion"][:5000]), ""], 0
    for above, rows in parts:
        sizes = accumulate(len(row.encode()) + 1 for row in rows)
        fit = sum(1 for _ in takewhile(lambda size: size <= MOST_BYTES // len(parts), sizes))
        out += [*above, *rows[:fit], ""] if rows else []
        left += len(rows) - fit
    if left:
        out.append(f"{words.count(left)} rows were left out, because GitHub shows no more than 1 MiB.")
    return "\n".join(out).rstrip() + "\n"


def _text(value: object) -> str:
    return markdown.text(one_line(value))


def _table(title: str, heads: str, rows: Iterable[Iterable[object]]) -> tuple[list[str], list[str]]:
    """What stands above the rows, and the rows."""
    lines = [f"| {' | '.join(map(_text, row))} |" for row in (heads.split("|"), *rows)]
    return [f"### {title}", "", lines[0], "|" + " --- |" * len(heads.split("|"))], lines[1:]


def _shown(step: ExportedStep) -> tuple[object, ...]:
    row, number = step.row, words.significant
    between = "" if row["p99_low_ms"] is None else f" ({words.interval(row['p99_low_ms'], row['p99_high_ms'])})"
    figures = (number(row["achieved_rps"]), number(row["p50_ms"]), number(row["p99_ms"]) + between)
    met = {True: "met", False: "missed", None: words.ABSENT}[step.kept]
    judged = (words.count(row["errors"]), met, "yes" if row["trusted"] else "no")
    return row["index"], row["endpoint"], step.asked, *figures, *judged


def _limit(row: Report) -> tuple[object, ...]:
    low, high = words.rate(row["low_rps"]), words.rate(row["high_rps"])
    return row["endpoint"], words.objective(row), low, high, row["limited_by"] or words.ABSENT


SUMMARY = TextForm("summary.md", github)


def _write(run: Run, report: Report) -> Path:
    """Also where GitHub wants it."""
    path = SUMMARY(run, report)
    if wanted := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(wanted).open("a", encoding="utf-8") as out:
            out.write(path.read_text(encoding="utf-8"))
    return path


FORM = _write
