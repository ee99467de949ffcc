"""Requests that are under way, each in a greenlet of its own, which is kept for the next one.

A new greenlet costs ten microseconds: Python takes the pages of its stack from the system and gives them back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event
from gevent.hub import get_hub
from greenlet import getcurrent, greenlet


class UnderWay:
    def __init__(self) -> None:
        self._hub = get_hub()
        self._busy: set[greenlet] = set()
        self._waiting: list[greenlet] = []
        """For work; the one that was busy last gets the next."""
        self._nothing = Event()
        self.failed: Exception | None = None
        """The first that any of them ended with."""

    def __len__(self) -> int:
        return len(self._busy)

    def start(self, work: Callable[..., Any], *arguments: Any) -> None:
        """As soon as whoever calls this waits for something."""
        own = self._waiting.pop() if self._waiting else greenlet(self._work, self._hub)
        self._busy.add(own)
        self._hub.loop.run_callback(own.switch, work, arguments)

    def join(self) -> None:
        """Returns when nothing is under way."""
        while self._busy:
            self._nothing.clear()
            self._nothing.wait()
        while self._waiting:
            self._hub.loop.run_callback(self._waiting.pop().throw, gevent.GreenletExit)

    def kill(self) -> None:
        """Ends all that has begun."""
        for each in list(self._busy):
            self._hub.loop.run_callback(self._end, each)
        self.join()

    def _end(self, each: greenlet) -> None:
        if each in self._busy:
            each.throw(gevent.GreenletExit)

    def _work(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        own = getcurrent()
        while True:
            try:
                work(*arguments)
            except BaseException as problem:
                self._hub.handle_error(own, *sys.exc_info())
                if isinstance(problem, Exception):
                    self.failed = self.failed or problem
            self._busy.remove(own)
            self._waiting.append(own)
            if not self._busy:
                self._nothing.set()
            work, arguments = self._hub.switch()
