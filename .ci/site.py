"""What the site has beside docs/: pages made of code and of files above it, and links where a text names a page.

A hook of MkDocs. In the repository a page is named by its path (docs/load.md), which editors and people find; here that
is a link.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
ABOVE = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
}
"""Files of the repository, and their pages."""
LEFT = re.compile(r"```.*?```|`[^`\n]*`|!?\[[^]]*\]\([^)]*\)|<[^>]*>", re.DOTALL)
"""In which nothing is made a link: code, links, tags."""
NAMED = re.compile(rf"(?:\bdocs/([\w/-]+\.md)|\b({'|'.join(map(re.escape, ABOVE))}))\b")
LINK = re.compile(r'(\]\(|(?:src|srcset)=")([^)":#]+)')


COMMANDS = """# Commands

Made from the code; `tailrate COMMAND --help` says the same. Each option is also a variable: `TAILRATE_RUN_RATES` is
`--rates` of `tailrate run`.

Exit codes: 0 pass or measured, 1 an objective was missed, 2 bad input (one sentence says what), 3 the run cannot say,
130 interrupted.
"""


def on_files(files: Any, config: Any) -> Any:
    for name, page in ABOVE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    source = page.file.src_uri
    above = next((name for name, place in ABOVE.items() if place == source), None)
    if above is not None:
        markdown = LINK.sub(lambda found: found[1] + moved(found[2], source), markdown)
    known = {file.src_uri for file in files}
    return "".join(
        part if LEFT.fullmatch(part) else NAMED.sub(lambda found: linked(found, source, known), part)
        for part in pieces(markdown)
    )


def pieces(markdown: str) -> Iterator[str]:
    """What may be changed and what may not, in turn; together they are all of it."""
    at = 0
    for left in LEFT.finditer(markdown):
        yield markdown[at : left.start()]
        yield left[0]
        at = left.end()
    yield markdown[at:]


def moved(link: str, source: str) -> str:
    """From a file of the repository's root to where its page is.

    >>> moved("docs/load.md", "project/security.md"), moved("SECURITY.md", "index.md"), moved("https", "index.md")
    ('../load.md', 'project/security.md', 'https')
    """
    target = ABOVE.get(link) or (link.removeprefix("docs/") if link.startswith("docs/") else None)
    return link if target is None else relative(target, source)


def linked(found: re.Match[str], source: str, known: set[str]) -> str:
    target = found[1] or ABOVE[found[2]]
    if target not in known or target == source:
        return found[0]
    return f"[{found[2] or target.rpartition('/')[2]}]({relative(target, source)})"


def relative(target: str, source: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(source) or ".")


# ---- the command line


def commands() -> str:
    from tailrate.cli.main import main

    parts = [COMMANDS]
    for name in main.commands:
        command = main.commands[name]
        context = click.Context(command, info_name=f"tailrate {name}")
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"\n## tailrate {name}\n\n```\ntailrate {name} {usage}\n```\n\n{escape(text_of(command))}\n")
        rows = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
        if rows:
            parts.append("\n| Option | What |\n|---|---|\n")
            parts += [f"| `{cell(option)}` | {escape(cell(what))} |\n" for option, what in rows]
    return "".join(parts)


def text_of(command: click.Command) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n") if "\b" not in part)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
