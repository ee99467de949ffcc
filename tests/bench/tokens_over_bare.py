"""What serving costs a language model: tokens/s of its streams ÷ those of a bare loop of steps, and a lone first token.

The bare loop has the engine's own steps and choice of tokens, in a process of its own: prompts are read, then as many
answers as there are slots are written together. Served, as many streams are asked for at once; both are timed over the
same tokens of the answers, from when all have begun until the first one ends, so that the same lengths of the cache are
looked at. On a CPU what computes has a core to itself, as in `served_over_bare`. A lone request's time to its first
event is held against reading its prompt and choosing a token. Bare and served take turns.

Prints a table (medians over rounds, with the lowest and the highest), then one JSON line.

    python tests/bench/tokens_over_bare.py
    python tests/bench/tokens_over_bare.py --variants eager --tokens 100 --rounds 2
    python tests/bench/tokens_over_bare.py --model llama_1b --device cuda --variants eager-bf16,compiled-bf16 \
        --set context=256 --slots 16 --tokens 150
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._bare import Bare, apart, as_the_engine  # noqa: E402
from bench._rounds import last_line, left_out, over, shown, spread, spreads  # noqa: E402
from text_streams import told  # noqa: E402

PATH = "/v1/completions"
PROMPT = 64
"""Tokens of each prompt, of the first `WORDS` that the model knows."""
WORDS = 2048
BEGUN = 8
"""Tokens of each answer before any is timed."""
LONE = 30
"""Requests of a round to which nobody else is answered."""


def options_for(asked: argparse.Namespace, cache: str) -> dict[str, Any]:
    return {
        "models": [asked.model], "variants": asked.variants.split(","), "device": asked.device, "threads": 1,
        "max_batch": asked.slots, "settings": dict(each.split("=") for each in asked.set), "parity_share": 0,
        "cache_dir": cache,
    }  # fmt: skip


def prompts(many: int) -> list[list[int]]:
    return [[2 + (row * 131 + place * 17) % (WORDS - 2) for place in range(PROMPT)] for row in range(many)]


# ---- the bare loop: this file again, as `tokens_over_bare.py --bare OPTIONS VARIANT`


def bare(given: dict[str, Any], variant: str) -> None:
    """Answers each line with a number of tokens: tokens/s of full slots, and ms of a lone prompt."""
    from tailrate.serve import variants
    from tailrate.serve.engine.language.open_language import open_language
    from tailrate.serve.engine.language.sampling import Sampling, chosen
    from tailrate.serve.options import ServeOptions

    how = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    options = ServeOptions(**how)
    greedy = Sampling()
    with open_language(options.spec(options.models[0]), variants.load(variant), options, lambda _: None) as runner:
        slots = runner.slots
        texts = prompts(slots)

        def read(text: list[int]) -> int:
            found: int = chosen(runner.read(text, 0), [greedy], [0]).tolist()[0]
            return found

        print("ready", flush=True)
        for line in sys.stdin:
            most, newest = int(line), []
            for row, text in enumerate(texts):
                newest.append(read(text))
                runner.adopt(row, PROMPT)
            for number in range(1, most):
                if number == BEGUN:
                    start = time.perf_counter()
                scores = runner.write(newest, [PROMPT + number - 1] * slots)
                newest = chosen(scores, [greedy] * slots, [number] * slots).tolist()
            rate = slots * (most - BEGUN) / (time.perf_counter() - start)
            lone = []
            for _ in range(LONE):
                start = time.perf_counter()
                read(texts[0])
                lone.append(1e3 * (time.perf_counter() - start))
            print(rate, statistics.median(lone), flush=True)


# ---- the served side


def asked(endpoint: str, text: list[int], tokens: int) -> dict[str, Any]:
    return {
        "model": endpoint, "prompt": text, "max_tokens": tokens,
        "ignore_eos": True, "temperature": 0,
    }  # fmt: skip


async def through(url: str, endpoint: str, slots: int, tokens: int) -> dict[str, float]:
    texts = prompts(slots)
    answers = await asyncio.gather(*(told(url, PATH, asked(endpoint, text, tokens)) for text in texts))
    # an event is a token, but where that is half a character
    begin, end = max(one.came_s[BEGUN - 1] for one in answers), min(one.came_s[-1] for one in answers)
    count = sum(tokens / len(one.came_s) * sum(begin < at <= end for at in one.came_s) for one in answers)
    gaps = sorted(gap for one in answers for gap in one.gaps_s[BEGUN - 1 :])
    alone = [await told(url, PATH, asked(endpoint, texts[0], 1)) for _ in range(LONE)]
    return {
        "rate": count / (end - begin), "gap_p99_ms": 1e3 * gaps[int(0.99 * len(gaps))],
        "lone_ms": statistics.median(1e3 * (one.came_s[0] - one.sent_s) for one in alone),
        "read_ms": statistics.median(one.spent_ms["prefill_ms"] for one in alone),
        "inside_ms": statistics.median(one.spent_ms["first_ms"] for one in alone),
    }  # fmt: skip


def more(streams: list[dict[str, float]], bares: list[dict[str, float]]) -> dict[str, Any]:
    """ms from a lone request to its first token beyond the bare loop's, and of these: the prompt read more slowly, the
    server around that, and all that is outside of it."""
    both = list(zip(streams, bares, strict=True))
    return {
        "first_ms_more": spread(mine["lone_ms"] - its["lone_ms"] for mine, its in both),
        "reading_ms_more": spread(mine["read_ms"] - its["lone_ms"] for mine, its in both),
        "around_ms": spread(mine["inside_ms"] - mine["read_ms"] for mine in streams),
        "outside_ms": spread(mine["lone_ms"] - mine["inside_ms"] for mine in streams),
    }


def compare(options: argparse.Namespace, cache: str) -> Iterator[dict[str, Any]]:
    from serving import served

    given = options_for(options, cache)
    with ExitStack() as stack:
        server = stack.enter_context(served(Path(cache), **given))
        on_cpu = options.device == "cpu"
        if on_cpu and not stack.enter_context(apart(server.process.pid, r"(engine\.language\.process)")):
            raise SystemExit("no process of an engine was found")
        for variant in given["variants"]:
            endpoint = f"{options.model}/{variant}"
            alone = Bare(__file__, given, variant, pinned=on_cpu)
            stack.callback(alone.close)
            asyncio.run(through(server.url, endpoint, options.slots, 8 * BEGUN))
            bares, streams = [], []
            for _ in range(options.rounds):
                bares.append(dict(zip(("rate", "lone_ms"), alone.run(options.tokens), strict=True)))
                streams.append(asyncio.run(through(server.url, endpoint, options.slots, options.tokens)))
            yield {
                "variant": variant, "slots": options.slots, "tokens": options.tokens,
                "bare": spreads(bares), "served": spreads(streams),
                "served_over_bare": over((one["rate"] for one in streams), (one["rate"] for one in bares)),
                **more(streams, bares),
            }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--model", default="tiny_llama")
    found.add_argument("--variants", default="eager,compiled")
    found.add_argument("--device", default="cpu")
    found.add_argument("--set", action="append", default=[], help="a setting of the model's own: KEY=VALUE")
    found.add_argument("--cache-dir", help="where what is compiled is kept for another time")
    found.add_argument("--slots", type=int, default=8)
    found.add_argument("--tokens", type=int, default=400)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--bare", nargs=2, help=argparse.SUPPRESS)
    return found


def main() -> None:
    options = parser().parse_args()
    if options.bare:
        as_the_engine(bare, options.bare)
        return
    if len(os.sched_getaffinity(0)) < 2:
        left_out("tokens_over_bare", "it takes two cores")
        return
    print(
        f"{'variant':<9} {'bare tokens/s':>21} {'served tokens/s':>21} {'served ÷ bare':>19} {'gap P99 ms':>16} "
        f"{'lone prompt ms':>18} {'first token, ms more':>21}"
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hs-") as cache:
        for row in compare(options, options.cache_dir or cache):
            rows.append(row)
            parts = ", ".join(
                f"{shown(row[key], '.2f')} {what}"
                for key, what in (("reading_ms_more", "reading"), ("around_ms", "around it"), ("outside_ms", "outside"))
            )
            print(
                f"{row['variant']:<9} {shown(row['bare']['rate'], '.0f', 21)} {shown(row['served']['rate'], '.0f', 21)}"
                f" {shown(row['served_over_bare'], '.3f', 19)} {shown(row['served']['gap_p99_ms'], '.1f', 16)} "
                f"{shown(row['bare']['lone_ms'], '.2f', 18)} {shown(row['first_ms_more'], '.2f', 21)}"
            )
            print(f"{'':<9} of these ms more: {parts}", flush=True)
    last_line("tokens_over_bare", rows=rows)


if __name__ == "__main__":
    main()
