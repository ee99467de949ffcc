"""How well one load process keeps its schedule, against an endpoint that answers at once.

Physics: an arrival is late by the wake-up of the pacer, by the greenlets in front of it, and by what else the core
does (answers to parse, rows to flush, the endpoint itself where it has no core of its own). The bare loop is the floor:
the same instants, waking and reading the clock, with gevent's own timer and with our alarm, in the same session.

Prints a table (rate, achieved ÷ offered, lateness P50/P99/max), then one JSON line.

    python tests/bench/schedule_kept.py
    python tests/bench/schedule_kept.py --rates 100,1000 --seconds 20
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

BARE = """
import sys, time, json
import gevent
from loadtest.engine.alarm import Alarm
from loadtest.engine.arrivals import offsets
rate, seconds, timer = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
alarm, late = Alarm(), []
start = time.monotonic_ns() + 100_000_000
for offset in offsets("poisson", rate, seconds, seed=1).tolist():
    due = start + offset
    if timer == "alarm":
        alarm.sleep_until(due)
    else:
        gevent.sleep(max(0, (due - time.monotonic_ns()) / 1e9))
    late.append((time.monotonic_ns() - due) / 1e6)
print(json.dumps(late))
"""


def bare(rate: float, seconds: float, timer: str) -> np.ndarray:
    words = [sys.executable, "-c", BARE, str(rate), str(seconds), timer]
    return np.array(json.loads(subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout))


def driven(rate: float, seconds: float, url: str, folder: Path) -> tuple[np.ndarray, float]:
    """Lateness of every arrival of a run, and achieved ÷ offered."""
    import analysis

    words = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--headless", "--only-summary", "--host", url]
    words += ["--rates", str(rate), "--step-seconds", str(seconds), "--settle-seconds", "0", "--idle-seconds", "0"]
    words += ["--variants", "eager", "--run-dir", str(folder.parent), "--run-id", folder.name]
    subprocess.run(words, check=True, cwd=ROOT, capture_output=True)
    rows = analysis.load(folder).requests
    return rows["late_ms"].to_numpy(), float(rows["ok"].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100,500,1000,2000")
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    from endpoint import endpoint

    found = []
    print(f"{'rate/s':>8} {'what':<14} {'kept':>8} {'P50 ms':>8} {'P99 ms':>8} {'max ms':>8}")
    with endpoint(delay_ms=0, telemetry=0) as url, tempfile.TemporaryDirectory() as scratch:
        for number, rate in enumerate(float(word) for word in options.rates.split(",")):
            late, kept = driven(rate, options.seconds, url, Path(scratch) / str(number))
            cases = [("headroom", late, kept)]
            cases += [(f"bare {timer}", bare(rate, options.seconds, timer), 1.0) for timer in ("alarm", "gevent")]
            for what, values, share in cases:
                p50, p99, most = np.quantile(values, [0.5, 0.99, 1.0], method="higher")
                print(f"{rate:8g} {what:<14} {share:8.4f} {p50:8.3f} {p99:8.3f} {most:8.3f}")
                found.append({"rate": rate, "what": what, "kept": share, "p50_ms": p50, "p99_ms": p99, "max_ms": most})
    print(json.dumps({"benchmark": "schedule_kept", "rows": found}))


if __name__ == "__main__":
    main()
