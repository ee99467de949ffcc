"""How well streams are stamped: each event's instant at the client beside the one at which the server wrote it.

The server keeps a plan with compiled code and notes when it wrote (`metronome`): 20 ms to the first event, 5 ms between
two, one stall of 300 ms in each tenth stream, one in twenty cut in the middle. So many streams are always under way in
one process, and every figure that a report takes from them is held against the same figure of the truth: time to the
first event from sending on is not, as the server cannot know it.

    thread   a thread of compiled code reads and stamps (Linux, without TLS)
    gevent   the greenlets do it by themselves, as under TLS

With `--malformed 20` so many streams of a server whose every stream is wrong (`malformed`: cut, endless, no JSON, deep,
compressed, …) are always under way beside them: does what is wrong delay the stamps of what is right, or fill memory?

Prints a table (error of each event's instant, of gaps, of the longest gap, of the time from the first to the last
event: medians over rounds of P50 and P99, the lowest and the highest), then one JSON line.

    python tests/bench/stream_stamps.py
    python tests/bench/stream_stamps.py --streams 1,100 --ways thread --seconds 2 --rounds 3
    python tests/bench/stream_stamps.py --streams 1,100 --ways thread --malformed 0,20
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
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


def client(url: str, way: str, streams: int, seconds: float, wrong_url: str, wrong: int) -> None:
    """In a process of its own: what came of each stream, as JSON."""
    import gevent
    from malformed import KINDS

    from tailrate.loadtest.engine.endpoint.client import StreamClient
    from tailrate.loadtest.engine.endpoint.protocols._token_stream import token_stream
    from tailrate.loadtest.engine.endpoint.stamping import sockets as stamping
    from tailrate.loadtest.engine.workers.on_time.cpu_priority import precedence

    if way == "gevent":
        stamping.can_watch = lambda secure: False
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

    wrongs = iter(itertools.cycle(KINDS))
    beside = StreamClient(wrong_url, 5.0) if wrong else None

    def always_wrong() -> None:
        assert beside is not None
        while time.perf_counter() < until:
            body = json.dumps({"messages": [{"role": "user", "content": next(wrongs)}]}).encode()
            answer = beside.send("POST", "/v1/chat/completions", body, {})
            token_stream(answer.body, answer.arrivals)

    with precedence():  # as a load process has it
        began, cpu, until = time.perf_counter(), time.process_time(), time.perf_counter() + seconds
        greenlets = [gevent.spawn(always_wrong) for _ in range(wrong)]
        for _ in range(streams):
            greenlets.append(gevent.spawn(always))
            gevent.sleep(min(0.005, 0.5 / streams))
        gevent.joinall(greenlets)
        took = time.perf_counter() - began
    most_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cpu_pct = 100 * (time.process_time() - cpu) / took
    print(json.dumps({"cpu_pct": cpu_pct, "took_s": took, "most_mb": most_mb, "streams": found}))


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


def measured(way: str, streams: int, wrong: int, seconds: float) -> dict[str, float]:
    from malformed import malformed
    from metronome import metronome

    with tempfile.TemporaryDirectory() as folder:
        with metronome(Path(folder)) as server, ExitStack() as stack:
            wrong_url = stack.enter_context(malformed()) if wrong else ""
            asked = [server.url, way, streams, seconds, wrong_url, wrong]
            words = [sys.executable, __file__, "--client", *map(str, asked)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        said = json.loads(done.stdout.splitlines()[-1])
        written = server.written()
    errors = errors_ms(said["streams"], written)
    found = {f"{name} P{p}": float(np.quantile(errors[name], p / 100)) for name in FIGURES for p in (50, 99)}
    events = sum(len(stream["ns"]) for stream in said["streams"].values())
    return found | {"events/s": events / said["took_s"], "CPU %": said["cpu_pct"], "MB": said["most_mb"]}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--streams", default="1,100,500")
    found.add_argument("--ways", default=",".join(WAYS))
    found.add_argument("--seconds", type=float, default=5)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--malformed", default="0", help="wrong streams always under way beside them, such as 0,20")
    found.add_argument("--client", nargs=6, help=argparse.SUPPRESS)
    return found


def main() -> None:
    asked = parser().parse_args()
    if asked.client:
        url, way, streams, seconds, wrong_url, wrong = asked.client
        client(url, way, int(streams), float(seconds), wrong_url, int(wrong))
        return
    numbers = itertools.product(asked.streams.split(","), asked.malformed.split(","), asked.ways.split(","))
    cases = [(int(streams), int(wrong), way) for streams, wrong, way in numbers]
    ways = {case: partial(measured, case[2], *case[:2], asked.seconds) for case in cases}
    rows = {case: spreads(found) for case, found in in_turns(asked.rounds, ways).items()}
    names = list(next(iter(rows.values())))
    print(f"{'streams':>7} {'wrong':>5} {'way':7} " + " ".join(f"{name:>24}" for name in names))
    for (streams, wrong, way), row in rows.items():
        print(f"{streams:7} {wrong:5} {way:7} " + " ".join(shown(row[name], ".3f", 24) for name in names))
    told = [{"streams": streams, "wrong": wrong, "way": way, **row} for (streams, wrong, way), row in rows.items()]
    last_line("stream_stamps", rows=told)


if __name__ == "__main__":
    main()
