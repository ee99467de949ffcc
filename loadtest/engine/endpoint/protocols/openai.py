"""OpenAI's API as far as one answer is one result: embeddings, and rerank as others have added it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer, parse_json
from tailrate.loadtest.engine.endpoint.protocols._openai_models import FactsOfOurs, known, listed, model_of
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.wire import Array, bad_input

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

PATHS = {"embeddings": "/v1/embeddings", "rerank": "/v1/rerank"}
LISTS = {"embeddings": "data", "rerank": "results"}
"""What an answer has to hold."""
ENCODINGS = ("float", "base64")
REMEMBERED = 256
SHORT = 4096
"""Bytes of an answer that is read whole; the numbers of a longer one take milliseconds."""


@dataclass(frozen=True)
class OpenAi(FactsOfOurs):
    name = "openai"
    what = "OpenAI's API: embeddings, rerank"
    task: str = "embeddings"
    encoding: str = "float"

    options: ClassVar[tuple[Option, ...]] = (
        Option("openai-task", "embeddings", "what is asked for [default: embeddings]", tuple(PATHS), at_start=True),
        Option("openai-encoding", "float", "how embeddings come back [default: float]", ENCODINGS, at_start=True),
    )

    @classmethod
    def spoken(cls, client: Client) -> str:
        return "an OpenAI API" if listed(client) is not None else ""

    def find(self, client: Client, target: Target) -> list[Endpoint]:
        """Where models are listed, the model has to be there; a version is a part of its name, as a fine-tune's is."""
        path = client.prefix + PATHS[self.task]
        return [self.endpoint(client, each, path, parameters=said) for each, said in known(client, target)]

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        body: dict[str, Any] = {"model": model_of(endpoint)}
        if self.task == "rerank":
            query, *documents = _texts(inputs)
            body |= {"query": query, "documents": documents or [query]}
        else:
            body |= {"input": _texts(inputs), "encoding_format": self.encoding}
        return json.dumps(body, separators=(",", ":")).encode(), {"content-type": "application/json"}

    def flaw(self, answer: EndpointAnswer, header: Mapping[str, str]) -> str | None:
        body, key = answer.body, LISTS[self.task]
        if len(body) <= SHORT:
            return _short_flaw(body, key)
        whole = body[:64].lstrip()[:1] == b"{" and body[-64:].rstrip()[-1:] == b"}"
        named = f'"{key}"'.encode() in body[:1024] + body[-1024:]
        return None if whole and named else f"the answer is no object with {key}"

    def outputs(self, answer: EndpointAnswer) -> dict[str, Array]:
        """The embeddings, a row for each text; of a rerank the scores in the order of the documents."""
        try:
            rows = sorted(parse_json(answer.body)[LISTS[self.task]], key=lambda row: int(row["index"]))
            if self.task == "rerank":
                return {"scores": np.array([row["relevance_score"] for row in rows], np.float32)}
            return {"embeddings": np.stack([_vector(row["embedding"]) for row in rows])}
        except (ValueError, KeyError, TypeError) as problem:
            raise bad_input(f"it is no answer to {self.task}: {problem!r}") from None


def _texts(inputs: Mapping[str, Array]) -> list[Any]:
    """Of the scenario's first input: texts, or token ids where it has numbers."""
    name, tensor = next(iter(inputs.items()))
    if tensor.dtype.kind == "O":
        return [value.decode() if isinstance(value, bytes) else str(value) for value in tensor.reshape(-1)]
    if tensor.dtype.kind in "iu":
        return list(tensor.tolist())
    raise ScenarioError(f"input '{name}' is {tensor.dtype}: OpenAI's API takes texts or token ids")


def _vector(embedding: Any) -> Array:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), "<f4")
    return np.array(embedding, np.float32)


@lru_cache(REMEMBERED)
def _short_flaw(body: bytes, key: str) -> str | None:
    try:
        found = parse_json(body)
    except ValueError:
        return "the answer is not JSON"
    return (
        None
        if isinstance(found, dict) and isinstance(found.get(key), list) and found[key]
        else f"the answer has no {key}"
    )
