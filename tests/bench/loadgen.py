"""One endpoint, measured by MLPerf LoadGen in its Server scenario and by us, at the same rate.

The endpoint takes 5 ms for each request, in order (`exact.py`); both send Poisson arrivals, each its own, so that
percentiles differ by chance, too: each round is a fresh draw of both. LoadGen's latency counts from its schedule, as
ours does; its requests go out from a pool of threads.

Prints P50, P90 and P99 side by side, medians over rounds with the lowest and the highest, then one JSON line. Needs
mlcommons-loadgen (in the extra `dev`).

    python tests/bench/loadgen.py [--rate 100] [--seconds 20] [--rounds 3]
"""

from __future__ import annotations

import argparse
import array
import queue
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, left_out, shown, spreads  # noqa: E402

PATH = "/v2/models/null/versions/exact/infer"
BODY = b"x" * 1024
THREADS = 64
PERCENTS = (50, 90, 99)
Tool = Callable[[str, float, float, int], dict[int, float]]


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
    from bench.timing import driven

    with tempfile.TemporaryDirectory() as scratch:
        words = ["--rates", str(rate), "--step-seconds", str(seconds), "--seed", str(seed)]
        row = driven(url, Path(scratch) / "it", *words).measured[0].summary
    return {50: row.p50_ms, 90: row.p90_ms, 99: row.p99_ms}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--rate", type=float, default=100)
    found.add_argument("--seconds", type=float, default=20)
    found.add_argument("--rounds", type=int, default=3)
    return found


def main() -> None:
    options = parser().parse_args()
    from exact import exact

    if find_spec("mlperf_loadgen") is None:
        left_out("loadgen", "there is no mlcommons-loadgen (it is in the extra dev)")
        return

    def driven_by(tool: Tool, seeds: Iterator[int]) -> dict[str, float]:
        with exact(kind="queue", ms=5) as url:
            found = tool(url, options.rate, options.seconds, next(seeds))
        return {f"p{percent}_ms": found[percent] for percent in PERCENTS}

    tools = {"tailrate": ours, "loadgen": loadgen}
    found = in_turns(options.rounds, {name: partial(driven_by, tool, count(1)) for name, tool in tools.items()})
    print(f"{'tool':<10} " + " ".join(f"{f'P{percent} ms':>21}" for percent in PERCENTS))
    rows = []
    for name, runs in found.items():
        rows.append({"tool": name, **spreads(runs)})
        print(f"{name:<10} " + " ".join(shown(rows[-1][f"p{percent}_ms"], ".2f", 21) for percent in PERCENTS))
    last_line("loadgen", rate=options.rate, rows=rows)


if __name__ == "__main__":
    main()
