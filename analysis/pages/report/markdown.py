"""`report.md`: the report as one page for a pull request or a wiki.

The same words and columns as the page, without pictures. Text out of the run is escaped so that neither
Markdown nor HTML in it takes effect.
"""

from __future__ import annotations

from tailrate.analysis.pages.report.sections import SECTIONS
from tailrate.analysis.pages.report.sections.section import bullets
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text import words
from tailrate.analysis.text.markdown import text


def markdown(view: View) -> str:
    """The whole page of Markdown."""
    manifest, report = view.run.manifest, view.report
    out = [f"# Load test of {text(manifest.scenario.get('name') or manifest.id)}", ""]
    if view.unfinished:
        out += [f"**{view.unfinished}**", ""]
    verdict = words.VERDICTS.get(report["verdict"], str(report["verdict"]))
    out += [f"**{text(report['conclusion'])}**", "", f"Verdict: **{text(verdict)}**", ""]
    if report["reasons"]:
        out += bullets(report["reasons"])
    for section in SECTIONS:
        if lines := section.lines(view):
            out += [f"## {section.title}", "", *lines]
    return "\n".join(out).rstrip() + "\n"
