"""What a stream of events held, and when each of them had come.

A content event is one that holds something of the answer; one that only names a role, counts tokens or ends is none.
Which are, the protocol knows. How many tokens there were is for the server to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tailrate.loadtest.engine.endpoint.answer import parse_json
from tailrate.loadtest.engine.endpoint.protocol import BROKE_OFF
from tailrate.loadtest.engine.endpoint.protocols._sse import events
from tailrate.serve import wire

DONE = b"[DONE]"
REASONING = ("reasoning", "reasoning_content")
FINISHES = {"stop": "stop", "length": "length", "tool_calls": "stop", "function_call": "stop", "eos": "stop"}
"""What rows say of a server's `finish_reason`; anything else is an error."""
FAILURES = ("abort", "error")
"""Those of an answer that the server gave up."""
MOST_GAP_US = (1 << 32) - 1
Arrivals = Sequence[tuple[int, int]]
"""Of an answer's pieces: the instant of each, and bytes of the body that had come by then."""


@dataclass(slots=True)
class TokenStream:
    content_ns: list[int] = field(default_factory=list)
    """Of each content event."""
    plain_ns: int | None = None
    """Of the first that isn't reasoning."""
    finish: str = ""
    ended: bool = False
    """Whether the server said that this is all."""
    flaw: str = ""
    """What the server said went wrong, or what makes no sense."""
    text: list[str] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    first_tokens: int | None = None
    """Of the first content event, where the server counts as it goes."""

    def columns(self) -> dict[str, Any]:
        """Of the request's row; instants are those of the monotonic clock."""
        content = self.content_ns
        said = self.usage
        found = {
            "first_ns": content[0] if content else None,
            "last_ns": content[-1] if content else None,
            "plain_ns": self.plain_ns,
            "events": len(content),
            "gaps_us": _gaps_us(content) if content else None,
            "tokens_in": _count(said, "prompt_tokens"),
            "tokens_out": _count(said, "completion_tokens"),
            "first_tokens": self.first_tokens,
            "cached_tokens": _count(said, "prompt_tokens_details", "cached_tokens"),
            "reasoning_tokens": _count(said, "completion_tokens_details", "reasoning_tokens"),
            "finish": self.finish or None,
        }
        return {name: value for name, value in found.items() if value is not None} | self._stages()

    def _stages(self) -> dict[str, float]:
        """Where our own server says that the time went."""
        said = self.usage.get("tailrate")
        if not isinstance(said, dict):
            return {}
        columns = {f"{name}_ms": f"{name}_ms" for name in wire.TEXT_STAGES}
        columns |= dict.fromkeys(("server_ms", "handled_ms"), "total_ms")
        return {column: float(said[name]) for column, name in columns.items() if _is_ms(said.get(name))}

    def outputs(self, values: Sequence[Any], at_ns: int) -> None:
        """An event that holds these values of outputs; where any is text, numbers and empty texts are no content."""
        texts = [
            value if isinstance(value, str) else value.decode("utf-8", "replace")
            for value in values
            if isinstance(value, str | bytes)
        ]
        self.text += filter(None, texts)
        if any(texts) or (values and not texts and not self.text):
            self.came(at_ns)

    def came(self, at_ns: int, plain: bool = True) -> None:
        """A content event."""
        if plain and self.plain_ns is None:
            self.plain_ns = at_ns
        self.content_ns.append(at_ns)


Take = Callable[[TokenStream, Mapping[str, Any], int], None]
"""Takes in what an event said, and when."""


def openai(found: TokenStream, said: Mapping[str, Any], at_ns: int) -> None:
    plain = reasoned = False
    for choice in list_of(said, "choices"):
        if not isinstance(choice, dict):
            continue
        delta = choice["delta"] if isinstance(choice.get("delta"), dict) else choice
        text = delta.get("content") or delta.get("text")
        if text and isinstance(text, str):
            found.text.append(text)
        plain = plain or bool(text or delta.get("tool_calls"))
        reasoned = reasoned or any(delta.get(name) for name in REASONING)
        if reason := choice.get("finish_reason"):
            found.ended, found.finish = True, FINISHES.get(str(reason), "error")
            if reason in FAILURES:
                found.flaw = found.flaw or f"the stream's finish_reason is {reason}"
    if (usage := said.get("usage")) and isinstance(usage, dict):
        found.usage = usage
    if plain or reasoned:
        if not found.content_ns:
            found.first_tokens = _count(said, "usage", "completion_tokens")
        found.came(at_ns, plain)


def stamps(arrivals: Arrivals) -> Callable[[int], int]:
    """When so many bytes had come, of numbers that grow."""
    piece = 0

    def at_ns(end: int) -> int:
        nonlocal piece
        while piece < len(arrivals) - 1 and arrivals[piece][1] < end:
            piece += 1
        return arrivals[piece][0]

    return at_ns


def token_stream(body: bytes, arrivals: Arrivals, take: Take = openai) -> TokenStream:
    found, at_ns = TokenStream(), stamps(arrivals)
    torn_at = 0 if body.endswith((b"\n", b"\r")) else len(body)
    for event in events(body):
        if event.data == DONE:
            found.ended = True
            continue
        if not event.data.strip():
            continue
        try:
            said = parse_json(event.data)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            wrong = f"{BROKE_OFF} in an event" if event.end == torn_at else "an event of the stream is no JSON object"
            found.flaw = found.flaw or f"{wrong}: {_begin(event.data)}"
        elif event.name == b"error" or said.get("error") or said.get("object") == "error":
            found.flaw, found.finish = f"the stream holds an error: {_begin(event.data)}", "error"
        else:
            take(found, said, at_ns(event.end))
    return found


def _gaps_us(content_ns: list[int]) -> Any:
    """Each is the difference of two instants in whole microseconds, so that they add up without drifting."""
    return np.diff(np.array(content_ns, np.int64) // 1000).clip(0, MOST_GAP_US).astype(np.uint32)


def _is_ms(found: Any) -> bool:
    """Whether something of a JSON object is a duration in milliseconds."""
    return isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= wire.MOST_MS


def _begin(data: bytes) -> str:
    return data[:200].decode("utf-8", "replace")


def list_of(said: Mapping[str, Any], name: str) -> list[Any]:
    found = said.get(name)
    return found if isinstance(found, list) else []


def _count(said: Mapping[str, Any], *names: str) -> int | None:
    found: Any = said
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 1 << 31 else None
