"""Was it the load generator? The same kind of schedule, driven at a server that answers at once, on this machine.

Each load process has a null server of its own and its share of the rate; what it sees there (lateness, CPU, latency) is
its own doing. The conductor asks for the highest rate of the run first and, where that is not kept, for half of it,
and so on. What was kept is remembered for a day per machine, size of the bodies and number of processes.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.analysis.records.folder import write_atomically
from tailrate.analysis.records.objective import LATE_MS, MOST_CPU_PCT
from tailrate.analysis.stats.trend import percentile
from tailrate.loadtest.engine import child_python
from tailrate.loadtest.engine.endpoint.answer import OK
from tailrate.loadtest.engine.endpoint.credentials import Keys
from tailrate.loadtest.engine.endpoint.payloads import Inputs, Payloads
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.workers.driver import Driver
from tailrate.loadtest.engine.workers.null_server import Pace
from tailrate.loadtest.engine.workers.work_order import WorkOrder
from tailrate.serve.machine import cache_folder, cores

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS = 3.0
FALLS = 6
DAY_S = 86_400
UNKNOWN_RPS = 4000.0
"""What is tried where a search may ask for any rate."""
NAME = "self-check.json"
"""In the cache folder."""


@contextmanager
def null_server(answer: bytes, pace: Pace = ()) -> Iterator[str]:
    """The URL of a null server in a process of its own, which gives that answer: a whole HTTP response."""
    process = subprocess.Popen(
        child_python.command("tailrate.loadtest.engine.workers.null_server"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_python.environment(),
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    pieces = ",".join(f"{end}:{at_ms:.3f}" for end, at_ms in pace)
    process.stdin.write(b"%d %s\n%s" % (len(answer), pieces.encode(), answer))
    process.stdin.flush()
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def measure(order: WorkOrder, inputs: Inputs, timeout_s: float, max_in_flight: int) -> dict[str, float]:
    """One load process's share of a check."""
    batches: list[Any] = []
    done: dict[str, Any] = {}

    def report(kind: str, content: dict[str, Any]) -> None:
        if kind == "rows":
            batches.append(content["batch"])
        elif kind == "done":
            done.update(content)

    with null_server(order.answer, order.pace) as url:
        servers = Servers(timeout_s, Keys())
        order = replace(order, endpoints=tuple(replace(endpoint, url=url) for endpoint in order.endpoints))
        try:
            warm = replace(order.steps[0], seconds=0.3, requests=20 * max(1, order.steps[0].concurrency))
            first = replace(order, steps=(warm,), start_ns=order.base.wall_ns(time.monotonic_ns()))
            plain = Inputs(inputs.tensors, inputs.rows, inputs.outputs)  # a few requests of a file are like all of them
            driver = Driver(servers, plain, max_in_flight, report)
            driver.execute(first)
            batches.clear()
            driver.execute(replace(order, start_ns=order.base.wall_ns(time.monotonic_ns() + 50_000_000)))
        finally:
            servers.close()

    def column(name: str) -> Any:
        return np.concatenate([batch.column(name).to_numpy(zero_copy_only=False) for batch in batches] or [np.empty(0)])

    ok = column("status") == OK
    intended, sent, answered = (column(f"{name}_ns")[ok].astype(np.float64) for name in ("intended", "sent", "done"))
    if not len(sent):
        return {"kept": 0.0, "late_p99_ms": np.inf, "cpu_pct": 100.0, "p50_ms": np.inf, "p99_ms": np.inf, "rps": 0.0}
    late, latency = (sent - intended) / 1e6, (answered - intended) / 1e6
    return {
        "kept": len(sent) / max(1, done["due"]),
        "late_p99_ms": round(percentile(late, 99), 3),
        "cpu_pct": max(figures["cpu_pct"] for _, figures in done["watched"]),
        "p50_ms": round(percentile(latency, 50), 3),
        "p99_ms": round(percentile(latency, 99), 3),
        "rps": round(len(sent) / max(1e-9, float(answered.max() - intended.min()) / 1e9), 1),
    }


@dataclass(frozen=True, slots=True)
class Check:
    """What the load side can do by itself; the slowest of its processes counts."""

    wanted_rps: float
    safe_rps: float
    """The highest rate that was kept; in a closed loop the most that was reached."""
    late_p99_ms: float
    cpu_pct: float
    p50_ms: float
    p99_ms: float
    at_s: float

    @classmethod
    def of(cls, wanted_rps: float, rate: float, found: Sequence[Mapping[str, float]]) -> Check:
        safe = rate if rate and all(map(_kept, found)) else 0.0 if rate else sum(one["rps"] for one in found)
        worst = {key: max(one[key] for one in found) for key in ("late_p99_ms", "cpu_pct", "p50_ms", "p99_ms")}
        return cls(wanted_rps, safe, **worst, at_s=time.time())

    def sentence(self, closed: bool) -> str:
        did = "reach" if closed else "keep"
        figures = f"P50 {self.p50_ms:g} ms, P99 {self.p99_ms:g} ms, late P99 {self.late_p99_ms:g} ms"
        return f"against a null server the load processes {did} {self.safe_rps:.4g}/s ({figures})"

    def as_json(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in self.__slots__}


def _kept(found: Mapping[str, float]) -> bool:
    return found["kept"] >= 0.999 and found["late_p99_ms"] <= LATE_MS and found["cpu_pct"] <= MOST_CPU_PCT


def search(wanted_rps: float, ask: Callable[[float], list[dict[str, float]]], closed: bool) -> Check:
    """`ask` drives the null servers at a rate (0: the run's closed loop) and gives what each process saw."""
    if closed:
        return Check.of(0.0, 0.0, ask(0.0))
    rate = wanted_rps
    for _ in range(FALLS):
        check = Check.of(wanted_rps, rate, ask(rate))
        if check.safe_rps:
            break
        rate /= 2
    return check


def remembered(key: str, wanted_rps: float) -> Check | None:
    """A check of today that kept at least that rate."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        check = Check(**json.loads((cache_folder() / NAME).read_text())[key])
        if check.safe_rps >= wanted_rps > 0 and time.time() - check.at_s < DAY_S:
            return check
    return None


def remember(key: str, check: Check) -> None:
    with suppress(OSError):  # a home that cannot be written costs a check, not the run
        (path := cache_folder() / NAME).parent.mkdir(parents=True, exist_ok=True)
        known: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            known = json.loads(path.read_text())
        write_atomically(path, json.dumps(known | {key: check.as_json()}, indent=1) + "\n")


def key(protocol: str, payloads: Payloads, answer: bytes, processes: int, spacing: str) -> str:
    """What a check holds for: bodies within a factor of two of each other are alike, and so are answers."""
    size, other = max(map(len, payloads.bodies)).bit_length(), len(answer).bit_length()
    bodies = f"{protocol}, bodies under {1 << size} B, answers under {1 << other} B"
    return f"{platform.node()} {cores()} cores, {processes} processes, {bodies}, {spacing}"
