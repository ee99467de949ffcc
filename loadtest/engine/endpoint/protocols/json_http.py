"""Any endpoint that takes JSON, a form or bytes over HTTP: options say what goes there and what a success is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer, parse_json
from tailrate.loadtest.engine.endpoint.protocol import Protocol
from tailrate.loadtest.engine.endpoint.protocols import _template
from tailrate.loadtest.engine.endpoint.row_fields import row_fields
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.wire import STAGES, Array, parse_count, parse_label

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

FORMS = ("json", "form", "bytes")
FIGURES = (*(f"{stage}_ms" for stage in STAGES), "server_ms", "batch_rows", "replica", "device")
"""Columns of a row that an answer may fill."""
REMEMBERED = 256
SHORT = 4096
"""Bytes of an answer up to which its meaning is remembered: the same request mostly gets the same answer."""
MISSING = object()


@dataclass(frozen=True)
class Json(Protocol):
    name = "json"
    what = "JSON, a form or bytes over HTTP, as --json-path, --json-body and others say"
    path: str = "/"
    verb: str = "POST"
    headers: str = ""
    body: str = ""
    form: str = "json"
    success: str = ""
    figures: str = ""

    options: ClassVar[tuple[Option, ...]] = (
        Option("json-path", "/", "where requests go; {model} and {version} are replaced [default: /]", at_start=True),
        Option("json-verb", "POST", "the HTTP method [default: POST]", ("POST", "PUT", "PATCH", "GET"), at_start=True),
        Option("json-headers", "", "further header fields, 'name: value' separated by ;", at_start=True),
        Option(
            "json-body",
            "",
            'the body over the scenario\'s inputs, such as {"text": "$text.0.0"}; empty: an object of all of them',
            at_start=True,
        ),
        Option(
            "json-form",
            "json",
            "how the body goes: json, form (multipart) or bytes [default: json]",
            FORMS,
            at_start=True,
        ),
        Option(
            "json-success",
            "",
            "JSON pointers that an answer must have, with their values where given, such as /status=ok,/scores",
            at_start=True,
        ),
        Option(
            "json-figures",
            "",
            f"what an answer says of its request, by JSON pointer, such as server_ms=/took; of {', '.join(FIGURES)}",
            at_start=True,
        ),
    )

    def __post_init__(self) -> None:
        _header_fields(self.headers)
        if wrong := [name for name in _pairs(self.figures) if name not in FIGURES]:
            raise ScenarioError(f"--json-figures knows no '{wrong[0]}'; there are {', '.join(FIGURES)}")
        for option, pointers in (("success", _pairs(self.success)), ("figures", _pairs(self.figures).values())):
            if wrong := [pointer for pointer in pointers if pointer and not pointer.startswith("/")]:
                raise ScenarioError(
                    f"--json-{option}: '{wrong[0]}' is no JSON pointer; write for instance /data/0/score"
                )

    @property
    def method(self) -> str:  # type: ignore[override]
        return self.verb

    def find(self, client: Client, target: Target) -> list[Endpoint]:
        """Nobody can be asked: it is there, as it was said."""
        try:
            path = self.path.format(model=target.model, version=target.version)
        except (KeyError, IndexError, ValueError):
            raise ScenarioError(f"--json-path '{self.path}' may hold {{model}} and {{version}}, nothing else") from None
        return [self.endpoint(client, target, f"{client.prefix}/{path.lstrip('/')}")]

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        if self.form == "form":
            body, kind = _template.as_multipart(self.body, inputs)
        elif self.form == "bytes":
            body, kind = _template.as_bytes(self.body, inputs), "application/octet-stream"
        else:
            body, kind = _template.as_json(self.body, inputs), "application/json"
        return body, {"content-type": kind, **_header_fields(self.headers)}

    def flaw(self, answer: EndpointAnswer, header: Mapping[str, str]) -> str | None:
        if self.success or "json" in header.get("content-type", ""):
            return _missed(self.success, answer.body)
        return None if answer.body else "the answer is empty"

    def read(self, answer: EndpointAnswer, header: Mapping[str, str], bad: Counter[str]) -> dict[str, Any]:
        columns = row_fields(header, bad)
        if self.figures and answer.body:
            try:
                whole = _parsed(answer.body)
            except ValueError:
                whole = MISSING
                bad[self.name] += 1
            for column, pointer in _pairs(self.figures).items():
                value = at(whole, pointer)
                if value is not MISSING and value is not None:
                    columns[column] = _column(column, value)
                    if columns[column] is None:
                        bad[column] += 1
        return columns

    def outputs(self, answer: EndpointAnswer) -> dict[str, Any]:
        """The object that it is, for a scenario's own check."""
        found = parse_json(answer.body)
        return found if isinstance(found, dict) else {"": found}


def at(whole: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) points to, or `MISSING`.

    >>> at({"a": [{"b/c": 3}]}, "/a/0/b~1c")
    3
    """
    for key in pointer.split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        if isinstance(whole, dict) and name in whole:
            whole = whole[name]
        elif isinstance(whole, list) and name.isascii() and name.isdigit() and int(name) < len(whole):
            whole = whole[int(name)]
        else:
            return MISSING
    return whole


@lru_cache(REMEMBERED)
def _pairs(text: str) -> dict[str, str]:
    """`a=b,c` as a dictionary; what has no value has an empty one."""
    pairs = (word.strip().partition("=") for word in text.split(",") if word.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


@lru_cache(REMEMBERED)
def _header_fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.split(";"))):
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip().isprintable():
            raise ScenarioError(
                f"--json-headers '{line}' is not understood; write 'name: value', several separated by ;"
            )
        fields[name.strip()] = value.strip()
    return fields


def _parsed(body: bytes) -> Any:
    return _short(body) if len(body) <= SHORT else parse_json(body)


@lru_cache(REMEMBERED)
def _short(body: bytes) -> Any:
    return parse_json(body)


def _missed(success: str, body: bytes) -> str | None:
    try:
        whole = _parsed(body)
    except ValueError:
        return "the answer is not JSON"
    for pointer, wanted in _pairs(success).items():
        value = at(whole, pointer)
        if value is MISSING:
            return f"the answer has no {pointer}"
        text = value if isinstance(value, str) else json.dumps(value)
        if wanted and text != wanted:
            return f"{pointer} is {text[:64]}, not {wanted}"
    return None


def _column(name: str, value: Any) -> Any:
    """As the column has it; None: it can't be meant."""
    if name in ("replica", "device"):
        return parse_label(str(value))
    if name == "batch_rows":
        return parse_count(str(value))
    try:
        number = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < 1e9 else None
