"""Every variant of every model on this CPU: does it run, how fast beside eager, is it the same, what does it cost.

Each cell (model × variant) has processes of its own: one that starts with an empty cache and then times batches of
each size against the eager module, call by call in turn, and one that starts again with what was kept. With `--rounds`
all cells take turns so often, each time in a new process. What was measured is kept as it comes (`--cells`), so that a
bench that was stopped goes on, and one that is called again at another hour, for more rounds, adds to it; a start that
takes longer than `--limit` seconds says so.

Prints a table, then one JSON line; with `--write PAGE` also docs/results/PAGE.md and .json. Of a speed it has the
median of the rounds; where they are enough for it, also the range that one more round falls in, which holds all figures
of the page together (`analysis/history/regression.py`, as for a new night's run) and each round that was seen; else the
lowest and the highest pair of calls. Cold and warm are of one start each; `second_start.py` has rounds of those.

    python tests/bench/variants.py                         a quick look: two models, five variants
    python tests/bench/variants.py --models custom_cnn,resnet50,bert,mlp --variants all --write variants-cpu
    python tests/bench/variants.py --models custom_cnn,resnet50,bert --rounds 8 --write speeds-cpu
    python tests/bench/variants.py --models resnet50 --variants onnx --against docs/results/speeds-cpu.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
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

import numpy as np  # noqa: E402
from bench._rounds import last_line, over, shown, spread  # noqa: E402

from tailrate.analysis.history.regression import ALARMS, LEAST, usual  # noqa: E402

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
    return f"they were measured elsewhere, {'; '.join(said)}: they need not come again here" if said else None


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


def start(found: dict[str, Any], options: argparse.Namespace, scratch: Path) -> None:
    """One more start of a cell; the first one finds an empty cache, the next ones what it has kept."""
    model, variant = found["model"], found["variant"]
    cache = scratch / f"{model}--{variant}"
    first = "rounds" not in found
    if first:
        shutil.rmtree(cache, ignore_errors=True)  # of a first start that was stopped
        cache.mkdir()
        (cache / "weights").symlink_to(scratch / "weights", target_is_directory=True)
    print(f"{model}/{variant}", file=sys.stderr, flush=True)
    one = run(model, variant, options.batches, f"{cache}", options.seconds, options.limit)
    if "ready_s" not in one:
        found |= one
        return
    at = time.strftime("%Y-%m-%d %H:%M")
    found.setdefault("rounds", []).append({"at": at} | {batch: was["speed"] for batch, was in one["batches"].items()})
    again = one
    if first:
        found |= one
        if options.rounds > 1:
            return
        again = run(model, variant, options.batches, f"{cache}", 0.0, options.limit)
    found |= {"warm_s": again.get("warmup_s"), "ready_again_s": again.get("ready_s")}


def rate(cells: list[dict[str, Any]]) -> None:
    """Writes into each cell what its rounds come to: with enough of them, where one more falls."""
    figures = sum(len(one["batches"]) for one in cells if "rounds" in one)
    for one in cells:
        for batch in one.get("batches", ()):
            rounds = [each[batch]["median"] for each in one["rounds"]]
            one["batches"][batch]["speed"] = found = one["rounds"][0][batch] if len(rounds) == 1 else spread(rounds)
            if len(rounds) >= LEAST:
                known = usual(np.log(rounds), ALARMS / 2 / figures)
                found["from"] = min(found["low"], math.exp(known.centre - known.reach))  # what was seen can come again
                found["to"] = max(found["high"], math.exp(known.centre + known.reach))


def in_words(speed: dict[str, float]) -> str:
    """`2.93 (2.61–3.20)`."""
    return shown(speed | {"low": speed.get("from", speed["low"]), "high": speed.get("to", speed["high"])}, ".2f")


def table(cells: list[dict[str, Any]], batches: list[str]) -> list[str]:
    """Markdown."""
    head = ["endpoint", *(f"× eager at {batch}" for batch in batches), "rel. error", "cosine", "cold s", "warm s"]
    head += ["peak MB", "kept MB", "mode"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for found in cells:
        name = f"{found['model']}/{found['variant']}"
        why = found.get("refused") or found.get("failed")
        if "rounds" not in found:
            lines.append(f"| {name} | {why} " + "| " * (len(head) - 2) + "|")
            continue
        if why:
            name += f" (after {len(found['rounds'])} rounds: {why})"
        speeds = [in_words(found["batches"][batch]["speed"]) if batch in found["batches"] else "" for batch in batches]
        row = [name, *speeds, f"{found['parity_relative_error']:.1e}", f"{found['parity_cosine']:.6f}"]
        row += ["" if (took := found.get(key)) is None else f"{took:.1f}" for key in ("warmup_s", "warm_s")]
        row += [f"{found['peak_rss_bytes'] / 1e6:.0f}", f"{found['artefact_bytes'] / 1e6:.1f}", found["compile_mode"]]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def repeated(cells: list[dict[str, Any]], kept: list[dict[str, Any]]) -> list[tuple[str, bool, str]]:
    """Of each speed that has a range where it is to be found again: its name, whether it is, and both in words."""
    before = {(one["model"], one["variant"]): one for one in kept}
    found = []
    for one in cells:
        was = before.get((one["model"], one["variant"]), {})
        for batch in one.get("batches", ()):
            then = was.get("batches", {}).get(batch, {}).get("speed", {})
            if "from" in then:
                now = one["batches"][batch]["speed"]
                within = then["from"] <= now["median"] <= then["to"]
                both = f"{now['median']:.2f}, {'within' if within else 'not within'} {in_words(then)}"
                found.append((f"{one['model']}/{one['variant']} at {batch}", within, both))
    return found


def measured(folder: Path | None, model: str, variant: str) -> dict[str, Any]:
    """What was measured of a cell before, or its name."""
    file = folder and folder / f"{model}--{variant}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file and file.exists() else {}
    return found or {"model": model, "variant": variant}


def keep(folder: Path | None, one: dict[str, Any]) -> None:
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{one['model']}--{one['variant']}.json").write_text(json.dumps(one))


def write(options: argparse.Namespace, here: dict[str, Any], found: list[dict[str, Any]], lines: list[str]) -> None:
    """The page and its JSON."""
    import torch

    bf16 = ", bf16 in hardware" if any("bf16" in each for each in here["instructions"]) else ""
    how = f"tests/bench/variants.py --models {options.models} --variants {options.variants} --batches {options.batches}"
    if options.rounds < LEAST:
        title = "Variants on a CPU"
        what = "the median of pairs, the lowest and the highest"
        again = "One start each says nothing about another hour: [speeds that come\nagain](speeds-cpu.md) does."
    else:
        amx = any(each.startswith("amx") for each in here["instructions"])
        title = f"Speeds that come again, on a CPU {'with' if amx else 'without'} AMX"
        how += f" --seconds {options.seconds:g} --rounds"
        what = f"the median of {options.rounds} rounds, each in processes of its own,\nand where one more round falls"
        at = sorted(each["at"] for one in found for each in one.get("rounds", ()))
        again = (
            "Those ranges hold all figures of this page together in 95 of 100 repetitions; its rounds were taken from\n"
            f"{at[0]} to {at[-1]} (`--cells FOLDER`). Repeated by `python {how} 1\n"
            f"--against docs/results/{options.write}.json`, which also says where the machine is another one."
        )
        how += f" {options.rounds}"
    text = (
        f"# {title}\n\n{here['cores']} cores, {torch.backends.cpu.get_cpu_capability()}{bf16}, "
        f"torch {torch.__version__}: `python {how} --write {options.write}`.\n\n"
        f"Speed against eager in the same process, call by call in turn, above 1 faster: {what};\n"
        "cold and warm are the seconds that one start took to build and warm all batch sizes, with an empty cache and\n"
        f"with what was kept. {again}\n\n"
    )
    (RESULTS / f"{options.write}.md").write_text(text + "\n".join(lines) + "\n")
    known = {"benchmark": "variants", "machine": here, "cells": found}
    (RESULTS / f"{options.write}.json").write_text(json.dumps(known, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--models", default="mlp,custom_cnn")
    found.add_argument("--variants", default="eager,compiled,traced,onnx,eager-bf16")
    found.add_argument("--batches", default="1,4,16")
    found.add_argument("--seconds", type=float, default=6, help="of calls at each batch size")
    found.add_argument("--limit", type=float, default=300)
    found.add_argument("--rounds", type=int, default=1, help="starts of each cell, those in --cells among them")
    found.add_argument("--cells", type=Path, help="folder of what was measured and compiled, for a bench that goes on")
    found.add_argument("--write", metavar="PAGE", help="name of a page in docs/results")
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
    found = [measured(options.cells, model, variant) for model in options.models.split(",") for variant in names]
    with tempfile.TemporaryDirectory() as own:
        scratch = (options.cells / "kept").resolve() if options.cells else Path(own)
        (scratch / "weights").mkdir(parents=True, exist_ok=True)
        for turn in range(options.rounds):
            for one in found:
                if len(one.get("rounds", ())) == turn and not {"refused", "failed"} & {*one}:
                    start(one, options, scratch)
                    keep(options.cells, one)
    rate(found)
    lines = table(found, options.batches.split(","))
    print("\n".join(lines))
    here = machine()
    if options.write:
        write(options, here, found, lines)
    if options.against:
        before = json.loads(options.against.read_text())
        again = repeated(found, before["cells"])
        print("\n".join(f"{name}: {said}" for name, _, said in again))
        within = sum(within for _, within, _ in again)
        print(f"{within} of {len(again)} are within the ranges of {options.against}")
        if why := otherwise(here, before.get("machine", {})):
            print(why)
    last_line("variants", cells=found)


if __name__ == "__main__":
    main()
