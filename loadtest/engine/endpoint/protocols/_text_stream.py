"""What chat and completions of OpenAI's API have in common: an answer comes token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.protocol import BROKE_OFF
from tailrate.loadtest.engine.endpoint.protocols._event_stream import STREAM, EventStream, text_of
from tailrate.loadtest.engine.endpoint.protocols._openai_models import FactsOfOurs, known, model_of
from tailrate.loadtest.engine.endpoint.protocols._token_stream import TokenStream, openai
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

YES, NO = "yes", "no"


@dataclass(frozen=True)
class TextStream(FactsOfOurs, EventStream):
    """Its inputs are `prompt`, a text or a list of messages as JSON, and `max_tokens`."""

    path: ClassVar[str] = ""
    limits: ClassVar[tuple[str, ...]] = ("max_tokens",)
    """What the field for the most tokens is called, the usual one first."""

    limit: str = "max_tokens"
    force: str = YES
    """Whether every answer is to be as long as asked for, by vLLM's `ignore_eos` and `min_tokens`."""
    extra: str = ""
    """Fields of the body beside ours, as JSON."""

    def find(self, client: Client, target: Target) -> list[Endpoint]:
        path = client.prefix + self.path
        return [self.endpoint(client, each, path, parameters=said) for each, said in known(client, target)]

    def flaw(self, answer: EndpointAnswer, header: Mapping[str, str]) -> str | None:
        """Not all servers send a `finish_reason`, and not all `[DONE]`; without both there was more to come."""
        unended = f"{BROKE_OFF}: neither a finish_reason nor [DONE] came"
        return super().flaw(answer, header) or (None if self._read(answer).ended else unended)

    def take(self, found: TokenStream, said: Mapping[str, Any], at_ns: int) -> None:
        openai(found, said, at_ns)

    def others(self) -> Iterator[Self]:
        """Servers differ in what they call the limit, and not all know vLLM's fields."""
        tried = [(limit, force) for force in (self.force, NO) for limit in self.limits]
        for limit, force in dict.fromkeys(tried):
            if (limit, force) != (self.limit, self.force):
                yield replace(self, limit=limit, force=force)

    # ---- a request and its answer

    def asks(self, prompt: str) -> dict[str, Any]:
        """The body's fields that hold what is asked."""
        raise NotImplementedError

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        if "prompt" not in inputs:
            raise ScenarioError(f"{self.name} takes an input 'prompt', and this scenario has {', '.join(inputs)}")
        body: dict[str, Any] = {"model": model_of(endpoint)} | self.asks(text_of(inputs["prompt"]))
        body |= {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        if "max_tokens" in inputs:
            body[self.limit] = most = int(np.asarray(inputs["max_tokens"]).reshape(-1)[0])
            if self.force == YES:
                body |= {"ignore_eos": True, "min_tokens": most}
        body |= json.loads(self.extra or "{}")
        fields = {"content-type": "application/json", "accept": STREAM}
        return json.dumps(body, separators=(",", ":")).encode(), fields
