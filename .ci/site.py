"""What the site has beside docs/: pages made of code and of files above it, and links where a text names a page.

A hook of MkDocs. In the repository a page is named by its path (docs/load.md), which editors and people find; here that
is a link. A picture is named by its path from the page's file; here a page is a folder of its own, so that is another
path.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
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
SOURCE = re.compile(r'(\b(?:src|srcset)=")([^":#/][^":#]*)(?=")')
"""Of a tag, with a path from the page's file."""


HTTP = """# HTTP

What `tailrate serve` answers: the Open Inference Protocol with tensors as bytes, embeddings, chat and completions as
OpenAI has them, and what a load test asks beside. A server says its own, with its models, at `GET /openapi.json`;
[openapi.json](openapi.json) is that of any. With a token (docs/deploy.md) all want `Authorization: Bearer TOKEN` and
answer 401 without. HEAD is possible where GET is.

| | What | Asked | Answered | Refused with |
|---|---|---|---|---|
"""
COLUMNS = """# Columns

Of a step: rows of `steps.csv`, of `steps` in `report.json`, and of `run.steps` in a notebook. The end of a name is its
unit. What is unknown is empty, never 0; `analysis/exports/report.schema.json` has the rest of `report.json`.

"""
METRICS = """# Metrics

What a server exports at `/metrics` for Prometheus, and which figures of a report go to dashboards
(`tailrate report --export openmetrics`, `--export otlp`).

"""
COMMANDS = """# Commands

Made from the code; `tailrate COMMAND --help` says the same. Each option is also a variable: `TAILRATE_RUN_RATES` is
`--rates` of `tailrate run`.

Exit codes: 0 pass or measured, 1 an objective was missed, 2 bad input (one sentence says what), 3 the run cannot say,
130 interrupted.
"""


def on_files(files: Any, config: Any) -> Any:
    for name, page in ABOVE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for name, made in {"commands": commands, "http": http, "columns": columns, "metrics": metrics}.items():
        files.append(File.generated(config, f"reference/{name}.md", content=made()))
    files.append(File.generated(config, "how-to/notebook.md", content=notebook()))
    from tailrate.serve.edge.contract import contract

    document = json.dumps(contract(), indent=1)
    files.append(File.generated(config, "reference/openapi.json", content=document))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    source = page.file.src_uri
    above = next((name for name, place in ABOVE.items() if place == source), None)
    if above is not None:
        markdown = LINK.sub(lambda found: found[1] + moved(found[2], source), markdown)
    known = {file.src_uri for file in files}

    def changed(part: str) -> str:
        if not LEFT.fullmatch(part):
            return NAMED.sub(lambda found: linked(found, source, known), part)
        if part.startswith("<"):
            return SOURCE.sub(lambda found: found[1] + from_page(found[2], source, page.file.url), part)
        return part

    return "".join(map(changed, pieces(markdown)))


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


def from_page(path: str, source: str, url: str) -> str:
    """A path from the page's file, as one from the page's address.

    >>> from_page("pictures/a.png", "load.md", "load/"), from_page("pictures/a.png", "index.md", "./")
    ('../pictures/a.png', 'pictures/a.png')
    >>> from_page("../pictures/a.png", "how-to/start.md", "how-to/start/")
    '../../pictures/a.png'
    """
    return relative(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)), url)


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


# ---- the notebook


def notebook() -> str:
    """Its cells, and what they showed when it was last run."""
    parts = []
    for one in json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]:
        text = "".join(one["source"])
        parts.append(text if one["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [shown({kind: "".join(told) for kind, told in of["data"].items()}) for of in one.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def shown(data: Mapping[str, str]) -> str:
    """Tables of pandas' without its dress, so that they look like the site's others, and scroll where they are wide."""
    if "image/png" in data:
        return f"![{data['text/plain']}](data:image/png;base64,{data['image/png']})"
    if "text/html" in data:
        return re.sub(r"<style.*?</style>|(?<=<table)[^>]*", "", data["text/html"], flags=re.DOTALL)
    return f"```text\n{data['text/plain']}\n```"


# ---- the wire, and tables


def http() -> str:
    from tailrate.serve.edge.contract import OPERATIONS, SCHEMAS, TOLD, WHY

    parts = [HTTP]
    for one in OPERATIONS:
        asked = [linked_shape(one.asks)] if one.asks else []
        asked += [f"`{name}`" for name in one.query]
        answered = f"`{one.answer}`" if isinstance(one.answer, str) else linked_shape(shape(one.answer))
        answered = ", ".join([answered, *(f"`{kind}`" for kind in one.also)])
        refused = ", ".join(map(str, one.refused))
        parts.append(f"| `{one.method} {one.path}` | {one.what} | {', '.join(asked)} | {answered} | {refused} |\n")
    parts.append("\n## Refusals\n\n| Status | Why |\n|---|---|\n")
    parts += [f"| {status} | {why} |\n" for status, why in WHY.items()]
    parts.append("\n## Headers of an answer to `infer`\n\n| Header | What |\n|---|---|\n")
    parts += [f"| `{name}` | {what} |\n" for name, what in TOLD.items()]
    parts.append("\n## Shapes\n\nWhat may be missing has a `?`; other keys may be there too.\n")
    parts += [f"\n### {name}\n\n```typescript\n{drawn(schema)}\n```\n" for name, schema in SCHEMAS.items()]
    return "".join(parts)


def drawn(schema: Mapping[str, Any], inset: str = "") -> str:
    """As people write a shape.

    >>> drawn({"type": "object", "required": ["a"], "properties": {"a": {"type": "array", "items": {"enum": [1, 2]}}}})
    '{\\n  a: [1 | 2]\\n}'
    """
    if "$ref" in schema:
        return shape(schema)
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(drawn(one, inset) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"[{drawn(schema.get('items', {}), inset)}]"
    if "additionalProperties" in schema:
        return f"{{[key]: {drawn(schema['additionalProperties'], inset)}}}"
    if "properties" not in schema:
        return str(schema.get("type", "any"))
    lines = []
    for name, one in schema["properties"].items():
        said = f"  // {one['description']}" if "description" in one else ""
        mark = "" if name in schema["required"] else "?"
        lines.append(f"{inset}  {name}{mark}: {drawn(one, inset + '  ')}{said}\n")
    return f"{{\n{''.join(lines)}{inset}}}"


def shape(schema: Mapping[str, Any]) -> str:
    """The name of the one that is meant, empty where it has none."""
    return str(schema.get("$ref", "")).rpartition("/")[2]


def linked_shape(name: str) -> str:
    return f"[{name}](#{name.lower()})" if name else "an object"


def columns() -> str:
    from tailrate.analysis.steps.step_summary import COLUMNS as OF_STEPS
    from tailrate.serve.telemetry.prometheus_text import DEVICES
    from tailrate.serve.wire import SAMPLE_FIELDS

    parts = [COLUMNS, "| Column | Group | What |\n|---|---|---|\n"]
    parts += [f"| `{one.name}` | {one.group} | {cell(one.meaning)} |\n" for one in OF_STEPS.values()]
    parts.append("\n## Device samples\n\nRows of `devices.parquet`; docs/run-folder.md has those of `requests`.\n\n")
    parts.append("| Column | What |\n|---|---|\n")
    where = {"time_ns": "When.", "host": "Of the machine.", "device": "Of the device.", "index": "Its number there."}
    parts += [f"| `{name}` | {cell((where | DEVICES)[name])} |\n" for name in SAMPLE_FIELDS]
    return "".join(parts)


def metrics() -> str:
    from tailrate.analysis.exports.forms._figures import DECLARED
    from tailrate.serve.edge.replica_board import ReplicaBoard
    from tailrate.serve.telemetry.prometheus_text import of_devices
    from tailrate.serve.telemetry.statistics import zero
    from tailrate.serve.telemetry.token_counts import TokenCounts
    from tailrate.serve.wire import SAMPLE_FIELDS

    board = ReplicaBoard([("model", "variant")], replicas=1)
    counts = zero() | TokenCounts().snapshot()
    report = {"model": "model", "variant": "variant", "replica": "replica", "number": 1, "ended": False}
    board.put(report | {"state": "READY", "waiting": 0, "slots": 1, "slots_used": 0, "counts": counts}, now_s=0.0)
    text = board.metrics(now_s=0.0) + of_devices([[0] * len(SAMPLE_FIELDS)])
    found = re.findall(r"^# HELP (\w+) (.*)\n# TYPE \w+ (\w+)$", text, re.MULTILINE)
    parts = [METRICS, "## Of a server\n\n| Metric | Kind | What |\n|---|---|---|\n"]
    parts += [f"| `{name}` | {kind} | {cell(what)} |\n" for name, what, kind in found]
    parts.append("\n## Of a report\n\nAs OpenMetrics names them.\n\n| Metric | Label | What |\n|---|---|---|\n")
    parts += [f"| `tailrate_{one.name}` | {one.label} | {cell(one.meaning)} |\n" for one in DECLARED]
    return "".join(parts)
