"""`report.html`: one self-contained page from a run's report, from the conclusion downwards.

Styles and scripts are put into the page, so it opens from disk with no network. What the sections hold is
`sections`' business; looks and behaviour are the CSS and JavaScript files beside this one.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from analysis import words
from analysis.report.markup import Child, Html, tag
from analysis.report.sections import SECTIONS
from analysis.report.view import View


def html(view: View) -> str:
    """The whole page."""
    script, style = (_parts(kind) for kind in ("js", "css"))
    # Only this very script may run, and nothing may be fetched, whatever text came into the page.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    shown = [(id_, title, body) for id_, title, make in SECTIONS if (body := make(view)) is not None]
    title = f"{view.run.manifest.scenario.get('name') or view.run.manifest.id} · headroom"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(style)),
    )
    body = tag(
        "body",
        tag("a", "Skip to the figures", href="#main", class_="skip"),
        _masthead(view),
        tag(
            "div",
            tag("nav", tag("ul", (tag("li", tag("a", t, href=f"#{i}")) for i, t, _ in shown)), aria_label="Sections"),
            tag("main", (_section(*one) for one in shown), id="main"),
            class_="columns",
        ),
        tag("footer", tag("p", "Written by headroom report from ", tag("code", view.run.manifest.id), ".")),
        tag("div", class_="tip", role="status", hidden=True),
        tag("script", Html(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _parts(kind: str) -> str:
    """The page's scripts or styles, `page.js` first, each part ignorant of the others."""
    found = [part for part in files(__package__).iterdir() if part.name.endswith(f".{kind}")]
    ordered = sorted(found, key=lambda part: (not part.name.startswith("page."), part.name))
    return "\n".join(part.read_text(encoding="utf-8") for part in ordered)


def _section(id_: str, title: str, body: Child) -> Html:
    return tag("section", tag("h2", title, id=f"{id_}-title"), body, id=id_, aria_labelledby=f"{id_}-title")


def _masthead(view: View) -> Html:
    manifest, report = view.run.manifest, view.report
    word = words.VERDICTS.get(report["verdict"], str(report["verdict"]))
    # the first sentence is what is read out, so it is the large one
    first, *rest = re.split(r"(?<=\.)\s+(?=[A-Z])", str(report["conclusion"]), maxsplit=1)
    mark = {"pass": "✓", "fail": "✕"}.get(report["verdict"], "?")
    return tag(
        "header",
        tag(
            "div",
            tag("h1", f"Load test of {manifest.scenario.get('name') or manifest.id}"),
            tag("button", "Dark", type="button", class_="theme", aria_label="Switch between light and dark"),
            class_="top",
        ),
        tag("p", view.unfinished, class_="stopped") if view.unfinished else None,
        tag("p", tag("strong", first), (" ", rest) if rest else None, class_="conclusion"),
        tag(
            "div",
            tag("p", tag("span", mark, aria_hidden="true"), f" {word}", class_=f"verdict {report['verdict']}"),
            tag("ul", (tag("li", reason) for reason in report["reasons"])) if report["reasons"] else None,
            class_="judged",
        ),
    )
