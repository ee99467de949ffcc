"""How well one load process keeps its schedule, against an endpoint that answers at once, and how far it can go.

Physics: an arrival is late by the wake-up of the pacer, by the greenlets in front of it, and by what else the core
does (answers to parse, rows to flush, the endpoint itself where it has no core of its own). The bare loop is the floor:
the same instants, waking and reading the clock, with gevent's own timer and with our alarm, in the same session. The
endpoint is a bare uvicorn application. The highest rate that is kept (every arrival sent and answered, P99 late at most
1 ms or 5 % of the service time) stands beside what stock FastHttpUser reaches flat out with 64 users.

Sent times are put to the question whether they are what was asked for: gaps of Poisson arrivals against the exponential
distribution (Kolmogorov-Smirnov's largest distance D), constant arrivals for a drift against their schedule (in parts
per million). One thread sends no two requests at once, so gaps under some 60 us become that long: a share of 6 % of
them at 1000/s, which a test of ten thousand gaps sees.

Prints a table (rate, achieved ÷ offered, lateness P50/P99/max), then the highest rate kept, then one JSON line.

    python tests/bench/schedule_kept.py
    python tests/bench/schedule_kept.py --rates 100,500,1000,2000 --arrivals constant,poisson --seconds 20
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

PATH = "/v2/models/null/versions/exact/infer"
BARE = """
import sys, time, json
import gevent
from loadtest.engine.alarm import Alarm
from loadtest.engine.arrivals import Pattern
rate, seconds, timer, arrivals = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
alarm, late = Alarm(), []
start = time.monotonic_ns() + 100_000_000
for offset in Pattern(arrivals).offsets(rate, seconds, seed=1).tolist():
    due = start + offset
    if timer == "alarm":
        alarm.sleep_until(due)
    else:
        gevent.sleep(max(0, (due - time.monotonic_ns()) / 1e9))
    late.append((time.monotonic_ns() - due) / 1e6)
print(json.dumps(late))
"""
FAST = """
from locust import FastHttpUser, constant, task

class Fast(FastHttpUser):
    wait_time = constant(0)

    @task
    def infer(self):
        self.client.post("%s", data=b"x" * 1200)
"""


async def null(scope: Any, receive: Any, send: Any) -> None:
    """The bare application: what a client asks before a run, and nothing behind `infer`."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    path = scope["path"]
    model = b'{"name": "null", "versions": ["exact"]}'
    known = {"/v2": b'{"name": "null"}', "/v2/models/null": model, "/v2/models/null/versions/exact": model}
    status = 200 if path in known or path.endswith(("/infer", "/ready")) else 404
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": known.get(path, b"{}")})


@contextmanager
def server() -> Iterator[str]:
    from serve.ingress import free_port

    port = free_port()
    words = [sys.executable, "-m", "uvicorn", "schedule_kept:null", "--port", str(port), "--no-access-log"]
    process = subprocess.Popen([*words, "--log-level", "error", "--lifespan", "off"], cwd=Path(__file__).parent)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(100):
            try:
                urlopen(f"{url}/v2").close()
                break
            except URLError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def bare(rate: float, seconds: float, timer: str, arrivals: str) -> np.ndarray:
    words = [sys.executable, "-c", BARE, str(rate), str(seconds), timer, arrivals]
    return np.array(json.loads(subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout))


def driven(rate: float, seconds: float, arrivals: str, url: str, folder: Path) -> Any:
    import analysis

    words = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--headless", "--only-summary", "--host", url]
    words += ["--rates", str(rate), "--step-seconds", str(seconds), "--settle-seconds", "0", "--idle-seconds", "0"]
    words += ["--arrivals", arrivals, "--variants", "exact", "--run-dir", str(folder.parent), "--run-id", folder.name]
    subprocess.run(words, check=False, cwd=ROOT, capture_output=True)
    return analysis.load(folder)


def regular(rows: Any, rate: float, arrivals: str) -> str:
    """Whether what was sent is what the name of the arrivals promises."""
    from scipy import stats

    intended, sent = (np.sort(rows[f"{name}_ns"].to_numpy(dtype=np.int64)) for name in ("intended", "sent"))
    if arrivals == "poisson":
        found = [stats.kstest(np.diff(at) / 1e9, "expon", args=(0, 1 / rate)) for at in (intended, sent)]
        return "exponential gaps: " + ", ".join(
            f"{what} D {test.statistic:.3f} (p {test.pvalue:.2f})"
            for what, test in zip(("scheduled", "sent"), found, strict=True)
        )
    every = max(1, len(sent) // 1000)
    slope = stats.theilslopes((sent - intended)[::every], (intended - intended[0])[::every]).slope
    return f"drift {1e6 * slope:+.2f} ppm over {(intended[-1] - intended[0]) / 1e9:.0f} s"


def flat_out(url: str, scratch: Path) -> float:
    (scratch / "fast.py").write_text(FAST % PATH)
    words = [sys.executable, "-m", "locust", "-f", str(scratch / "fast.py"), "--headless", "--host", url, "-u", "64"]
    words += ["-r", "64", "-t", "9s", "--csv", str(scratch / "out"), "--only-summary"]
    subprocess.run(words, check=True, capture_output=True)
    lines = [line.split(",") for line in (scratch / "out_stats.csv").read_text().splitlines()]
    return float(lines[-1][lines[0].index("Requests/s")])


def highest(url: str, fast: float, scratch: Path, seconds: float = 5.0) -> list[dict[str, Any]]:
    """Rates from 0.5 to 1.1 of the flat-out one: which are kept, with every row recorded."""
    found = []
    for number, share in enumerate((0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)):
        run = driven(share * fast, seconds, "poisson", url, scratch / f"high-{number}")
        (step,) = run.measured
        row = step.summary
        whole = len(run.requests()) == run.manifest.totals["scheduled"]
        kept = row.trusted and row.errors == 0 and whole
        cpu = max(event["pct"] for event in run.events if event["event"] == "load_cpu")
        found.append(
            {"share": share, "rate": share * fast, "kept": kept, "late_p99_ms": row.late_p99_ms, "cpu_pct": cpu}
        )
        print(
            f"{share * fast:8.0f} {share:5.2f} of flat out {'kept' if kept else 'not kept':<9} "
            f"late P99 {row.late_p99_ms:8.3f} ms  CPU {cpu:5.1f} %"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100,500,1000,2000")
    parser.add_argument("--arrivals", default="poisson")
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    found = []
    print(f"{'rate/s':>8} {'arrivals':<9} {'what':<12} {'kept':>8} {'P50 ms':>8} {'P99 ms':>8} {'max ms':>8}")
    with server() as url, tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for arrivals in options.arrivals.split(","):
            for rate in (float(word) for word in options.rates.split(",")):
                run = driven(rate, options.seconds, arrivals, url, scratch / f"{arrivals}-{rate:g}")
                rows = run.requests()
                shown = regular(rows, rate, arrivals)
                cases = [("headroom", rows["late_ms"].to_numpy(), float(rows["ok"].mean()))]
                cases += [
                    (f"bare {timer}", bare(rate, options.seconds, timer, arrivals), 1.0)
                    for timer in ("alarm", "gevent")
                ]
                for what, values, share in cases:
                    p50, p99, most = np.quantile(values, [0.5, 0.99, 1.0], method="higher")
                    note = shown if what == "headroom" else ""
                    print(f"{rate:8g} {arrivals:<9} {what:<12} {share:8.4f} {p50:8.3f} {p99:8.3f} {most:8.3f}  {note}")
                    found.append(
                        {"rate": rate, "arrivals": arrivals, "what": what, "kept": share, "p50_ms": p50, "p99_ms": p99}
                    )
        fast = flat_out(url, scratch)
        print(f"FastHttpUser flat out: {fast:.0f}/s")
        high = highest(url, fast, scratch)
        again = flat_out(url, scratch)
        best = max((one["share"] for one in high if one["kept"]), default=0.0)
        print(f"highest rate kept ÷ flat out (before {fast:.0f}/s, after {again:.0f}/s): {best:.2f}")
    result = {
        "benchmark": "schedule_kept",
        "rows": found,
        "highest": high,
        "flat_out_rps": [fast, again],
        "ratio": best,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
