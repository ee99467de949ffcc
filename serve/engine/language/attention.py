"""Attention over rows of a cache, as transformers' models call it: key heads that several query heads share are not
copied for each of these, which would cost more than the attention itself.

Some layers look back so many tokens only, limit their scores, or have a sink, which takes its share and gives nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrate.serve.spec import ServeError

if TYPE_CHECKING:
    import torch

NAME = "tailrate"
UNKNOWN = ("position_bias",)
"""What some models ask for beside a mask, and this has not."""
KINDS = {"full_attention", "sliding_attention"}


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Queries are (rows, heads, tokens, size), keys and values (rows, key heads, length, size or one of their own)."""
    import torch

    if given := [name for name in UNKNOWN if asked.get(name) is not None]:
        raise ServeError(f"attention with {given[0]} is not possible here")
    window, softcap, sinks = (asked.get(name) for name in ("sliding_window", "softcap", "s_aux"))
    rows, heads, tokens, _ = query.shape
    shared = heads // key.shape[1]
    query = query.reshape(rows, key.shape[1], shared * tokens, -1)
    if attention_mask is not None and window is not None:
        attention_mask = within(attention_mask, window)
    if attention_mask is not None and shared > 1:
        mask = attention_mask.unsqueeze(2).expand(-1, -1, shared, -1, -1)
        attention_mask = mask.reshape(rows, -1, shared * tokens, key.shape[2])
    if softcap is None and sinks is None:
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    else:
        if sinks is not None:  # one for each head
            sinks = sinks.view(1, -1, shared, 1).expand(rows, -1, -1, tokens).reshape(rows, -1, shared * tokens, 1)
        found = written_out(query, key, value, attention_mask, scaling, softcap, sinks)
    return found.reshape(rows, heads, tokens, -1).transpose(1, 2).contiguous(), None


def within(mask: torch.Tensor, window: int) -> torch.Tensor:
    """What is seen of what came before by who looks back so many tokens, its own among them."""
    import torch

    length = mask.shape[-1]
    return mask & ~torch.nn.functional.pad(mask[..., window:], (0, min(window, length)))


def written_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention with what torch's own has not."""
    import torch

    scores = (query @ key.transpose(-1, -2)).float() * (scaling or query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores.dtype)), -1)
    return scores.softmax(-1)[..., : key.shape[2]].to(value.dtype) @ value


def use(model: Any) -> None:
    """Makes a model of transformers' attend so."""
    from transformers import AttentionInterface

    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or KINDS)
    if not kinds <= KINDS:
        raise ServeError(f"layers of {', '.join(sorted(kinds - KINDS))} are not possible here")
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)
