"""Which batcher is kept: Ray Serve's `@serve.batch` or an engine of our own, on the same runner with nothing around.

Both live in one event loop of one process, without HTTP, and are visited in turn by the same load, so that a noisy
minute hits both: a closed loop, then Poisson arrivals at half of the capacity that it found. `@serve.batch` comes in
its two usual forms: *awaiting* (the method hands the batch to a thread and awaits it, so that the loop stays free) and
*blocking* (the method calls the model itself, and nothing else happens meanwhile).

    sleep        a model of 10 ms and 0.3 ms a row, batches of up to 32: at most 1,630 requests/s
    custom_cnn   eager on the CPU, batches of up to 4
    bert         eager on the CPU, two layers, 32 tokens, batches of up to 16

Prints a table (requests/s, P50 and P99 in ms, rows per batch: medians, lowest and highest), then one JSON line.

    python tests/bench/batcher.py
    python tests/bench/batcher.py --models sleep --seconds 5 --rounds 5 --in-flight 16
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line, over, shown, spreads  # noqa: E402

from tailrate.serve.engine.engine import Engine, Job  # noqa: E402
from tailrate.serve.options import ServeOptions  # noqa: E402
from tailrate.serve.runner.cuda_pipeline import BatchResult  # noqa: E402
from tailrate.serve.runner.open_runner import open_runner  # noqa: E402
from tailrate.serve.runner.runner import NullRunner, Runner  # noqa: E402
from tailrate.serve.spec import Tensors  # noqa: E402
from tailrate.serve.variants import load as load_variant  # noqa: E402

WAIT_S = 0.01
"""Ray Serve's default, how long a batch waits to be filled."""


class SleepingRunner(NullRunner):
    def begin(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> BatchResult:
        start = time.perf_counter_ns()
        time.sleep(0.010 + 0.0003 * rows)
        return BatchResult(self._reply(rows), start, start, time.perf_counter_ns())


class Model:
    """How to open it, and what to ask of it."""

    def __init__(self, name: str, cache: str) -> None:
        settings = {"sequence": "32", "layers": "2"} if name == "bert" else {}
        most = {"sleep": 32, "custom_cnn": 4, "bert": 16}[name]
        self.name, self.most = name, most
        model = "null" if name == "sleep" else name
        options = ServeOptions(
            (model,), ("eager",), "cpu", max_batch=most, threads=1, settings=settings, cache_dir=cache, parity_share=0
        )
        spec = options.spec(model)
        self.request = spec.example(1, 0)
        self.wanted = frozenset(spec.default_outputs)
        self.open: Callable[[], AbstractContextManager[Runner]] = lambda: open_runner(
            spec, load_variant("eager"), options, lambda line: None
        )
        if name == "sleep":
            self.open = lambda: nullcontext(SleepingRunner(spec, most))


class Ours:
    """As `tailrate.serve.edge.endpoint` does it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loop = asyncio.get_running_loop()
        self.sizes: list[int] = []
        self.engine = Engine(lambda say: model.open(), self._deliver, max_queue=1000)
        self.engine.start()

    async def ready(self) -> None:
        while self.engine.state == "LOADING":
            await asyncio.sleep(0.01)
        assert self.engine.state == "READY", self.engine.reason

    async def ask(self) -> None:
        job = Job(self._model.request, 1, self._model.wanted, time.perf_counter_ns())
        job.waiter = self._loop.create_future()
        self.engine.submit(job)
        await job.waiter
        assert job.outputs is not None

    def _deliver(self, jobs: Sequence[Job]) -> None:
        self.sizes.append(len(jobs))
        self._loop.call_soon_threadsafe(self._wake, jobs)

    def _wake(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.waiter.set_result(None)

    def close(self) -> None:
        self.engine.close()


class Theirs:
    """`@serve.batch` around the same runner, which lives in a thread of its own where the method awaits."""

    def __init__(self, model: Model, awaiting: bool) -> None:
        from ray import serve

        self._model = model
        self._thread = ThreadPoolExecutor(1) if awaiting else None
        self._opened = ExitStack()
        self._runner: Any = None
        self.sizes: list[int] = []

        @serve.batch(max_batch_size=model.most, batch_wait_timeout_s=WAIT_S)
        async def batched(requests: list[Tensors]) -> list[Any]:
            if self._thread is None:
                return self._run(requests)
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, requests)

        self._batched = batched

    async def ready(self) -> None:
        def opened() -> Runner:
            return self._opened.enter_context(self._model.open())

        if self._thread is None:
            self._runner = opened()
        else:
            self._runner = await asyncio.get_running_loop().run_in_executor(self._thread, opened)

    def _run(self, requests: list[Tensors]) -> list[Any]:
        self.sizes.append(len(requests))
        ran = self._runner.begin(requests, len(requests), self._model.wanted).finish()
        return [{name: ran.outputs[name][at : at + 1] for name in self._model.wanted} for at in range(len(requests))]

    async def ask(self) -> None:
        assert await self._batched(self._model.request)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


async def closed(side: Any, in_flight: int, seconds: float) -> dict[str, float]:
    """As many requests as `in_flight`, each followed by the next; each client's turn comes at least four times."""
    took: list[float] = []
    side.sizes.clear()
    start = time.perf_counter()

    async def client() -> None:
        done = 0
        while (asked := time.perf_counter()) < start + seconds or done < 4:
            await side.ask()
            took.append(time.perf_counter() - asked)
            done += 1

    await asyncio.gather(*(client() for _ in range(in_flight)))
    return summary(side, took, time.perf_counter() - start)


async def offered(side: Any, rate: float, seconds: float, seed: int) -> dict[str, float]:
    """Poisson arrivals, whatever the answers do; latency is from when a request was due."""
    loop = asyncio.get_running_loop()
    took: list[float] = []
    side.sizes.clear()
    due_s = np.random.default_rng(seed).exponential(1 / rate, max(50, round(rate * seconds))).cumsum()
    start = loop.time()

    async def client(at: float) -> None:
        await asyncio.sleep(at - loop.time())
        await side.ask()
        took.append(loop.time() - at)

    await asyncio.gather(*(client(start + at) for at in due_s.tolist()))
    return summary(side, took, loop.time() - start)


def summary(side: Any, took: Sequence[float], seconds: float) -> dict[str, float]:
    p50, p99 = np.quantile(took, [0.5, 0.99], method="higher") * 1e3
    return {"rps": len(took) / seconds, "p50_ms": p50, "p99_ms": p99, "batch_rows": statistics.mean(side.sizes)}


async def compare(model: Model, options: argparse.Namespace) -> list[dict[str, Any]]:
    sides = {
        "engine": Ours(model),
        "serve.batch, awaiting": Theirs(model, awaiting=True),
        "serve.batch, blocking": Theirs(model, awaiting=False),
    }
    for side in sides.values():
        await side.ready()
        await asyncio.gather(*(side.ask() for _ in range(model.most)))  # warm
    gc.collect()
    gc.freeze()  # torch's and Ray's many objects: a full collection among them stops everybody for 50 ms
    rows = []
    capacity = 0.0
    for load in (f"{options.in_flight} in flight", f"{options.share:.0%} offered"):
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for number in range(options.rounds):
            for name, side in sides.items():
                found[name].append(
                    await offered(side, capacity * options.share, options.seconds, number)
                    if capacity
                    else await closed(side, options.in_flight, options.seconds)
                )
        for name, runs in found.items():
            ratios = {
                f"{of}_ratio": over((ours[key] for ours in found["engine"]), (its[key] for its in runs))
                for of, key in (("rate", "rps"), ("p99", "p99_ms"))
            }
            rows.append({"model": model.name, "load": load, "batcher": name, **spreads(runs), **ratios})
        capacity = max(run["rps"] for runs in found.values() for run in runs)
    for side in sides.values():
        side.close()
    return rows


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--models", default="sleep,custom_cnn,bert")
    found.add_argument("--in-flight", type=int, default=64)
    found.add_argument("--seconds", type=float, default=3)
    found.add_argument("--share", type=float, default=0.5, help="of the capacity, offered as Poisson arrivals")
    found.add_argument("--rounds", type=int, default=3)
    return found


def main() -> None:
    options = parser().parse_args()
    from ray.serve import batching

    # all that it wants to know of its replica is whether to warn
    context = SimpleNamespace(_deployment_config=SimpleNamespace(max_ongoing_requests=10_000))
    vars(batching.serve)["get_replica_context"] = lambda: context
    rows = []
    print(
        f"{'':<46} {'req/s':>19} {'P50 ms':>21} {'P99 ms':>21} {'rows':>5}   engine ÷ it:\n"
        f"{'model':<10} {'load':<12} {'batcher':<22} {'':>69} {'rate':>18} {'P99':>18}"
    )
    with tempfile.TemporaryDirectory() as cache:
        for name in options.models.split(","):
            for row in asyncio.run(compare(Model(name, cache), options)):
                rows.append(row)
                print(
                    f"{row['model']:<10} {row['load']:<12} {row['batcher']:<22} {shown(row['rps'], '.0f', 19)} "
                    f"{shown(row['p50_ms'], '.1f', 21)} {shown(row['p99_ms'], '.1f', 21)} "
                    f"{row['batch_rows']['median']:>5.1f} {shown(row['rate_ratio'], '.2f', 18)} "
                    f"{shown(row['p99_ratio'], '.2f', 18)}",
                    flush=True,
                )
    print("kept: engine")
    last_line("batcher", in_flight=options.in_flight, rows=rows)


if __name__ == "__main__":
    main()
