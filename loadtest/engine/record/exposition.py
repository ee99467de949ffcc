"""Prometheus' text form, read: what any exporter's page says, one figure after the other.

A page is somebody else's: a line that is none is passed over and counted, never an error, and what is longer than a
page can be is not read. Knows no names and no units. https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

MOST_CHARACTERS = 8 << 20
"""Of a page; what follows is not read. A host of eight GPUs has a hundredth of that."""
MOST_IN_LINE = 1 << 16

Figure = tuple[str, dict[str, str], float]
"""(name, labels, value), as one line has them."""

BROKEN, CUT = "broken lines", "characters too many"

_TEXT = r'"((?:[^"\\]|\\.)*)"'
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_QUOTED = re.compile(_TEXT)
_LABEL = re.compile(rf"(?:([a-zA-Z_][a-zA-Z0-9_]*)|{_TEXT})[ \t]*=[ \t]*{_TEXT}")
_BETWEEN = re.compile(r"[ \t]*(,[ \t]*)?")
# a value, perhaps the instant that it is of, perhaps an example of it
_VALUE = re.compile(r"[ \t]*([^ \t#]+)(?:[ \t]+-?[0-9][0-9.eE+-]*)?[ \t]*(?:#[ \t]*\{.*)?")
_FLOAT = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII)
_ESCAPE = re.compile(r"\\(.)")


def parse(text: str, skipped: Counter[str] | None = None) -> Iterator[Figure]:
    """Every figure of a page in order; how much was passed over is added to `skipped`, by its kind.

    >>> list(parse('# HELP up 1 is good\\nup{job="a"} 1\\nwhat is this\\n'))
    [('up', {'job': 'a'}, 1.0)]
    """
    skipped = Counter() if skipped is None else skipped
    if len(text) > MOST_CHARACTERS:
        skipped[CUT] += len(text) - MOST_CHARACTERS
        text = text[:MOST_CHARACTERS].rpartition("\n")[0]
    for line in text.split("\n"):
        line = line.strip(" \t\r")
        if not line or line[0] == "#":
            continue
        found = _figure(line) if len(line) <= MOST_IN_LINE else None
        if found is None:
            skipped[BROKEN] += 1
        else:
            yield found


def _figure(line: str) -> Figure | None:
    named = _NAME.match(line)
    name, at = (named[0], named.end()) if named else ("", 0)
    at += len(line[at:]) - len(line[at:].lstrip(" \t"))
    labels: dict[str, str] = {}
    if line[at : at + 1] == "{":
        if (read := _labels(line, at + 1)) is None or (name and read[0]):
            return None
        quoted, labels, at = read
        name = name or quoted
    value = _VALUE.fullmatch(line, at)
    if not name or value is None or not _FLOAT.fullmatch(value[1]):
        return None
    return name, labels, float(value[1])


def _labels(line: str, at: int) -> tuple[str, dict[str, str], int] | None:
    """(a name that stands among them, as of a metric that Prometheus 3 calls `a.b`; the labels; where they end)"""
    name, labels = "", {}
    at += len(line[at:]) - len(line[at:].lstrip(" \t"))
    while line[at : at + 1] != "}":
        if label := _LABEL.match(line, at):
            key, value = label[1] or _plain(label[2] or ""), _plain(label[3])
            if not key or key in labels:
                return None
            labels[key] = value
        elif not name and (label := _QUOTED.match(line, at)):
            name = _plain(label[1])
        else:
            return None
        between = _BETWEEN.match(line, label.end())
        assert between is not None  # it takes nothing, too
        at = between.end()
        if not between[1] and line[at : at + 1] != "}":
            return None
    return name, labels, at + 1


def _plain(text: str) -> str:
    """Without the escapes, of which there are three; any other stands for itself."""
    return _ESCAPE.sub(lambda found: {"n": "\n", "\\": "\\", '"': '"'}.get(found[1], found[0]), text)
