"""What an endpoint holds after bad requests, beside the size of its process: is it we who grow, or the allocator?

Each model's endpoint is behind uvicorn in this process, with every allocation of Python's and numpy's counted; bad
requests (`tests/misshapen.py`) come from a process of their own, `--requests` a round. A leak of one small object per
request would be 50 bytes each. Prints a table, then one JSON line.

    python tests/bench/held.py [--models null,thumbs] [--requests 1500] [--rounds 6] [--seed 9]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
import tracemalloc
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]  # instead of this folder, whose coverage.py is not the package

import misshapen  # noqa: E402
from test_serve_bad_input import endpoint  # noqa: E402

from serve.options import ServeOptions  # noqa: E402

RATE, WORKERS = 150.0, 16


def flood(port: int, seed: int, numbers: range) -> None:
    """From a process of its own."""
    spec = spec_from_file_location("fuzz", Path(__file__).with_name("fuzz.py"))
    assert spec is not None
    assert spec.loader is not None
    fuzz: Any = module_from_spec(spec)
    spec.loader.exec_module(fuzz)

    async def work() -> None:
        began_s, tally = time.time(), fuzz.Tally()
        paced = ((number, began_s + place / RATE) for place, number in enumerate(numbers))
        await asyncio.gather(*(fuzz.flood(port, seed, paced, tally) for _ in range(WORKERS)))

    asyncio.run(work())


def options(model: str) -> ServeOptions:
    known = {"null": ("reply_bytes",), "bert": ("sequence", "layers", "hidden")}.get(model, ())
    return ServeOptions(
        (model,), ("eager",), device="cpu", max_body_bytes=8 << 20, parity_share=0,
        settings={key: misshapen.SETTINGS[key] for key in known},
        sources={name: place for name, place in misshapen.SOURCES.items() if name == model},
    )  # fmt: skip


def measured(model: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with endpoint(options(model)) as (_, port):
        tracemalloc.start()
        for number in range(given.rounds):
            words = [sys.executable, __file__, "--flood", str(port), "--seed", str(given.seed)]
            words += ["--from", str(number * given.requests), "--requests", str(given.requests)]
            subprocess.run(words, check=True)
            time.sleep(1)
            gc.collect()
            held, size = tracemalloc.get_traced_memory()[0], psutil.Process().memory_info().rss
            rows.append({"model": model, "requests": (number + 1) * given.requests, "held": held, "resident": size})
            print(f"{model:8s} {rows[-1]['requests']:8d} {held / 1e3:12.1f} {size / 1e6:12.1f}", flush=True)
        tracemalloc.stop()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="null,thumbs")
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--flood", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--from", dest="first", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.flood:
        flood(given.flood, given.seed, range(given.first, given.first + given.requests))
        return
    print(f"{'model':8s} {'requests':>8s} {'held, KB':>12s} {'process, MB':>12s}")
    rows = [row for model in given.models.split(",") for row in measured(model, given)]
    print(json.dumps({"benchmark": "held", "rows": rows}))


if __name__ == "__main__":
    main()
