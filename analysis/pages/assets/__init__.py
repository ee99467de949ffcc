"""The style and the script that every page has, the live page too: colours, text and marks; numbers, scales, hovers.

A page puts the texts of its files into itself, so it opens from disk and fetches nothing.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files


def texts(package: str, *names: str) -> str:
    """These files of a package one after another; `names` may lead into its folders."""
    return "\n".join((files(package) / name).read_text(encoding="utf-8") for name in names)


def script() -> str:
    """Comes before a page's own."""
    return texts(__name__, "chart.js", "reading.js", "theme.js")


def style() -> str:
    """Comes before a page's own."""
    return texts(__name__, "base.css")


def source(text: str) -> str:
    """How a content security policy names this very script or style."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
