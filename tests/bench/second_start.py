"""How much of a start the kept artefacts save: a fresh process to a runner that is ready, first and second time.

Each start is a process of its own that imports, loads weights, builds the variant, warms every bucket and compares
with eager fp32, as a replica does (Ray's own start, the same for all, aside). The first of a round finds an empty
cache, the second what the first has left; models take turns within a round.

Prints a table (medians of the rounds, the lowest and the highest), then one JSON line.

    python tests/bench/second_start.py
    python tests/bench/second_start.py --models bert --variants compiled,aot --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line, over, shown, spread  # noqa: E402


def start(model: str, variant: str, cache: str) -> None:
    """In the process that is measured."""
    from tailrate.serve import models, variants
    from tailrate.serve.options import ServeOptions
    from tailrate.serve.runner.open_runner import open_runner

    found: list[dict[str, Any]] = []

    def live() -> None:
        options = ServeOptions((model,), (variant,), device="cpu", cache_dir=cache)
        spec = models.load(model)
        with open_runner(spec, variants.load(variant), options, lambda line: None) as runner:
            found.append(runner.parameters())

    thread = threading.Thread(target=live)
    thread.start()
    thread.join()
    facts = {key: found[0][key] for key in ("start", "load_s", "warmup_s", "artefact_bytes", "compile_mode")}
    print(json.dumps(facts), flush=True)
    os._exit(0)


def measured(model: str, variant: str, cache: str) -> dict[str, Any]:
    began = time.perf_counter()
    words = [sys.executable, __file__, "--start", model, variant, cache]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{model}/{variant} did not start:\n{done.stderr[-2000:]}")
    return {"ready_s": time.perf_counter() - began, **json.loads(done.stdout.splitlines()[-1])}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--models", default="resnet50,bert")
    found.add_argument("--variants", default="compiled")
    found.add_argument("--rounds", type=int, default=2)
    found.add_argument("--start", nargs=3, help=argparse.SUPPRESS)
    return found


def main() -> None:
    options = parser().parse_args()
    if options.start:
        start(*options.start)
        return
    pairs = [(model, variant) for model in options.models.split(",") for variant in options.variants.split(",")]
    rounds: dict[tuple[str, str], list[tuple[dict[str, Any], dict[str, Any]]]] = {pair: [] for pair in pairs}
    for _ in range(options.rounds):
        for pair in pairs:
            with tempfile.TemporaryDirectory() as cache:
                first, second = measured(*pair, cache), measured(*pair, cache)
            assert (first["start"], second["start"]) == ("cold", "warm")
            rounds[pair].append((first, second))
    rows = []
    print(f"{'endpoint':<24} {'first s':>18} {'second s':>18} {'ratio':>18} {'kept MB':>8}  mode")
    for (model, variant), found in rounds.items():
        first_s, second_s = ([run[place]["ready_s"] for run in found] for place in (0, 1))
        ratio = over(second_s, first_s)
        kept = found[0][1]["artefact_bytes"]
        row = {
            "model": model, "variant": variant, "ratio": ratio,
            "first_s": spread(first_s), "second_s": spread(second_s),
        }  # fmt: skip
        rows.append(row | {"artefact_bytes": kept, "mode": found[0][1]["compile_mode"]})
        name = f"{model}/{variant}"
        times = f"{shown(row['first_s'], '.1f', 18)} {shown(row['second_s'], '.1f', 18)} {shown(ratio, '.2f', 18)}"
        print(f"{name:<24} {times} {kept / 1e6:>8.1f}  {rows[-1]['mode']}")
    last_line("second_start", rows=rows)


if __name__ == "__main__":
    main()
