"""One endpoint, measured by MLPerf LoadGen in its Server scenario and by us, at the same rate.

The endpoint takes 5 ms for each request, in order (`tests/exact.py`); both send Poisson arrivals, each its own, so that
percentiles differ by chance, too: each round is a fresh draw of both. LoadGen's latency counts from its schedule, as
ours does; its requests go out from a pool of threads.

Prints P50, P90 and P99 side by side, then one JSON line. Needs mlcommons-loadgen (in the extra `dev`).

    python tests/bench/loadgen.py [--rate 100] [--seconds 20] [--rounds 2]
"""

from __future__ import annotations

import argparse
import array
import json
import queue
import re
import statistics
import sys
import tempfile
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

PATH = "/v2/models/null/versions/exact/infer"
BODY = b"x" * 1024
THREADS = 64
PERCENTS = (50, 90, 99)


def loadgen(url: str, rate: float, seconds: float, seed: int) -> dict[int, float]:
    import mlperf_loadgen as lg

    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        connection = HTTPConnection(url.removeprefix("http://"))
        while (sample := waiting.get()) is not None:
            connection.request("POST", PATH, BODY)
            answer = connection.getresponse().read()
            kept = array.array("B", answer)
            where, size = kept.buffer_info()
            lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, where, size)])
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    settings = lg.TestSettings()
    settings.scenario, settings.mode = lg.TestScenario.Server, lg.TestMode.PerformanceOnly
    settings.server_target_qps = rate
    settings.server_target_latency_ns = 1_000_000_000
    settings.min_duration_ms = int(1e3 * seconds)
    settings.min_query_count = int(rate * seconds)
    settings.schedule_rng_seed = seed
    with tempfile.TemporaryDirectory() as folder:
        output, log = lg.LogOutputSettings(), lg.LogSettings()
        output.outdir, output.copy_summary_to_stdout = folder, False
        log.log_output, log.enable_trace = output, False
        under_test = lg.ConstructSUT(lambda samples: [waiting.put(sample) for sample in samples], lambda: None)
        library = lg.ConstructQSL(1024, 1024, lambda _: None, lambda _: None)
        lg.StartTestWithLogSettings(under_test, library, settings, log)
        lg.DestroyQSL(library)
        lg.DestroySUT(under_test)
        text = (Path(folder) / "mlperf_log_summary.txt").read_text()
    for _ in threads:
        waiting.put(None)
    for thread in threads:
        thread.join()
    found = re.findall(r"(\d+)\.00 percentile latency \(ns\) +: (\d+)", text)
    return {int(percent): int(ns) / 1e6 for percent, ns in found}


def ours(url: str, rate: float, seconds: float, seed: int) -> dict[int, float]:
    from timing import driven

    with tempfile.TemporaryDirectory() as scratch:
        words = ["--rates", str(rate), "--step-seconds", str(seconds), "--seed", str(seed)]
        row = driven(url, Path(scratch) / "it", *words).measured[0].summary
    return {50: row.p50_ms, 90: row.p90_ms, 99: row.p99_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    from exact import exact

    tools = {"headroom": ours, "loadgen": loadgen}
    found: dict[str, list[dict[int, float]]] = {name: [] for name in tools}
    for number in range(options.rounds):
        for name, tool in tools.items():
            with exact(kind="queue", ms=5) as url:
                found[name].append(tool(url, options.rate, options.seconds, number + 1))
    print(f"{'tool':<10} " + " ".join(f"{f'P{percent} ms':>8}" for percent in PERCENTS))
    rows = []
    for name, runs in found.items():
        middle = {percent: statistics.median(run[percent] for run in runs) for percent in PERCENTS}
        rows.append({"tool": name, **{f"p{percent}_ms": value for percent, value in middle.items()}})
        print(f"{name:<10} " + " ".join(f"{value:8.2f}" for value in middle.values()))
    print(json.dumps({"benchmark": "loadgen", "rate": options.rate, "rows": rows}))


if __name__ == "__main__":
    main()
