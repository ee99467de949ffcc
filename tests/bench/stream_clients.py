"""The same streams measured by others' clients and by ours: where do figures of one name differ, and by what formula?

A server that keeps a plan (`metronome`: 20 ms to the first of 40 tokens, 5 ms from each to the next) is asked by ours,
AIPerf and GuideLLM with four streams under way, and by MLPerf's LoadGen at the rate that these make. Each of their
figures stands beside ours *by their formula*, worked out from the rows of our run: what is left is the client's own.
Theirs lie in environments of their own (`--aiperf FOLDER/bin/aiperf`, `--guidellm FOLDER/bin/guidellm`); one that is
not there is left out. LoadGen is in the extra `dev`.

With `--rates 50,100,200,400` also at so many streams a second: how late each began its requests (P99, by its own
account), and the P99 of what it calls TTFT.

With `--slip 0.5` also what each says when all its processes stood still for half a second, at 50 streams a second: 25
requests were due meanwhile, and whoever would have waited for them waited so much longer.

Prints a table (P50 and P99, medians over rounds with the lowest and the highest; the difference of the P50s within a
round), one for the rates, then one JSON line.

    python tests/bench/stream_clients.py [--aiperf PATH] [--guidellm PATH] [--rounds 5] [--seconds 6] [--rates RATES]
        [--slip S]
"""

from __future__ import annotations

import argparse
import array
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, shown, spread, spreads  # noqa: E402
from bench.other_clients import tokenizer  # noqa: E402

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

TOKENS, STREAMS = 40, 4
PLAN = json.dumps({"tokens": TOKENS, "first_ms": 20, "gap_ms": 5})
TAKES_S = 0.02 + 0.005 * (TOKENS - 1)
P = (50, 99)
Found = dict[str, dict[int, float]]
"""By figure and percent, in ms."""
Runs = Callable[..., "subprocess.CompletedProcess[str]"]
Late = tuple[float, float]
"""P99 of how late requests began, and of TTFT, in ms."""
GUIDELLM_TTFT = "time_to_first_token_ms"
SLIP_RATE, SLIP_AFTER_S = 50.0, 3.0
"""Streams a second, and how long after the first of them."""

SCENARIO = f"""
import numpy as np
from tailrate.loadtest.engine.user import EndpointUser


class Planned(EndpointUser):
    protocol = "openai-chat"
    pool_size = 1

    def payload(self, rng, rows):
        return {{"prompt": np.array(['''{PLAN}'''], object)}}
"""


@dataclass(frozen=True)
class Slip:
    """Lets a program run as `subprocess.run` does, but stops all its processes for a while under way."""

    url: str
    seconds: float

    def __call__(self, command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        how = {key: how[key] for key in ("cwd", "env") if key in how}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how) as process:
            stopper = threading.Thread(target=self._stop, args=(process,))
            stopper.start()
            out, err = process.communicate()
            stopper.join()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def _stop(self, process: subprocess.Popen[str]) -> None:
        port, seen = int(self.url.rpartition(":")[2]), 0
        while seen < 10 and process.poll() is None:  # a lone request before the start is over sooner
            time.sleep(0.1)
            seen = seen + 1 if self._streams(process.pid, port) else 0
        time.sleep(SLIP_AFTER_S)
        with suppress(psutil.NoSuchProcess):
            all_of_it = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in all_of_it:
                one.suspend()
            time.sleep(self.seconds)
            for one in all_of_it:
                one.resume()

    def _streams(self, pid: int, port: int) -> bool:
        """Whether more than one connection to the server is open."""
        with suppress(psutil.Error):
            whole = psutil.Process(pid)
            found = [one for part in (whole, *whole.children(recursive=True)) for one in part.net_connections("tcp")]
            return sum(bool(one.raddr) and one.raddr.port == port for one in found) > 1
        return False


def our_run(url: str, seconds: float, folder: Path, *asked: str, run: Runs = subprocess.run) -> Run:
    from tailrate.analysis import load

    (folder / "planned.py").write_text(SCENARIO)
    shutil.rmtree(folder / "it", ignore_errors=True)
    command = [
        sys.executable, "-m", "tailrate", "run", f"{folder / 'planned.py'}", "--host", url, *asked,
        f"--step-seconds={seconds + 1}", "--settle-seconds=1", "--idle-seconds=0", "--self-check=off",
        f"--run-dir={folder}", "--run-id=it",
    ]  # fmt: skip
    done = run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    return load(folder / "it")


def ours(url: str, seconds: float, folder: Path) -> Found:
    """By every formula that somebody has."""
    rows = our_run(url, seconds, folder, "--mode=closed", f"--concurrency={STREAMS}").requests()
    intended, sent, first, last, end = (
        rows[f"{name}_ns"].to_numpy(np.float64) / 1e6 for name in ("intended", "sent", "first", "last", "done")
    )
    n = rows["tokens_out"].to_numpy(np.float64)
    return {
        name: {percent: float(np.percentile(values, percent)) for percent in P}
        for name, values in {
            "c₁ − sent": first - sent,
            "c₁ − intended": first - intended,
            "(c_last − c₁) ÷ (N − 1)": (last - first) / (n - 1),
            "(end − sent) ÷ N": (end - sent) / n,
            "gap": np.concatenate([np.asarray(gaps, np.float64) for gaps in rows["gaps_us"]]) / 1e3,
            "c_last − sent": last - sent,
            "c_last − intended": last - intended,
            "end − sent": end - sent,
        }.items()
    }


def our_lateness(url: str, seconds: float, folder: Path, rate: float) -> Late:
    (step,) = our_run(url, seconds, folder, f"--rates={rate:g}").measured
    return step.summary.late_p99_ms or 0.0, step.summary.ttft_p99_ms or 0.0


def guidellm_says(
    program: str, url: str, seconds: float, folder: Path, profile: str, run: Runs = subprocess.run
) -> dict[str, Any]:
    (folder / "prompts.txt").write_text(f"{PLAN}\n" * 1000)
    path = folder / "guidellm.json"
    path.unlink(missing_ok=True)
    command = [
        program, "run", "--backend", f"kind=openai_http,target={url},model=m", "--profile", profile, "--constraint",
        f"kind=max_duration,seconds={seconds:g}", "--data", f"kind=text_file,path={folder / 'prompts.txt'}",
        "--output", f"kind=json,path={path}", "--disable-progress",
    ]  # fmt: skip
    done = run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert path.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(path.read_text())["benchmarks"][0]["metrics"]
    return found


def guidellm_lateness(program: str, url: str, seconds: float, folder: Path, rate: float) -> Late:
    metrics = guidellm_says(program, url, seconds, folder, f"kind=constant,rate={rate:g}")
    late, ttft = (
        metrics[name]["successful"]["percentiles"]["p99"] for name in ("request_dispatch_delay", GUIDELLM_TTFT)
    )
    return 1e3 * late, ttft


def guidellm(program: str, url: str, seconds: float, folder: Path) -> Found:
    metrics = guidellm_says(program, url, seconds, folder, f"kind=concurrent,streams={STREAMS}")

    def of(name: str, unit: float = 1.0) -> dict[int, float]:
        return {percent: unit * metrics[name]["successful"]["percentiles"][f"p{percent}"] for percent in P}

    return {
        "TTFT": of(GUIDELLM_TTFT), "ITL": of("inter_token_latency_ms"),
        "TPOT": of("time_per_output_token_ms"), "latency": of("request_latency", 1e3),
    }  # fmt: skip


def aiperf_says(program: str, url: str, folder: Path, *asked: str, run: Runs = subprocess.run) -> dict[str, Any]:
    (folder / "prompts.jsonl").write_text((json.dumps({"text": PLAN}) + "\n") * 100)
    shutil.rmtree(folder / "aiperf", ignore_errors=True)
    command = [
        program, "profile", "--model-names", "m", "--url", url, "--endpoint-type", "chat", "--streaming", "--tokenizer",
        "of/ours", *asked, "--input-file", f"{folder / 'prompts.jsonl'}", "--custom-dataset-type", "single_turn",
        "--use-server-token-count", "--ui", "none", "--output-artifact-dir", f"{folder / 'aiperf'}",
    ]  # fmt: skip
    there = os.environ | {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    done = run(command, capture_output=True, text=True, check=False, env=there, cwd=folder)
    path = folder / "aiperf" / "profile_export_aiperf.json"
    assert path.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def aiperf_at(rate: float, seconds: float) -> list[str]:
    return [
        "--request-rate",
        f"{rate:g}",
        "--request-rate-mode",
        "constant",
        "--request-count",
        f"{int(rate * seconds)}",
    ]


def aiperf_lateness(program: str, url: str, seconds: float, folder: Path, rate: float) -> Late:
    found = aiperf_says(program, url, folder, *aiperf_at(rate, seconds))
    return found["credit_to_start_latency"]["p99"], found["time_to_first_token"]["p99"]


def aiperf(program: str, url: str, seconds: float, folder: Path) -> Found:
    asked = ("--concurrency", f"{STREAMS}", "--request-count", f"{int(seconds * STREAMS / TAKES_S)}")
    found = aiperf_says(program, url, folder, *asked)

    def of(name: str) -> dict[int, float]:
        return {percent: float(found[name][f"p{percent}"]) for percent in P}

    return {
        "TTFT": of("time_to_first_token"), "ITL": of("inter_token_latency"), "chunks": of("inter_chunk_latency"),
        "latency": of("request_latency"),
    }  # fmt: skip


def loadgen(url: str, seconds: float, folder: Path) -> Found:
    """What it makes of first tokens and of ends that it is told at once."""
    import mlperf_loadgen as lg

    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    body = json.dumps({"messages": [{"role": "user", "content": PLAN}]})

    def work() -> None:
        connection = HTTPConnection(url.removeprefix("http://"))
        kept = array.array("B", bytes(8))
        where, size = kept.buffer_info()
        while (sample := waiting.get()) is not None:
            connection.request("POST", "/v1/chat/completions", body)
            answer, tokens = connection.getresponse(), 0
            while line := answer.readline():
                if b'"content"' in line:
                    tokens += 1
                    if tokens == 1:
                        lg.FirstTokenComplete([lg.QuerySampleResponse(sample.id, where, size)])
                    elif tokens == TOKENS:
                        lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, where, size, TOKENS)])
        connection.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4 * STREAMS)]
    for thread in threads:
        thread.start()
    settings = lg.TestSettings()
    settings.scenario, settings.mode = lg.TestScenario.Server, lg.TestMode.PerformanceOnly
    settings.server_target_qps = STREAMS / TAKES_S
    settings.server_target_latency_ns = 10_000_000_000
    settings.use_token_latencies = True
    settings.ttft_latency, settings.tpot_latency = 10_000_000_000, 10_000_000_000
    settings.min_duration_ms = int(1e3 * seconds)
    settings.min_query_count = int(STREAMS / TAKES_S * seconds)
    output, log = lg.LogOutputSettings(), lg.LogSettings()
    output.outdir, output.copy_summary_to_stdout = f"{folder}", False
    log.log_output, log.enable_trace = output, False
    under_test = lg.ConstructSUT(lambda samples: [waiting.put(sample) for sample in samples], lambda: None)
    library = lg.ConstructQSL(1024, 1024, lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(under_test, library, settings, log)
    lg.DestroyQSL(library)
    lg.DestroySUT(under_test)
    for _ in threads:
        waiting.put(None)
    for thread in threads:
        thread.join()
    text = (folder / "mlperf_log_summary.txt").read_text()

    def of(name: str) -> dict[int, float]:
        said = re.findall(rf"(\d+)\.00 percentile {name} \(ns\) +: (\d+)", text)
        return {int(percent): int(ns) / 1e6 for percent, ns in said}

    return {
        "TTFT": of("first token latency"), "TPOT": of("time to output token"), "latency": of("latency"),
    }  # fmt: skip


def slipped(given: argparse.Namespace, url: str, folder: Path) -> dict[str, Callable[[], dict[str, float]]]:
    """What each says of times to the first token, and of how late it was, when it stood still for a while."""
    seconds, run = 2 * SLIP_AFTER_S + given.slip, Slip(url, given.slip)

    def of_ours() -> dict[str, float]:
        found = our_run(url, seconds, folder, f"--rates={SLIP_RATE:g}", "--arrivals=constant", run=run)
        (step,) = found.measured
        rows = found.requests()
        longest = float((rows["first_ns"] - rows["intended_ns"]).max() / 1e6)
        return {
            "P50": step.summary.ttft_p50_ms or 0.0, "P99": step.summary.ttft_p99_ms or 0.0, "longest": longest,
            "P99 from send": step.summary.ttft_sent_p99_ms or 0.0, "late P99": step.summary.late_p99_ms or 0.0,
        }  # fmt: skip

    def of_aiperf() -> dict[str, float]:
        said = aiperf_says(given.aiperf, url, folder, *aiperf_at(SLIP_RATE, seconds), run=run)
        ttft, late = said["time_to_first_token"], said["credit_to_start_latency"]
        return {"P50": ttft["p50"], "P99": ttft["p99"], "longest": ttft["max"], "late P99": late["p99"]}

    def of_guidellm() -> dict[str, float]:
        profile = f"kind=constant,rate={SLIP_RATE:g}"
        said = guidellm_says(given.guidellm, url, seconds, folder, profile, run=run)
        ttft, late = (said[name]["successful"] for name in (GUIDELLM_TTFT, "request_dispatch_delay"))
        percentiles = ttft["percentiles"]
        return {
            "P50": percentiles["p50"], "P99": percentiles["p99"], "longest": ttft["max"],
            "late P99": 1e3 * late["percentiles"]["p99"],
        }  # fmt: skip

    ways: dict[str, Callable[[], dict[str, float]]] = {"ours": of_ours}
    ways |= {"aiperf": of_aiperf} if given.aiperf else {}
    return ways | ({"guidellm": of_guidellm} if given.guidellm else {})


FORMULAS = {
    "aiperf": {"TTFT": "c₁ − sent", "ITL": "(c_last − c₁) ÷ (N − 1)", "chunks": "gap", "latency": "c_last − sent"},
    "guidellm": {
        "TTFT": "c₁ − sent", "ITL": "(c_last − c₁) ÷ (N − 1)", "TPOT": "(end − sent) ÷ N", "latency": "end − sent",
    },
    "loadgen": {"TTFT": "c₁ − intended", "TPOT": "(c_last − c₁) ÷ (N − 1)", "latency": "c_last − intended"},
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--aiperf", default=shutil.which("aiperf"), metavar="PATH")
    found.add_argument("--guidellm", default=shutil.which("guidellm"), metavar="PATH")
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--seconds", type=float, default=6)
    found.add_argument("--rates", default="", help="streams a second, such as 50,100,200,400")
    found.add_argument("--slip", type=float, default=0.0, metavar="S", help="all of a client stands still for so long")
    return found


def rows_of(found: Mapping[str, list[Found]]) -> list[dict[str, Any]]:
    rows = []
    for name, formulas in FORMULAS.items():
        for figure, formula in formulas.items() if name in found else ():
            both = list(zip(found[name], found["ours"], strict=True))
            row: dict[str, Any] = {"client": name, "figure": figure, "formula": formula}
            for percent in P:
                row[f"theirs_p{percent}_ms"] = spread(its[figure][percent] for its, _ in both)
                row[f"ours_p{percent}_ms"] = spread(own[formula][percent] for _, own in both)
            row["apart_p50_ms"] = spread(its[figure][50] - own[formula][50] for its, own in both)
            rows.append(row)
    return rows


def side_by_side(given: argparse.Namespace, url: str, folder: Path) -> list[dict[str, Any]]:
    ways: dict[str, Callable[[], Found]] = {"ours": partial(ours, url, given.seconds, folder)}
    if given.aiperf:
        ways["aiperf"] = partial(aiperf, given.aiperf, url, given.seconds, folder)
    if given.guidellm:
        ways["guidellm"] = partial(guidellm, given.guidellm, url, given.seconds, folder)
    if find_spec("mlperf_loadgen"):
        ways["loadgen"] = partial(loadgen, url, given.seconds, folder)
    for name in sorted(FORMULAS.keys() - ways.keys()):
        print(f"{name} is left out: it is not there")
    rows = rows_of(in_turns(given.rounds, ways))
    heads = ("theirs P50", "ours by it", "theirs P99", "ours by it", "P50 apart")
    print(f"{'':8} {'':8} {'is':24} " + " ".join(f"{head:>20}" for head in heads))
    for row in rows:
        cells = [row[f"{whose}_p{percent}_ms"] for percent in P for whose in ("theirs", "ours")]
        told = [*(shown(cell, ".2f", 20) for cell in cells), shown(row["apart_p50_ms"], "+.2f", 20)]
        print(f"{row['client']:8} {row['figure']:8} {row['formula']:24} {' '.join(told)}", flush=True)
    return rows


def by_rates(given: argparse.Namespace, url: str, folder: Path) -> list[dict[str, Any]]:
    late: dict[str, Callable[[float], Late]] = {"ours": partial(our_lateness, url, given.seconds, folder)}
    if given.aiperf:
        late["aiperf"] = partial(aiperf_lateness, given.aiperf, url, given.seconds, folder)
    if given.guidellm:
        late["guidellm"] = partial(guidellm_lateness, given.guidellm, url, given.seconds, folder)
    rates = [float(rate) for rate in given.rates.split(",") if rate]
    rows = []
    print(f"{'streams/s':>9} {'':8} {'began late, P99 ms':>26} {'TTFT P99 ms':>26}" if rates else "")
    for rate in rates:
        for name, rounds in in_turns(given.rounds, {name: partial(way, rate) for name, way in late.items()}).items():
            began, ttft = (spread(one[k] for one in rounds) for k in (0, 1))
            rows.append({"rate": rate, "client": name, "late_p99_ms": began, "ttft_p99_ms": ttft})
            print(f"{rate:9g} {name:8} {shown(began, '.2f', 26)} {shown(ttft, '.1f', 26)}", flush=True)
    return rows


def main() -> None:
    from metronome import metronome

    given = parser().parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if given.aiperf:
            tokenizer(folder / "hub")
        with metronome(folder) as server:
            rows = side_by_side(given, server.url, folder)
            by_rate = by_rates(given, server.url, folder)
            stood_still = in_turns(given.rounds, slipped(given, server.url, folder)) if given.slip else {}
    slips = {name: spreads(said) for name, said in stood_still.items()}
    for name, row in slips.items():
        figures = ", ".join(f"{figure} {shown(value)}" for figure, value in row.items())
        print(f"{name} stood still for {given.slip:g} s; time to first token in ms: {figures}")
    last_line("stream_clients", tokens=TOKENS, streams=STREAMS, rows=rows, by_rate=by_rate, slips=slips)


if __name__ == "__main__":
    main()
