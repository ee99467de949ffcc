"""Requests made of a file's rows before they are due: those of a block's own share, while the block is prepared.

What was made stays for the next blocks as long as all of it is small; beyond that only what the block at hand needs is
held, and beyond `AHEAD_BYTES` a request is made in the moment in which it is sent, which its lateness shows.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import gevent
import numpy as np

from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.servers import OpenEndpoint
from tailrate.loadtest.engine.workers.input.deal import Deal
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    from tailrate.loadtest.engine.workers.input.dialogue import Dialogue
    from tailrate.loadtest.engine.workers.input.inputs import Source  # takes pyarrow, which not every run needs
    from tailrate.loadtest.engine.workers.input.tokenizer import Tokenizer

KEPT_BYTES = 64 << 20
AHEAD_BYTES = 1 << 30
MOST_AT_HAND = 200_000
"""Arrivals of a block whose requests are found at once, in 40 MB; those of others by their rows, 2 us later."""
BREATH = 64
"""Requests made until others get a turn, such as the sign of life to the master."""

Encode = Callable[[dict[str, Array]], tuple[bytes, dict[str, str]]]


class ReadyRequest(NamedTuple):
    """All that an arrival needs to be sent, and what its row says of what it carried."""

    body: bytes
    headers: Mapping[str, str]
    rows: int
    data_row: int | None = None
    """The first of them, where they are those of a file."""
    label: str | None = None


@dataclass(frozen=True, slots=True)
class FileInputs(Inputs):
    """Rows of a file as inputs; those that are here already are a sample."""

    data: Source = field(kw_only=True)
    deal: Deal = field(kw_only=True)
    dialogue: Dialogue | None = field(default=None, kw_only=True)
    tokenizer: Tokenizer | None = field(default=None, kw_only=True)

    def requests(self, to: OpenEndpoint) -> DataRequests:
        """As one endpoint takes them."""
        found = DataRequests(
            self.data, self.deal, lambda tensors: to.protocol.write(to.endpoint, tensors, self.outputs), self.dialogue
        )
        for number in range(len(self.tensors)):
            found.request(number)
        return found


class DataRequests:
    """`prepare` a block's arrivals, then ask for each with `of`."""

    def __init__(self, data: Source, deal: Deal, encode: Encode, dialogue: Dialogue | None = None) -> None:
        self.data, self.deal, self.dialogue = data, deal, dialogue
        self._encode = encode
        self._made: dict[tuple[int, ...], ReadyRequest] = {}
        self._bytes = 0
        self._first: dict[int, int] = {}
        """By step, the number of its first arrival's request."""
        self._ready: dict[tuple[int, int], ReadyRequest] = {}

    def prepare(self, steps: Mapping[int, tuple[int, Iterable[int]]]) -> None:
        """By step: the number of its first arrival's request, and which of its arrivals are ours."""
        self._ready.clear()
        self._first = {step: first for step, (first, _) in steps.items()}
        if self._bytes > KEPT_BYTES:
            needed = {self.deal.of(first + seq) for first, ours in steps.values() for seq in ours}
            self._made = {rows: found for rows, found in self._made.items() if rows in needed}
            self._bytes = sum(len(found.body) for found in self._made.values())
        for step, (first, ours) in steps.items():
            for seq in ours:
                at_hand = len(self._ready) < MOST_AT_HAND
                if self._bytes > AHEAD_BYTES or (not at_hand and self._all_made):
                    break
                found = self.request(first + seq)
                if at_hand:
                    self._ready[step, seq] = found
        # a full collection over them would stall the schedule by milliseconds
        gc.collect()
        gc.freeze()

    def of(self, step: int, seq: int) -> ReadyRequest:
        if (found := self._ready.get((step, seq))) is None:
            rows = self.deal.of(self.number(step, seq))
            found = self._made.get(rows) or self._make(rows)
        return found

    def number(self, step: int, seq: int) -> int:
        """Of an arrival's request among those of the run."""
        return self._first.get(step, 0) + seq

    @property
    def _all_made(self) -> bool:
        """No request can be another one."""
        return max(self.deal.sizes) == 1 and len(self._made) >= self.deal.rows

    def mean_bytes(self) -> float:
        """Of a request, as far as any were made."""
        return self._bytes / max(1, len(self._made))

    def left(self, step: int) -> int | None:
        """How many requests a step can have."""
        return None if self.deal.most is None else self.deal.most - self._first.get(step, 0)

    def request(self, number: int) -> ReadyRequest:
        """Made once, and kept."""
        rows = self.deal.of(number)
        if (found := self._made.get(rows)) is None:
            found = self._made[rows] = self._make(rows)
            self._bytes += len(found.body)
            if len(self._made) % BREATH == 0:
                gevent.sleep(0)
        return found

    def turn(self, session: int, prompt: Mapping[str, Array], whole: str) -> ReadyRequest:
        """Of a session that goes on: what its prompt asks, after all that was said before."""
        body, headers = self._encode({**prompt, "prompt": np.array([whole], object)})
        return ReadyRequest(body, headers, 1, session, self.data.label(session))

    def _make(self, rows: tuple[int, ...]) -> ReadyRequest:
        body, headers = self._encode(self.data.inputs(rows))
        return ReadyRequest(body, headers, len(rows), rows[0], self.data.label(rows[0]))
