"""How well one load process keeps its schedule, against an endpoint that answers at once, and how far it can go.

Physics: an arrival is late by the wake-up of the pacer, by the greenlets in front of it, and by what else the core
does (answers to parse, rows to flush, the endpoint itself where it has no core of its own). The bare loop is the floor:
the same instants, waking and reading the clock, with gevent's own timer and with our alarm, in the same session. The
endpoint is HAProxy with one fixed answer, which takes half of the core that a bare uvicorn application takes
(`--endpoint uvicorn`) and so leaves more of a machine of two threads to who is measured. The highest rate that is kept
(every arrival sent and answered, P99 late at most 1 ms or 5 % of the service time) stands beside what stock
FastHttpUser reaches flat out with 64 users. So do a closed loop of ours, wrk and hey (where they are installed; one
thread each) with as many connections.

Sent times are put to the question whether they are what was asked for: gaps of Poisson arrivals against the exponential
distribution (Kolmogorov-Smirnov's largest distance D), constant arrivals for a drift against their schedule (in parts
per million). One thread sends no two requests at once, so gaps under some 60 us become that long: a share of 6 % of
them at 1000/s, which a test of ten thousand gaps sees.

Prints a table (rate, achieved ÷ offered, lateness P50/P99/max: medians over rounds, the lowest and the highest), then
what clients reach flat out, then the highest rate kept, then one JSON line.

    python tests/bench/schedule_kept.py
    python tests/bench/schedule_kept.py --shares '' --rates 500         without the search for the highest rate
    python tests/bench/schedule_kept.py --rates 100,500,1000,2000 --arrivals constant,poisson --seconds 20
    python tests/bench/schedule_kept.py --endpoint uvicorn
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, over, shown, spread, spreads  # noqa: E402

PATH = "/v2/models/null/versions/exact/infer"
FLAT_OUT_S = 9
CONNECTIONS = 64
BARE = """
import sys, time, json
import gevent
from tailrate.loadtest.engine.workers.on_time.timer import Alarm
from tailrate.loadtest.engine.scenario.arrivals import Pattern
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


MODEL = b'{"name": "null", "versions": ["exact"]}'
KNOWN = {
    "/v2": b'{"name": "null"}',
    "/v2/models/null": MODEL,
    "/v2/models/null/versions/exact": MODEL,
    PATH: b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [0]}]}',
}


async def null(scope: Any, receive: Any, send: Any) -> None:
    """The bare application: what a client asks before a run, and nothing behind `infer`."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    path = scope["path"]
    status = 200 if path in KNOWN or path.endswith("/ready") else 404
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": KNOWN.get(path, b"{}")})


HAPROXY = """global
  nbthread 1
  maxconn 5000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend null
  bind 127.0.0.1:{port}
{answers}
"""


def haproxy(port: int, folder: Path) -> list[str]:
    """The same answers as `null` gives."""
    from tailrate.serve.deploy.haproxy import binary

    answers = []
    for number, (path, body) in enumerate({**KNOWN, "/ready": b"{}"}.items()):
        (folder / str(number)).write_bytes(body)
        rule = f"path_end {path}" if path == "/ready" else f"path {path}"
        said = f"status 200 content-type application/json file {folder / str(number)}"
        answers.append(f"  http-request return {said} if {{ {rule} }}")
    (folder / "null.cfg").write_text(HAPROXY.format(port=port, answers="\n".join(answers)))
    return [str(binary()), "-q", "-db", "-f", str(folder / "null.cfg")]


@contextmanager
def server(kind: str, folder: Path) -> Iterator[str]:
    from tailrate.serve.deploy.haproxy import free_port

    port = free_port()
    words = [sys.executable, "-m", "uvicorn", "bench.schedule_kept:null", "--app-dir", "tests", "--port", str(port)]
    words += ["--no-access-log", "--log-level", "error", "--lifespan", "off"]
    process = subprocess.Popen(words if kind == "uvicorn" else haproxy(port, folder), cwd=ROOT)
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


def driven(url: str, folder: Path, seconds: float, *load: str) -> Any:
    from tailrate import analysis

    words = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--headless", "--only-summary", "--host", url]
    words += [*load, "--step-seconds", str(seconds), "--settle-seconds", "0", "--idle-seconds", "0"]
    words += ["--variants", "exact", "--run-dir", str(folder.parent), "--run-id", folder.name]
    done = subprocess.run(words, check=False, cwd=ROOT, capture_output=True, text=True)
    if not folder.is_dir():
        raise SystemExit(done.stderr)
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


def flat_out(url: str, scratch: Path) -> dict[str, float]:
    """Requests per second of clients that send as soon as they are answered."""
    scratch.mkdir()
    (scratch / "fast.py").write_text(FAST % PATH)
    users, lasts = str(CONNECTIONS), f"{FLAT_OUT_S}s"
    words = [sys.executable, "-m", "locust", "-f", str(scratch / "fast.py"), "--headless", "--host", url, "-u", users]
    words += ["-r", users, "-t", lasts, "--csv", str(scratch / "out"), "--only-summary"]
    subprocess.run(words, check=True, capture_output=True)
    lines = [line.split(",") for line in (scratch / "out_stats.csv").read_text().splitlines()]
    found = {"FastHttpUser": float(lines[-1][lines[0].index("Requests/s")])}
    rows = driven(url, scratch / "closed", FLAT_OUT_S, "--mode", "closed", "--concurrency", users).requests()
    found["tailrate"] = float(rows["ok"].sum()) / FLAT_OUT_S
    (scratch / "body").write_bytes(b"x" * 1200)
    (scratch / "wrk.lua").write_text("wrk.method = 'POST'; wrk.body = string.rep('x', 1200)")
    others = {
        "wrk": ["-t", "1", "-c", users, "-d", lasts, "-s", str(scratch / "wrk.lua")],
        "hey": ["-cpus", "1", "-c", users, "-z", lasts, "-m", "POST", "-D", str(scratch / "body")],
    }
    for name, how in others.items():
        if shutil.which(name):
            said = subprocess.run([name, *how, url + PATH], check=True, capture_output=True, text=True).stdout
            found[name] = float(re.findall(r"Requests/sec:\s*([\d.]+)", said)[0])
    return found


def once(rate: float, arrivals: str, seconds: float, url: str, runs: Iterator[Path]) -> dict[str, Any]:
    """Figures of one round: of us, and of the bare loops; and what our gaps look like."""
    rows = driven(url, next(runs), seconds, "--rates", str(rate), "--arrivals", arrivals).requests()
    found = {"tailrate": figures(rows["late_ms"].to_numpy(), float(rows["ok"].mean()))}
    for timer in ("alarm", "gevent"):
        found[f"bare {timer}"] = figures(bare(rate, seconds, timer, arrivals), 1.0)
    return {"figures": found, "note": regular(rows, rate, arrivals)}


def figures(late_ms: np.ndarray, kept: float) -> dict[str, float]:
    p50, p99, most = np.quantile(late_ms, [0.5, 0.99, 1.0], method="higher").tolist()
    return {"kept": kept, "p50_ms": p50, "p99_ms": p99, "max_ms": most}


def highest(url: str, shares: list[float], seconds: float, runs: Iterator[Path]) -> dict[str, Any]:
    """What clients reach flat out, and which shares of what FastHttpUser does are kept, with every row recorded."""
    reached = flat_out(url, next(runs))
    fast, found = reached["FastHttpUser"], {}
    for share in shares:
        run = driven(url, next(runs), seconds, "--rates", str(share * fast))
        (step,) = run.measured
        row = step.summary
        whole = len(run.requests()) == run.manifest.totals["scheduled"]
        cpu = max(event["pct"] for event in run.events if event["event"] == "load_cpu")
        found[share] = {
            "rate": share * fast, "kept": row.trusted and row.errors == 0 and whole, "late_p99_ms": row.late_p99_ms,
            "cpu_pct": cpu,
        }  # fmt: skip
    return {"flat_out_rps": reached, "shares": found}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--endpoint", choices=("haproxy", "uvicorn"), default="haproxy")
    found.add_argument("--rates", default="100,500,1000,2000")
    found.add_argument("--arrivals", default="poisson")
    found.add_argument("--seconds", type=float, default=8)
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--shares", default="0.8,1,1.4,1.8,2.2,2.6,3", help="of flat out; empty: not looked for")
    found.add_argument("--share-seconds", type=float, default=5)
    return found


def main() -> None:
    options = parser().parse_args()
    cases = [(arrivals, float(rate)) for arrivals in options.arrivals.split(",") for rate in options.rates.split(",")]
    shares = [float(word) for word in options.shares.split(",") if word]
    rows: list[dict[str, Any]] = []
    high: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, server(options.endpoint, Path(folder)) as url:
        runs = (Path(folder) / f"run-{number}" for number in count())
        ways = {(arrivals, rate): partial(once, rate, arrivals, options.seconds, url, runs) for arrivals, rate in cases}
        print(f"{'rate/s':>8} {'arrivals':<9} {'what':<12} {'kept':>7} {'P50 ms':>21} {'P99 ms':>21} {'max ms':>24}")
        for (arrivals, rate), found in in_turns(options.rounds, ways).items():
            for what in found[0]["figures"]:
                row = spreads([one["figures"][what] for one in found])
                late = f"{shown(row['p50_ms'], '.3f', 21)} {shown(row['p99_ms'], '.3f', 21)}"
                late += f" {shown(row['max_ms'], '.3f', 24)}"
                print(f"{rate:8g} {arrivals:<9} {what:<12} {row['kept']['low']:7.4f} {late}")
                rows.append({"rate": rate, "arrivals": arrivals, "what": what, **row})
            for one in found:
                print(f"{'':18} {one['note']}")
        if shares:
            high = [highest(url, shares, options.share_seconds, runs) for _ in range(options.rounds)]
    more: dict[str, Any] = {}
    if shares:
        reached = spreads([one["flat_out_rps"] for one in high])
        more["flat_out_rps"], more["closed_over"] = reached, {}
        for name, rps in reached.items():
            ratio = over(*([one["flat_out_rps"][which] for one in high] for which in ("tailrate", name)))
            more["closed_over"][name] = ratio
            of = f"ours is {shown(ratio, '.2f')} of it"
            print(f"flat out, {CONNECTIONS} connections: {name:<12} {shown(rps, '.0f')}/s, {of}")
    for share in shares:
        found = [one["shares"][share] for one in high]
        row = spreads([{key: each[key] for key in ("rate", "late_p99_ms", "cpu_pct")} for each in found])
        kept = sum(each["kept"] for each in found)
        more.setdefault("highest", []).append({"share": share, "kept_in_rounds": kept, **row})
        print(
            f"{share:5.2f} of flat out, {shown(row['rate'], '.0f', 22)}/s: kept in {kept} of {len(found)} rounds, "
            f"late P99 {shown(row['late_p99_ms'], '.3f')} ms, CPU {row['cpu_pct']['median']:.0f} %"
        )
    if shares:
        most = [max((share for share, each in one["shares"].items() if each["kept"]), default=0.0) for one in high]
        more["ratio"] = spread(most)
        print(f"highest rate kept ÷ what FastHttpUser reaches flat out: {shown(more['ratio'], '.2f')}")
    last_line("schedule_kept", rows=rows, **more)


if __name__ == "__main__":
    main()
