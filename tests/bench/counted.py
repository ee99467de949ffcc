"""What the server counts, held against what its clients saw: a hundred thousand requests, two replicas, every reason.

    python tests/bench/counted.py [--requests 100000] [--clients 24] [--run-seconds 20]

Clients of the standard library send results, chunks, malformed and too large bodies, unknown models and deadlines to a
live `null`, and some leave. Beside each other for each reason: the clients' count, `/v2/models/stats`, `/metrics`. Then
`tailrate run` drives the same server, and its rows and stages (of the answers' headers) are compared with what the
server counted meanwhile. Prints two tables, then one JSON line; ends with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402
from serving import served  # noqa: E402

from tailrate import analysis  # noqa: E402
from tailrate.analysis.records.rows import is_success  # noqa: E402
from tailrate.serve import wire  # noqa: E402
from tailrate.serve.body.request import encode_infer  # noqa: E402

LIMIT = 20_000
OPTIONS: dict[str, Any] = {
    "models": ["null"], "variants": ["eager"], "replicas": 2, "max_batch": 16, "max_queue": 8,
    "max_body_bytes": LIMIT, "settings": {"delay_ms": "1.5"},
}  # fmt: skip
SHARES = {
    "good": 60, "chunks": 8, "malformed": 4, "unknown": 4, "method": 3, "large": 4, "encoding": 4, "late": 9,
    "leaves": 1,
}  # fmt: skip
WORDS = {400: "bad_input", 404: "not_found", 405: "wrong_method", 413: "too_large", 415: "bad_encoding"}
LATER = {503: "queue_full", 504: "deadline"}


class Client(threading.Thread):
    """Sends one request after the other over a connection that is kept."""

    def __init__(self, netloc: str, numbers: Any, seen: Counter[str]) -> None:
        super().__init__()
        self._netloc, self._numbers, self._seen = netloc, numbers, seen
        self._way = http.client.HTTPConnection(netloc, timeout=60)

    def run(self) -> None:
        for number in self._numbers:
            random = Random(number)
            (kind,) = random.choices(list(SHARES), SHARES.values())
            rows = 40 if kind == "chunks" else random.choice((1, 2, 5))
            body, headers = encode_infer({"x": np.zeros((rows, 3), np.uint8)})
            self._seen[self._sent(kind, body, headers, random)] += 1
        self._way.close()

    def _sent(self, kind: str, body: bytes, headers: dict[str, str], random: Random) -> str:
        method = "GET" if kind == "method" else "POST"
        path = wire.infer_path("nosuch" if kind == "unknown" else "null", "eager")
        if kind == "malformed":
            body = body[:-1]
        elif kind == "large":
            body = bytes(LIMIT + 1)
        elif kind == "encoding":
            headers["content-encoding"] = "br"
        elif kind == "late":
            headers["x-request-timeout-seconds"] = f"{random.random() * 0.004:.6f}"
        if kind == "leaves":  # in the middle of its body: later it may just have been answered
            headers["content-length"] = str(len(body) + 1)
        self._way.request(method, path, b"" if kind == "method" else body, headers)
        if kind == "leaves":
            time.sleep(0.1)  # until it is beyond the proxy
            self._way.close()
            return "cancelled"
        answer = self._way.getresponse()
        answer.read()
        return "ok" if answer.status == 200 else (WORDS | LATER)[answer.status]


def get(netloc: str, path: str) -> bytes:
    way = http.client.HTTPConnection(netloc, timeout=60)
    way.request("GET", path)
    answer = way.getresponse()
    found = answer.read()
    way.close()
    assert answer.status == 200, found
    return found


def by_statistics(netloc: str) -> Counter[str]:
    found = json.loads(get(netloc, "/v2/models/stats"))
    (stats,) = found["model_stats"]
    counts = Counter(ok=stats["inference_stats"]["success"]["count"])
    return counts + Counter(stats["refused"]) + Counter(found["refused"])


def by_prometheus(netloc: str) -> Counter[str]:
    text = get(netloc, wire.METRICS).decode()
    found: Counter[str] = Counter()
    for reason, n in re.findall(r'^tailrate_(?:edge_)?refused_total\{.*reason="(\w+)"\} (\d+)', text, re.M):
        found[reason] += int(n)
    for n in re.findall(r'^tailrate_requests_total\{.*outcome="success"\} (\d+)', text, re.M):
        found["ok"] += int(n)
    return +found


def run(netloc: str, folder: Path, seconds: int) -> dict[str, tuple[float, float]]:
    """(of the run's rows, of the server meanwhile) of each stage's milliseconds, and of requests."""

    def spans() -> dict[str, Any]:
        (stats,) = json.loads(get(netloc, "/v2/models/stats"))["model_stats"]
        return dict(stats["stages"])

    before = spans()
    words = ["run", "null", "--host", f"http://{netloc}", "--rates", "100", "--step-seconds", str(seconds)]
    words += ["--variants", "eager", "--run-dir", str(folder), "--run-id", "counted"]
    said = subprocess.run([sys.executable, "-m", "tailrate", *words], cwd=ROOT, capture_output=True, text=True)
    assert (folder / "counted").is_dir(), said.stdout[-2000:] + said.stderr[-2000:]
    after = spans()
    rows = analysis.load(folder / "counted").requests()
    good = rows[rows["status"].map(is_success)]
    found = {"requests": (float(len(good)), float(after["queue"]["count"] - before["queue"]["count"]))}
    for stage in wire.STAGES[:-1]:  # the last one ends when the answer is handed over, which only its header knows
        spent_ms = (after[stage]["ns"] - before[stage]["ns"]) / 1e6
        found[stage] = float(good[f"{stage}_ms"].sum()), spent_ms
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--requests", type=int, default=100_000)
    found.add_argument("--clients", type=int, default=24)
    found.add_argument("--run-seconds", type=int, default=20)
    return found


def main() -> int:
    asked = parser().parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), **OPTIONS) as server:
        seen: list[Counter[str]] = [Counter() for _ in range(asked.clients)]
        turns = [range(n, asked.requests, asked.clients) for n in range(asked.clients)]
        clients = [Client(server.netloc, turn, counts) for turn, counts in zip(turns, seen, strict=True)]
        began_s = time.monotonic()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        took_s = time.monotonic() - began_s
        time.sleep(2)  # who left is noticed, and replicas report
        outside = sum(seen, Counter[str]())
        ways = {"clients": outside, "stats": by_statistics(server.netloc), "metrics": by_prometheus(server.netloc)}
        ran = run(server.netloc, Path(folder, "runs"), asked.run_seconds)
    rows = {reason: [way[reason] for way in ways.values()] for reason in sorted(set().union(*ways.values()))}
    print(f"{asked.requests} requests of {asked.clients} clients in {took_s:.0f} s")
    print(f"\n{'':28}{''.join(f'{name:>10}' for name in ways)}")
    for name, counts in rows.items():
        print(f"{name:28}{''.join(f'{count:>10}' for count in counts)}")
    print(f"\n{'of one run':28}{'its rows':>14}{'the server':>14}")
    for name, (ours, theirs) in ran.items():
        print(f"{name:28}{ours:>14.3f}{theirs:>14.3f}")
    lost = asked.requests - outside.total()
    differ = [name for name, counts in rows.items() if len(set(counts)) > 1]
    last_line("counted", requests=asked.requests, lost=lost, differ=differ, run=ran)
    return int(bool(lost or differ))


if __name__ == "__main__":
    sys.exit(main())
