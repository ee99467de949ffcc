"""A hundred thousand bad requests against a live server, good ones beside them: what each gets, what the good feel.

Four cheap models are served on the CPU behind the real way in. Rounds alternate: good traffic alone; beside as many
more good requests as bad ones are to come, as any load is felt on a small machine; then beside bad requests at
`--bad-rate` from `--workers` connections, with clients that misbehave for as long as the round lasts: idle ones, silent
ones, some that send a byte a second, some that never read what they asked for. The good requests come at a fixed rate,
whatever becomes of them, from a process of their own; what they get is compared.

Every bad request follows from seed and number (`tests/support/misshapen.py`): `--only 1234` sends that one again. To
be answered it has ten seconds; what is not whole has half of one, and then its client leaves.

What must not be: a 500, a hang, a lost connection where an answer was due, a good request that fails, a process that
dies, memory or open files that grow. Prints a table, then one JSON line.

    python tests/bench/fuzz.py [--seed 1] [--rounds 5] [--rate 100] [--ingress plain]     the whole, twenty minutes
    python tests/bench/fuzz.py --requests 20000 --seconds 10        five minutes, which say little of slow leaks
    python tests/bench/fuzz.py --only 1234
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.stats import theilslopes

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

import misshapen  # noqa: E402
from bench._rounds import last_line, shown, spread  # noqa: E402
from misshapen import MODELS, SETTINGS, SOURCES, Bad  # noqa: E402
from serving import served  # noqa: E402

from tailrate.serve import wire  # noqa: E402
from tailrate.serve.body.request import encode_infer  # noqa: E402
from tailrate.serve.body.result import decode_result  # noqa: E402

HANG_S = 10.0
LEAVE_S = 0.5
SLOW = {"idle": 2000, "silent": 200, "drips head": 100, "drips body": 200, "never reads": 50}
"""Clients at a time."""
STAY_S = 0.3
"""Of those that ask for much and reset the connection."""
COME_S = 10.0
"""Within which all of them come: at one instant they would be a burst of 2,150 good requests, which anyone feels."""
WATCH_S = 2.0
CALM_S = 3.0
"""Between what ends and what is measured next."""
SHOWN = 20
OPTIONS: dict[str, Any] = {
    "models": list(MODELS), "variants": ["eager"], "settings": SETTINGS, "sources": SOURCES,
    "parity_share": 0, "device": "cpu", "max_body_bytes": 8 << 20,
}  # fmt: skip
"""Of the server."""


# ---- good traffic: this file again, a process of its own


async def good(port: int, rate: float) -> None:
    """Until standard input ends; then (intended in seconds of the wall clock, latency or NaN in ms) of each, and why
    those failed that did."""
    asked = [misshapen.http(*made) for made in _good()]
    expected = [await _once(port, raw) for raw in asked]
    rows: list[tuple[float, float]] = []
    why: Counter[str] = Counter()
    under_way: set[asyncio.Task[None]] = set()
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def one(number: int, intended_s: float) -> None:
        latency_ms = float("nan")
        while idle and idle[-1][0].at_eof():  # the server closes what has not been used for a while
            idle.pop()[1].close()
        try:
            async with asyncio.timeout(HANG_S):
                reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
                writer.write(asked[number % len(asked)])
                found = await _outputs(reader)
                if np.allclose(found, expected[number % len(asked)], rtol=1e-3, atol=1e-4):
                    latency_ms = 1e3 * (time.time() - intended_s)
                else:
                    why["other outputs"] += 1
                idle.append((reader, writer))
        except (OSError, EOFError, TimeoutError, ValueError) as problem:
            why[repr(problem)[:100]] += 1
        rows.append((intended_s, latency_ms))

    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    over = asyncio.create_task(reader.read())
    began_s, number = time.time(), 0
    while not over.done():
        intended_s = began_s + number / rate
        await asyncio.sleep(max(0.0, intended_s - time.time()))
        task = asyncio.create_task(one(number, intended_s))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        number += 1
    await asyncio.gather(*under_way)
    print(json.dumps([rows, why]))


def _good() -> Iterator[tuple[str, bytes, dict[str, str]]]:
    image = misshapen.column([misshapen.FILES[0]])
    inputs = {
        "null": {"x": np.zeros((2, 4), np.uint8)},
        "mlp": {"x": np.full((1, misshapen.WIDTH), 0.5, np.float32)},
        "bert": {"text": misshapen.column([b"The server answers every request."])},
        "thumbs": {"image": image},
    }
    for model, tensors in inputs.items():
        outputs = {"null": "y", "mlp": "y", "bert": "pooler_output", "thumbs": "logits"}[model]
        yield wire.infer_path(model, "eager"), *encode_infer(tensors, outputs=[outputs])


async def _once(port: int, raw: bytes) -> wire.Array:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    found = await _outputs(reader)
    writer.close()
    return found


async def _outputs(reader: asyncio.StreamReader) -> wire.Array:
    """The one output; raises `ValueError` for any answer but a good one."""
    status, body, fields = await answer(reader)
    if status != 200:
        raise ValueError(body)
    (found,) = decode_result(body, int(fields[wire.HEADER_LENGTH.encode()])).values()
    return found


async def answer(reader: asyncio.StreamReader, head_only: bool = False) -> tuple[int, bytes, dict[bytes, bytes]]:
    """Status, body and headers of the next answer; raises `EOFError` where there is none."""
    while True:
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        status = int(lines[0].split()[1])
        if status >= 200:
            break
    fields = dict(line.partition(b":")[::2] for line in lines[1:])
    if head_only or status in (204, 304):
        return status, b"", fields
    if b"content-length" in fields:
        return status, await reader.readexactly(int(fields[b"content-length"])), fields
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
        return status, body, fields
    return status, await reader.read(), fields


# ---- bad traffic


class Tally:
    """What bad requests got."""

    def __init__(self) -> None:
        self.by_kind: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.found: list[str] = []
        """What must not be, with the number of the request."""

    def add(self, number: int, bad: Bad, outcome: str, said: bytes = b"") -> None:
        self.by_kind[bad.kind][outcome] += 1
        # HAProxy has a page of its own for what is no HTTP
        in_words = said.startswith((b'{"error":', b"<html>"))
        full = any(why in said for why in (b"queue is full", b"under way take up"))
        right = outcome in ("left", "closed") or outcome[0] in "123" or (outcome[0] == "4" and in_words)
        if not (right or outcome == "504" or (outcome == "503" and full)):
            self.found.append(f"{bad.kind} {number}: {outcome} {said[:200]!r}")


async def flood(port: int, seed: int, paced: Iterator[tuple[int, float]], tally: Tally) -> None:
    """One worker: sends each at its time until there are no more; keeps its connection where that is in order."""
    kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for number, at_s in paced:
        await asyncio.sleep(max(0.0, at_s - time.time()))
        bad = misshapen.bad(seed, number)
        fresh = kept is None
        try:
            reader, writer = kept or await asyncio.open_connection("127.0.0.1", port)
        except OSError as problem:
            tally.add(number, bad, "lost", str(problem).encode())
            continue
        kept, whole = None, False
        try:
            async with asyncio.timeout(HANG_S if bad.whole else LEAVE_S):
                writer.write(bad.raw)
                head_only = bad.raw.startswith(b"HEAD ")
                status, body, _ = await answer(reader, head_only)
                tally.add(number, bad, str(status), b'{"error":' if head_only else body)
                whole = bad.whole
        except TimeoutError:
            tally.add(number, bad, "hang" if bad.whole else "left")
        except (OSError, EOFError, ValueError) as problem:
            if fresh or not bad.whole:
                tally.add(number, bad, "lost" if bad.whole else "closed", repr(problem).encode())
            else:  # a kept connection may be closed at any time: that request was sent once too little
                await flood(port, seed, iter([(number, 0.0)]), tally)
        if whole and number % 4:
            kept = reader, writer
        elif number % 3:
            writer.close()
        else:
            writer.transport.abort()


# ---- clients that misbehave for long


async def slow(port: int, what: str, counts: Counter[str], after_s: float) -> None:
    """One of them, again and again; cancelled at the end of the round."""
    await asyncio.sleep(after_s)
    path, body, headers = wire.infer_path("null", "eager"), *encode_infer({"x": np.zeros((4096, 1), np.uint8)})
    raw = misshapen.http(path, body, headers)
    while True:
        writer = None
        try:
            end = socket.create_connection(("127.0.0.1", port))
            if what == "never reads":
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader, writer = await asyncio.open_connection(sock=end)
            counts[what] += 1
            if what == "idle":
                writer.write(misshapen.http(wire.LIVE, method="GET"))
                await answer(reader)
                await reader.read()
            elif what == "silent":
                await reader.read()
            elif what == "never reads":
                writer.transport.pause_reading()
                writer.write(3 * raw)
                await asyncio.sleep(3600)
            elif what == "leaves":
                writer.write(raw)
                await asyncio.sleep(STAY_S)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                at = 20 if what == "drips head" else raw.index(b"\r\n\r\n") + 10
                writer.write(raw[:at])
                for place in range(at, len(raw)):
                    await asyncio.sleep(1)
                    writer.write(raw[place : place + 1])
                    await writer.drain()
        except (OSError, EOFError):
            counts[f"{what}, cut off"] += 1
            await asyncio.sleep(1)
        finally:
            if writer is not None:
                writer.transport.abort()


# ---- the server's processes


class Watched:
    """Memory and open files of every process of the server, and which of them are gone."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self.first = {process.pid: name for process, name in self.processes()}
        self.samples: list[tuple[float, str, float, int]] = []
        """(wall clock in seconds, process, MB, open files)"""

    def processes(self) -> Iterator[tuple[psutil.Process, str]]:
        for process in [self._root, *self._root.children(recursive=True)]:
            with suppress(psutil.Error):
                name = (process.cmdline() or [process.name()])[0].partition(" ")[0].rpartition("/")[2]
                if name.startswith(("ray::", "haproxy", "gcs", "raylet")):
                    yield process, name.removeprefix("ray::ServeReplica:")

    def look(self) -> None:
        now_s = time.time()
        for process, name in self.processes():
            with suppress(psutil.Error):
                size = process.memory_info().rss / 1e6
                self.samples.append((now_s, f"{name} {process.pid}", size, process.num_fds()))

    def gone(self) -> list[str]:
        now = {process.pid for process, _ in self.processes()}
        return [name for pid, name in self.first.items() if pid not in now and "IDLE" not in name]

    async def always(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(WATCH_S)

    def grown(self, alone: list[tuple[float, float]]) -> dict[str, dict[str, Any]]:
        """Of each process: medians of the rounds alone; the slope through the second half of them (Theil–Sen, with
        its interval of 95 %)."""
        found: dict[str, dict[str, Any]] = {}
        for name in sorted({sample[1] for sample in self.samples}):
            rounds = []
            for begin_s, end_s in alone:
                here = [s[2:] for s in self.samples if s[1] == name and (begin_s + end_s) / 2 <= s[0] <= end_s]
                if here:
                    rounds.append(np.median(here, axis=0))
            if len(rounds) > 2:
                mb, files = np.array(rounds).T
                slopes = [[round(value, 2) for value in late_slope(values)] for values in (mb, files)]
                found[name] = {
                    "mb": [round(float(value), 1) for value in mb], "files": [int(value) for value in files],
                    "mb_per_round": slopes[0], "files_per_round": slopes[1],
                    "most_files": max(s[3] for s in self.samples if s[1] == name),
                    "most_mb": round(max(s[2] for s in self.samples if s[1] == name), 1),
                }  # fmt: skip
        return found


# ---- the whole


@contextmanager
def beside(port: int, rate: float) -> Iterator[tuple[list[tuple[float, float]], Counter[str]]]:
    """Good traffic; what became of it is there afterwards."""
    rows: list[tuple[float, float]] = []
    why: Counter[str] = Counter()
    words = [sys.executable, __file__, "--good", str(port), "--rate", str(rate)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield rows, why
        finally:
            said, _ = process.communicate(timeout=60)
            found = json.loads(said)
            rows += [tuple(row) for row in found[0]]
            why.update(found[1])


async def bad_round(
    port: int, seed: int, share: range, rate: float, workers: int, tally: Tally, slow: Counter[str]
) -> float:
    """Sends these, with the clients that misbehave for as long as it lasts; when it began."""
    began_s = time.time()
    paced = ((number, began_s + place / rate) for place, number in enumerate(share))
    floods = [flood(port, seed, paced, tally) for _ in range(workers)]
    await with_slow(port, slow, lambda: asyncio.gather(*floods))
    return began_s


def late_slope(values: Sequence[float]) -> tuple[float, float, float]:
    """Through the second half, once all that is kept is there: Theil–Sen's, with its interval of 95 %."""
    fit = theilslopes(values[len(values) // 2 :])
    return float(fit.slope), float(fit.low_slope), float(fit.high_slope)


async def with_slow(port: int, counts: Counter[str], work: Callable[[], Awaitable[object]]) -> None:
    clients = [(what, COME_S * place / count) for what, count in SLOW.items() for place in range(count)]
    tasks = [asyncio.create_task(slow(port, what, counts, after_s)) for what, after_s in clients]
    try:
        await work()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def feels(rows: list[tuple[float, float]], rounds: list[tuple[float, float]]) -> dict[str, Any]:
    """What good requests of these rounds felt; a round has too few of them for a P99.9 of its own."""
    intended, latency = np.array(rows).T
    each = [latency[(intended > begin_s) & (intended < end_s)] for begin_s, end_s in rounds]
    failed = sum(int(np.isnan(some).sum()) for some in each)
    good = [some[~np.isnan(some)] for some in each]
    found: dict[str, Any] = {"n": sum(map(len, each)), "failed": failed}
    for q in (50, 99):
        found[f"p{q}_ms"] = spread(np.quantile(some, q / 100, method="higher") for some in good)
    whole = np.concatenate(good)
    found["p99.9_ms"] = round(float(np.quantile(whole, 0.999, method="higher")), 2)
    return found | {"max_ms": round(float(whole.max()), 1)}


async def run(given: argparse.Namespace, port: int, watched: Watched) -> dict[str, Any]:
    tally, slow_counts = Tally(), Counter[str]()
    alone: list[tuple[float, float]] = []
    crowded: list[tuple[float, float]] = []
    fuzzed: list[tuple[float, float]] = []
    sent = 0
    with beside(port, given.rate) as (rows, why):
        watching = asyncio.create_task(watched.always())
        await asyncio.sleep(given.seconds / 2)  # warm
        for number in range(given.rounds + 1):
            began_s = time.time()
            await asyncio.sleep(given.seconds)
            alone.append((began_s, time.time()))
            if number == given.rounds:
                break
            with beside(port, given.bad_rate):
                await asyncio.sleep(CALM_S)
                began_s = time.time()
                await asyncio.sleep(given.seconds)
                crowded.append((began_s, time.time()))
            await asyncio.sleep(CALM_S)
            share = range(*(given.requests * bound // given.rounds for bound in (number, number + 1)))
            began_s = await bad_round(port, given.seed, share, given.bad_rate, given.workers, tally, slow_counts)
            fuzzed.append((began_s, time.time()))
            count = sum(sum(kinds.values()) for kinds in tally.by_kind.values())
            rate = (count - sent) / (fuzzed[-1][1] - began_s)
            sent = count
            print(f"round {number + 1}: {count} bad requests, {rate:.0f}/s, {len(tally.found)} wrong", flush=True)
            await asyncio.sleep(CALM_S)
        watching.cancel()
    return {
        "requests": sent,
        "seconds": round(sum(end - begin for begin, end in fuzzed), 1),
        "alone": feels(rows, alone),
        "beside_good": feels(rows, crowded),
        "beside_bad": feels(rows, fuzzed),
        "failed_because": dict(why),
        "kinds": {kind: dict(sorted(got.items())) for kind, got in sorted(tally.by_kind.items())},
        "slow_clients": dict(slow_counts),
        "wrong": len(tally.found),
        "found": sorted(tally.found, key=lambda line: ": 500 " not in line)[:SHOWN],
        "processes": watched.grown(alone),
        "gone": watched.gone(),
    }


def table(found: dict[str, Any]) -> str:
    lines = ["what bad requests got:"]
    for kind, got in found["kinds"].items():
        lines.append(f"  {kind:10s} " + "  ".join(f"{outcome} {count}" for outcome, count in got.items()))
    lines.append("clients that misbehave for long: " + ", ".join(f"{k} {v}" for k, v in found["slow_clients"].items()))
    lines.append(f"good requests:       n  failed {'P50 ms':>24} {'P99 ms':>24}  P99.9      max")
    for name in ("alone", "beside_good", "beside_bad"):
        good = found[name]
        numbers = f"{shown(good['p50_ms'], '.1f', 24)} {shown(good['p99_ms'], '.1f', 24)}"
        numbers += f" {good['p99.9_ms']:6.1f}  {good['max_ms']:8.1f}"
        lines.append(f"  {name:12s} {good['n']:7d} {good['failed']:7d} {numbers}")
    lines.append(f"  failed because: {found['failed_because'] or 'none did'}")
    lines.append("processes: MB and open files of each round alone; slope per round and its interval; the most of all")
    for name, has in found["processes"].items():
        each = ((has[what], *has[f"{what}_per_round"]) for what in ("mb", "files"))
        mb, files = (f"{values} {slope:+.2f} ({low:+.2f} to {high:+.2f})" for values, slope, low, high in each)
        lines.append(f"  {name[:40]:40s} {mb}  {files}  {has['most_mb']} {has['most_files']}")
    lines += [f"gone: {', '.join(found['gone']) or 'none'}", f"wrong: {found['wrong']}", *found["found"]]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--requests", type=int, default=100_000)
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--rate", type=float, default=100, help="of good requests, per second")
    found.add_argument("--seconds", type=float, default=20, help="of a round alone")
    found.add_argument("--bad-rate", type=float, default=300, help="of bad requests, per second at most")
    found.add_argument("--workers", type=int, default=32)
    found.add_argument("--ingress", default="fast")
    found.add_argument("--only", type=int, help="this bad request alone, and what it gets")
    found.add_argument("--good", type=int, help=argparse.SUPPRESS)
    return found


def main() -> int:
    given = parser().parse_args()
    if given.good:
        asyncio.run(good(given.good, given.rate))
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if given.only is not None:
        print(misshapen.bad(given.seed, given.only))
    with tempfile.TemporaryDirectory() as cache, served(Path(cache), **OPTIONS, ingress=given.ingress) as server:
        port = int(server.url.rpartition(":")[2])
        if given.only is not None:
            tally = Tally()
            asyncio.run(flood(port, given.seed, iter([(given.only, 0.0)]), tally))
            print(dict(tally.by_kind), tally.found)
            return 0
        found = asyncio.run(run(given, port, Watched(server.process.pid)))
    print(table(found))
    last_line("fuzz", seed=given.seed, ingress=given.ingress, **found)
    good_failed = sum(found[name]["failed"] for name in ("alone", "beside_good", "beside_bad"))
    return int(bool(found["wrong"] or found["gone"] or good_failed))


if __name__ == "__main__":
    sys.exit(main())
