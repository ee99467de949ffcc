"""A whole page that opens from disk: styles and scripts are in it, nothing is fetched, and no other script may run."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from tailrate.analysis.pages.html.markup import Child, Html, tag

THEME = tag("button", "Dark", type="button", class_="theme", aria_label="Switch between light and dark")


def parts(kind: str) -> str:
    """The report's scripts (`js`) or styles (`css`), `page.…` first; each part is ignorant of the others."""
    found = [part for part in (files(__package__) / "page").iterdir() if part.name.endswith(f".{kind}")]
    ordered = sorted(found, key=lambda part: (not part.name.startswith("page."), part.name))
    return "\n".join(part.read_text(encoding="utf-8") for part in ordered)


def chart_script() -> str:
    """The script of pages that draw figures themselves."""
    return (files(__package__) / "chart.js").read_text(encoding="utf-8")


def document(
    title: str, body: Child, *, style: str, script: str, generator: str = "tailrate", workers: bool = False
) -> str:
    """What a hover shows has its place at the end of the body; `workers` may be made of the page's own script."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only this very script may run, and nothing may be fetched, whatever text came into the page.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
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
