"""Models of transformers' as `causal_lm` serves them: the scores of each step against those without a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import CHUNK, NEAR, WORDS, furthest, opened, saved  # noqa: E402
from transformers import AutoConfig  # noqa: E402

from tailrate.serve.engine.language import attention  # noqa: E402
from tailrate.serve.spec import ServeError  # noqa: E402

WINDOW = 8
TINY = {
    "vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "initializer_range": 0.2,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 24, "kv_lora_rank": 16,
    "q_lora_rank": 16, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
"""Values of another size than keys."""
SERVED = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "gpt_neox": {},
    "qwen2": {},
    "qwen3": {},
    "olmo2": {},
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS,
    "deepseek_v3": EXPERTS | LATENT,
    "mistral": {"sliding_window": WINDOW},
    "phi3": {"sliding_window": WINDOW},
    "cohere2": MIXED,
    "gemma2": MIXED | {"attn_logit_softcapping": 0.5},
    "gemma3_text": MIXED,
    "gpt_oss": MIXED | EXPERTS,
}
REFUSED = {
    "bloom": ({}, "a model of the kind bloom cannot be continued from rows of a cache: "),
    "llama4_text": ({"layer_types": ["chunked_attention", "full_attention"]} | EXPERTS, "layers of chunked_attention"),
    "qwen3_next": ({"layer_types": ["linear_attention", "full_attention"]} | EXPERTS, "layers of linear_attention"),
}


def made(folder: Path, kind: str, more: dict[str, Any]) -> Any:
    return saved(folder, AutoConfig.for_model(kind, **TINY | more))


@pytest.mark.parametrize("kind", SERVED)
def test_each_step_scores_what_the_model_does_without_a_cache(kind: str, tmp_path: Path) -> None:
    model = made(tmp_path, kind, SERVED[kind])
    with opened(tmp_path) as runner, torch.inference_mode():
        assert runner.parameters()["parity_ok"]
        assert furthest(runner, model) < NEAR


def test_what_differs_only_beyond_a_window_is_found_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wider than the piece of a prompt that is read at once."""
    made(tmp_path, "mistral", {"sliding_window": 2 * CHUNK + WINDOW})
    monkeypatch.setattr(attention, "within", lambda mask, window: mask)
    with pytest.raises(ServeError, match="its outputs are not those of eager fp32"), opened(tmp_path):
        pass


@pytest.mark.computes
@pytest.mark.long
def test_so_does_what_is_compiled(tmp_path: Path) -> None:
    """With a window, a limit of scores and shared key heads."""
    model = made(tmp_path, "gemma2", SERVED["gemma2"])
    with opened(tmp_path, "compiled") as runner, torch.inference_mode():
        assert furthest(runner, model) < NEAR


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_served_is_refused_with_a_sentence(kind: str, tmp_path: Path) -> None:
    more, sentence = REFUSED[kind]
    made(tmp_path, kind, more)
    with pytest.raises(ServeError, match=sentence), opened(tmp_path):
        pass
