"""Attention over rows of a cache, as transformers' models call it: key heads that several query heads share are not
copied for each of these, which would cost more than the attention itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrate.serve.spec import ServeError

if TYPE_CHECKING:
    import torch

NAME = "tailrate"
UNKNOWN = ("softcap", "sliding_window", "s_aux", "position_bias")
"""What some models ask for beside a mask, and this has not."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Queries are (rows, heads, tokens, size), keys and values (rows, key heads, length, size)."""
    import torch

    if given := [name for name in UNKNOWN if asked.get(name) is not None]:
        raise ServeError(f"attention with {given[0]} is not possible here")
    rows, heads, tokens, size = query.shape
    shared = heads // key.shape[1]
    query = query.reshape(rows, key.shape[1], shared * tokens, size)
    if attention_mask is not None and shared > 1:
        mask = attention_mask.unsqueeze(2).expand(-1, -1, shared, -1, -1)
        attention_mask = mask.reshape(rows, -1, shared * tokens, key.shape[2])
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    return found.reshape(rows, heads, tokens, size).transpose(1, 2).contiguous(), None


def use(model: Any) -> None:
    """Makes a model of transformers' attend so."""
    from transformers import AttentionInterface

    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ServeError(f"layers of {', '.join(sorted(kinds - {'full_attention'}))} are not possible here")
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)
