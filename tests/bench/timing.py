"""Is the latency that is reported the latency there was? Beside wrk and hey, at a server that answers in exactly 20 ms.

All of them keep the same number of requests under way (a closed loop, as wrk and hey know no other) in turn, in rounds.
The server's own record of when each answer left is the truth; what a tool reports beyond it is the way there and back,
and the tool.

Then a server that stalls two seconds once in twenty, 100 requests/s, so many times. A schedule says what P99 that
makes; ours is compared to it, and FastHttpUser's own figure stands beside it.

    python tests/bench/timing.py [--connections 8] [--seconds 8] [--rounds 3] [--stalls 3]

Needs wrk and hey (Debian: apt-get install wrk hey); one that is absent is left out. A table (medians of the rounds, the
lowest and the highest), then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, over, shown, spread, spreads  # noqa: E402

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
    from tailrate import analysis

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


def exactly(options: argparse.Namespace) -> list[dict[str, Any]]:
    from exact import exact

    tools = {"tailrate": ours, "wrk": wrk, "hey": hey}
    present = {name: tool for name, tool in tools.items() if name == "tailrate" or shutil.which(name)}
    with exact(kind="fixed", ms=20) as url:

        def beyond(name: str) -> Figures:
            before = len(truth(url))
            figures = present[name](url if name == "tailrate" else url + PATH, options.connections, options.seconds)
            own = truth(url)[before:]
            real = {"p50": np.quantile(own, 0.5), "p99": np.quantile(own, 0.99, method="higher")}
            return figures | {f"{key}_beyond": figures[key] - float(real[key]) for key in real}

        found = in_turns(options.rounds, {name: partial(beyond, name) for name in present})
    keys = ("p50", "p50_beyond", "p99", "p99_beyond")
    print(f"{'tool':<10} {'P50 ms':>21} {'beyond':>21} {'P99 ms':>21} {'beyond':>21}")
    for name in tools.keys() - present.keys():
        print(f"{name:<10} left out, it is not installed (Debian: apt-get install {name})")
    rows = []
    for name, runs in found.items():
        rows.append({"tool": name, **spreads(runs)})
        print(f"{name:<10} " + " ".join(shown(rows[-1][key], ".2f", 21) for key in keys))
    return rows


def stalled(rounds: int) -> dict[str, Any]:
    """Arrivals during the stall wait for its end, all others take 5 ms."""
    from exact import exact

    stall = {"stall_at": 9.0, "stall_for": 2.0}

    def tailrate() -> Figures:
        with exact(kind="fixed", ms=5, **stall) as url, tempfile.TemporaryDirectory() as scratch:
            words = ["--rates", "100", "--arrivals", "constant", "--step-seconds", "20", "--max-in-flight", "1000"]
            row = driven(url, Path(scratch) / "it", *words).measured[0].summary
            return {"p99": row.p99_ms, "server_p99": float(np.quantile(truth(url), 0.99, method="higher"))}

    def fast() -> Figures:
        with exact(kind="fixed", ms=5, **stall) as url, tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "fast.py"
            file.write_text(FAST.format(path=PATH, each=10))
            words = [sys.executable, "-m", "locust", "-f", str(file), "--headless", "--host", url, "-u", "10"]
            words += ["-r", "10", "-t", "20s", "--csv", f"{scratch}/out", "--only-summary"]
            subprocess.run(words, check=True, capture_output=True)
            line = (Path(scratch) / "out_stats.csv").read_text().splitlines()
            return {"p99": float(line[-1].split(",")[line[0].split(",").index("99%")])}

    found = in_turns(rounds, {"tailrate": tailrate, "fast": fast})
    wanted = implied(stall)
    said = {
        "implied_ms": wanted,
        "tailrate_ms": spread(run["p99"] for run in found["tailrate"]),
        "fasthttpuser_ms": spread(run["p99"] for run in found["fast"]),
        "server_p99_ms": spread(run["server_p99"] for run in found["tailrate"]),
        "ours_over_implied": over((run["p99"] for run in found["tailrate"]), [wanted] * rounds),
    }
    ours_ms, fast_ms = (shown(said[f"{name}_ms"], ".0f") for name in ("tailrate", "fasthttpuser"))
    print(f"P99 of a stall by the schedule {wanted:.0f} ms, tailrate {ours_ms} ms, FastHttpUser {fast_ms} ms")
    return said


def implied(stall: dict[str, float]) -> float:
    """The P99 of 2000 arrivals 10 ms apart; where between two of them the stall begins moves it by 10 ms at most."""
    at, begin, end = np.arange(2000) / 100.0, stall["stall_at"], stall["stall_at"] + stall["stall_for"]
    due = at + 0.005
    latency = np.where((due >= begin) & (due < end), end - at, 0.005)
    return float(np.quantile(1e3 * latency, 0.99, method="higher"))


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--connections", type=int, default=8)
    found.add_argument("--seconds", type=float, default=8)
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--stalls", type=int, default=3, help="rounds of that, a minute each")
    return found


def main() -> None:
    options = parser().parse_args()
    rows = exactly(options) if options.rounds else []
    last_line("timing", rows=rows, stall=stalled(options.stalls) if options.stalls else None)


if __name__ == "__main__":
    main()
