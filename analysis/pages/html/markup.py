"""Markup that is safe by construction: text is escaped on its way in, unless it is markup already.

Every string that comes out of a run folder (endpoint names, error messages, host names) reaches the page
through `tag` or `embedded`, so an error message that holds HTML shows as text. Owns nothing of what the
page says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any, TypeAlias

_VOID = frozenset({"br", "input", "link", "meta"})


class Html(str):
    """Markup; `tag` puts it in as it is, and escapes any other string."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"
Attribute: TypeAlias = "str | float | bool | None"


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """`tag("th", "rate", scope="col", class_="num")`; None and False leave a child or an attribute out."""
    pairs = (
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    start = f"<{name}{''.join(pairs)}>"
    return Html(start if name in _VOID else f"{start}{join(children)}</{name}>")


def join(children: Child) -> Html:
    """All the children one after another, each escaped unless it is `Html`."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, (str, int, float)):
        return Html(escape(str(children)))
    return Html("".join(join(child) for child in children))


def embedded(value: Any) -> Html:
    """JSON for the page's script to read; no string in it can end the element or start a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Html(f'<script type="application/json">{text}</script>')
