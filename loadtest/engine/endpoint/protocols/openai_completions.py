"""OpenAI's completions, streamed: a prompt goes on as it is, without the template of a chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tailrate.loadtest.engine.endpoint.protocols._text_stream import NO, YES, TextStream
from tailrate.loadtest.engine.scenario.options import Option


@dataclass(frozen=True)
class OpenAiCompletions(TextStream):
    name = "openai-completions"
    what = "OpenAI's completions, token by token"
    path = "/v1/completions"

    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "openai-completions-force",
            YES,
            "every answer as long as asked for, where the server can [default: yes]",
            (YES, NO),
            at_start=True,
        ),
        Option("openai-completions-extra", "", "more fields of each body, as JSON", at_start=True),
    )

    def asks(self, prompt: str) -> dict[str, Any]:
        return {"prompt": prompt}
