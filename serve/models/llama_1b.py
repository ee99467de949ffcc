"""A language model of Llama 3.2's shape at a billion parameters, with random weights: real work for a GPU."""

from __future__ import annotations

from typing import Any

from tailrate.serve.models._language import CHUNK, language
from tailrate.serve.spec import ModelSpec

WORDS = 128_256


def spec(*, context: int = 4096, prefill_chunk: int = 4 * CHUNK, weights: str = "random") -> ModelSpec:
    def config(words: int) -> Any:
        from transformers import LlamaConfig

        return LlamaConfig(
            vocab_size=words,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            max_position_embeddings=context,
            rope_parameters={"rope_theta": 500_000.0, "rope_type": "default"},
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=1,
        )

    return language("llama_1b", config, weights, context, prefill_chunk, words=WORDS)
