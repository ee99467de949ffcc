"""Which kinds of transformers' causal language models does `causal_lm` serve, and are their scores right?

Of each kind that transformers has a model is made with random weights and a few layers, saved, and opened from its
folder, eager. Two prompts are read in pieces and continued side by side; each score is held against the same model's
without a cache. Windows are shorter than the prompts. A kind is right, wrong, refused with a sentence, or it failed;
some cannot be made tiny by the settings below.

Prints a table of those that are not served, then one JSON line; ends with 1 if a wrong one is served.

    python tests/bench/language_kinds.py
    python tests/bench/language_kinds.py --only llama,gemma3_text,mamba
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402

MOST_PARAMETERS = 60_000_000
TINY: dict[str, Any] = {
    "vocab_size": 2048, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "initializer_range": 0.2,
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "max_position_embeddings": 512, "max_seq_len": 512, "sliding_window": 20,
    # the same by other names
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_ctx": 512, "d_model": 64, "n_layers": 2,
    "n_heads": 4, "num_layers": 2, "num_heads": 4, "ffn_dim": 96, "decoder_ffn_dim": 96, "decoder_layers": 2,
    "decoder_attention_heads": 4, "encoder_layers": 2, "encoder_attention_heads": 4, "rotary_dim": 8,
    "word_embed_proj_dim": 64, "embedding_size": 64,
    # experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
    # keys and values from something smaller
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 24,
}  # fmt: skip
LATENT = {"head_dim": 8, "num_key_value_heads": 4}


def config_of(kind: str) -> Any:
    """With those of the settings that it has."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    plain = AutoConfig.for_model(kind)
    wanted = TINY | (LATENT if hasattr(plain, "qk_rope_head_dim") else {})
    config = type(plain)(**{key: value for key, value in wanted.items() if settable(plain, key)})
    if (inner := config.get_text_config()) is not config:
        for key, value in wanted.items():
            if settable(inner, key):
                setattr(inner, key, value)
    with torch.device("meta"):
        many = sum(one.numel() for one in AutoModelForCausalLM.from_config(config).parameters())
    if many > MOST_PARAMETERS:
        raise ValueError(f"{many:,} parameters")
    return config


def settable(config: Any, key: str) -> bool:
    return hasattr(config, key) and not isinstance(getattr(type(config), key, None), property)


def judged(kind: str, folder: Path) -> tuple[str, str]:
    """What became of it, and why."""
    import torch
    from tiny_models import NEAR, furthest, opened, saved

    from tailrate.serve.spec import ServeError

    try:
        model = saved(folder, config_of(kind))
    except Exception as problem:
        return "not made", f"{type(problem).__name__}: {problem}"
    try:
        with torch.no_grad(), opened(folder) as runner:
            away = furthest(runner, model)
    except ServeError as problem:
        return "refused", f"{problem}"
    except Exception as problem:
        return "failed", f"{type(problem).__name__}: {problem}"
    return ("right", "") if away < NEAR else ("wrong", f"a score is {away:.2g} standard deviations away")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--only", default="", help="kinds, such as llama,gemma3_text; empty: all")
    return found


def main() -> int:
    options = parser().parse_args()
    from transformers import __version__ as version
    from transformers import logging
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KINDS

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    found: dict[str, list[str]] = defaultdict(list)
    for kind in options.only.split(",") if options.only else KINDS:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            became, why = judged(kind, Path(folder))
        found[became].append(kind)
        if why:
            print(f"{kind:<24} {became:<9} {why.splitlines()[0][:150]}", flush=True)
    print(f"right with transformers {version}: {', '.join(found['right'])}")
    last_line("language_kinds", transformers=version, counts={key: len(some) for key, some in found.items()}, **found)
    return bool(found["wrong"])


if __name__ == "__main__":
    sys.exit(main())
