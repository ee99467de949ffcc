"""A language model of four million parameters with random weights: what it writes is noise, how it is served is not."""

from __future__ import annotations

from typing import Any

from tailrate.serve.models._language import CHUNK, language
from tailrate.serve.spec import ModelSpec


def spec(
    *, context: int = 1024, prefill_chunk: int = CHUNK, layers: int = 4, hidden: int = 256, weights: str = "random"
) -> ModelSpec:
    def config(words: int) -> Any:
        from transformers import LlamaConfig

        return LlamaConfig(
            vocab_size=words,
            hidden_size=hidden,
            intermediate_size=hidden * 8 // 3 // 16 * 16,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 64,
            num_key_value_heads=max(1, hidden // 128),
            head_dim=64,
            max_position_embeddings=context,
            bos_token_id=0,
            eos_token_id=1,
        )

    return language("tiny_llama", config, weights, context, prefill_chunk, layers=layers, hidden=hidden)
