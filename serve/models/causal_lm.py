"""Any causal language model of transformers', from a folder with its weights and tokenizer (`--weights DIR`)."""

from __future__ import annotations

from tailrate.serve.models._language import CHUNK, language
from tailrate.serve.spec import ModelSpec


def spec(*, context: int = 2048, prefill_chunk: int = CHUNK, weights: str = "random") -> ModelSpec:
    return language("causal_lm", None, weights, context, prefill_chunk)
