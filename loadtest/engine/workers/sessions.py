"""The sessions of an order: their next turns, due between the arrivals of the schedule.

What is never due: a turn whose think time ends after its step does, and those of a session whose answer failed.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from tailrate.analysis.records.rows import is_success
from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.protocol import Protocol
from tailrate.loadtest.engine.scenario.arrivals import Arrival
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers.input.dialogue import Turn, prompt_number
from tailrate.loadtest.engine.workers.input.requests import DataRequests
from tailrate.loadtest.engine.workers.on_time.timer import Alarm
from tailrate.loadtest.engine.workers.work_order import WorkOrder

NEVER_NS = 1 << 61


class Sessions:
    @classmethod
    def of(cls, order: WorkOrder, *how: Any) -> Sessions | None:
        """Of an order whose sessions have several turns; each process numbers its own behind the schedule's."""
        steps = {step.index: step for step in order.steps if step.sessions}
        numbers = {
            index: count(step.arrivals(order.pattern) + order.index, order.count) for index, step in steps.items()
        }
        return cls(steps, numbers, *how) if steps else None

    def __init__(
        self,
        steps: Mapping[int, LoadStep],
        numbers: Mapping[int, count[int]],
        start_ns: int,
        alarm: Alarm,
        stopping: Callable[[], bool],
    ) -> None:
        """`numbers` are those that further turns of a step get; `start_ns` is the block's, on the monotonic clock."""
        self._steps, self._numbers, self._start_ns, self._alarm = steps, numbers, start_ns, alarm
        self._stopping = stopping
        self._due: list[tuple[int, int, Turn]] = []
        self._open = 0

    def between(self, scheduled: Iterator[Arrival]) -> Iterator[Arrival]:
        """The arrivals and the turns, each when it is due."""
        arrival = next(scheduled, None)
        while arrival is not None or self._open:
            first = self._due[0][0] if self._due else NEVER_NS
            at = min(first, arrival.offset_ns if arrival is not None else NEVER_NS)
            self._alarm.sleep_until(self._start_ns + at)
            if self._stopping():
                return
            if time.monotonic_ns() < self._start_ns + at:
                continue  # rung: an answer came
            if arrival is None or first < arrival.offset_ns:
                yield heapq.heappop(self._due)[2]
            else:
                self._open += 1
                yield arrival
                arrival = next(scheduled, None)

    def answered(self, arrival: Arrival, data: DataRequests, answer: EndpointAnswer, protocol: Protocol) -> None:
        """The session goes on, or is over."""
        if is_success(answer.status) and (turn := self._next(arrival, data, answer, protocol)) is not None:
            heapq.heappush(self._due, (turn.offset_ns, turn.seq, turn))
        else:
            self._open -= 1
        self._alarm.ring()

    def dropped(self) -> None:
        self._open -= 1

    def _next(self, arrival: Arrival, data: DataRequests, answer: EndpointAnswer, protocol: Protocol) -> Turn | None:
        dialogue, step = data.dialogue, self._steps[arrival.step]
        assert dialogue is not None
        session, turn = place(arrival, data)
        if turn + 1 >= dialogue.count(session):
            return None
        due = answer.done_ns - self._start_ns + int(1e9 * dialogue.think(session, turn + 1))
        if due >= step.begin_ns + step.length_ns:
            return None
        before = arrival.said if isinstance(arrival, Turn) else (_prompt(data, session, 0),)
        said = (*before, str(protocol.outputs(answer)["text"][0]))
        prompt = data.data.inputs([prompt_number(session, turn + 1)])
        own = str(prompt["prompt"][0])
        request = data.turn(session, prompt, protocol.continued(said, own))
        return Turn(next(self._numbers[step.index]), step.index, due, session, turn + 1, (*said, own), request)


def place(arrival: Arrival, data: DataRequests) -> tuple[int, int]:
    """Session and turn."""
    if isinstance(arrival, Turn):
        return arrival.session, arrival.turn
    return data.number(arrival.step, arrival.seq), 0


def _prompt(data: DataRequests, session: int, turn: int) -> str:
    return str(data.data.inputs([prompt_number(session, turn)])["prompt"][0])
