"""What serving costs a model that is kept busy: requests/s over HTTP ÷ rows/s of a bare loop around the same runner.

Same variant, batch size and threads. The model's process has one core to itself, its event loop included, and all
else (the load, HAProxy, Ray) the other. The load is a closed loop of three batches' worth of connections with a row
each; the bare loop runs full batches of single rows in a process of its own, on the model's core. They take turns, so
that a noisy minute hits both; the ratio is that of neighbours in time. Beside it the ratio of rows per second of CPU,
which other programs on that core cannot touch.

Physics: the answers of one batch come at one instant, so that a slow model's rate is a matter of few instants: counted
from the first answer to the last, five batches of four would be 19 answers in the time of 16. A rate is of whole
batches, and a round lasts until there are enough of them.

Prints a table (rows/s bare and served, both ratios, the replica's own stages: medians over rounds, with the lowest and
the highest), then one JSON line.

    python tests/bench/served_over_bare.py
    python tests/bench/served_over_bare.py --quick
    python tests/bench/served_over_bare.py --models bert --variants compiled --seconds 20 --rounds 5
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._bare import Bare, apart, as_the_engine  # noqa: E402
from bench._rounds import last_line, left_out, over, shown, spreads  # noqa: E402

BATCH = 4
LEAST = 6
"""Batches in a round, however long they take."""
SETTINGS = {"bert": {"sequence": "32"}}
SETTLE_S = 1.0


def options_for(model: str, variants: tuple[str, ...], cache: str) -> dict[str, Any]:
    """One bucket, since every batch is full; what is sampled and compared would be work that the bare loop has not."""
    return {
        "models": [model], "variants": list(variants), "device": "cpu", "buckets": [BATCH], "threads": 1,
        "settings": SETTINGS.get(model, {}), "parity_share": 0, "cache_dir": cache,
    }  # fmt: skip


# ---- the bare loop: this file again, as `served_over_bare.py --bare OPTIONS VARIANT`


def bare(given: dict[str, Any], variant: str) -> None:
    """Answers each line of seconds with rows/s and rows per second of CPU."""
    from tailrate.serve import variants
    from tailrate.serve.options import ServeOptions
    from tailrate.serve.runner.open_runner import open_runner

    how = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    options = ServeOptions(**how)
    spec = options.spec(options.models[0])
    example = spec.example(BATCH, 0)
    parts = [{name: tensor[row : row + 1] for name, tensor in example.items()} for row in range(BATCH)]
    with open_runner(spec, variants.load(variant), options, lambda line: None) as runner:
        print("ready", flush=True)
        for line in sys.stdin:
            start, cpu = time.perf_counter(), time.process_time()
            rows = 0
            while time.perf_counter() < start + float(line) or rows < LEAST * BATCH:
                runner.begin(parts, BATCH, spec.default_outputs).finish()
                rows += BATCH
            print(rows / (time.perf_counter() - start), rows / (time.process_time() - cpu), flush=True)


# ---- the served side


class Load:
    """A closed loop over kept connections; counts answers."""

    def __init__(self, url: str, path: str, body: bytes, headers: dict[str, str], replica: psutil.Process) -> None:
        self._replica = replica
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        start = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\n{head}content-length: {len(body)}\r\n\r\n"
        self._request = start.encode() + body
        self._done: list[float] = []
        self._timing: list[str] = []
        self._until = 0.0
        self._ended: float | None = None

    async def run(self, connections: int, seconds: float) -> tuple[float, float, dict[str, float]]:
        """Answers per second once it has settled, and per second of the replica's CPU; the mean of each stage in ms."""
        self._done.clear()
        self._timing.clear()
        start = time.perf_counter() + SETTLE_S
        self._until, self._ended = start + seconds, None
        cpu = sum(self._replica.cpu_times()[:2])
        await asyncio.gather(*(self._client(start) for _ in range(connections)))
        cpu = sum(self._replica.cpu_times()[:2]) - cpu
        from tailrate.serve import wire

        stages = [wire.parse_timing(text) for text in self._timing]
        means = {stage: statistics.mean(found[stage] for found in stages) for stage in wire.STAGES}
        # later answers were of smaller batches, as nobody asked again
        counted = [at for at in self._done if start <= at <= (self._ended or start)]
        return rate_of(counted, BATCH), len(self._done) / cpu, means

    async def _client(self, start: float) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        while self._goes_on(start):
            writer.write(self._request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if not head.startswith("http/1.1 200"):
                raise SystemExit(f"the server does not answer: {head}")
            fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            await reader.readexactly(int(fields["content-length"]))
            self._done.append(time.perf_counter())
            self._timing.append(fields["server-timing"])
        writer.close()
        await writer.wait_closed()

    def _goes_on(self, start: float) -> bool:
        """Until the time is over and enough batches were answered."""
        now = time.perf_counter()
        if self._ended is None and now >= self._until:
            answered = sum(at >= start for at in self._done)
            self._ended = now if answered > LEAST * BATCH else None
        return self._ended is None


def rate_of(done_s: Sequence[float], batch: int) -> float:
    """Answers per second where they come by batches: from one answer to that which is so many whole batches later.

    Both are at the same place of their batches, wherever the first one was cut; where some batches are not full, the
    places differ by less than a batch.
    """
    at_s = sorted(done_s)
    whole = (len(at_s) - 1) // batch
    if whole < 1 or at_s[whole * batch] <= at_s[0]:
        raise ValueError(f"{len(at_s)} answers in one batch (of {batch}) have no rate: give more --seconds")
    return whole * batch / (at_s[whole * batch] - at_s[0])


def compare(model: str, options: argparse.Namespace, cache: str) -> list[dict[str, Any]]:
    from serving import served

    from tailrate.serve import wire
    from tailrate.serve.body.request import encode_infer
    from tailrate.serve.options import ServeOptions

    variants = tuple(options.variants.split(","))
    given = options_for(model, variants, cache)
    spec = ServeOptions((model,), settings=given["settings"]).spec(model)
    body, headers = encode_infer(spec.example(1, 0), outputs=spec.default_outputs)
    rows = []
    with ExitStack() as stack:
        server = stack.enter_context(served(Path(cache), **given))
        replicas = stack.enter_context(apart(server.process.pid, rf":{model}-({'|'.join(variants)})(?![\w-])"))
        if len(replicas) != len(variants):
            raise SystemExit(f"replicas of {', '.join(replicas)} found, {', '.join(variants)} expected")
        bares = {variant: Bare(__file__, given, variant, pinned=True, HOME=cache) for variant in variants}
        for each in bares.values():
            stack.callback(each.close)
        for variant in variants:
            load = Load(server.url, wire.infer_path(model, variant), body, headers, replicas[variant])
            asyncio.run(load.run(BATCH, 0.5))
            alone: list[dict[str, float]] = []
            full: list[dict[str, float]] = []
            for _ in range(options.rounds):
                rps, by_cpu = bares[variant].run(options.seconds)
                alone.append({"rps": rps, "by_cpu": by_cpu})
                rps, by_cpu, stages = asyncio.run(load.run(3 * BATCH, options.seconds))
                full.append({"rps": rps, "by_cpu": by_cpu} | {f"{name}_ms": ms for name, ms in stages.items()})
            ratios = {
                name: over((one[key] for one in full), (one[key] for one in alone))
                for name, key in (("served_over_bare", "rps"), ("by_cpu", "by_cpu"))
            }
            found = spreads(full)
            rates = {"bare_rps": spreads(alone)["rps"], "served_rps": found.pop("rps")}
            rows.append({"model": model, "variant": variant, "batch": BATCH, **rates, **(found | ratios)})
    return rows


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--models", default="custom_cnn,resnet50,bert")
    found.add_argument("--variants", default="eager,compiled")
    found.add_argument("--seconds", type=float, default=8)
    found.add_argument("--rounds", type=int, default=4)
    found.add_argument("--quick", action="store_true", help="custom_cnn eager alone, for a minute")
    found.add_argument("--bare", nargs=2, help=argparse.SUPPRESS)
    return found


def main() -> None:
    options = parser().parse_args()
    if options.bare:
        as_the_engine(bare, options.bare)
        return
    if len(os.sched_getaffinity(0)) < 2:
        left_out("served_over_bare", "it takes two cores")
        return
    if options.quick:
        options.models, options.variants, options.seconds = "custom_cnn", "eager", 5.0
    rows = []
    print(
        f"{'model':<11} {'variant':<10} {'bare/s':>22} {'served/s':>22} {'served ÷ bare':>21} {'by CPU':>21} "
        f"{'batch ms':>9} {'compute ms':>10} {'d2h ms':>7}"
    )
    with tempfile.TemporaryDirectory(prefix="hs-") as cache:
        for model in options.models.split(","):
            for row in compare(model, options, cache):
                rows.append(row)
                print(
                    f"{row['model']:<11} {row['variant']:<10} {shown(row['bare_rps'], '.1f', 22)} "
                    f"{shown(row['served_rps'], '.1f', 22)} {shown(row['served_over_bare'], '.3f', 21)} "
                    f"{shown(row['by_cpu'], '.3f', 21)} {row['batch_ms']['median']:>9.2f} "
                    f"{row['compute_ms']['median']:>10.1f} {row['d2h_ms']['median']:>7.2f}",
                    flush=True,
                )
    last_line("served_over_bare", batch=BATCH, rows=rows)


if __name__ == "__main__":
    main()
