"""What may be wrong with the figures, and what they do not say."""

from __future__ import annotations

from dataclasses import dataclass

from tailrate.analysis.pages.html.markup import Html, tag
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text import markdown


@dataclass(frozen=True, slots=True)
class Severity:
    mark: str
    word: str
    meaning: str


SEVERITIES = {
    "wrong": Severity("✕", "Wrong", "Figures that do not say what they seem to"),
    "doubt": Severity("?", "In doubt", "What may be otherwise than it looks"),
    "limit": Severity("!", "Limit", "What holds for this run and not beyond it"),
}
"""How much a risk weighs, the heaviest first."""


def _sorted(view: View) -> list[tuple[str, str]]:
    """Severity and sentence of each, the heaviest first."""
    known = [(str(risk["severity"]), str(risk["sentence"])) for risk in view.report.get("risks") or ()]
    return sorted(known, key=lambda risk: list(SEVERITIES).index(risk[0]))


def _html(view: View) -> Html | None:
    found = _sorted(view)
    if not found:
        return None
    lines = []
    for severity, sentence in found:
        known = SEVERITIES[severity]
        name = tag("b", tag("span", known.mark, aria_hidden="true"), f" {known.word}", title=known.meaning)
        lines.append(tag("li", name, tag("span", sentence), class_=severity))
    return tag("ul", lines, class_="risks")


def _lines(view: View) -> list[str]:
    found = [f"- **{SEVERITIES[severity].word}**: {markdown.text(sentence)}" for severity, sentence in _sorted(view)]
    return [*found, ""] if found else []


RISKS = Section("risks", "Risks and limits", _html, _lines)
