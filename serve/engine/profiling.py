"""torch.profiler over the next batches of live traffic: a Chrome trace, and a table of what took the time.

Asked for over HTTP where `--profile` allows it, carried out in the engine's thread, since the profiler sees
the operators of the thread that starts it. Costs a batch next to nothing while nobody asks; reading and
writing what was recorded is done elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from tailrate.serve.asgi import HttpAnswer, Request, as_json
from tailrate.serve.wire import WireError

if TYPE_CHECKING:
    from torch.profiler import profile

log = logging.getLogger(__name__)

BATCHES = 20
MOST_BATCHES = 1000
TIMEOUT_S = 60.0
MOST_TIMEOUT_S = 3600.0
ROWS = 20
_OFF = nullcontext()

Profile = tuple[Path, list[dict[str, Any]]]
"""The trace, and the table."""


@dataclass(slots=True, eq=False)
class ProfileOrder:
    """Some batches to be profiled; `recorded` gives what was."""

    batches: int
    seen: int = 0
    recorded: Future[profile] = field(default_factory=Future)


class Profiler:
    """One profile at a time."""

    def __init__(self, folder: Path, name: str, count: Callable[[str], None] = lambda event: None) -> None:
        self._folder = folder
        self._name = name
        self._count = count
        """Told of each batch that was recorded, and so slowed; see `counters.EVENTS`."""
        self._order: ProfileOrder | None = None
        self._lock = Lock()
        self._running: tuple[ProfileOrder, profile] | None = None
        """Of the engine's thread alone."""

    # ---- the event loop's side

    async def profiled(self, batches: int, timeout_s: float) -> Profile:
        """Of the next batches; `WireError` where too few come."""
        order = self.ask(batches)
        try:
            recorded = await asyncio.wait_for(asyncio.wrap_future(order.recorded), timeout_s)
        except TimeoutError:
            what = f"{order.seen} of {batches} batches came within {timeout_s:g} s"
            raise WireError(504, f"{what}; a profile needs traffic, so send requests meanwhile") from None
        finally:
            self.withdraw(order)
        return await asyncio.to_thread(self._write, recorded)

    def ask(self, batches: int) -> ProfileOrder:
        """Raises `WireError` while another profile is being made."""
        with self._lock:
            if self._order is not None:
                left = self._order.batches - self._order.seen
                raise WireError(409, f"another profile is being made, with {left} batches to go; try again after it")
            self._order = ProfileOrder(batches)
            return self._order

    def withdraw(self, order: ProfileOrder) -> None:
        """Nobody waits for it any longer; what was begun is ended at the next batch."""
        with self._lock:
            if self._order is order:
                self._order = None

    def _write(self, recorded: profile) -> Profile:
        self._folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        path = self._folder / f"{self._name}-{now}-{time.perf_counter_ns() % 10**6:06d}.json.gz"
        recorded.export_chrome_trace(str(path))
        return path, table_of(recorded)

    # ---- the engine's side

    def batch(self) -> AbstractContextManager[None]:
        """To be entered around each batch."""
        if self._order is None and self._running is None:
            return _OFF
        return self._recording()

    @contextmanager
    def _recording(self) -> Iterator[None]:
        order = self._order
        if self._running is not None and self._running[0] is not order:
            self._stop()  # its asker has gone
        if order is not None and self._running is None:
            self._start(order)
        if self._running is None:
            yield
            return
        from torch.profiler import record_function

        try:
            with record_function("batch"):
                yield
        finally:
            owner, recorded = self._running
            owner.seen += 1
            self._count("profiled_batches")
            if owner.seen >= owner.batches:
                self._stop()
                self.withdraw(owner)
                if not owner.recorded.done():
                    owner.recorded.set_result(recorded)

    def _start(self, order: ProfileOrder) -> None:
        try:
            import torch
            from torch.profiler import ProfilerActivity, profile

            cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            recorded = profile(activities=[ProfilerActivity.CPU, *cuda])
            recorded.start()
        except Exception as problem:  # the batch is not to blame
            self._fail(order, problem)
        else:
            self._running = (order, recorded)

    def _stop(self) -> None:
        assert self._running is not None
        (order, recorded), self._running = self._running, None
        try:
            recorded.stop()
        except Exception as problem:
            self._fail(order, problem)

    def _fail(self, order: ProfileOrder, problem: Exception) -> None:
        log.exception("the profiler failed")
        self.withdraw(order)
        if not order.recorded.done():
            order.recorded.set_exception(WireError(500, f"the profiler failed: {problem}"))


def table_of(recorded: profile) -> list[dict[str, Any]]:
    """The operators that took most of the time themselves, on the device where there is one, else on the CPU."""
    found = recorded.key_averages()
    on_device = any(row.self_device_time_total for row in found)
    own = "self_device_time_total" if on_device else "self_cpu_time_total"
    times = ("self_cpu", "cpu", *(("self_device", "device") if on_device else ()))
    most = sorted(found, key=lambda row: getattr(row, own), reverse=True)[:ROWS]
    return [
        {"name": row.key, "calls": row.count}
        | {f"{what}_ms": round(getattr(row, f"{what}_time_total") / 1e3, 4) for what in times}
        for row in most
    ]


async def answer(request: Request, name: str, profiled: Callable[[int, float], Awaitable[Profile]]) -> HttpAnswer:
    """`{"batches": 20, "timeout_s": 60, "format": "table"}`, each of them optional, or `"format": "trace"`."""
    batches, timeout_s, as_trace = _asked(bytes(request.body))
    path, table = await profiled(batches, timeout_s)
    if as_trace:
        named = {"content-disposition": f'attachment; filename="{path.name}"'}
        trace = await asyncio.to_thread(path.read_bytes)
        return HttpAnswer(200, trace, {"content-type": "application/gzip", **named})
    return as_json({"name": name, "batches": batches, "trace": str(path), "table": table})


def _asked(body: bytes) -> tuple[int, float, bool]:
    """(batches, seconds to wait for them, whether the trace itself is wanted)"""
    try:
        asked = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise WireError(400, 'the body must be a JSON object such as {"batches": 20}')
    batches, timeout_s = asked.get("batches", BATCHES), asked.get("timeout_s", TIMEOUT_S)
    wanted = asked.get("format", "table")
    if type(batches) is not int or not 1 <= batches <= MOST_BATCHES:
        raise WireError(400, f"batches must be a whole number from 1 to {MOST_BATCHES}")
    if type(timeout_s) not in (int, float) or not 0 < timeout_s <= MOST_TIMEOUT_S:
        raise WireError(400, f"timeout_s must be a number of seconds up to {MOST_TIMEOUT_S:g}")
    if wanted not in ("table", "trace"):
        raise WireError(400, "format must be table or trace")
    return batches, float(timeout_s), wanted == "trace"
