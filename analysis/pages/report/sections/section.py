"""What a section of the report is: its place in the page, and how it is shown there and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tailrate.analysis.pages.html.markup import Child, Html, tag
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text import markdown


def nothing(view: View) -> list[str]:
    """Of what a page draws and Markdown cannot."""
    return []


@dataclass(frozen=True, slots=True)
class Section:
    """Absent from the page, or from Markdown, where the run has nothing to show for it."""

    id: str
    title: str
    html: Callable[[View], Html | None]
    lines: Callable[[View], list[str]] = nothing
    """Of Markdown, below the title."""


def bullets(lines: Iterable[str]) -> list[str]:
    return [*(f"- {markdown.text(line)}" for line in lines), ""]


def named(pairs: Sequence[tuple[str, Child]]) -> Html:
    """Names and values."""
    return tag("dl", (tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), class_="facts")
