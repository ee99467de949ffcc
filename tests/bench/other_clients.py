"""The same endpoint measured by others' clients and by ours: do they find the same latency?

`null`, which takes 20 ms for each batch, is asked in JSON, one request at a time (a closed loop of one), by hey, wrk,
k6, AIPerf and ours, in turn. A client that is not installed is left out. AIPerf and k6 lie in environments of their own
(`--aiperf FOLDER/bin/aiperf`, `--k6 FOLDER/bin/k6`); AIPerf wants a tokenizer, so one is made of our own vocabulary.

Physics: nothing else may run on the machine meanwhile.

Prints a table (median of the rounds' P50 and P99, the lowest and the highest, the difference of the P50s within a
round, and the mean that the server itself had of the same requests: what a client adds to that is its own), then one
JSON line.

    python tests/bench/other_clients.py [--aiperf PATH] [--k6 PATH] [--rounds 5] [--seconds 8]
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

import numpy as np  # noqa: E402
from bench._rounds import in_turns, last_line, shown, spread  # noqa: E402
from serving import served  # noqa: E402

DELAY_MS = 20
PATH = "/v2/models/null/versions/eager/infer"
BODY = '{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,4],"data":[1,2,3,4]}]}'
TEMPLATE = '{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,4],"data":"$x"}]}'
P = (50, 99)
Found = dict[int, float]


def ours(url: str, seconds: float, folder: Path) -> Found:
    command = [
        sys.executable, "-m", "tailrate", "run", "null", f"--endpoints=it=json+{url}#null", "--mode=closed",
        "--concurrency=1", f"--step-seconds={seconds + 1}", "--settle-seconds=1", "--idle-seconds=0",
        "--self-check=off", "--body-bytes=4", f"--json-path={PATH}", f"--json-body={TEMPLATE}",
        f"--run-dir={folder}", "--run-id=it",
    ]  # fmt: skip
    shutil.rmtree(folder / "it", ignore_errors=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    (step,) = json.loads((folder / "it" / "report.json").read_text())["steps"]
    return {50: step["p50_ms"], 99: step["p99_ms"]}


def hey(url: str, seconds: float, folder: Path) -> Found:
    command = ["hey", "-z", f"{seconds}s", "-c", "1", "-m", "POST", "-T", "application/json", "-d", BODY, "-o", "csv"]
    done = subprocess.run([*command, url + PATH], capture_output=True, text=True, check=True)
    took = [1e3 * float(row["response-time"]) for row in csv.DictReader(io.StringIO(done.stdout))]
    return {percent: float(np.percentile(took, percent)) for percent in P}


def wrk(url: str, seconds: float, folder: Path) -> Found:
    script = folder / "post.lua"
    script.write_text(
        f"wrk.method = 'POST'\nwrk.body = '{BODY}'\nwrk.headers['content-type'] = 'application/json'\n"
        "done = function(summary, latency, requests)\n"
        "  io.write(string.format('%d %d\\n', latency:percentile(50), latency:percentile(99)))\nend\n"
    )
    command = ["wrk", "-t1", "-c1", f"-d{seconds:.0f}s", "-s", str(script), url + PATH]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = re.fullmatch(r"(\d+) (\d+)", done.stdout.strip().splitlines()[-1])
    assert said, done.stdout
    return {50: int(said[1]) / 1e3, 99: int(said[2]) / 1e3}


def k6(program: str, url: str, seconds: float, folder: Path) -> Found:
    script, summary = folder / "post.js", folder / "k6.json"
    headers = "{headers: {'content-type': 'application/json'}}"
    script.write_text(
        f"import http from 'k6/http'\nexport const options = {{vus: 1, duration: '{seconds}s', "
        f"summaryTrendStats: {[f'p({percent})' for percent in P]}}}\n"
        f"export default () => http.post('{url}{PATH}', '{BODY}', {headers})\n"
    )
    command = [program, "run", "--quiet", "--no-usage-report", "--address", "", f"--summary-export={summary}"]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(summary.read_text())["metrics"]["http_req_duration"]
    return {percent: float(found[f"p({percent})"]) for percent in P}


def aiperf(program: str, url: str, seconds: float, folder: Path) -> Found:
    count = int(seconds * 1e3 / (DELAY_MS + 2))
    template = {"payload_template": BODY, "response_field": "outputs[0].data"}
    command = [
        program, "profile", "--model-names", "null", "--url", url, "--endpoint-type", "template", "--endpoint", PATH,
        "--extra-inputs", json.dumps(template), "--tokenizer", "of/ours", "--concurrency", "1",
        "--request-count", str(count), "--warmup-request-count", "20", "--isl", "8", "--ui", "none",
        "--output-artifact-dir", str(folder / "aiperf"),
    ]  # fmt: skip
    shutil.rmtree(folder / "aiperf", ignore_errors=True)
    there = os.environ | {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=there, cwd=folder)
    path = folder / "aiperf" / "profile_export_aiperf.json"
    assert path.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(path.read_text())["request_latency"]
    return {percent: float(found[f"p{percent}"]) for percent in P}


def with_server(way: Callable[[], Found], url: str) -> Found:
    """And under 0 the mean that the server had of these requests, from body to answer."""

    def counted() -> tuple[int, int]:
        with urlopen(url + PATH.removesuffix("infer") + "stats") as answer:
            (stats,) = json.load(answer)["model_stats"]
        return stats["inference_stats"]["success"]["count"], stats["inference_stats"]["success"]["ns"]

    before = counted()
    found = way()
    count, ns = (b - a for a, b in zip(before, counted(), strict=True))
    return found | {0: ns / count / 1e6}


def tokenizer(hub: Path) -> None:
    """As Hugging Face's client keeps what it has fetched: AIPerf takes no other."""
    from transformers import BertConfig, BertTokenizerFast

    from tailrate.serve.models.bert import VOCABULARY

    model = hub / "hub" / "models--of--ours"
    snapshot = model / "snapshots" / ("0" * 40)
    words = {word: place for place, word in enumerate(VOCABULARY.read_text(encoding="utf-8").splitlines())}
    BertTokenizerFast(vocab=words).save_pretrained(snapshot)
    BertConfig().save_pretrained(snapshot)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0" * 40)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--aiperf", default=shutil.which("aiperf"), metavar="PATH")
    found.add_argument("--k6", default=shutil.which("k6"), metavar="PATH")
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--seconds", type=float, default=8)
    return found


def main() -> None:
    given = parser().parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        options: dict[str, Any] = {"models": ["null"], "variants": ["eager"], "settings": {"delay_ms": str(DELAY_MS)}}
        with served(folder, **options) as server:
            ways: dict[str, Callable[[], Found]] = {"ours": lambda: ours(server.url, given.seconds, folder)}
            if shutil.which("hey"):
                ways["hey"] = lambda: hey(server.url, given.seconds, folder)
            if shutil.which("wrk"):
                ways["wrk"] = lambda: wrk(server.url, given.seconds, folder)
            if given.k6:
                ways["k6"] = lambda: k6(given.k6, server.url, given.seconds, folder)
            if given.aiperf:
                tokenizer(folder / "hub")
                ways["aiperf"] = lambda: aiperf(given.aiperf, server.url, given.seconds, folder)
            url = server.url
            found = in_turns(given.rounds, {name: partial(with_server, way, url) for name, way in ways.items()})
    rows = {}
    print(f"{'':8} {'P50 ms':>26} {'P99 ms':>26} {'P50 − ours, ms':>26} {'server, mean ms':>26}")
    for name, rounds in found.items():
        p50, p99 = (spread(one[percent] for one in rounds) for percent in P)
        apart = spread(one[50] - its[50] for one, its in zip(rounds, found["ours"], strict=True))
        own = spread(one[0] for one in rounds)
        rows[name] = {"p50_ms": p50, "p99_ms": p99, "p50_over_ours_ms": apart, "server_mean_ms": own}
        cells = shown(p50, ".2f", 26), shown(p99, ".2f", 26), shown(apart, "+.2f", 26), shown(own, ".2f", 26)
        print(f"{name:8} {' '.join(cells)}")
    last_line("other_clients", delay_ms=DELAY_MS, clients=rows)


if __name__ == "__main__":
    main()
