"""The load process's end of the table in the terminal: hands over what is known, once a second, and keeps others off.

Drawing a table takes several milliseconds, which the schedule does not have. So `terminal.py` draws in a process of its
own, fed through a pipe; where that is slow or stopped, only the feeding greenlet waits. Whatever this process would
write to the terminal meanwhile (log lines, print) goes through the same pipe and comes to stand above the table.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, TextIO

import gevent

from tailrate.loadtest.engine.live.board import Board

PERIOD_S = 1.0
GOODBYE_S = 5.0
MOST_LINES = 1000
LOGGED = ("step_end", "knee", "self_check", "fault")
"""Events that are log lines too."""


class Lines(io.TextIOBase):
    """A stream whose lines wait to be fetched."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        self._lines.extend(whole)
        return len(text)

    def fetch(self, rest: bool = False) -> list[str]:
        found = list(self._lines) + ([self._begun] if rest and self._begun else [])
        self._lines.clear()
        return found


class Screen:
    """`start` and `stop`, any number of times; does nothing where there is no terminal."""

    def __init__(self) -> None:
        self._board: Board | None = None
        self._told = 0
        self._logged = False
        self._lines = Lines()
        self._feeder: gevent.Greenlet[..., None] | None = None
        self._drawer: subprocess.Popen[bytes] | None = None
        self._streams: tuple[TextIO, TextIO] = (sys.stdout, sys.stderr)

    @property
    def possible(self) -> bool:
        """Not on stderr alone: under `| tee` others write to the same terminal."""
        return sys.stdout.isatty()

    def start(self, board: Board) -> None:
        if self._drawer is not None or not self.possible:
            return
        self._board, self._told, self._logged = board, 0, False
        self._streams = (sys.stdout, sys.stderr)
        # by its file and without that one's folder on the path: a module of ours there is called http
        command = [sys.executable, "-P", str(Path(__file__).with_name("terminal.py"))]
        self._drawer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stdout)
        for handler, stream in _handlers():
            if stream.isatty():
                handler.setStream(self._lines)
                self._logged |= handler in logging.getLogger().handlers
        sys.stdout, sys.stderr = (self._lines if stream.isatty() else stream for stream in self._streams)
        atexit.register(self.stop)
        self._feeder = gevent.spawn(self._feed)

    def stop(self) -> None:
        """Leaves the table as it stands, and the terminal to others."""
        if self._drawer is None or self._feeder is None:
            return
        atexit.unregister(self.stop)
        drawer, self._drawer = self._drawer, None
        self._feeder.kill()
        stdout, stderr = self._streams
        for handler, stream in _handlers():
            if stream is self._lines:
                handler.setStream(stderr)
        sys.stdout, sys.stderr = stdout, stderr
        try:
            with gevent.Timeout(GOODBYE_S):
                self._send(drawer)
                assert drawer.stdin is not None
                drawer.stdin.close()
                drawer.wait()
        except (gevent.Timeout, OSError):
            drawer.kill()
        for line in self._lines.fetch(rest=True):
            stderr.write(line + "\n")

    def _feed(self) -> None:
        """Feeds the process that draws; if that dies, the table is gone and the run goes on."""
        try:
            while (drawer := self._drawer) is not None:
                self._send(drawer)
                gevent.sleep(PERIOD_S)
        except OSError:
            pass

    def _send(self, drawer: subprocess.Popen[bytes]) -> None:
        assert self._board is not None
        assert drawer.stdin is not None
        now_ns = self._board.base.wall_ns(time.monotonic_ns())
        self._board.tick(now_ns)
        told = self._board.events(self._told)
        self._told = told[-1]["n"] if told else self._told
        shown = [event for event in told if not (self._logged and event["event"] in LOGGED)]
        frame = {"state": self._board.state(now_ns), "events": shown, "lines": self._lines.fetch()}
        drawer.stdin.write(json.dumps(frame).encode() + b"\n")
        drawer.stdin.flush()


def _handlers() -> list[tuple[logging.StreamHandler[Any], Any]]:
    """Those that log to a stream; Locust's own loggers have theirs."""
    names = ("", "locust", "locust.stats_logger")
    found = {handler for name in names for handler in logging.getLogger(name).handlers}
    return [(handler, handler.stream) for handler in found if isinstance(handler, logging.StreamHandler)]
