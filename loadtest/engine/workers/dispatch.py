"""One order at a time: each load process gets its share and gets ready for it, then all get the start.

The start is chosen when nobody has anything left to do for it, however many there are and however long a schedule
takes to make. What was due in the share of one that went down after it can't be asked of it any more, and is counted
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from gevent.event import Event

from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers.driver import HALT_S
from tailrate.loadtest.engine.workers.null_server import Pace
from tailrate.loadtest.engine.workers.protocol import Crew
from tailrate.loadtest.engine.workers.work_order import WorkOrder

LEAD_S = 0.3
"""From saying the start to it: the message's way to every worker, and a breath between steps."""
LOOK_S = 1.0


class Dispatch:
    """`lost(order, index, member)` is called for each load process that went down with its share of an order.

    `prepare`, then `start` and `wait`, or `dismiss`.
    """

    def __init__(
        self, crew: Crew, base: Base, now: Callable[[], int], lost: Callable[[WorkOrder, int, str], None]
    ) -> None:
        self.stopped_ns: int | None = None
        """When the present order was cut short, if it was."""
        self._crew, self._base, self._now, self._tell = crew, base, now, lost
        self._order: WorkOrder | None = None
        self._members: list[str] = []
        self._waiting: set[str] = set()
        self._all_done = Event()
        self._started = False
        self._lost: list[tuple[WorkOrder, int]] = []

    @property
    def under_way(self) -> bool:
        return bool(self._waiting)

    def prepare(
        self,
        steps: Sequence[LoadStep],
        endpoints: Sequence[Endpoint],
        pattern: Pattern,
        replay: tuple[bytes, Pace] = (b"", ()),
    ) -> None:
        """For all members that there are; returns when each of them waits for nothing but the start.

        With an answer, and how it is paced, it is a self-check: at a null server that gives it.
        """
        self.stopped_ns, self._started = None, False
        while True:
            self._members = self._crew.members()
            if not self._members:
                raise ScenarioError("no load process is left to send anything")
            count = len(self._members)
            whose = tuple(steps), tuple(endpoints)
            self._order = WorkOrder(steps[0].block, 0, self._base, 0, count, pattern, *whose, *replay)
            bases = self._crew.bases(self._members, self._base)
            self._expect_all()
            for index, member in enumerate(self._members):
                self._crew.give(member, replace(self._order, index=index, base=bases[member]))
            gone: list[str] = []
            self._wait(gone.append)
            if not gone:
                return
            self.dismiss()  # the others share it anew

    def start(self) -> WorkOrder:
        """What all of them begin with, now that it is said when."""
        assert self._order is not None
        self._order = replace(self._order, start_ns=self._now() + int(LEAD_S * 1e9))
        self._started = True
        self._expect_all()
        for member in self._members:
            self._crew.start(member, self._order.start_ns)
        return self._order

    def wait(self, look: Callable[[], None] = lambda: None) -> None:
        """Returns when all members are done with it; `look` is called now and then."""
        self._wait(self._lose, look)

    def dismiss(self) -> None:
        """It is not to be begun."""
        for member in self._members:
            self._crew.start(member, None)
        self._waiting.clear()
        self._all_done.set()

    def done(self, member: str) -> None:
        """With getting ready, or with the order itself."""
        self._waiting.discard(member)
        if not self._waiting:
            self._all_done.set()

    def cut(self) -> int:
        """No more of it is sent from now on; what is under way is answered."""
        self.stopped_ns = now_ns = self._now()
        self._crew.cut()
        return now_ns

    def halt(self) -> None:
        """At once; who does not answer in time is lost."""
        if not self._started:
            self.dismiss()
            return
        self._crew.halt()
        self._all_done.wait(timeout=HALT_S + 1)
        for member in list(self._waiting):
            self._lose(member)

    def _expect_all(self) -> None:
        self._waiting = set(self._members)
        self._all_done.clear()

    def _wait(self, gone: Callable[[str], None], look: Callable[[], None] = lambda: None) -> None:
        while not self._all_done.wait(timeout=LOOK_S):
            if self._crew.problem:
                raise ScenarioError(self._crew.problem)
            for member in self._waiting - set(self._crew.members()):
                gone(member)
                self.done(member)
            look()

    def _lose(self, member: str) -> None:
        assert self._order is not None
        if not self._order.answer:
            index = self._members.index(member)
            self._tell(self._order, index, member)
            self._lost.append((self._order, index))
        self.done(member)

    def went_down(self) -> int:
        """Arrivals that were due in the shares of those that were lost since the last time."""
        lost, self._lost = self._lost, []
        return sum(self._due(order, index) for order, index in lost)

    def _due(self, order: WorkOrder, index: int) -> int:
        elapsed = (self.stopped_ns or self._now()) - order.start_ns
        return sum(
            int(np.searchsorted(step.offsets(order.pattern)[index :: order.count], elapsed - step.begin_ns))
            for step in order.steps
            if not step.concurrency
        )
