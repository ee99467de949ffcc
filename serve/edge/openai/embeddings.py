"""OpenAI's embeddings over a model that takes texts: its requests read, its results written."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tailrate.serve.body.json_head import written
from tailrate.serve.body.request import InferRequest
from tailrate.serve.edge.openai import head_of, known_as
from tailrate.serve.spec import ModelSpec, Tensors
from tailrate.serve.wire import Array, Body, WireError, bad_input

ENCODINGS = ("float", "base64")
MOST_IDS = 1 << 21


def read(spec: ModelSpec, names: Sequence[str], body: Body) -> tuple[InferRequest, str]:
    """The tensors that are meant, and in which form the vectors are wanted, of a model that goes by these names."""
    if not spec.text:
        raise WireError(404, f"{spec.name} takes no texts, so it makes no embeddings of them")
    head = head_of(body)
    known_as(head, names)
    encoding = head.get("encoding_format", "float")
    if encoding not in ENCODINGS:
        raise bad_input(f"'encoding_format' must be {' or '.join(ENCODINGS)}")
    if head.get("dimensions") is not None:
        raise bad_input("'dimensions' can't be chosen: the vectors are as long as the model makes them")
    return InferRequest(
        "", _inputs(spec, head.get("input")), dict.fromkeys(spec.default_outputs[:1], True), True
    ), encoding


def _inputs(spec: ModelSpec, given: Any) -> dict[str, Array]:
    """Of texts, or of token ids: one of them, or a list."""
    rows = given if isinstance(given, list) and given and isinstance(given[0], str | list) else [given]
    if all(isinstance(row, str) for row in rows):
        texts = [row.encode("utf-8", "surrogatepass") for row in rows]
        return {spec.text: np.array(texts, dtype=object).reshape(-1, 1)}
    if not all(isinstance(row, list) and row and all(type(one) is int for one in row) for row in rows):
        raise bad_input("'input' must be a text, a list of texts, or token ids")
    ids, *others = (tensor.name for tensor in spec.inputs)
    lengths = np.array([len(row) for row in rows])
    if len(rows) * lengths.max() > MOST_IDS:
        raise WireError(413, f"padded to one length the token ids are more than the {MOST_IDS} that are taken")
    known = np.arange(lengths.max()) < lengths[:, None]
    found = np.zeros(known.shape, np.int64)
    try:
        found[known] = [one for row in rows for one in row]
    except OverflowError:
        raise bad_input("'input' has numbers that are no token ids") from None
    return {ids: found} | ({others[0]: known.astype(np.int64)} if others else {})


def write(model: str, outputs: Mapping[str, Array], prepared: Tensors, encoding: str) -> tuple[bytes, dict[str, str]]:
    """The first output's rows as vectors; tokens are counted by the mask, where the model has one."""
    (vectors,) = outputs.values()
    mask = prepared.get("attention_mask")
    tokens = 0 if mask is None else int(mask.sum())
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector.reshape(-1), encoding)}
        for index, vector in enumerate(vectors)
    ]
    found = {
        "object": "list", "data": data, "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }  # fmt: skip
    return written(found, "base64"), {"content-type": "application/json"}


def _encoded(vector: Array, encoding: str) -> Any:
    if encoding == "float":
        return vector.tolist()
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode()
