"""Is the latency that is reported the latency there was? Beside wrk and hey, at a server that answers in exactly 20 ms.

All of them keep the same number of requests under way (a closed loop, as wrk and hey know no other) in turn, in rounds.
The server's own record of when each answer left is the truth; what a tool reports beyond it is the way there and back,
and the tool.

    python tests/bench/timing.py [--connections 8] [--seconds 8] [--rounds 3]

With `--stall`, instead: a server that stalls two seconds once in twenty, 100 requests/s. A schedule says what P99 that
makes; ours is compared to it, and FastHttpUser's own figure stands beside it.

Needs wrk and hey (Debian: apt-get install wrk hey); one that is absent is left out. A table, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

PATH = "/v2/models/null/versions/exact/infer"
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
FAST = """
from locust import FastHttpUser, constant_throughput, task

class Fast(FastHttpUser):
    wait_time = constant_throughput({each})

    @task
    def infer(self):
        self.client.post("{path}", data=b"x" * 1024)
"""

Figures = dict[str, float]


def wrk(url: str, connections: int, seconds: float) -> Figures:
    words = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", url]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def of(percent: int) -> float:
        match = re.search(rf"{percent}% +([\d.]+)(us|ms|s)", text)
        assert match is not None, text
        return float(match[1]) * UNITS[match[2]]

    return {"p50": of(50), "p99": of(99)}


def hey(url: str, connections: int, seconds: float) -> Figures:
    words = ["hey", "-z", f"{seconds:g}s", "-c", str(connections), "-m", "POST", "-o", "csv", url]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip().splitlines()
    values = 1e3 * np.array([float(line.split(",")[0]) for line in lines[1:]])
    return {"p50": float(np.quantile(values, 0.5)), "p99": float(np.quantile(values, 0.99, method="higher"))}


def driven(url: str, folder: Path, *words: str) -> Any:
    import analysis

    command = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--headless", "--only-summary", "--host", url]
    command += ["--variants", "exact", "--idle-seconds", "0", "--settle-seconds", "0"]
    command += ["--run-dir", str(folder.parent), "--run-id", folder.name, *words]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return analysis.load(folder)


def ours(url: str, connections: int, seconds: float) -> Figures:
    with tempfile.TemporaryDirectory() as scratch:
        words = ["--mode", "closed", "--concurrency", str(connections), "--step-seconds", str(seconds)]
        row = driven(url, Path(scratch) / "it", *words).measured[0].summary
    return {"p50": float(row.p50_ms), "p99": float(row.p99_ms)}


def truth(url: str) -> np.ndarray:
    with urlopen(f"{url}/truth") as answer:
        return np.array(json.load(answer))


def exactly(options: argparse.Namespace) -> None:
    from exact import exact

    tools = {"headroom": ours, "wrk": wrk, "hey": hey}
    present = {name: tool for name, tool in tools.items() if name == "headroom" or shutil.which(name)}
    found: dict[str, list[Figures]] = {name: [] for name in present}
    with exact(kind="fixed", ms=20) as url:
        for _ in range(options.rounds):
            for name, tool in present.items():
                before = len(truth(url))
                figures = tool(url if name == "headroom" else url + PATH, options.connections, options.seconds)
                own = truth(url)[before:]
                real = {"p50": np.quantile(own, 0.5), "p99": np.quantile(own, 0.99, method="higher")}
                found[name].append(figures | {f"{key}_beyond": figures[key] - float(real[key]) for key in real})
    keys = ("p50", "p50_beyond", "p99", "p99_beyond")
    print(f"{'tool':<10} {'P50 ms':>8} {'beyond':>8} {'P99 ms':>8} {'beyond':>8}")
    rows = []
    for name, runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in keys}
        rows.append({"tool": name, **middle})
        print(f"{name:<10} " + " ".join(f"{middle[key]:8.2f}" for key in keys))
    print(json.dumps({"benchmark": "timing", "rows": rows}))


def stalled(options: argparse.Namespace) -> None:
    """Arrivals during the stall wait for its end, all others take 5 ms."""
    from exact import exact

    stall = {"stall_at": 9.0, "stall_for": 2.0}
    with exact(kind="fixed", ms=5, **stall) as url, tempfile.TemporaryDirectory() as scratch:
        words = ["--rates", "100", "--arrivals", "constant", "--step-seconds", "20", "--max-in-flight", "1000"]
        run = driven(url, Path(scratch) / "it", *words)
        row, real = run.measured[0].summary, truth(url)
    with exact(kind="fixed", ms=5, **stall) as url, tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "fast.py"
        file.write_text(FAST.format(path=PATH, each=10))
        words = [sys.executable, "-m", "locust", "-f", str(file), "--headless", "--host", url, "-u", "10", "-r", "10"]
        words += ["-t", "20s", "--csv", f"{scratch}/out", "--only-summary"]
        subprocess.run(words, check=True, capture_output=True)
        line = (Path(scratch) / "out_stats.csv").read_text().splitlines()
        fast = float(line[-1].split(",")[line[0].split(",").index("99%")])
    wanted = implied(stall)
    print(f"P99 by the schedule {wanted:.0f} ms, headroom {row.p99_ms:.0f} ms, FastHttpUser {fast:.0f} ms")
    found = {"implied_ms": wanted, "headroom_ms": row.p99_ms, "fasthttpuser_ms": fast}
    found["server_p99_ms"] = float(np.quantile(real, 0.99, method="higher"))
    print(json.dumps({"benchmark": "stall", **found, "ours_over_implied": row.p99_ms / wanted}))


def implied(stall: dict[str, float]) -> float:
    """The P99 of 2000 arrivals 10 ms apart; where between two of them the stall begins moves it by 10 ms at most."""
    at, begin, end = np.arange(2000) / 100.0, stall["stall_at"], stall["stall_at"] + stall["stall_for"]
    due = at + 0.005
    latency = np.where((due >= begin) & (due < end), end - at, 0.005)
    return float(np.quantile(1e3 * latency, 0.99, method="higher"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stall", action="store_true")
    options = parser.parse_args()
    if options.stall:
        stalled(options)
    else:
        exactly(options)
        stalled(options)


if __name__ == "__main__":
    main()
