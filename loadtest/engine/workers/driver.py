"""One load process's hands: takes orders, keeps the schedule, sends, and writes down what became of it.

An order names steps, the instant their block starts, and this process's share. The pacer walks the share by
absolute deadlines and starts one greenlet per arrival; a response never moves a later arrival. What is due while
`max_in_flight` requests are unanswered is dropped, as a row. A backlog is sent late, as rows that say so; nothing is
re-anchored. Steps of a closed loop have no schedule: so many greenlets, each of which sends when it was answered.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event

from tailrate.analysis.records.rows import BAD_ANSWER, CHECK, CUT, LOST, REQUEST_COLUMNS, RequestRecord, is_success
from tailrate.loadtest.engine.clock import Base, Offset
from tailrate.loadtest.engine.endpoint.answer import MOST_ERROR, EndpointAnswer, error_sentence
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.protocol import BROKE_OFF, Protocol
from tailrate.loadtest.engine.endpoint.row_fields import server_clock
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.record.segments import LOOK_S, Batcher
from tailrate.loadtest.engine.scenario.arrivals import Arrival, share
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers.on_time.breath import breath
from tailrate.loadtest.engine.workers.on_time.memory import tidy
from tailrate.loadtest.engine.workers.on_time.stall_watch import StallWatch
from tailrate.loadtest.engine.workers.on_time.timer import Alarm
from tailrate.loadtest.engine.workers.on_time.under_way import UnderWay
from tailrate.loadtest.engine.workers.ready import Ready, opened
from tailrate.loadtest.engine.workers.sessions import Sessions
from tailrate.loadtest.engine.workers.work_order import WorkOrder
from tailrate.serve import wire

if TYPE_CHECKING:
    from tailrate.loadtest.engine.workers.locust_statistics import LocustStatistics  # Locust, no part of a self-check

GONE_S = 0.05
HALT_S = 2.0
"""How long an aborted run waits for answers that are under way."""
STREAM_INSTANTS = ("first_ns", "last_ns", "plain_ns")


class Driver:
    """`report(kind, content)` carries `rows` (record batches) and `done` to whoever keeps the run folder."""

    def __init__(
        self,
        servers: Servers,
        inputs: Inputs,
        max_in_flight: int,
        report: Callable[[str, dict[str, Any]], None],
        statistics: LocustStatistics | None = None,
        check: Callable[[EndpointAnswer], str | None] | None = None,
    ) -> None:
        self._servers = servers
        self._inputs = inputs
        self._ready: dict[str, Ready] = {}
        """By the endpoint's name."""
        self._max_in_flight = max_in_flight
        self._report = report
        self._statistics = statistics
        self._check = check
        self._clock = Offset()
        self._batcher = Batcher(REQUEST_COLUMNS, self._hand_over, breath)
        self._in_flight = UnderWay()
        self._due = 0
        self._reached = 0
        """The highest number of a request of the file that a closed loop came to, and 1."""
        self._alarm = Alarm()
        self._stopping = False
        self._walk: Iterator[Arrival] | None = None
        """The arrivals of the order that we are ready for."""
        self._watch = StallWatch()
        self._sessions: Sessions | None = None
        self._idle = Event()
        self._idle.set()

    def prepare(self, order: WorkOrder) -> None:
        """All that takes time before its start: bodies, the schedule, and the first arrival of our share at hand."""
        self._stopping, self._reached = False, 0
        for endpoint in order.endpoints:
            if endpoint.name not in self._ready:
                self._ready[endpoint.name] = opened(self._servers, endpoint, self._inputs)
        for name, ready in self._ready.items():
            if ready.data is not None:
                mine = [step for step in order.steps if step.endpoint == name]
                ours = {each.index: range(order.index, each.arrivals(order.pattern), order.count) for each in mine}
                ready.data.prepare({each.index: (each.data_from, ours[each.index]) for each in mine})
        shares = [
            share(step.offsets(order.pattern), step.index, order.index, order.count, step.begin_ns)
            for step in order.steps
            if not step.concurrency
        ]
        walk = heapq.merge(*shares, key=lambda arrival: arrival.offset_ns)
        self._walk = chain(list(islice(walk, 1)), walk)

    def execute(self, order: WorkOrder) -> None:
        """Runs the order to its end: every arrival of the share has become a row when this returns."""
        if self._walk is None:
            self.prepare(order)
        self._due = 0
        lead_ms = (order.base.monotonic_ns(order.start_ns) - time.monotonic_ns()) / 1e6
        self._idle.clear()
        ended = Event()
        flusher = gevent.spawn(self._flush_until, ended)
        try:
            with self._watch.looking():
                self._loop(order)
                self._pace(order)
                self._in_flight.join()
        except Exception as problem:
            self._in_flight.failed = problem
        finally:
            # whoever is still waiting is recorded as lost by its own greenlet, which has to have begun for that
            gevent.sleep(0)
            self._in_flight.kill()
            ended.set()
            flusher.join()
            self._flush()
            watched = [
                (step.index, self._watch.figures(begun := order.begun_ns(step), begun + step.length_ns))
                for step in order.steps
            ]
            bad, self._batcher.bad = self._batcher.bad, Counter()
            what = {"due": self._due, "watched": watched, "bad": dict(bad), "lead_ms": lead_ms}
            what |= {"reached": self._reached} if self._reached else {}
            if not self._in_flight.failed:  # else it is for whoever called us to say so, as the run may end with this
                self._report("done", {"order": order.number, **what})
            self._idle.set()
        if self._in_flight.failed:
            raise self._in_flight.failed

    def cut(self) -> None:
        """Sends no more of this order; answers under way are waited for."""
        self._stopping = True
        self._alarm.ring()

    def halt(self) -> None:
        """Stops sending at once, waits a little for answers under way, and writes down the rest as lost."""
        self.cut()
        gevent.spawn_later(HALT_S, self._in_flight.kill)
        self._idle.wait(timeout=HALT_S + 1)

    def _pace(self, order: WorkOrder) -> None:
        base = order.base
        start = base.monotonic_ns(order.start_ns)
        ready = {
            step.index: self._ready[endpoint.name] for step, endpoint in zip(order.steps, order.endpoints, strict=True)
        }
        most = max(1, self._max_in_flight // order.count)
        assert self._walk is not None
        walk, self._walk = self._walk, None
        self._sessions = Sessions.of(order, start, self._alarm, lambda: self._stopping)
        for arrival in self._sessions.between(walk) if self._sessions else walk:
            due = start + arrival.offset_ns
            if not self._stopping:
                self._alarm.sleep_until(due)
            if self._stopping or self._in_flight.failed:
                return
            self._due += 1
            if len(self._in_flight) >= most:
                self._drop(order, arrival, ready[arrival.step], base.wall_ns(due))
                if self._sessions:
                    self._sessions.dropped()
            else:
                self._in_flight.start(self._send, order.index, arrival, ready[arrival.step], due, base)

    def _loop(self, order: WorkOrder) -> None:
        """Starts the greenlets of closed loops, each worker its share of them."""
        for step, endpoint in zip(order.steps, order.endpoints, strict=True):
            began = order.begun_ns(step)
            ready = self._ready[endpoint.name]
            left = None if ready.data is None else ready.data.left(step.index)
            most = min(step.requests or 1 << 62, 1 << 62 if left is None else left)
            numbers = iter(range(order.index, most, order.count))
            for _ in range(len(range(order.index, step.concurrency, order.count))):
                self._in_flight.start(self._turns, order, step, ready, began, numbers)

    def _turns(self, order: WorkOrder, step: LoadStep, to: Ready, began: int, numbers: Iterator[int]) -> None:
        gevent.sleep(max(0.0, (began - time.monotonic_ns()) / 1e9))
        end = began + step.length_ns
        while not self._stopping and (now := time.monotonic_ns()) < end and (seq := next(numbers, None)) is not None:
            self._due += 1
            self._reached = max(self._reached, step.data_from + seq + 1)
            status = self._send(order.index, Arrival(seq, step.index, now - began), to, now, order.base)
            if status == "connect":  # without a schedule, only this keeps an endpoint that is gone from a million rows
                gevent.sleep(GONE_S)

    def _send(self, worker: int, arrival: Arrival, ready: Ready, due: int, base: Base) -> str:
        opened, request = ready.to, ready.of(arrival)
        protocol, body = opened.protocol, request.body
        headers = {**request.headers, wire.REQUEST_ID: f"{arrival.step}-{arrival.seq}"}
        sent = time.monotonic_ns()
        try:
            answer = opened.client.send(protocol.method, opened.endpoint.path, body, headers)
        except gevent.GreenletExit:
            answer = EndpointAnswer(LOST, sent, time.monotonic_ns(), error="the run stopped before the answer came")
        to_wall = base.wall_ns
        fields = answer.headers()
        if is_success(answer.status):
            self._examine(answer, fields, protocol)
        elif answer.error is None:
            answer.error = error_sentence(answer.body)
        clock = server_clock(fields, self._batcher.bad)
        if clock is not None:
            began_ns = answer.arrivals[0][0] if answer.arrivals else answer.done_ns  # a header comes first
            self._clock.see(to_wall(answer.sent_ns), *clock, to_wall(began_ns))
        # where a clock moves in steps it may read less than an instant that has passed
        sent_ns = max(answer.sent_ns, due)
        done_ns = max(answer.done_ns, sent_ns)
        handled = {} if clock is None else {"handled_ms": (clock[1] - clock[0]) / 1e6}
        columns = handled | self._columns(answer, fields, ready) | ready.place(arrival)
        last_ns = max(columns.get("last_ns", done_ns), sent_ns)
        columns |= {name: to_wall(max(columns[name], sent_ns)) for name in STREAM_INSTANTS if name in columns}
        if answer.status == CUT:
            columns["finish"] = CUT
        self._batcher.append(
            RequestRecord(
                worker=worker,
                seq=arrival.seq,
                step=arrival.step,
                endpoint=opened.name,
                intended_ns=to_wall(due),
                sent_ns=to_wall(sent_ns),
                done_ns=None if answer.status == LOST else to_wall(done_ns),
                status=answer.status,
                error=answer.error,
                bytes_in=len(body),
                bytes_out=len(answer.body),
                rows=request.rows,
                data_row=request.data_row,
                label=request.label,
                **columns,
            )
        )
        if self._statistics:  # latency from the scheduled instant, as everywhere in tailrate
            wrong = None if is_success(answer.status) else f"{answer.status}: {answer.error}"
            self._statistics.tell(protocol.method, opened.name, (last_ns - due) / 1e6, len(answer.body), wrong)
        if self._sessions and ready.data is not None:
            self._sessions.answered(arrival, ready.data, answer, protocol)
        return answer.status

    def _columns(self, answer: EndpointAnswer, fields: Mapping[str, str], ready: Ready) -> dict[str, Any]:
        try:
            return ready.read(answer, fields, self._batcher.bad)
        except Exception:  # whatever an answer is, it has a row
            self._batcher.bad[ready.to.protocol.name] += 1
            return {}

    def _examine(self, answer: EndpointAnswer, fields: Mapping[str, str], protocol: Protocol) -> None:
        """A 200 that is no result, or not the one that the scenario wants, is a failure with a status of its own."""
        try:
            flaw = protocol.flaw(answer, fields)
        except Exception as problem:  # whatever an answer is, it has a row
            flaw = f"the answer cannot be read: {type(problem).__name__}: {problem}"[:MOST_ERROR]
        if flaw is not None:
            answer.status, answer.error = CUT if flaw.startswith(BROKE_OFF) else BAD_ANSWER, f"{answer.status}: {flaw}"
        elif self._check is not None:
            answer.protocol = protocol
            try:
                wrong = self._check(answer)
            except Exception as problem:  # the scenario's own code, about an answer that may be anything
                wrong = f"{type(problem).__name__}: {problem}"
            if wrong:
                answer.status, answer.error = CHECK, f"{answer.status}: {wrong}"[:MOST_ERROR]

    def _drop(self, order: WorkOrder, arrival: Arrival, ready: Ready, intended_ns: int) -> None:
        reason = f"{self._max_in_flight} requests were unanswered"
        request = ready.of(arrival)
        record = RequestRecord(
            order.index, arrival.seq, arrival.step, ready.to.name, intended_ns, status="dropped", error=reason,
            rows=request.rows, data_row=request.data_row, label=request.label, **ready.place(arrival),
        )  # fmt: skip
        self._batcher.append(record)
        if self._statistics:
            self._statistics.tell(ready.to.protocol.method, ready.to.name, None, 0, f"dropped: {reason}")

    def _flush(self) -> None:
        self._batcher.flush()
        if self._statistics:
            self._statistics.flush()
        if windows := self._clock.best():
            self._report("clock", {"windows": windows[-2:]})

    def _flush_until(self, ended: Event) -> None:
        while not ended.wait(LOOK_S):
            if self._batcher.is_due():
                self._flush()
                tidy()

    def _hand_over(self, batch: Any) -> None:
        breath()
        self._report("rows", {"batch": batch})
