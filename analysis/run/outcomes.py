"""What became of each arrival, row by row: the one definition of success, of TTFT and of TPOT for all that reads rows,
while a run goes on and afterwards.

A success was answered with a 2xx, without an error, and at some time. TTFT is from the intended start to the first
content event, whatever became of the rest; TPOT from there to the last one, divided by the tokens that came meanwhile,
and of an answer in one event there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tailrate.analysis.records.rows import is_success
from tailrate.analysis.run.arrays import Chunk
from tailrate.analysis.run.bins import FAILED, NEVER
from tailrate.analysis.run.columns import WHOLE
from tailrate.analysis.stats.array_types import Bools, Floats, Ints

STREAM_COLUMNS = ("intended_ns", "first_ns", "last_ns", "events", "tokens_out", "text_tokens", "first_tokens")
NONE = -1
"""A time that there is none of."""

# texts are numbers into lists of them, −1 where there is none: what is made here has an entry for each, and that last


def good(statuses: Iterable[str]) -> Bools:
    return np.array([*map(is_success, statuses), False])


def clean(errors: Iterable[str]) -> Bools:
    """A foreign source may write an empty text on success."""
    return np.array([*(not text for text in errors), True])


def succeeded(chunk: Chunk) -> Bools:
    (status, statuses), (error, errors) = chunk.text("status"), chunk.text("error")
    found: Bools = good(statuses)[status] & clean(errors)[error] & (chunk.whole(WHOLE) != NEVER)
    return found


def in_ms(ns: Ints) -> Floats:
    """Infinite where `FAILED`, NaN where there is none."""
    return np.where(ns == FAILED, np.inf, np.where(ns == NONE, np.nan, ns / 1e6))


def limited_ms(ok: Bools, latency_ms: Floats, streams: StreamTimes | None) -> dict[str, Floats]:
    """What objectives limit, by its name; the latency has none, and is all there is of whole answers."""
    whole = {"": np.where(ok, latency_ms, np.inf)}
    return whole | {"ttft": in_ms(streams.ttft_ns), "tpot": in_ms(streams.tpot_ns)} if streams else whole


@dataclass(frozen=True, slots=True)
class StreamTimes:
    first_ns: Ints
    last_ns: Ints
    events: Ints
    tokens: Ints
    """As the server counted, else the run's own tokenizer, else as there were events."""
    counted: Ints
    """By which of these: 2, 1, 0."""
    ttft_ns: Ints
    """`FAILED` where no token came."""
    tpot_ns: Ints
    """`FAILED` of a failure."""

    @classmethod
    def of(cls, chunk: Chunk, ok: Bools) -> StreamTimes:
        intended, first, last, events, said, own, head = (chunk.whole(name) for name in STREAM_COLUMNS)
        events = np.maximum(events, 0)
        counted = np.where(said != NEVER, 2, own != NEVER)
        tokens, head = np.choose(counted, (events, own, said)), np.where(head == NEVER, 1, head)
        several = ok & (events > 1) & (tokens > head)
        per_token = np.where(several, (last - first) // np.maximum(tokens - head, 1), NONE)
        ttft = np.where(first == NEVER, FAILED, first - intended)
        return cls(first, last, events, tokens, counted, ttft, np.where(ok, per_token, FAILED))
