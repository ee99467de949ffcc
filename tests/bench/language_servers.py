"""Our language engine beside others' on the same weights: tokens/s, first tokens and gaps at 1, 8 and 32 streams.

Each server has one thread to compute with and gets the same prompts of a chat (64 tokens or so), all answers of the
same length, greedy. They are all up at once, and whoever is not asked idles; rounds take turns.

    ours           `causal_lm`, eager and compiled, 32 slots
    transformers   `transformers serve`, which writes one answer after the other, and with continuous batching
    vllm           vLLM's build for CPUs, in an environment of its own (`--vllm FOLDER/bin/vllm`)

One that is not there is left out. Prints a table (medians over rounds, the lowest and the highest), what each of our
other variants does of the first one's in the same rounds, then one JSON line.

    python tests/bench/language_servers.py --vllm PATH
    python tests/bench/language_servers.py --only ours --streams 1,4,16
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

import numpy as np  # noqa: E402
from bench._rounds import in_turns, last_line, over, shown, spreads  # noqa: E402
from text_streams import told  # noqa: E402

MOST, CONTEXT, START_S = 32, 1024, 300
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_NUM_THREADS"), "1")
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


Asked = Mapping[str, Any]
FULL_LENGTH: Asked = {"ignore_eos": True}


def save_model(folder: Path) -> None:
    """`tiny_llama` with its tokenizer, as any server reads it; nothing ends an answer but its length."""
    import torch

    from tailrate.serve import models
    from tailrate.serve.models._language import own_tokenizer

    torch.manual_seed(1)
    model = models.load("tiny_llama", {"context": f"{CONTEXT}"}).build()
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    own_tokenizer().save_pretrained(folder)


def prompt(number: int) -> list[dict[str, str]]:
    words = ["load", "queue", "rate", "tail", "server", "answer", "token", "time"]
    said = " ".join(words[(number * 5 + place * place * 3 + place) % len(words)] for place in range(50))
    return [{"role": "user", "content": said}]


async def streams(url: str, path: str, model: str, more: Asked, many: int, tokens: int) -> dict[str, float]:
    """So many at once, each one answer."""
    asked = [
        {"model": model, "messages": prompt(n), "max_tokens": tokens, "temperature": 0, **more} for n in range(many)
    ]
    began_s = time.perf_counter()
    answers = await asyncio.gather(*(told(url, path, one) for one in asked))
    took_s = time.perf_counter() - began_s
    gaps_s = [gap for one in answers for gap in one.gaps_s]
    return {
        "tokens_per_s": sum(one.tokens for one in answers) / took_s,
        "first_p50_ms": 1e3 * float(np.median([one.came_s[0] - one.sent_s for one in answers])),
        "gap_p50_ms": 1e3 * float(np.median(gaps_s)),
        "gap_p99_ms": 1e3 * float(np.percentile(gaps_s, 99)),
        "events_per_token": sum(len(one.came_s) for one in answers) / sum(one.tokens for one in answers),
        "prompt_tokens": float(np.median([one.prompt_tokens for one in answers])),
        "tokens_each": float(np.mean([one.tokens for one in answers])),
    }


@contextmanager
def program(words: Sequence[str], url: str, scratch: Path, **environment: str) -> Iterator[None]:
    """A server of others', from when it is healthy."""
    log = scratch / f"{Path(words[0]).name}-{len(words)}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=file, cwd=scratch, env=os.environ | ONE_THREAD | OFFLINE | environment
        )
    try:
        until_s = time.monotonic() + START_S
        while not _healthy(url):
            if process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit(f"{' '.join(words)} did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait()


def _healthy(url: str) -> bool:
    try:
        urlopen(f"{url}/health", timeout=5).close()
    except (URLError, OSError):
        return False
    return True


Way = Callable[[int, int], dict[str, float]]


def ways(given: argparse.Namespace, scratch: Path, stack: ExitStack) -> dict[str, Way]:
    """What each server makes of so many streams of so many tokens."""
    from serving import served

    from tailrate.serve.deploy.haproxy import free_port

    folder = scratch / "tiny"
    save_model(folder)
    path, found = "/v1/chat/completions", {}

    def way(url: str, model: str, more: Asked = FULL_LENGTH) -> Way:
        return lambda many, tokens: asyncio.run(streams(url, path, model, more, many, tokens))

    variants = tuple(given.variants.split(","))
    server = stack.enter_context(
        served(
            scratch / "cache", models=("causal_lm",), variants=variants, weights=f"{folder}", device="cpu",
            max_batch=MOST, threads=1, settings={"context": f"{CONTEXT}"}, parity_share=0,
        )
    )  # fmt: skip
    for variant in variants:
        found[f"ours, {variant}"] = way(server.url, f"causal_lm/{variant}")
    if given.only == "ours":
        return found
    transformers = Path(sys.executable).parent / "transformers"
    for name, more in {"transformers": [], "transformers, continuous": ["--continuous-batching"]}.items():
        port = free_port()
        words = [f"{transformers}", "serve", "tiny", "--device=cpu", "--host=127.0.0.1", f"--port={port}", *more]
        url = f"http://127.0.0.1:{port}"
        stack.enter_context(program(words, url, scratch, HF_HOME=f"{scratch}/hub"))
        found[name] = way(url, "tiny", {})  # knows no end of an answer, and refuses to be told to look for none
    if given.vllm:
        port = free_port()
        words = [
            given.vllm, "serve", f"{folder}", "--host=127.0.0.1", f"--port={port}", f"--max-model-len={CONTEXT}",
            "--served-model-name=tiny", "--dtype=float32", f"--max-num-seqs={MOST}", "--no-enable-prefix-caching",
        ]  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        stack.enter_context(program(words, url, scratch, VLLM_CPU_OMP_THREADS_BIND="0"))
        found["vllm"] = way(url, "tiny")
    else:
        print("vllm is left out: it is not there")
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--vllm", default=shutil.which("vllm"), metavar="PATH")
    found.add_argument("--only", choices=("ours",))
    found.add_argument("--variants", default="eager,compiled")
    found.add_argument("--streams", default="1,8,32")
    found.add_argument("--tokens", type=int, default=100)
    found.add_argument("--rounds", type=int, default=5)
    return found


SHOWN = {
    "tokens_per_s": "tokens/s",
    "first_p50_ms": "first token ms",
    "gap_p50_ms": "gap P50 ms",
    "gap_p99_ms": "gap P99 ms",
}


def line(many: int, name: str, found: Mapping[str, Any], form: str) -> str:
    return f"{many:>7} {name:26} " + " ".join(shown(found[key], form, 23) for key in SHOWN)


def main() -> None:
    given = parser().parse_args()
    rows: list[dict[str, Any]] = []
    ratios: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hs-") as scratch, ExitStack() as stack:
        servers = ways(given, Path(scratch), stack)
        for way in servers.values():
            way(2, 10)  # what is made at the first request is nobody's speed
        first, *others = (name for name in servers if name.startswith("ours"))
        print(f"{'streams':>7} {'':26} " + " ".join(f"{head:>23}" for head in SHOWN.values()))
        for many in map(int, given.streams.split(",")):
            asked = {name: partial(way, many, given.tokens) for name, way in servers.items()}
            rounds = in_turns(given.rounds, asked)
            for name, found in rounds.items():
                rows.append({"streams": many, "server": name, **spreads(found)})
                print(line(many, name, rows[-1], ".1f"), flush=True)
            for name in others:
                both = {key: over(*([row[key] for row in rounds[one]] for one in (name, first))) for key in SHOWN}
                ratios.append({"streams": many, "server": name, "over": first, **both})
                print(line(many, f"{name} ÷ {first[6:]}", both, ".2f"), flush=True)
    last_line("language_servers", tokens=given.tokens, rows=rows, ratios=ratios)


if __name__ == "__main__":
    main()
