"""OpenAI's chat completions, streamed: what most servers of language models speak."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, ClassVar

from tailrate.loadtest.engine.endpoint.protocols._text_stream import NO, YES, TextStream
from tailrate.loadtest.engine.scenario.options import Option


@dataclass(frozen=True)
class OpenAiChat(TextStream):
    name = "openai-chat"
    what = "OpenAI's chat completions, token by token"
    path = "/v1/chat/completions"
    limits = ("max_tokens", "max_completion_tokens")

    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "openai-chat-force",
            YES,
            "every answer as long as asked for, where the server can [default: yes]",
            (YES, NO),
            at_start=True,
        ),
        Option("openai-chat-extra", "", "more fields of each body, as JSON", at_start=True),
    )

    def continued(self, said: Sequence[str], prompt: str) -> str:
        whole = zip(cycle(("user", "assistant")), (*said, prompt), strict=False)
        return json.dumps([{"role": role, "content": content} for role, content in whole])

    def asks(self, prompt: str) -> dict[str, Any]:
        return {
            "messages": json.loads(prompt) if prompt.startswith('[{"role"') else [{"role": "user", "content": prompt}]
        }
