"""A result's body, written and read, and a quick look at whether it is one.

A server sends the same JSON header again and again, so it is remembered with what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from tailrate.serve.body.json_head import REMEMBERED, decode, encode, numbers, parse, split, tensor_list
from tailrate.serve.body.tensors import read_as
from tailrate.serve.wire import DATATYPES, HEADER_LENGTH, Array, Body, EndpointInfo, WireError, bad_input, parse_count

MOST_JSON_VALUES = 1 << 20
"""Numbers of an answer that go as JSON: writing them holds the interpreter."""
SHORT_JSON = 4096
_RESULT_TYPES = ("json", "octet-stream")
Said: TypeAlias = tuple[tuple[str, "np.dtype[Any]", tuple[int, ...]], ...]
"""Name, type and shape of each tensor."""


def encode_result(
    info: EndpointInfo, outputs: Mapping[str, Array], *, binary: Mapping[str, bool], request_id: str = ""
) -> tuple[bytes, dict[str, str]]:
    """A response's body and headers; `binary` says for each output whether it goes as bytes."""
    if not request_id and (said := _said(outputs, binary)) is not None:
        text, headers = _result_head(info.model, info.variant, said)
        return b"".join([text, *[tensor.data for tensor in outputs.values()]]), dict(headers)
    for name, tensor in outputs.items():
        if not binary[name] and tensor.size > MOST_JSON_VALUES:
            raise bad_input(f"output '{name}' has {tensor.size} elements, too many for JSON; ask for binary data")
    head: dict[str, Any] = {"model_name": info.model, "model_version": info.variant, "outputs": []}
    if request_id:
        head["id"] = request_id
    return encode(head, "outputs", outputs, binary)


def _said(outputs: Mapping[str, Array], binary: Mapping[str, bool]) -> Said | None:
    """What is to be said of tensors whose memory is what goes over the wire; None where that of one isn't."""
    found = []
    for name, tensor in outputs.items():
        dtype = tensor.dtype
        if not (binary[name] and tensor.flags.c_contiguous and dtype in DATATYPES and dtype.kind != "O"):
            return None
        found.append((name, dtype, tensor.shape))
    return tuple(found)


@lru_cache(REMEMBERED)
def _result_head(model: str, variant: str, tensors: Said) -> tuple[bytes, dict[str, str]]:
    head = {"model_name": model, "model_version": variant, "outputs": []}
    empty = {name: np.empty(shape, dtype) for name, dtype, shape in tensors}
    body, headers = encode(head, "outputs", empty, dict.fromkeys(empty, True))
    return body[: int(headers[HEADER_LENGTH])], headers


def decode_result(body: Body, header_length: int | None) -> dict[str, Array]:
    """Named output tensors of a response."""
    return read_result(body, header_length)[1]


def read_result(body: Body, header_length: int | None) -> tuple[dict[str, Any], dict[str, Array]]:
    """What a response's JSON says, and its named output tensors."""
    head, tail = split(body, header_length)
    return head, decode(_outputs(head), tail)


def _outputs(head: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [{**item, "datatype": read_as(item.get("datatype"))} for item in tensor_list(head, "outputs")]


def result_flaw(body: bytes, content_type: str, header_length: str | None) -> str | None:
    """Why what came with a 200 is no result; None of one. Looks at no more of it than takes some microseconds.

    Of numbers in bytes all that is said of them, of short JSON all, of long JSON its two ends.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if not body:
        return "the answer is empty"
    if kind and not kind.endswith(_RESULT_TYPES):
        return f"the answer is {kind[:64]}"
    if header_length is None:
        if len(body) > SHORT_JSON:
            whole = body[:64].lstrip()[:1] == b"{" and body[-64:].rstrip()[-1:] == b"}" and b'"outputs"' in body
            return None if whole else "the answer is no JSON object with outputs"
        return _short_flaw(body)
    if (said := parse_count(header_length)) is None or said > len(body):
        return f"the answer's JSON is said to be '{header_length[:16]}' bytes long, but it has {len(body)}"
    if (size := _result_size(body[:said])) is not None:
        found = len(body) - said
        return None if size == found else f"the answer's tensors are {size} bytes, but {found} came"
    return _unreadable(body, said)


@lru_cache(REMEMBERED)
def _short_flaw(body: bytes) -> str | None:
    """Of JSON alone; the same request mostly gets the same answer, and reading one takes 20 µs."""
    return _unreadable(body, None)


def _unreadable(body: bytes, header_length: int | None) -> str | None:
    try:
        outputs = decode_result(body, header_length)
    except WireError as problem:
        return f"the answer cannot be read: {problem.sentence}"
    return None if outputs else "the answer has no outputs"


@lru_cache(REMEMBERED)
def _result_size(header: bytes) -> int | None:
    """How many bytes follow a result's JSON header; None where more than their number has to be looked at."""
    try:
        found = numbers(_outputs(parse(header)))
    except WireError:
        return None
    return found[1] if found and found[0] else None
