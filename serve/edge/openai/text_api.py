"""OpenAI's chat and completions over a model that writes text: requests read, answers told, whole or as they come."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tailrate.serve.asgi import as_error
from tailrate.serve.body.json_head import mapping
from tailrate.serve.edge.openai import CHAT, COMPLETIONS, as_bytes, head_of, known_as, refusal
from tailrate.serve.engine.language.sampling import Likely, Sampling
from tailrate.serve.engine.language.writing import Writing
from tailrate.serve.models._text import TextTokens
from tailrate.serve.wire import Body, WireError, bad_input

TAILS = (CHAT, COMPLETIONS)
MOST_STOPS = 16
MOST_LIKELY = 20
USUAL_TOKENS = 16
"""Of a completion that asks for no number; a chat goes on to the end of the context."""
IMPOSSIBLE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys((
        "allowed_token_ids", "bad_words", "chat_template", "functions", "guided_choice", "guided_grammar",
        "guided_json", "guided_regex", "logit_bias", "prompt_logprobs", "stop_token_ids", "structured_outputs",
        "suffix", "tools", "truncate_prompt_tokens",
    ), ()),
    **dict.fromkeys((
        "continue_final_message", "echo", "frequency_penalty", "include_stop_str_in_output", "min_p",
        "presence_penalty", "use_beam_search",
    ), (0,)),
    **dict.fromkeys(("add_generation_prompt", "best_of", "repetition_penalty"), (1,)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    "response_format": ({"type": "text"},),
    "top_k": (0, -1),
}  # fmt: skip
"""What would change the answer and cannot be had; with values that don't ask for it, beside those of `NOTHING`."""
NOTHING: tuple[Any, ...] = (None, [], {}, "")
DONE = b"data: [DONE]\n\n"
STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: what is to be written, and how it is to be told."""

    model: str
    chat: bool
    writing: Writing
    stops: tuple[str, ...]
    stream: bool
    usage: bool
    """Whether a stream ends with what was counted."""


def read(body: Body, chat: bool, names: Sequence[str], tokens: TextTokens, context: int) -> Asked:
    """Of a model that goes by these names."""
    head = head_of(body)
    name = known_as(head, names)
    for key, off in IMPOSSIBLE.items():
        if key in head and head[key] not in (*NOTHING, *off):
            raise bad_input(f"'{key}' is not possible here")
    if _number(head, "n", 1, 1, 128, int) != 1:
        raise bad_input("'n' must be 1: ask again for another answer")
    prompt = _messages(head, tokens) if chat else _prompt(head, tokens)
    room = max(1, context - len(prompt))
    most = _number(head, "max_completion_tokens", None, 1, math.inf, int) if chat else None
    most = most or _number(head, "max_tokens", room if chat else USUAL_TOKENS, 1, math.inf, int)
    options = mapping(head.get("stream_options"), "'stream_options'")
    ends = frozenset() if _flag(head, "ignore_eos") or tokens.end is None else frozenset((tokens.end,))
    stream = _flag(head, "stream")
    return Asked(
        name, chat,
        Writing(
            prompt, min(int(most), room), least=_number(head, "min_tokens", 0, 0, math.inf, int),
            ends=ends, silent=tokens.silent,
            sampling=_sampling(head), likely=_likely(head, chat),
        ),
        _stops(head), stream, stream and _flag(options, "include_usage"),
    )  # fmt: skip


def _sampling(head: Mapping[str, Any]) -> Sampling:
    seed = _number(head, "seed", None, -(1 << 63), (1 << 64) - 1, int)
    return Sampling(
        _number(head, "temperature", 1.0, 0, 100, float),
        _number(head, "top_p", 1.0, 0, 1, float),
        int.from_bytes(os.urandom(8)) if seed is None else seed,
    )


def _likely(head: Mapping[str, Any], chat: bool) -> int | None:
    if not chat:
        found: int | None = _number(head, "logprobs", None, 0, MOST_LIKELY, int)
        return found
    if not _flag(head, "logprobs"):
        return None
    return int(_number(head, "top_logprobs", 0, 0, MOST_LIKELY, int))


def _stops(head: Mapping[str, Any]) -> tuple[str, ...]:
    found = head.get("stop")
    found = [] if found is None else [found] if isinstance(found, str) else found
    if not isinstance(found, list) or len(found) > MOST_STOPS or not all(isinstance(one, str) for one in found):
        raise bad_input(f"'stop' must be a text, or a list of at most {MOST_STOPS}")
    return tuple(found)


def _messages(head: Mapping[str, Any], tokens: TextTokens) -> list[int]:
    found = head.get("messages")
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise bad_input("'messages' must be a list of objects with role and content")
    return tokens.of_chat([{**one, "role": _role(one), "content": _content(one.get("content"))} for one in found])


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise bad_input("each message has a 'role', such as user")
    return role


def _content(found: Any) -> str:
    """A text, or texts in parts."""
    if isinstance(found, str):
        return _text(found)
    if isinstance(found, list) and all(isinstance(one, dict) and one.get("type") == "text" for one in found):
        parts = [one.get("text") for one in found]
        if all(isinstance(part, str) for part in parts):
            return _text("".join(parts))
    raise bad_input("the 'content' of a message must be a text, or parts of the type text")


def _prompt(head: Mapping[str, Any], tokens: TextTokens) -> list[int]:
    found = head.get("prompt")
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str | list):
        (found,) = found
    if isinstance(found, str):
        return tokens.of(_text(found))
    if isinstance(found, list) and found and all(type(one) is int and 0 <= one < tokens.known for one in found):
        return found
    raise bad_input(f"'prompt' must be one text, or a list of token ids from 0 to {tokens.known - 1}")


def _text(found: str) -> str:
    try:
        found.encode()
    except UnicodeEncodeError:
        raise bad_input("a text holds half a character (a lone surrogate)") from None
    return found


def _flag(head: Mapping[str, Any], key: str) -> bool:
    found = head.get(key)
    if found is not None and not isinstance(found, bool):
        raise bad_input(f"'{key}' must be true or false")
    return bool(found)


def _number(head: Mapping[str, Any], key: str, usual: Any, least: float, most: float, kind: type) -> Any:
    found = head.get(key)
    if found is None:
        return usual
    right = type(found) is int or (kind is float and isinstance(found, float) and math.isfinite(found))
    if not right or not least <= found <= most:
        what = "a whole number" if kind is int else "a number"
        raise bad_input(
            f"'{key}' must be {what} {f'from {least:g} to {most:g}' if most < math.inf else f'of at least {least:g}'}"
        )
    return found


# ---- answers


Placed = tuple[int, Likely]
"""Where the text begins that became known with a token, and what was likely in its place."""


class Telling:
    """How one answer is told, in the form that was asked for."""

    def __init__(self, asked: Asked, tokens: TextTokens, request_id: str) -> None:
        self._asked, self._tokens = asked, tokens
        kind = "chatcmpl" if asked.chat else "cmpl"
        self._head = {"id": f"{kind}-{request_id}", "created": int(time.time()), "model": asked.model}
        self._begun = False
        self._usual: list[bytes] = []
        """What stands before and behind the text of an event that has nothing else to say."""

    def event(self, text: str, finish: str | None, likely: Sequence[Placed] = ()) -> bytes:
        """What one step made."""
        if not self._begun or finish or likely:
            return self._whole_event(text, finish, likely)
        if not self._usual:
            self._usual = self._whole_event("\0", None, ()).split(b'"\\u0000"')
        before, behind = self._usual
        return before + as_bytes(text) + behind

    def _whole_event(self, text: str, finish: str | None, likely: Sequence[Placed]) -> bytes:
        told = self._logprobs(likely)
        if self._asked.chat:
            delta = {"role": "assistant", "content": text} if not self._begun else {"content": text} if text else {}
            choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": told, "finish_reason": finish}
        else:
            choice = {"index": 0, "text": text, "logprobs": told, "finish_reason": finish}
        self._begun = True
        return self._event({"choices": [choice]} | ({"usage": None} if self._asked.usage else {}))

    def usage_event(self, usage: Mapping[str, Any]) -> bytes:
        return self._event({"choices": [], "usage": usage})

    def _event(self, more: Mapping[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._asked.chat else "text_completion"
        return b"data: " + as_bytes({**self._head, "object": kind, **more}) + b"\n\n"

    def whole(self, text: str, finish: str | None, likely: Sequence[Placed], usage: Mapping[str, Any]) -> bytes:
        told = self._logprobs(likely)
        if self._asked.chat:
            message = {"role": "assistant", "content": text}
            choice: dict[str, Any] = {"index": 0, "message": message, "logprobs": told, "finish_reason": finish}
        else:
            choice = {"index": 0, "text": text, "logprobs": told, "finish_reason": finish}
        kind = "chat.completion" if self._asked.chat else "text_completion"
        return as_bytes({**self._head, "object": kind, "choices": [choice], "usage": usage})

    def _logprobs(self, likely: Sequence[Placed]) -> Any:
        if not likely:
            return None
        one: Callable[[int], str] = self._tokens.one
        if self._asked.chat:
            return {
                "content": [
                    _shown(one, own) | {"top_logprobs": [*map(partial(_shown, one), top)]} for _, (own, *top) in likely
                ]
            }
        return {
            "tokens": [one(own[0]) for _, (own, *_) in likely],
            "token_logprobs": [own[1] for _, (own, *_) in likely],
            "top_logprobs": [{one(number): value for number, value in top} for _, (_, *top) in likely],
            "text_offset": [begin for begin, _ in likely],
        }


def _shown(one: Callable[[int], str], pair: tuple[int, float]) -> dict[str, Any]:
    text = one(pair[0])
    return {"token": text, "logprob": pair[1], "bytes": list(text.encode())}


def usage(writing: Writing, more: Mapping[str, Any]) -> dict[str, Any]:
    """`more`: what else this server says of it, under its own name."""
    asked, made = len(writing.prompt), len(writing.tokens)
    return {
        "prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0},
        "tailrate": more,
    }  # fmt: skip


def error_event(problem: WireError) -> bytes:
    return b"data: " + refusal(as_error(problem)).body + b"\n\n"
