"""Every variant of every model on this CPU: does it run, how fast beside eager, is it the same, what does it cost.

Each cell (model × variant) has processes of its own: one that starts with an empty cache and then times batches of
each size against the eager module, call by call in turn, and one that starts again with what was kept. Cells are
kept as they come (`--cells`), so that a bench that was stopped goes on; one that takes longer than `--limit` seconds
says so.

Prints a table (of each speed the median of the pairs of calls, the lowest and the highest; cold and warm are of one
start each, `second_start.py` has rounds of those), then one JSON line; with `--write` also
docs/results/variants-cpu.md and .json.

    python tests/bench/variants.py                         a quick look: two models, five variants
    python tests/bench/variants.py --models custom_cnn,resnet50,bert,mlp --variants all --write
    python tests/bench/variants.py --models custom_cnn --against docs/results/variants-cpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line, over, shown, spread  # noqa: E402

RESULTS = ROOT / "docs" / "results"
MOST_CALLS, LEAST_CALLS = 60, 3


# ---- in a process of its own


def cell(model: str, variant: str, batches: list[int], cache: str, spent_s: float) -> dict[str, Any]:
    from tailrate.serve import models, variants
    from tailrate.serve.options import ServeOptions
    from tailrate.serve.runner.open_runner import opened
    from tailrate.serve.spec import ServeError

    options = ServeOptions(
        (model,), (variant,), device="cpu", cache_dir=cache, buckets=tuple(batches), parity_share=0.1
    )
    spec = models.load(model)
    began, kept = time.perf_counter(), ExitStack()  # which the process ends
    try:
        made = variants.load(variant)
        if why := variants.refusal(made, spec, "cpu"):
            return {"refused": why}
        opening = kept.enter_context(opened(spec, made, options, lambda line: print(line, file=sys.stderr, flush=True)))
    except ServeError as problem:
        return {"refused": str(problem)}
    except Exception as problem:
        return {"failed": f"{type(problem).__name__}: {str(problem).strip().splitlines()[0][:200]}"}
    facts = opening.runner.parameters()
    keys = ("start", "load_s", "warmup_s", "compile_mode", "parity_relative_error", "parity_cosine", "weights_bytes")
    found = {key: facts[key] for key in (*keys, "artefact_bytes", "graph_breaks", "parity_top1_agreement")}
    found["ready_s"] = time.perf_counter() - began
    found["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if spent_s:
        assert opening.reference is not None
        module = opening.reference.args[0]
        found["batches"] = {
            str(bucket.rows): against(opening.runner, module, bucket, spent_s) for bucket in opening.runner.buckets
        }
    return found


def against(runner: Any, module: Any, bucket: Any, spent_s: float) -> dict[str, Any]:
    """Milliseconds of the variant and of the eager module, in turn on the same inputs."""
    inputs = [tensor.clone() for tensor in runner.inputs(bucket, [runner.example(bucket, 1)])]
    took: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + spent_s
    while len(took[0]) < LEAST_CALLS or (time.perf_counter() < until and len(took[0]) < MOST_CALLS):
        for call, times in zip((runner.call, module), took, strict=True):
            began = time.perf_counter()
            call(*inputs)
            times.append((time.perf_counter() - began) * 1e3)
    return {"ms": spread(took[0]), "eager_ms": spread(took[1]), "speed": over(took[1], took[0])}


def in_engine_thread(words: list[str]) -> None:
    model, variant, batches, cache, spent_s = words
    found: list[dict[str, Any]] = []
    sizes = [int(word) for word in batches.split(",")]
    thread = threading.Thread(target=lambda: found.append(cell(model, variant, sizes, cache, float(spent_s))))
    thread.start()
    thread.join()
    print(json.dumps(found[0] if found else {"failed": "the process ended"}), flush=True)
    os._exit(0)


# ---- outside it


def machine() -> dict[str, Any]:
    from tailrate.serve.machine import CPU_INFO, cores
    from tailrate.serve.runner.compile_cache import instructions

    return {"cores": cores(), "instructions": instructions(CPU_INFO), "torch": version("torch")}


def otherwise(now: dict[str, Any], then: dict[str, Any]) -> str | None:
    """Why figures of then need not come again, or None."""
    if not then:
        return "on which processor they were measured is not said: they need not come again here"
    said = []
    for word, has, other in (("without", then, now), ("with", now, then)):
        if extra := sorted({*has["instructions"]} - {*other["instructions"]}):
            said.append(f"{word} {', '.join(extra)}")
    said += [f"{now[key]} {key} in place of {then[key]}" for key in ("cores", "torch") if now[key] != then[key]]
    return f"this machine is another one, {'; '.join(said)}: they need not come again here" if said else None


def run(model: str, variant: str, batches: str, cache: str, spent_s: float, limit_s: float) -> dict[str, Any]:
    words = [sys.executable, __file__, "--cell", model, variant, batches, cache, str(spent_s)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not ready within {limit_s:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"failed": f"the process ended with {done.returncode}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measure(model: str, variant: str, batches: str, spent_s: float, limit_s: float, cache_root: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=cache_root) as cache:
        (Path(cache) / "weights").symlink_to(cache_root / "weights", target_is_directory=True)
        first = run(model, variant, batches, cache, spent_s, limit_s)
        if "ready_s" not in first:
            return {"model": model, "variant": variant, **first}
        again = run(model, variant, batches, cache, 0.0, limit_s)
    return {
        "model": model,
        "variant": variant,
        **first,
        "warm_s": again.get("warmup_s"),
        "ready_again_s": again.get("ready_s"),
    }


def table(cells: list[dict[str, Any]], batches: list[str]) -> list[str]:
    """Markdown."""
    head = ["endpoint", *(f"× eager at {batch}" for batch in batches), "rel. error", "cosine", "cold s", "warm s"]
    head += ["peak MB", "kept MB", "mode"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for found in cells:
        name = f"{found['model']}/{found['variant']}"
        if "ready_s" not in found:
            lines.append(f"| {name} | {found.get('refused') or found.get('failed')} " + "| " * (len(head) - 2) + "|")
            continue
        speeds = [
            shown(found["batches"][batch]["speed"], ".2f") if batch in found["batches"] else "" for batch in batches
        ]
        row = [name, *speeds, f"{found['parity_relative_error']:.1e}", f"{found['parity_cosine']:.6f}"]
        row += [f"{found['warmup_s']:.1f}", f"{found['warm_s']:.1f}", f"{found['peak_rss_bytes'] / 1e6:.0f}"]
        row += [f"{found['artefact_bytes'] / 1e6:.1f}", found["compile_mode"]]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def repeated(cells: list[dict[str, Any]], kept: list[dict[str, Any]]) -> list[tuple[str, bool, str]]:
    """Of each speed that was measured before: its name, whether it is within what it was then, and both in words."""
    before = {(one["model"], one["variant"]): one for one in kept}
    found = []
    for one in cells:
        was = before.get((one["model"], one["variant"]), {})
        for batch in one.get("batches", ()):
            if then := was.get("batches", {}).get(batch):
                now, then = one["batches"][batch]["speed"], then["speed"]
                within = then["low"] <= now["median"] <= then["high"]
                said = f"{shown(now, '.2f')}, {'within' if within else 'not within'} {shown(then, '.2f')}"
                found.append((f"{one['model']}/{one['variant']} at {batch}", within, said))
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--models", default="mlp,custom_cnn")
    found.add_argument("--variants", default="eager,compiled,traced,onnx,eager-bf16")
    found.add_argument("--batches", default="1,4,16")
    found.add_argument("--seconds", type=float, default=6, help="of calls at each batch size")
    found.add_argument("--limit", type=float, default=300)
    found.add_argument("--cells", type=Path, help="folder of finished cells, for a bench that goes on")
    found.add_argument("--write", action="store_true")
    found.add_argument("--against", type=Path, metavar="JSON", help="what was measured before: is it found again?")
    found.add_argument("--cell", nargs=5, help=argparse.SUPPRESS)
    return found


def main() -> None:
    options = parser().parse_args()
    if options.cell:
        in_engine_thread(options.cell)
    from tailrate.serve import variants

    executions = variants.names()
    names = (
        [*executions, "eager-bf16", "compiled-bf16", "eager-amp"]
        if options.variants == "all"
        else options.variants.split(",")
    )
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "weights").mkdir()
        for model in options.models.split(","):
            for variant in names:
                kept = options.cells and options.cells / f"{model}--{variant}.json"
                if kept and kept.exists():
                    found.append(json.loads(kept.read_text()))
                    continue
                print(f"{model}/{variant}", file=sys.stderr, flush=True)
                cell_s = (options.seconds, options.limit)
                found.append(measure(model, variant, options.batches, *cell_s, Path(scratch)))
                if kept:
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    kept.write_text(json.dumps(found[-1]))
    lines = table(found, options.batches.split(","))
    print("\n".join(lines))
    here = machine()
    if options.write:
        import torch

        bf16 = ", bf16 in hardware" if any("bf16" in each for each in here["instructions"]) else ""
        RESULTS.mkdir(parents=True, exist_ok=True)
        how = f"--models {options.models} --variants {options.variants} --batches {options.batches}"
        title = (
            f"# Variants on a CPU\n\n{here['cores']} cores, {torch.backends.cpu.get_cpu_capability()}{bf16}, "
            f"torch {torch.__version__}: `python tests/bench/variants.py {how} --write`.\n\n"
            "Speed against eager in the same process, call by call in turn, above 1 faster: the median of pairs, the\n"
            "lowest and the highest; cold and warm are the seconds that one start took to build and warm all batch\n"
            "sizes, with an empty cache and with what was kept.\n\n"
        )
        (RESULTS / "variants-cpu.md").write_text(title + "\n".join(lines) + "\n")
        (RESULTS / "variants-cpu.json").write_text(
            json.dumps({"benchmark": "variants", "machine": here, "cells": found}, indent=1) + "\n"
        )
    if options.against:
        before = json.loads(options.against.read_text())
        again = repeated(found, before["cells"])
        print("\n".join(f"{name}: {said}" for name, _, said in again))
        within = sum(within for _, within, _ in again)
        print(f"{within} of {len(again)} are within the lowest and the highest of {options.against}")
        if why := otherwise(here, before.get("machine", {})):
            print(why)
    last_line("variants", cells=found)


if __name__ == "__main__":
    main()
