"""A whole page that opens from disk: styles and scripts are in it, nothing is fetched, and no other script may run."""

from __future__ import annotations

from collections.abc import Iterable

from tailrate.analysis.pages import assets
from tailrate.analysis.pages.html.markup import Child, Html, tag

THEME = tag("button", "Dark", type="button", class_="theme", aria_label="Switch between light and dark")


_SCRIPTS = ("switches", "copying", "page", "choice", "tables", "zoom", "print")
"""Of every page that is made here; the first two are what others call."""
_STYLES = ("page", "print")


def section(id_: str, title: str, body: Child) -> Html:
    return tag("section", tag("h2", title, id=f"{id_}-title"), body, id=id_, aria_labelledby=f"{id_}-title")


def columns(links: Iterable[tuple[str, str]], sections: Iterable[Html]) -> Html:
    """The sections, and beside them links to them: id and title of each."""
    listed = (tag("li", tag("a", title, href=f"#{id_}")) for id_, title in links)
    beside = tag("nav", tag("ul", listed), aria_label="Sections")
    return tag("div", beside, tag("main", sections, id="main"), class_="columns")


def panel_script() -> str:
    """For pages that draw figures themselves."""
    return assets.texts(__package__, "panel.js")


def document(
    title: str, body: Child, *, style: str = "", script: str = "", generator: str = "tailrate", workers: bool = False
) -> str:
    """`style` and `script` are the page's own, after what all pages have; `workers` may be made of its script.

    What a hover shows has its place at the end of the body.
    """
    style = "\n".join([assets.style(), assets.texts(__package__, *(f"page/{name}.css" for name in _STYLES)), style])
    script = "\n".join([assets.script(), assets.texts(__package__, *(f"page/{name}.js" for name in _SCRIPTS)), script])
    # Only this very script may run, and nothing may be fetched, whatever text came into the page.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {assets.source(script)}"
    policy += "; worker-src blob:" * workers
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=generator),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(style)),
    )
    tip = tag("div", class_="tip", role="status", hidden=True)
    whole = tag("html", head, tag("body", body, tip, tag("script", Html(script))), lang="en")
    return f"<!doctype html>\n{whole}\n"
