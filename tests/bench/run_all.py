"""Every benchmark of this folder, one after the other: what each takes, in what form, and what became of it.

The table below has for each the words of its full form and of its quick one, and the seconds that they were measured to
take on two cores. Each runs as a process of its own; what it prints is printed, and its last line has to be one JSON
line that names it. One that fails does not stop the others; one that takes four times as long as it should, and two
minutes, is ended. One that lacks a program that it needs says so itself and is left out.

Physics: nothing else may run meanwhile, as what is measured is this machine; so they never run side by side, and what
one leaves running is ended before the next begins, and counts as its failure.

Prints how long all of it takes, then all that they print, then a table, then one JSON line; ends with 1 if any failed.

    python tests/bench/run_all.py               `make bench`
    python tests/bench/run_all.py --quick       `make bench-quick`
    python tests/bench/run_all.py --only timing,knee
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402

HERE = Path(__file__).parent
MARK = "TAILRATE_BENCH"
"""In the environment of a benchmark and of all that it starts: whose they are."""
SIGNALS, PATIENCE_S = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL), (30.0, 10.0, 5.0)
"""What one is ended with, and how long it may take after each."""


LONGEST = (4.0, 120.0)
"""One that takes so many times as long as it should, and so many seconds, hangs."""
SLOW = (2.0, 10.0)
"""One that takes so many times as long as it should, and so many seconds: that is said beside it."""


@dataclass(frozen=True)
class Bench:
    full: str
    full_s: float
    quick: str | None
    """None: cannot be quick, and `why`."""
    quick_s: float = 0.0
    why: str = ""


BENCHES = {
    "batcher": Bench("", 390, "--models sleep --seconds 0.5", 12),
    "commits": Bench("--only help,report", 200, None, why="a ratio takes ten rounds of two processes"),
    "counted": Bench(
        "--requests 10000 --run-seconds 8", 45, None, why="a server, clients and a run take half a minute"
    ),
    "engine_cost": Bench("", 57, "--requests 2000", 8),
    "estimators": Bench("--seeds 5", 84, "--seeds 3 --systems exponential", 4),
    "fuzz": Bench(
        "--requests 20000 --seconds 10",
        280,
        None,
        why="its clients come within ten seconds, its servers in another thirty",
    ),
    "guided_knee": Bench("--seeds 6", 100, "--seeds 1 --cases M/D/1", 15),
    "held": Bench("--requests 24000 --rounds 8", 170, None, why="a slope takes eight rounds"),
    "history": Bench("--runs 1000,5000", 100, "--runs 100", 8),
    "intervals": Bench("--seeds 16", 106, "--seeds 5 --systems M/M/1,exponential", 8),
    "killed": Bench("--kills 9", 100, "--kills 1", 13),
    "knee": Bench("--step-seconds 20", 650, None, why="a search takes minutes"),
    "knees": Bench("--seeds 2", 44, None, why="a share takes many searches"),
    "language_kinds": Bench("", 26, None, why="what it looks for is in the rare kinds"),
    "language_servers": Bench("--rounds 3", 300, None, why="each server takes half a minute to start"),
    "loadgen": Bench("", 150, "--seconds 2 --rounds 2", 14),
    "metrics_beside": Bench("", 150, None, why="each kind of page takes a run"),
    "orders": Bench("", 64, "--workers 2 --blocks 1", 10),
    "pages": Bench("--rounds 3", 70, "--rows 1e4 --rounds 2", 18),
    "prediction": Bench("--rounds 3 --cnn-rounds 3", 690, None, why="a model takes minutes to be fitted"),
    "other_clients": Bench("", 180, None, why="each client wants seconds of its own, and a server of Ray's"),
    "other_servers": Bench(
        "--rounds 1 --seconds 3 --only ours,triton,mlserver", 60, None, why="each server takes seconds to start"
    ),
    "protocols_kept": Bench("", 250, None, why="a highest rate is found from the lowest upwards, in each protocol"),
    "regressions": Bench("--seeds 30 --alarm-seeds 60", 14, "--seeds 4 --alarm-seeds 8 --before 5,10", 3),
    "request_path": Bench(
        "--seconds 2 --connections 1,64", 380, "--only no-op,ours --connections 16 --bodies 1000 --seconds 1", 23
    ),
    "resilience": Bench("--seconds 10", 240, "--scenes killed --seconds 4", 23),
    "rolling_restart": Bench("--restarts 3", 90, None, why="Ray takes a quarter of a minute for each"),
    "sampling": Bench("--rounds 3 --cpu-seconds 4", 200, "--no-servers --rounds 2 --cpu-seconds 1", 14),
    "schedule_kept": Bench(
        "--seconds 4 --share-seconds 4 --shares 1,1.8,2.6", 310, "--rates 500 --seconds 1 --rounds 2 --shares ''", 14
    ),
    "second_start": Bench("", 220, None, why="compiling takes half a minute, each time"),
    "sent_request": Bench(
        "--rates 5000,20000 --rounds 3", 45, None, why="a cost takes rounds of some seconds at each rate"
    ),
    "served_over_bare": Bench(
        "--seconds 4 --rounds 3", 370, "--models custom_cnn --variants eager --seconds 1 --rounds 2", 52
    ),
    "simulate": Bench("", 8, "--requests 100000", 6),
    "soak_findings": Bench("--soaks 7", 30, "--soaks 1 --only 0.7,twice,leak,stall", 12),
    "soak_memory": Bench("--seconds 120", 140, None, why="memory grows over minutes or not at all"),
    "soak_verdicts": Bench("--soaks 1 --clean 4", 20, None, why="a share takes many soaks"),
    "stream_clients": Bench("--rounds 2 --seconds 3", 30, None, why="each client wants seconds of its own"),
    "stream_stamps": Bench("--seconds 3", 170, None, why="a figure takes many streams of half a second each"),
    "ten_million": Bench("", 50, "--rows 1e5 --rounds 2", 13),
    "timing": Bench("", 230, "--seconds 1 --rounds 2 --stalls 0", 14),
    "tokens_over_bare": Bench("--rounds 5", 200, None, why="a server and a bare loop for each variant take a minute"),
    "variants": Bench("--seconds 4", 170, "--models mlp --variants traced --batches 1 --seconds 1", 9),
    "watching": Bench("", 8, "--rounds 3", 4),
}


@dataclass
class Ran:
    benchmark: str
    outcome: str
    """ok, failed, left out."""
    reason: str
    seconds: float
    expected_s: float
    said: dict[str, Any] | None
    """Its last line."""


def run(path: Path, words: Sequence[str], expected_s: float) -> Ran:
    """One of them, from its start until nothing that it started is left."""
    mark, began = uuid.uuid4().hex, time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-u", str(path), *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        text=True, errors="replace", env=os.environ | {MARK: mark}, start_new_session=True,
    )  # fmt: skip
    lines: list[str] = []
    reader = threading.Thread(target=pass_on, args=(process, lines), daemon=True)
    reader.start()
    reason = ""
    try:
        process.wait(LONGEST[0] * expected_s + LONGEST[1])
        seconds = time.monotonic() - began
        if process.returncode:
            reason = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        seconds = time.monotonic() - began
        reason = f"took longer than {seconds:.0f} s and was ended"
    finally:
        left = end(process, mark)
    reader.join(5)
    said = last(lines, path.stem)
    reason = reason or ("" if said else "its last line is no JSON that names it")
    if not reason and left:
        reason = f"left running: {', '.join(left)}"
    outcome = "failed" if reason else "left out" if said and "left_out" in said else "ok"
    if outcome == "left out":
        reason = str((said or {})["left_out"])
    elif not reason and seconds > SLOW[0] * expected_s + SLOW[1]:
        reason = f"took {seconds / expected_s:.1f} times as long as expected: is what it measures slower than it was?"
    return Ran(path.stem, outcome, reason, round(seconds, 1), expected_s, said)


def pass_on(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines[:] = [line] if line.strip() else lines


def last(lines: Sequence[str], name: str) -> dict[str, Any] | None:
    with suppress(IndexError, ValueError):
        found = json.loads(lines[-1])
        if isinstance(found, dict) and found.get("benchmark") == name:
            return found
    return None


def end(process: subprocess.Popen[str], mark: str) -> list[str]:
    """Ends the benchmark if it still runs, and what it started; the names of what outlived it."""
    try:
        for signum, patience_s in zip(SIGNALS, PATIENCE_S, strict=True):
            if process.poll() is not None:
                break
            os.killpg(process.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
        until = time.monotonic() + PATIENCE_S[1]
        while marked(mark) and time.monotonic() < until:  # what was told to end may be about to
            time.sleep(0.1)
    finally:  # at once, where somebody interrupts this as well
        left = marked(mark)
        for one in left:
            with suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, PATIENCE_S[2])
        process.wait()
    return [f"{one.pid} {one.info['name']}" for one in left]


def marked(mark: str) -> list[psutil.Process]:
    """What has this in its environment, the dead aside."""
    found = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def table(found: Sequence[Ran]) -> list[str]:
    lines = [f"{'benchmark':<18} {'outcome':<9} {'seconds':>8} {'expected':>8}  reason"]
    for one in found:
        lines.append(
            f"{one.benchmark:<18} {one.outcome:<9} {one.seconds:8.1f} {one.expected_s:8.0f}  {one.reason}".rstrip()
        )
    return lines


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--quick", action="store_true", help="the quick forms")
    found.add_argument("--only", default="", help="these alone, by name; empty: all")
    return found


def main() -> int:
    options = parser().parse_args()
    names = options.only.split(",") if options.only else list(BENCHES)
    if unknown := [name for name in names if name not in BENCHES]:
        raise SystemExit(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a script runs this in the background
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = {name: BENCHES[name] for name in names}
    some = {
        name: (bench.quick, bench.quick_s) if options.quick else (bench.full, bench.full_s)
        for name, bench in chosen.items()
    }
    form = "quick" if options.quick else "full"
    whole_s = sum(expected_s for words, expected_s in some.values() if words is not None)
    count = sum(words is not None for words, _ in some.values())
    print(f"{count} benchmarks in their {form} form, about {minutes(whole_s)} on two cores", flush=True)
    found: list[Ran] = []
    began = time.monotonic()
    interrupted = False
    for number, (name, (words, expected_s)) in enumerate(some.items(), 1):
        if words is None:
            found.append(Ran(name, "left out", f"not in the quick form: {chosen[name].why}", 0.0, 0.0, None))
            continue
        print(f"\n== {number} of {len(some)}: {name} {words}  (about {expected_s:.0f} s)", flush=True)
        try:
            found.append(run(HERE / f"{name}.py", shlex.split(words), expected_s))
        except KeyboardInterrupt:
            found.append(Ran(name, "failed", "interrupted", 0.0, expected_s, None))
            interrupted = True
            break
        one = found[-1]
        print(
            f"== {name} {one.outcome} in {one.seconds:.1f} s, expected {expected_s:.0f} s. {one.reason}".rstrip(),
            flush=True,
        )
    seconds = time.monotonic() - began
    print("\n" + "\n".join(table(found)))
    failed = [one.benchmark for one in found if one.outcome == "failed"]
    took = f"{minutes(seconds)}, expected {minutes(whole_s)}"
    print(f"{len(found)} benchmarks in {took}; failed: {', '.join(failed) or 'none'}")
    last_line(
        "run_all",
        form=form,
        seconds=round(seconds, 1),
        expected_s=whole_s,
        interrupted=interrupted,
        failed=failed,
        benches=[asdict(one) for one in found],
    )
    return 130 if interrupted else int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
