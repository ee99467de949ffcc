"""How to repeat the run, and where its numbers are."""

from __future__ import annotations

import re

from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View


def _html(view: View) -> Html:
    run_id, said = view.run.manifest.id, _command(view)
    return join(
        [
            tag("pre", tag("code", said), tabindex=0) if said else None,
            tag(
                "p",
                "Every request is a row: ",
                tag("code", f"tailrate rows {run_id}"),
                " prints them as CSV, and in a notebook ",
                tag("code", f'analysis.load("runs/{run_id}").requests()'),
                " is a pandas frame. ",
                tag("code", "report.json"),
                " and ",
                tag("code", "steps.csv"),
                " beside this page hold its numbers.",
            ),
        ]
    )


def _lines(view: View) -> list[str]:
    if not (said := _command(view)):
        return []
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", said)), default=0) + 1)
    return [fence, said, fence, ""]


def _command(view: View) -> str | None:
    said = view.run.manifest.extra.get("command")
    return " ".join(str(part) for part in said) if isinstance(said, list) else str(said) if said else None


AGAIN = Section("again", "How to repeat it", _html, _lines)
