"""How well streams are stamped: each event's instant at the client beside the one at which the server wrote it.

The server keeps a plan with compiled code and notes when it wrote (`metronome`): 20 ms to the first event, 5 ms between
two, one stall of 300 ms in each tenth stream, one in twenty cut in the middle. So many streams are always under way in
one process, and every figure that a report takes from them is held against the same figure of the truth: time to the
first event from sending on is not, as the server cannot know it.

    thread   a thread of compiled code reads and stamps (Linux, without TLS)
    gevent   the greenlets do it by themselves, as under TLS

Prints a table (error of each event's instant, of gaps, of the longest gap, of the time from the first to the last
event: medians over rounds of P50 and P99, the lowest and the highest), then one JSON line.

    python tests/bench/stream_stamps.py
    python tests/bench/stream_stamps.py --streams 1,100 --ways thread --seconds 2 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, shown, spreads  # noqa: E402

WAYS = ("thread", "gevent")
TOKENS = 100
FIGURES = ("instant", "gap", "longest gap", "first to last")


def plan(number: int) -> dict[str, Any]:
    found: dict[str, Any] = {"first_ms": 20, "gap_ms": 5, "tokens": TOKENS}
    found |= {"stall_at": 40, "stall_ms": 300} if number % 10 == 3 else {}
    return found | ({"cut_at": 60} if number % 20 == 7 else {})


def client(url: str, way: str, streams: int, seconds: float) -> None:
    """In a process of its own: what came of each stream, as JSON."""
    import gevent

    from tailrate.loadtest.engine.endpoint.client import StreamClient
    from tailrate.loadtest.engine.endpoint.http1 import stream_pool
    from tailrate.loadtest.engine.endpoint.protocols._token_stream import token_stream
    from tailrate.loadtest.engine.workers.cpu_priority import precedence

    if way == "gevent":
        stream_pool.can_watch = lambda: False
    sender = StreamClient(url, 30.0)
    sender.send("GET", "/v1/models")
    found: dict[str, dict[str, Any]] = {}
    numbers = iter(range(1 << 30))

    def always() -> None:
        while time.perf_counter() < until:
            number = next(numbers)
            body = json.dumps({"messages": [{"role": "user", "content": json.dumps(plan(number))}]}).encode()
            answer = sender.send("POST", "/v1/chat/completions", body, {"x-request-id": f"{number}"})
            stream = token_stream(answer.body, answer.arrivals)
            found[str(number)] = {"status": answer.status, "ns": stream.content_ns, "finish": stream.finish}

    with precedence():  # as a load process has it
        began, cpu, until = time.perf_counter(), time.process_time(), time.perf_counter() + seconds
        greenlets = []
        for _ in range(streams):
            greenlets.append(gevent.spawn(always))
            gevent.sleep(min(0.005, 0.5 / streams))
        gevent.joinall(greenlets)
        took = time.perf_counter() - began
    print(json.dumps({"cpu_pct": 100 * (time.process_time() - cpu) / took, "took_s": took, "streams": found}))


def errors_ms(found: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """Of each figure, the absolute differences from the truth."""
    each: dict[str, list[Any]] = {name: [] for name in FIGURES}
    for name, stream in found.items():
        ours, true = np.array(stream["ns"], np.int64), written[name]
        expected = plan(int(name))
        whole = "cut_at" not in expected
        assert len(ours) == len(true) == expected.get("cut_at", TOKENS), (name, len(ours), len(true))
        assert (stream["status"], stream["finish"]) == (("200", "length") if whole else ("cut", "")), stream["status"]
        gaps, true_gaps = np.diff(ours), np.diff(true)
        each["instant"].append(np.abs(ours - true))
        each["gap"].append(np.abs(gaps - true_gaps))
        each["longest gap"].append(np.abs([gaps.max() - true_gaps.max()]))
        each["first to last"].append(np.abs([(ours[-1] - ours[0]) - (true[-1] - true[0])]))
    return {name: np.concatenate(values) / 1e6 for name, values in each.items()}


def measured(way: str, streams: int, seconds: float) -> dict[str, float]:
    from metronome import metronome

    with tempfile.TemporaryDirectory() as folder:
        with metronome(Path(folder)) as server:
            words = [sys.executable, __file__, "--client", server.url, way, str(streams), str(seconds)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        said = json.loads(done.stdout.splitlines()[-1])
        written = server.written()
    errors = errors_ms(said["streams"], written)
    found = {f"{name} P{p}": float(np.quantile(errors[name], p / 100)) for name in FIGURES for p in (50, 99)}
    events = sum(len(stream["ns"]) for stream in said["streams"].values())
    return found | {"events/s": events / said["took_s"], "CPU %": said["cpu_pct"]}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--streams", default="1,100,500")
    found.add_argument("--ways", default=",".join(WAYS))
    found.add_argument("--seconds", type=float, default=5)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    return found


def main() -> None:
    asked = parser().parse_args()
    if asked.client:
        url, way, streams, seconds = asked.client
        client(url, way, int(streams), float(seconds))
        return
    cases = [(int(streams), way) for streams in asked.streams.split(",") for way in asked.ways.split(",")]
    ways = {(streams, way): partial(measured, way, streams, asked.seconds) for streams, way in cases}
    rows = {case: spreads(found) for case, found in in_turns(asked.rounds, ways).items()}
    names = list(next(iter(rows.values())))
    print(f"{'streams':>7} {'way':7} " + " ".join(f"{name:>24}" for name in names))
    for (streams, way), row in rows.items():
        print(f"{streams:7} {way:7} " + " ".join(shown(row[name], ".3f", 24) for name in names))
    last_line("stream_stamps", rows=[{"streams": streams, "way": way, **row} for (streams, way), row in rows.items()])


if __name__ == "__main__":
    main()
