"""One call of a language model over some rows of its own cache: new tokens in, the scores of each next one out.

The shapes of its inputs say which rows and how much of the cache they look at, so that variants make code for each as
for any other module. The cache is a buffer for each layer: of one for all of them a compiled call copies the whole.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from tailrate.serve.engine.language import attention

if TYPE_CHECKING:
    from collections.abc import Sequence


class Window:
    """The first rows of a cache up to a length, as a model of transformers' takes it in place of its own."""

    is_compileable = True

    def __init__(self, keys: Sequence[Any], values: Sequence[Any], length: int, at: torch.Tensor) -> None:
        """`at`: where in its row each new token goes."""
        self._keys, self._values, self._length, self._at = keys, values, length, at
        self._rows = torch.arange(at.shape[0], device=at.device)[:, None]
        self.is_sliding = [False] * len(keys)

    def get_seq_length(self, layer: int = 0) -> int:
        return 0

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        held, seen = self._keys[layer], self._values[layer]
        held[self._rows, :, self._at] = keys.transpose(1, 2)
        seen[self._rows, :, self._at] = values.transpose(1, 2)
        rows = keys.shape[0]
        return held[:rows, :, : self._length], seen[:rows, :, : self._length]


class Steps(torch.nn.Module):
    """The model with a cache of so many rows and tokens."""

    def __init__(self, model: Any, rows: int, length: int) -> None:
        super().__init__()
        self.model = model
        self.rows, self.length = rows, length
        self._named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        like = next(model.parameters())
        for layer in range(config.num_hidden_layers):
            for kind in ("keys", "values"):
                made = torch.zeros((rows, heads, length, size), dtype=like.dtype, device=like.device)
                self.register_buffer(f"{kind}_{layer}", made, persistent=False)
        self.layers = config.num_hidden_layers
        attention.use(model)

    def held(self) -> list[list[torch.Tensor]]:
        """Keys and values, by layer."""
        return [[getattr(self, f"{kind}_{layer}") for layer in range(self.layers)] for kind in ("keys", "values")]

    def forward(
        self, ids: torch.Tensor, at: torch.Tensor, last: torch.Tensor, upto: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Tokens and their places (rows × tokens), whose of them the scores are wanted (one place for all rows), and
        anything that is as long as the part of the cache that is looked at."""
        length = upto.shape[0]
        mask = upto[None, None, None, :] <= at[:, None, :, None]
        keys, values = self.held()
        window = Window(keys, values, length, at)
        found = self.model(
            input_ids=ids, attention_mask=mask, position_ids=at, use_cache=True, logits_to_keep=last,
            **{self._named: window},
        )  # fmt: skip
        return (found.logits[:, 0],)
