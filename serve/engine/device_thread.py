"""The one thread that owns a replica's device: it opens what is to run there, then serves with it until it is closed.

What is served, and how, a subclass says. From loading to the end there is always a sentence about where it stands.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Generic, Literal, TypeVar

from tailrate.serve.runner.open_runner import Say
from tailrate.serve.runner.runner import first_line
from tailrate.serve.spec import ServeError
from tailrate.serve.telemetry.statistics import Counters
from tailrate.serve.wire import WireError

log = logging.getLogger(__name__)

State = Literal["LOADING", "READY", "UNAVAILABLE"]
Opened = TypeVar("Opened")

MOST_EVENTS = 64


class Standing(Generic[Opened]):
    """Where an engine stands, from loading to its end: what its thread says, or another process of its own."""

    def __init__(self) -> None:
        self.state: State = "LOADING"
        self._progress = ("starting", time.monotonic())
        self._runner: Opened | None = None
        self._moved_s: float | None = None
        """When anything was last begun or done, while there is something to do."""
        self._opening_s = 0.0
        self._lost: str | None = None
        self._refusal = "not_ready"
        """What those are counted by that come while it isn't ready."""

    def standing(self) -> dict[str, Any]:
        """All of this but the runner, to be taken over by one in another process of this machine."""
        names = ("state", "_progress", "_moved_s", "_opening_s", "_refusal")
        return {name: getattr(self, name) for name in names} | {"_lost": self.trouble(math.inf)}

    @property
    def runner(self) -> Opened | None:
        """None until it is ready."""
        return self._runner

    @property
    def reason(self) -> str:
        """What it is busy with while loading, or why it is unavailable; empty when ready."""
        text, since_s = self._progress
        return f"{text}, {time.monotonic() - since_s:.0f} s" if self.state == "LOADING" else text

    @property
    def stuck_s(self) -> float:
        """How long what is in hand has been running; 0 when there is nothing."""
        since_s = self._moved_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def trouble(self, stuck_after_s: float) -> str | None:
        """Why the replica should be replaced, or None; one that could not load stays, to say why.

        A batch may take as long as opening did: it may have to wait for the same compiler.
        """
        if self._lost is not None:
            return self._lost
        stuck_s = self.stuck_s
        most_s = max(stuck_after_s, self._opening_s)
        return f"a batch has been running for {stuck_s:.0f} s" if stuck_s > most_s else None

    def ready_runner(self) -> Opened:
        """`WireError` while it is not ready."""
        if self._runner is None or self.state != "READY":
            raise WireError(503, f"the model is {self.state.lower()}: {self.reason}", self._refusal)
        return self._runner


class DeviceThread(Standing[Opened], ABC):
    def __init__(self, open_runner: Callable[[Say], AbstractContextManager[Opened]]) -> None:
        super().__init__()
        self.counters = Counters()
        self.events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        """What happened to the replica rather than to a request: `time_ns` of the wall clock, and a sentence."""
        self._open = open_runner
        self._thread = threading.Thread(target=self._live, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Finishes what is under way, refuses what waits, and ends the thread."""
        self._end()
        if self._thread.is_alive():
            self._thread.join()

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Requests in the queue."""

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def trouble(self, stuck_after_s: float) -> str | None:
        dead = self._lost is None and self.state == "READY" and not self.alive
        return "the engine's thread has died" if dead else super().trouble(stuck_after_s)

    # ---- a subclass's own

    @abstractmethod
    def _serve(self, runner: Opened) -> None:
        """Until it is closed, or the device is lost."""

    @abstractmethod
    def _end(self) -> None:
        """Makes `_serve` return, from any thread."""

    @abstractmethod
    def _abandon(self, error: WireError) -> None:
        """Tells everybody who waits, now that nothing is served any more."""

    # ---- the thread

    def _tell(self, what: str) -> None:
        log.warning(what)
        self.events.append({"time_ns": time.time_ns(), "what": what})

    def _say(self, text: str) -> None:
        self._progress = (text, time.monotonic())

    def _live(self) -> None:
        with ExitStack() as opened:
            self._open_and_serve(opened)

    def _open_and_serve(self, opened: ExitStack) -> None:
        began_s = time.monotonic()
        try:
            self._runner = opened.enter_context(self._open(self._say))
        except ServeError as problem:
            self._fail(str(problem))
        except BaseException as problem:
            log.exception("the replica cannot start")
            self._fail(first_line(problem))
        else:
            self._progress = ("", 0.0)
            self._opening_s = time.monotonic() - began_s
            self.state = "READY"
            try:
                self._serve(self._runner)
                self._fail(self._lost or "the replica is shutting down", "lost" if self._lost else "stopping")
            except BaseException as problem:
                log.exception("the engine failed")
                self._lost = f"the engine failed: {first_line(problem)}"
                self._fail(self._lost, "lost")

    def _fail(self, reason: str, refusal: str = "not_ready") -> None:
        self._progress, self._refusal = (reason, 0.0), refusal
        self.state = "UNAVAILABLE"
        self._moved_s = None
        self._abandon(WireError(503, reason, refusal))
