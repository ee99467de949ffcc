"""Language models of transformers' made tiny, and the scores that `causal_lm` gives against those without a cache."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tailrate.serve import variants
from tailrate.serve.engine.language.open_language import open_language
from tailrate.serve.engine.language.runner import LanguageRunner
from tailrate.serve.models._language import own_tokenizer
from tailrate.serve.options import ServeOptions

WORDS, CONTEXT, CHUNK = 2048, 128, 16
LENGTHS, STEPS = (23, 40), 9
"""Of prompts side by side, and the tokens that are written behind each."""
NEAR = 1e-4
"""Of a standard deviation of scores: rounding."""


def saved(folder: Path, config: Any) -> Any:
    """A model with random weights, which that folder has."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.save_pretrained(folder)
    own_tokenizer(WORDS).save_pretrained(folder)
    return model.eval()


def opened(folder: Path, variant: str = "eager") -> AbstractContextManager[LanguageRunner]:
    options = ServeOptions(
        ("causal_lm",), (variant,), device="cpu", weights=f"{folder}", max_batch=2, threads=1, parity_share=0,
        settings={"context": f"{CONTEXT}", "prefill_chunk": f"{CHUNK}"}, cache_dir=f"{folder / 'cache'}",
    )  # fmt: skip
    return open_language(options.spec("causal_lm"), variants.load(variant), options, lambda _: None)


def furthest(runner: LanguageRunner, model: Any) -> float:
    """The largest difference of a score, in standard deviations of all that are right; the tokens are drawn."""
    texts = torch.randint(2, WORDS, (2, max(LENGTHS) + STEPS), generator=torch.manual_seed(3)).tolist()
    found: list[list[torch.Tensor]] = [[], []]
    for row, (text, length) in enumerate(zip(texts, LENGTHS, strict=True)):
        for begin in range(0, length, CHUNK):
            scores = runner.read(text[begin : min(length, begin + CHUNK)], begin)
        found[row].append(scores[0].clone())
        runner.adopt(row, length)
    for step in range(STEPS):
        places = [length + step for length in LENGTHS]
        scores = runner.write([text[place] for text, place in zip(texts, places, strict=True)], places)
        for row in range(2):
            found[row].append(scores[row].clone())
    most = 0.0
    for text, length, mine in zip(texts, LENGTHS, found, strict=True):
        wanted = model(torch.tensor([text]), use_cache=False).logits[0, length - 1 : length + STEPS]
        most = max(most, float((torch.stack(mine) - wanted).abs().max() / wanted.std()))
    return most
