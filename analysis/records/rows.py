"""A row of `requests`, with the type of each column, and what became of an arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

BAD_ANSWER, CHECK, CUT = "bad_answer", "check", "cut"
"""Statuses of arrivals whose answer is a 200 but no result, not one that the scenario's own check takes, or a stream
that broke off."""
LOST = "lost"
"""Status of an arrival that was sent but whose answer the run did not live to see."""

# each with the name of its Arrow type
Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
Number = Annotated[float, "float64"]
Text = Annotated[str, "string"]
Gaps = Annotated[Sequence[int], "list<uint32>"]


class RequestRecord(NamedTuple):
    """One arrival, sent or not. What did not happen (a dropped arrival's `sent_ns`) is None."""

    worker: Int32
    seq: Int64
    """Unique within a step."""
    step: Int32
    endpoint: Text
    intended_ns: Int64
    sent_ns: Int64 | None = None
    done_ns: Int64 | None = None
    status: Text = ""
    """The HTTP status, or `timeout`, `connect`, `dropped`, `lost`, `bad_answer` (a 200 that is no result), `check` (one
    that the scenario's own check refuses), `cut` (a stream that broke off)."""
    error: Text | None = None
    bytes_in: Int64 | None = None
    """Bytes of the request's body, as the server takes it in."""
    bytes_out: Int64 | None = None
    rows: Int32 | None = 1
    queue_ms: Number | None = None
    batch_ms: Number | None = None
    h2d_ms: Number | None = None
    compute_ms: Number | None = None
    d2h_ms: Number | None = None
    server_ms: Number | None = None
    batch_rows: Int32 | None = None
    replica: Text | None = None
    device: Text | None = None
    handled_ms: Number | None = None
    """From the server's receiving to its sending: what is left of the service time is the way there and back."""
    data_row: Int64 | None = None
    """Number of the file's row that the request carried, the first one of several; None where inputs were drawn."""
    label: Text | None = None
    """What that row says of itself: the slice of the report that it belongs to."""
    # of streams; a content event is one with text, reasoning or a tool call in it; tokens are as the server counts, but
    # `text_tokens`, which the run's own tokenizer counts where the server doesn't
    first_ns: Int64 | None = None
    """When the first content event came; `done_ns` is when the stream ended."""
    last_ns: Int64 | None = None
    plain_ns: Int64 | None = None
    """When the first one came that isn't reasoning."""
    events: Int32 | None = None
    tokens_in: Int32 | None = None
    tokens_out: Int32 | None = None
    first_tokens: Int32 | None = None
    """In the first content event, where the server counts as it goes; else it is taken to hold one."""
    cached_tokens: Int32 | None = None
    """Of `tokens_in`, those that the server had read before."""
    reasoning_tokens: Int32 | None = None
    gaps_us: Gaps | None = None
    text_tokens: Int32 | None = None
    prefill_ms: Number | None = None
    """Of our server's answers in tokens: the prompt was read, tokens were chosen, text was made of them and sent."""
    decode_ms: Number | None = None
    text_ms: Number | None = None
    finish: Text | None = None
    """Why the stream ended: `stop`, `length`, `cut`, `error`."""
    session: Int32 | None = None
    turn: Int32 | None = None


def columns_of(record: type) -> dict[str, str]:
    """Each field's Arrow type."""
    hints = get_type_hints(record, include_extras=True)
    return {
        name: (get_args(hint)[0] if type(None) in get_args(hint) else hint).__metadata__[0]
        for name, hint in hints.items()
    }


def arrow_type(arrow: Any, kind: str) -> Any:
    """By pyarrow, which not everybody who knows of rows needs."""
    if kind.startswith("list<"):
        return arrow.list_(arrow.type_for_alias(kind.removeprefix("list<").removesuffix(">")))
    return arrow.type_for_alias(kind)


REQUEST_COLUMNS = columns_of(RequestRecord)


# ---- what became of an arrival

KINDS = ("ok", "failed", "timed_out", "dropped", "lost")
_KIND = {"timeout": "timed_out", "dropped": "dropped", LOST: "lost"}


def is_success(status: str) -> bool:
    """The one definition: any 2xx. What is answered so and is no answer has a status of its own (`bad_answer`)."""
    return len(status) == 3 and status[0] == "2" and status.isdecimal()


def kind_of(status: str) -> str:
    """Under which of `KINDS`, the run's totals, an arrival counts."""
    return "ok" if is_success(status) else _KIND.get(status, "failed")
