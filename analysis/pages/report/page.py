"""`report.html`: one self-contained page from a run's report, from the conclusion downwards.

What the sections hold is `sections`' business, looks and behaviour are the CSS and JavaScript files beside this one.
"""

from __future__ import annotations

import re

from tailrate.analysis.pages.html.document import THEME, columns, document, section
from tailrate.analysis.pages.html.markup import Html, tag
from tailrate.analysis.pages.report.sections import SECTIONS
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text import words


def html(view: View) -> str:
    """The whole page."""
    shown = [(one.id, one.title, body) for one in SECTIONS if (body := one.html(view)) is not None]
    whole = (
        tag("a", "Skip to the figures", href="#main", class_="skip"),
        _masthead(view),
        columns([(id_, title) for id_, title, _ in shown], (section(*one) for one in shown)),
        tag("footer", tag("p", "Written by tailrate report from ", tag("code", view.run.manifest.id), ".")),
    )
    title = f"{view.run.manifest.scenario.get('name') or view.run.manifest.id} · tailrate"
    return document(title, whole)


def headline(conclusion: str) -> str:
    """One short sentence of it: what the first endpoint does, without where, why and compared with what.

    >>> headline("On an H200 (torch 2.11), m/b sustains 18 to 20 requests/s at P99 ≤ 50 ms, limited by the CPU; m/a 6.")
    'm/b sustains 18 to 20 requests/s at P99 ≤ 50 ms.'
    """
    first = re.split(r"(?<=\.)\s+(?=[A-Z])", conclusion, maxsplit=1)[0].rstrip(".")
    short = re.split(r"; |, (?=above which |limited by |where )", re.sub(r"^On [^,]*, ", "", first), maxsplit=1)[0]
    return f"{short}."


def _masthead(view: View) -> Html:
    manifest, report = view.run.manifest, view.report
    word = words.VERDICTS.get(report["verdict"], str(report["verdict"]))
    conclusion = str(report["conclusion"])
    large = headline(conclusion)
    mark = {"pass": "✓", "fail": "✕", "measured": "•"}.get(report["verdict"], "?")
    return tag(
        "header",
        tag(
            "div",
            tag("h1", f"Load test of {manifest.scenario.get('name') or manifest.id}"),
            THEME,
            class_="top",
        ),
        tag("p", view.unfinished, class_="stopped") if view.unfinished else None,
        tag("p", tag("strong", large), (" ", conclusion) if large != conclusion else None, class_="conclusion"),
        tag(
            "div",
            tag("p", tag("span", mark, aria_hidden="true"), f" {word}", class_=f"verdict {report['verdict']}"),
            tag("ul", (tag("li", reason) for reason in report["reasons"])) if report["reasons"] else None,
            class_="judged",
        ),
    )
