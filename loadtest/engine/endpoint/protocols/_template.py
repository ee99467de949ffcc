"""A body as a template over a scenario's inputs: `$x` stands for the input x, `$x.0` for its first row.

A text that is all placeholder becomes the value itself (numbers stay numbers), one within a longer text, `${x.0.0}`,
becomes part of it; `:base64` behind a name makes a text of bytes. `$$` is a dollar sign.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import numpy as np

from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.body.tensors import to_bytes
from tailrate.serve.wire import Array

_NAME = r"([A-Za-z_][\w-]*)((?:\.\d+)*)(:base64)?"
_WHOLE = re.compile(rf"\$(?:{_NAME}|\{{{_NAME}\}})")
_WITHIN = re.compile(rf"\$\$|\$\{{{_NAME}\}}")
Inputs = Mapping[str, Array]


def as_json(template: str, inputs: Inputs) -> bytes:
    """Of a template that is JSON; without one, an object of all inputs by their names."""
    whole = _read(template) if template else {name: f"${name}" for name in inputs}
    return json.dumps(_filled(whole, inputs), separators=(",", ":")).encode()


def as_tensors(template: str, inputs: Inputs) -> dict[str, Array]:
    """Of a template that is a JSON object of lists: one for each of a model's inputs, whose shape is that of the list.

    >>> import numpy as np
    >>> as_tensors('{"text": [["$x.0"]], "stream": [true]}', {"x": np.array(["a"], object)})
    {'text': array([['a']], dtype=object), 'stream': array([ True])}
    """
    whole = _read(template)
    if not isinstance(whole, dict) or not all(isinstance(value, list) for value in whole.values()):
        raise ScenarioError(
            f'the inputs \'{template[:80]}\' are no JSON object of lists, such as {{"text": ["$prompt.0"]}}'
        )
    return {name: _array(np.array(_filled(value, inputs))) for name, value in whole.items()}


def _array(found: Array) -> Array:
    """As models mostly want it."""
    return found.astype({"i": np.int32, "f": np.float32, "U": object}.get(found.dtype.kind, found.dtype))


def as_bytes(template: str, inputs: Inputs) -> bytes:
    """The bytes of one input, or of a part of it."""
    found = _WHOLE.fullmatch(template or f"${next(iter(inputs))}")
    if not found:
        raise ScenarioError(f"the body '{template}' is not one placeholder, such as $image.0.0")
    name, places, _ = _parts(found)
    return _bytes(_tensor(inputs, name, places))


def as_multipart(template: str, inputs: Inputs) -> tuple[bytes, str]:
    """A form with a part for each key, bytes as files, and its content type."""
    whole = _read(template) if template else {name: f"${name}.0.0" for name in inputs}
    if not isinstance(whole, dict):
        raise ScenarioError(f"the body '{template}' is no JSON object, whose keys would name the parts of a form")
    boundary = uuid4().hex
    pieces: list[bytes] = []
    for key, value in whole.items():
        found = _WHOLE.fullmatch(value) if isinstance(value, str) else None
        tensor = found and _tensor(inputs, *_parts(found)[:2])
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"'
        if isinstance(tensor, bytes):
            pieces += [f'{head}; filename="{key}"\r\nContent-Type: application/octet-stream\r\n\r\n'.encode(), tensor]
        else:
            filled = _filled(value, inputs)
            text = filled if isinstance(filled, str) else json.dumps(filled)
            pieces += [f"{head}\r\n\r\n".encode(), text.encode()]
        pieces.append(b"\r\n")
    return b"".join([*pieces, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


def _read(template: str) -> Any:
    try:
        return json.loads(template)
    except ValueError as problem:
        raise ScenarioError(f"the body '{template[:80]}' is not JSON: {problem}") from None


def _filled(value: Any, inputs: Inputs) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, inputs) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, inputs) for each in value]
    if not isinstance(value, str):
        return value
    if found := _WHOLE.fullmatch(value):
        return _value(found, inputs)
    return _WITHIN.sub(lambda found: "$" if found[0] == "$$" else _text(_value(found, inputs)), value)


def _value(found: re.Match[str], inputs: Inputs) -> Any:
    """As JSON holds it."""
    name, places, encoded = _parts(found)
    tensor = _tensor(inputs, name, places)
    if encoded:
        return base64.b64encode(_bytes(tensor)).decode()
    return _plain(tensor.tolist() if hasattr(tensor, "tolist") else tensor, name)


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_plain(each, name) for each in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ScenarioError(f"input '{name}' holds bytes that are no text; write ${name}.0.0:base64") from None
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parts(found: re.Match[str]) -> tuple[str, list[int], bool]:
    groups = found.groups()
    name, places, encoded = next(groups[at : at + 3] for at in range(0, len(groups), 3) if groups[at])
    return name, [int(place) for place in places.split(".") if place], bool(encoded)


def _tensor(inputs: Inputs, name: str, places: list[int]) -> Any:
    """The input, or the part of it at these places: an array, a number, a text or bytes."""
    if name not in inputs:
        raise ScenarioError(f"the body names ${name}, but the scenario's inputs are {', '.join(inputs)}")
    found: Any = inputs[name]
    for place in places:
        try:
            found = found[place]
        except (IndexError, TypeError):
            where = "".join(f".{each}" for each in places)
            raise ScenarioError(f"the body names ${name}{where}, but '{name}' is {list(inputs[name].shape)}") from None
    return found


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if value.dtype.kind == "O" and value.size == 1:
        return _bytes(value.reshape(-1)[0])
    return bytes(to_bytes(value))
