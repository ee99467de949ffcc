"""Ray Serve's own batch queue and autoscaling policy in virtual time, as oracles for `planning.simulator.simulate`.

The code is Ray's, unchanged: only the clock, the selector of the event loop and the metrics are replaced. It runs in a
process of its own (`asked`), since importing Ray reads the environment and starts threads.

A request reaches the queue as in a replica: a callback from another thread makes a task, which puts it. A blocking
method lets time pass, in which such callbacks pile up; an awaiting one sleeps.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WAITS_WITHOUT_A_TASK = sys.version_info >= (3, 12)
"""Of `asyncio.wait_for`: since then what a full batch leaves over doesn't go alone, unless batches wait for nobody."""
TURN_S = 1e-7
"""What a turn of the event loop takes; without it a timer that rounding made a hair too short would ring for ever."""


def asked(home: Path, **question: Any) -> Any:
    """What a new process answers."""
    ran = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Waiting(selectors.SelectSelector):
    """Nothing ever comes from outside; waiting lets time pass."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        self._clock.now_s += max(timeout or 0.0, 0.0) + TURN_S
        return []


class Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(Waiting(clock))

    def time(self) -> float:
        return self._clock.now_s


class Deaf:
    """A metric."""

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def observe(self, *args: Any, **named: Any) -> None:
        pass

    inc = set = observe


def batched(
    arrivals_s: list[float], mean_s: list[float], max_batch: int, wait_s: float, blocking: bool
) -> dict[str, list[float]]:
    """Latency of each request, and the requests of each batch, of a replica whose batches take `mean_s`."""
    from ray.serve import batching

    clock = Clock()
    loop = Loop(clock)
    asyncio.set_event_loop(loop)
    batching.time = clock
    batching.Histogram = batching.Gauge = batching.Counter = Deaf
    context = SimpleNamespace(_deployment_config=SimpleNamespace(max_ongoing_requests=10**9))
    batching.serve.get_replica_context = lambda: context
    latency_s, sizes = [0.0] * len(arrivals_s), []
    left, due = set(range(len(arrivals_s))), 0
    done = loop.create_future()

    async def method(xs: list[int]) -> list[int]:
        sizes.append(len(xs))
        if blocking:
            clock.now_s += mean_s[len(xs)]
            deliver()
        else:
            await asyncio.sleep(mean_s[len(xs)])
        return xs

    async def request(i: int) -> None:
        future = loop.create_future()
        queue.put(batching._SingleRequest(None, ["xs", i], future, SimpleNamespace(multiplexed_model_id=""), None))
        await future
        latency_s[i] = clock.now_s - arrivals_s[i]
        left.remove(i)
        if not left:
            done.set_result(None)

    tasks = []

    def deliver() -> None:
        nonlocal due
        while due < len(arrivals_s) and arrivals_s[due] <= clock.now_s:
            loop.call_soon(lambda i=due: tasks.append(loop.create_task(request(i))))
            due += 1

    def ring() -> None:
        deliver()
        if due < len(arrivals_s):
            loop.call_at(arrivals_s[due], ring)

    async def begin() -> Any:
        return batching._BatchQueue(max_batch, wait_s, 1, method)

    queue = loop.run_until_complete(begin())
    loop.call_soon(ring)
    loop.run_until_complete(done)
    queue._handle_batch_task.cancel()
    loop.run_until_complete(asyncio.gather(queue._handle_batch_task, return_exceptions=True))
    return {"latency_s": latency_s, "sizes": sizes}


def decided(setting: dict[str, Any], totals: list[float], period_s: float) -> list[int]:
    """What the autoscaler wants at each of its looks, where replicas are there as soon as they are wanted."""
    from ray.serve import autoscaling_policy
    from ray.serve.config import AutoscalingConfig

    clock = Clock()
    autoscaling_policy.time = clock
    config = AutoscalingConfig(**setting)
    policy = autoscaling_policy._apply_autoscaling_config(autoscaling_policy.default_autoscaling_policy)
    state: dict[str, Any] = {}
    target, found = config.min_replicas, []
    for look, total in enumerate(totals):
        clock.now_s = look * period_s
        context = SimpleNamespace(
            current_num_replicas=target, target_num_replicas=target, total_num_requests=total,
            config=config, policy_state=state,
        )  # fmt: skip
        wanted, state = policy(context)
        target = max(config.min_replicas, min(config.max_replicas, wanted))
        found.append(target)
    return found


def averaged(series: list[list[tuple[float, float]]], now_s: float) -> float:
    """The controller's mean of the sum of what replicas noted: (when, how many) of each."""
    from ray.serve._private import autoscaling_state
    from ray.serve._private.common import TimeStampedValue
    from ray.serve.config import AggregationFunction

    clock = Clock()
    clock.now_s = now_s
    autoscaling_state.time = clock
    state = SimpleNamespace(_config=SimpleNamespace(aggregation_function=AggregationFunction.MEAN))
    noted = [[TimeStampedValue(at, value) for at, value in of] for of in series]
    return float(autoscaling_state.DeploymentAutoscalingState._merge_and_aggregate_timeseries(state, noted))


def main() -> None:
    logging.disable(logging.CRITICAL)
    question = json.load(sys.stdin)
    answer = {"batched": batched, "decided": decided, "averaged": averaged}[question.pop("what")]
    print(json.dumps([answer(**case) for case in question["cases"]]))


if __name__ == "__main__":
    main()
