"""OpenAI's API. All of it names the model in the body, and says refusals in a form of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailrate.serve.asgi import HttpAnswer
from tailrate.serve.body.json_head import parse
from tailrate.serve.wire import MOST_CHARACTERS, REASONS, Body, WireError, bad_input

MODELS = "/v1/models"
HEALTH = "/health"
"""Where clients of this API, such as GuideLLM, ask whether a server is ready."""
EMBEDDINGS, CHAT, COMPLETIONS = TAILS = "v1/embeddings", "v1/chat/completions", "v1/completions"
"""Behind the server's own path, or behind an endpoint's."""
MOST_BYTES = 16 << 20


def head_of(body: Body) -> dict[str, Any]:
    if len(body) > MOST_BYTES:
        raise WireError(413, f"the request has {len(body)} bytes of JSON, but at most {MOST_BYTES} are taken")
    return parse(bytes(body))


def model_of(head: Mapping[str, Any]) -> str:
    """The model that a request names."""
    found = head.get("model")
    if not isinstance(found, str) or not 0 < len(found) <= MOST_CHARACTERS:
        raise bad_input("'model' must name a model, such as bert or bert/compiled")
    return found


def known_as(head: Mapping[str, Any], names: Sequence[str]) -> str:
    """The same, of a model that goes by these names."""
    if (name := model_of(head)) not in names:
        raise WireError(404, f"unknown model '{name[:64]}'; this path is that of {names[-1]}")
    return name


def listed(names: Sequence[str]) -> dict[str, Any]:
    """The list of models."""
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": 0, "owned_by": "tailrate"} for name in names],
    }


def refusal(found: HttpAnswer) -> HttpAnswer:
    """An error as OpenAI's clients read one; a result is left as it is."""
    if found.status == 200:
        return found
    why = {"message": json.loads(found.body)["error"], "type": REASONS.get(found.status, "failed")}
    return replace(found, body=as_bytes({"error": why | {"param": None, "code": found.status}}))


def as_bytes(found: Any) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()
