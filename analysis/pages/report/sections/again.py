"""How to repeat the run, and where its numbers are."""

from __future__ import annotations

import re

from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.folder import RUN_FILE


def _html(view: View) -> Html:
    run_id, said, file = view.run.manifest.id, _command(view), _file(view)
    return join(
        [
            tag("pre", tag("code", said), tabindex=0) if said else None,
            tag("p", "Or with what lies in its folder: ", tag("code", f"tailrate run {_path(view)}")) if file else None,
            tag("pre", tag("code", file), tabindex=0) if file else None,
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
    found: list[str] = []
    if said := _command(view):
        found += _fenced(said)
    if file := _file(view):
        found += [f"Or with what lies in its folder: `tailrate run {_path(view)}`", "", *_fenced(file.rstrip())]
    return found


def _fenced(text: str) -> list[str]:
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return [fence, text, fence, ""]


def _path(view: View) -> str:
    return f"runs/{view.run.manifest.id}/{RUN_FILE}"


def _file(view: View) -> str | None:
    try:
        return (view.run.folder / RUN_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # a run that was started by Locust has none
        return None


def _command(view: View) -> str | None:
    said = view.run.manifest.extra.get("command")
    return " ".join(str(part) for part in said) if isinstance(said, list) else str(said) if said else None


AGAIN = Section("again", "How to repeat it", _html, _lines)
