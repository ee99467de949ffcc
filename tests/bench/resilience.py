"""What goes wrong when things go wrong: a replica killed under load, a replica replaced, and three times too much load.

A null model with a fixed time per batch, so that capacity is known: `max_batch` rows each `delay_ms`; or, with
`--model tiny_llama`, streams of 40 tokens, of which a closed loop says how many one replica ends in a second. The load
is tailrate's own, open loop, and every arrival has its row. Three scenes:

    killed      two replicas at half capacity; one gets SIGKILL. Only what was in flight on it may fail.
    replaced    two replicas at half capacity; both make room for a new version, in turn. Nothing may fail.
    overload    one replica: at half capacity, near its knee, then at 3 × capacity for `--seconds`, then at half; in
                rounds. Refusals must be fast, what is served must stay near the knee, memory flat, and service
                normal soon after.

Prints a table (what has rounds: the median, the lowest and the highest), then one JSON line.

    python tests/bench/resilience.py
    python tests/bench/resilience.py --scenes overload --seconds 30
    python tests/bench/resilience.py --model tiny_llama
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line, shown, spreads  # noqa: E402

DELAY_MS, CLOSED_S = 10, 8.0


@dataclass(frozen=True)
class Model:
    """What is served and asked."""

    name: str
    max_batch: int
    queue: int
    """Of one replica that is to refuse."""
    settings: dict[str, str]
    asked: tuple[str, ...] = ()
    capacity_rps: float | None = None
    """Of one replica, less what the engine takes; None: is measured."""
    good_ms: tuple[float, float] = (math.inf, math.inf)
    """First token and time per token within which an answer is good."""


NULL = Model("null", 4, 64, {"delay_ms": f"{DELAY_MS}"}, capacity_rps=4e3 / DELAY_MS)
TEXT = Model(
    "tiny_llama", 8, 8, {"context": "512"}, ("--prompt-tokens=uniform:20:60", "--output-tokens=40"),
    good_ms=(1000, 50),
)  # fmt: skip
MODELS = {model.name: model for model in (NULL, TEXT)}


# ---- the server: this file again, told what to do by lines on its standard input


def server(model: Model, port: int, replicas: int, cache: str) -> None:
    from dataclasses import replace

    from tailrate.serve import wire
    from tailrate.serve.deploy import app, cluster
    from tailrate.serve.options import ServeOptions

    # with one replica the queue is short, so that it refuses; of two, the one that is left has to carry all its
    # capacity until the other is replaced, with the queue that servers have
    queue = model.queue if replicas == 1 else ServeOptions(()).max_queue
    options = ServeOptions(
        (model.name,), ("eager",), port=port, replicas=replicas, max_batch=model.max_batch, max_queue=queue,
        cache_dir=cache, settings=model.settings, threads=1,
    )  # fmt: skip
    running = cluster.start(options, lambda line: print(line, flush=True))
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "replace":
            from ray import serve

            name = (model.name, "eager")
            changed = app.application(replace(options, seed=options.seed + 1), "/".join(name))
            # returns when the new version runs and the old one is gone
            serve.run(changed, name=app.deployment_name(name), route_prefix=wire.model_path(*name))
            print("replaced", flush=True)
    running.stop()


class Server:
    def __init__(self, process: subprocess.Popen[str], url: str, model: Model) -> None:
        self.process, self.url, self.model = process, url, model

    def hear(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise SystemExit(f"the server ended before it said {word}")

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def replicas(self) -> list[psutil.Process]:
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in found if f"ServeReplica:{self.model.name}" in " ".join(process.cmdline())]


@contextmanager
def serving(model: Model, replicas: int, scratch: Path) -> Iterator[Server]:
    from tailrate.serve.deploy.haproxy import free_port

    port = free_port()
    words = [sys.executable, __file__, "--server", model.name, str(port), str(replicas), str(scratch)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=os.environ | {"HOME": str(scratch)}
    )
    found = Server(process, f"http://127.0.0.1:{port}", model)
    try:
        found.hear("ready")
        yield found
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(90)


# ---- the load


def drive(under: Server, seconds: float, folder: Path, *how: str) -> subprocess.Popen[bytes]:
    model = under.model
    words = [
        sys.executable, "-m", "locust", "-f", f"loadtest/{model.name}.py", "--headless", "--only-summary",
        f"--host={under.url}", f"--step-seconds={seconds:g}", "--settle-seconds=0", "--idle-seconds=0",
        "--variants=eager", "--timeout=10", f"--run-dir={folder.parent}", f"--run-id={folder.name}", *model.asked, *how,
    ]  # fmt: skip
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=(folder.parent / "locust.err").open("w"))


def hold(under: Server, rates: list[float], seconds: float, folder: Path) -> subprocess.Popen[bytes]:
    return drive(under, seconds, folder, "--mode=hold", f"--rates={','.join(f'{rate:.4g}' for rate in rates)}")


def capacity_rps(under: Server, scratch: Path) -> float:
    """Of one replica of it."""
    model = under.model
    if model.capacity_rps is not None:
        return model.capacity_rps
    replicas = len(under.replicas())
    drive(under, CLOSED_S, scratch / "closed", "--mode=closed", f"--concurrency={model.max_batch * replicas}").wait()
    rows = rows_of(scratch / "closed")
    span_s = (rows["done_ns"].max() - rows["sent_ns"].min()) / 1e9
    return float(rows["ok"].sum()) / span_s / replicas


def started_ns(folder: Path, step: int = 0) -> int:
    """When the step began, once it has."""
    for _ in range(600):
        path = folder / "events.jsonl"
        if path.exists():
            for line in path.read_text().splitlines():
                event = json.loads(line)
                if event["event"] == "step_start" and event["step"] == step:
                    return int(event["time_ns"])
        time.sleep(0.1)
    raise SystemExit("the load did not start")


def rows_of(folder: Path) -> pd.DataFrame:
    from tailrate import analysis

    if not folder.exists():
        raise SystemExit(f"there was no load:\n{(folder.parent / 'locust.err').read_text()[-2000:]}")
    found = analysis.load(folder).requests().copy()
    found["service_ms"] = (found["done_ns"] - found["sent_ns"]) / 1e6
    return found


def p99(values: pd.Series[float]) -> float:
    return float(np.quantile(values, 0.99, method="higher")) if len(values) else float("nan")


def good(rows: pd.DataFrame, model: Model) -> pd.Series[bool]:
    """Which are answered within what the model's answers are good in."""
    first_ms, each_ms = model.good_ms
    if math.isinf(first_ms):
        return rows["ok"]
    ttft_ms = (rows["first_ns"] - rows["intended_ns"]) / 1e6
    tpot_ms = (rows["last_ns"] - rows["first_ns"]) / 1e6 / (rows["tokens_out"] - 1)
    return rows["ok"] & (ttft_ms < first_ms) & (tpot_ms < each_ms)


# ---- scenes


def killed(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    folder = scratch / "killed"
    with serving(MODELS[options.model], 2, scratch) as under:
        load = hold(under, [capacity_rps(under, scratch)], options.seconds, folder)
        started_ns(folder)
        time.sleep(options.seconds / 2)
        victim = under.replicas()[0]
        before_ns = time.time_ns()
        victim.kill()
        victim.wait()
        gone_ns = time.time_ns()
        load.wait()
    rows = rows_of(folder)
    bad = rows[~rows["ok"]]
    flight = rows[(rows["sent_ns"] < gone_ns) & (rows["done_ns"] > before_ns)]
    return {
        "scene": "killed",
        "arrivals": len(rows),
        "failed": len(bad),
        **seen(bad),
        "in_flight_while_it_died": len(flight),
        "failed_sent_after_its_death": int((bad["sent_ns"] > gone_ns).sum()),
        "it_died_within_ms": (gone_ns - before_ns) / 1e6,
    }


def seen(bad: pd.DataFrame) -> dict[str, Any]:
    """What clients saw of failures: by status and sentence, and of streams how many had begun."""
    said = bad["status"].astype(str) + " " + bad["error"].astype(str)
    found: dict[str, Any] = {"clients_saw": said.value_counts().to_dict()}
    return found | ({"streams_cut": int((bad["events"] > 0).sum())} if (bad["events"] > 0).any() else {})


def replaced(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    folder = scratch / "replaced"
    with serving(MODELS[options.model], 2, scratch) as under:
        load = hold(under, [capacity_rps(under, scratch)], options.seconds + 30, folder)
        started_ns(folder)
        time.sleep(3)
        old = {process.pid for process in under.replicas()}
        under.say("replace")
        under.hear("replaced")
        load.wait()
        left = old & {process.pid for process in under.replicas()}
    rows = rows_of(folder)
    bad = rows[~rows["ok"]]
    return {
        "scene": "replaced",
        "arrivals": len(rows),
        "failed": len(bad),
        **seen(bad),
        "replicas_seen": int(rows["replica"].nunique()),
        "old_replicas_left": len(left),
    }


def overload(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    folder = scratch / "overload"
    memory: list[tuple[int, int]] = []
    model = MODELS[options.model]
    with serving(model, 1, scratch) as under:
        rates = [part * capacity_rps(under, scratch) for part in (0.5, 0.95, 3, 0.5)]
        load = hold(under, rates * options.rounds, options.seconds, folder)
        (replica,) = under.replicas()

        def watch() -> None:
            while load.poll() is None:
                memory.append((time.time_ns(), replica.memory_info().rss))
                time.sleep(0.25)

        watcher = threading.Thread(target=watch)
        watcher.start()
        load.wait()
        watcher.join()
    rows = rows_of(folder)
    steps = [rows[rows["step"] == step] for step in range(len(rates) * options.rounds)]
    found = [overloaded(model, steps[first : first + len(rates)], memory) for first in range(0, len(steps), len(rates))]
    return {"scene": "overload", "offered_rps": rates[2], **spreads(found)}


def overloaded(model: Model, steps: list[pd.DataFrame], memory: list[tuple[int, int]]) -> dict[str, float]:
    """One round of it."""
    calm, knee, flood, after = steps
    refused = flood[flood["status"].astype(str).isin(["429", "503"])]
    start_ns, end_ns = flood["intended_ns"].min(), flood["intended_ns"].max()
    used = [bytes_ for at, bytes_ in memory if start_ns + 2e9 < at < end_ns]
    soon = after[after["intended_ns"] >= after["intended_ns"].min() + 2e9]

    def served_per_s(part: pd.DataFrame) -> float:
        span_s = (part["intended_ns"].max() - part["intended_ns"].min()) / 1e9
        return float(good(part, model).sum() / span_s)

    return {
        "knee_served_rps": served_per_s(knee),
        "served_rps": served_per_s(flood),
        "served_over_knee": served_per_s(flood) / served_per_s(knee),
        "refused": len(refused),
        "refusal_p99_ms": p99(refused["service_ms"]),
        "other_failures": int((~flood["ok"]).sum()) - len(refused),
        "late_p99_ms": p99(flood["late_ms"]),
        "memory_grew_bytes": used[-1] - used[0] if used else float("nan"),
        "memory_bytes": used[-1] if used else float("nan"),
        "calm_p99_ms": p99(calm.loc[calm["ok"], "service_ms"]),
        "after_2s_p99_ms": p99(soon.loc[soon["ok"], "service_ms"]),
        "after_2s_failed": int((~soon["ok"]).sum()),
    }


SCENES = {"killed": killed, "replaced": replaced, "overload": overload}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--scenes", default=",".join(SCENES))
    found.add_argument("--seconds", type=float, default=20)
    found.add_argument("--rounds", type=int, default=3, help="of overload")
    found.add_argument("--model", choices=MODELS, default="null")
    found.add_argument("--server", nargs=4, help=argparse.SUPPRESS)
    return found


def main() -> None:
    options = parser().parse_args()
    if options.server:
        model, port, replicas, cache = options.server
        server(MODELS[model], int(port), int(replicas), cache)
        return
    found = []
    for name in options.scenes.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            scene = SCENES[name](options, Path(scratch))
        found.append(scene)
        print(f"\n{name}")
        for key, value in scene.items():
            if key != "scene":
                said = f"{value:,.6g}" if isinstance(value, float) else value
                if isinstance(value, dict) and "median" in value:
                    said = shown(value, ",.6g")
                print(f"  {key.replace('_', ' '):<34} {said}")
    last_line("resilience", model=options.model, scenes=found)


if __name__ == "__main__":
    main()
