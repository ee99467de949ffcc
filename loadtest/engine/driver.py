"""One load process's hands: takes orders, keeps the schedule, sends, and writes down what became of it.

An order names steps that run at the same time, the instant they start, and this process's share. The pacer
walks the share by absolute deadlines and starts one greenlet per arrival; a response never moves a later
arrival. What is due while `max_in_flight` requests are unanswered is dropped, as a row. A backlog is sent
late, as rows that say so; nothing is re-anchored.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import gevent
from gevent.event import Event
from gevent.pool import Pool

from analysis.records import LOST, REQUEST_COLUMNS
from loadtest.engine.alarm import Alarm
from loadtest.engine.arrivals import Arrival, offsets, share
from loadtest.engine.client import OK, Answer, Client, error_sentence
from loadtest.engine.clock import Base, Offset
from loadtest.engine.recorder import FLUSH_S, Batcher
from loadtest.engine.scenario import LoadStep
from serve import wire

HALT_S = 2.0
"""How long an aborted run waits for answers that are under way."""


@dataclass(frozen=True, slots=True)
class Order:
    """Steps to run together from `start_ns` (the run's wall clock), and which share of them is ours."""

    number: int
    start_ns: int
    base: Base
    index: int
    count: int
    arrivals: str
    steps: tuple[LoadStep, ...]
    paths: tuple[str, ...]

    def as_message(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Order:
        steps = tuple(LoadStep(**step) for step in message["steps"])
        return cls(**{**message, "base": Base(**message["base"]), "steps": steps, "paths": tuple(message["paths"])})


@dataclass(frozen=True, slots=True)
class Payloads:
    """Request bodies made before the start; arrival `seq` sends number `seq` modulo their count."""

    bodies: tuple[bytes, ...]
    headers: tuple[Mapping[str, str], ...]
    """One for each body: how long its JSON header is depends on the shapes in it."""
    rows: int


class Driver:
    """`report(kind, content)` carries `rows` (record batches) and `done` to whoever keeps the run folder."""

    def __init__(
        self,
        client: Client,
        payloads: Payloads,
        max_in_flight: int,
        report: Callable[[str, dict[str, Any]], None],
        fire: Callable[..., None],
    ) -> None:
        self._client = client
        self._payloads = payloads
        self._max_in_flight = max_in_flight
        self._report = report
        self._fire = fire
        self._clock = Offset()
        self._batcher = Batcher(REQUEST_COLUMNS, lambda batch: report("rows", {"batch": batch}))
        self._in_flight = Pool()
        self._due = 0
        self._alarm = Alarm()
        self._halting = False
        self._idle = Event()
        self._idle.set()

    def execute(self, order: Order) -> None:
        """Runs the order to its end: every arrival of the share has become a row when this returns."""
        self._due = 0
        self._halting = False
        self._idle.clear()
        busy = (time.process_time(), time.monotonic())
        flusher = gevent.spawn(self._flush_forever)
        try:
            self._pace(order)
            self._in_flight.join()
        finally:
            # whoever is still waiting is recorded as lost by its own greenlet
            self._in_flight.kill()
            flusher.kill()
            self._flush()
            cpu_pct = 100 * (time.process_time() - busy[0]) / max(1e-9, time.monotonic() - busy[1])
            self._report("done", {"order": order.number, "due": self._due, "cpu_pct": round(cpu_pct, 1)})
            self._idle.set()

    def halt(self) -> None:
        """Stops sending at once, waits a little for answers under way, and writes down the rest as lost."""
        self._halting = True
        self._alarm.ring()
        gevent.spawn_later(HALT_S, self._in_flight.kill)
        self._idle.wait(timeout=HALT_S + 1)

    def _pace(self, order: Order) -> None:
        # on another machine the monotonic clock is another: there the wall clock must do
        here = Base.here()
        base = order.base if order.base.machine == here.machine else here
        start = base.monotonic_ns(order.start_ns)
        endpoints = {step.index: (step.endpoint, path) for step, path in zip(order.steps, order.paths, strict=True)}
        shares = [
            share(offsets(order.arrivals, step.rate, step.seconds, step.seed), step.index, order.index, order.count)
            for step in order.steps
        ]
        most = max(1, self._max_in_flight // order.count)
        for arrival in heapq.merge(*shares, key=lambda arrival: arrival.offset_ns):
            due = start + arrival.offset_ns
            self._alarm.sleep_until(due)
            if self._halting:
                return
            self._due += 1
            endpoint, path = endpoints[arrival.step]
            if len(self._in_flight) >= most:
                self._drop(order, arrival, endpoint, base.wall_ns(due))
            else:
                self._in_flight.spawn(self._send, order.index, arrival, endpoint, path, due, base)

    def _send(self, worker: int, arrival: Arrival, endpoint: str, path: str, due: int, base: Base) -> None:
        pool = self._payloads
        place = arrival.seq % len(pool.bodies)
        body = pool.bodies[place]
        headers = {**pool.headers[place], wire.REQUEST_ID: f"{arrival.step}-{arrival.seq}"}
        sent = time.monotonic_ns()
        try:
            answer = self._client.send("POST", path, body, headers)
        except gevent.GreenletExit:
            answer = Answer(LOST, sent, time.monotonic_ns(), error="the run stopped before the answer came")
        to_wall = base.wall_ns
        ok = answer.status == OK
        if not ok and answer.error is None:
            answer.error = error_sentence(answer.body)
        stages = wire.parse_timing(answer.header(wire.TIMING) or "")
        clock = wire.parse_clock(answer.header(wire.CLOCK_HEADER) or "")
        if clock is not None:
            self._clock.see(to_wall(answer.sent_ns), *clock, to_wall(answer.done_ns))
        batch = answer.header(wire.BATCH) or ""
        self._batcher.append(
            (
                worker,
                arrival.seq,
                arrival.step,
                endpoint,
                to_wall(due),
                to_wall(answer.sent_ns),
                None if answer.status == LOST else to_wall(answer.done_ns),
                answer.status,
                answer.error,
                len(body),
                len(answer.body),
                pool.rows,
                *map(stages.get, wire.STAGES),
                stages.get("total"),
                int(batch) if batch.isdigit() else None,
                answer.header(wire.REPLICA),
                answer.header(wire.DEVICE),
            )
        )
        # Locust's own statistics: latency from the scheduled instant, as everywhere in headroom
        self._fire(
            request_type="POST",
            name=endpoint,
            response_time=(answer.done_ns - due) / 1e6,
            response_length=len(answer.body),
            exception=None if ok else RuntimeError(f"{answer.status}: {answer.error}"),
            context={},
            response=None,
        )

    def _drop(self, order: Order, arrival: Arrival, endpoint: str, intended_ns: int) -> None:
        reason = f"{self._max_in_flight} requests were unanswered"
        known = (order.index, arrival.seq, arrival.step, endpoint, intended_ns, None, None, "dropped", reason)
        self._batcher.append((*known, None, None, self._payloads.rows, *(None,) * 9))
        self._fire(
            request_type="POST",
            name=endpoint,
            response_time=None,
            response_length=0,
            exception=RuntimeError(f"dropped: {reason}"),
            context={},
            response=None,
        )

    def _flush(self) -> None:
        self._batcher.flush()
        if windows := self._clock.best():
            self._report("clock", {"windows": windows[-2:]})

    def _flush_forever(self) -> None:
        while True:
            gevent.sleep(FLUSH_S)
            self._flush()
