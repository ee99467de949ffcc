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


Pair = tuple[torch.Tensor, torch.Tensor]


class Cache:
    """What a model of transformers' takes in place of its own."""

    is_compileable = True

    def __init__(self, layers: int) -> None:
        self.is_sliding = [False] * layers

    def get_seq_length(self, layer: int = 0) -> int:
        return 0


class Look(Cache):
    """Keeps what each layer would have kept of one call: they differ in heads and sizes, keys and values too."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.found: dict[int, Pair] = {}

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> Pair:
        self.found[layer] = keys, values
        return keys, values


class Window(Cache):
    """The first rows of a cache up to a length."""

    def __init__(self, keys: Sequence[Any], values: Sequence[Any], length: int, at: torch.Tensor) -> None:
        """`at`: where in its row each new token goes."""
        super().__init__(len(keys))
        self._keys, self._values, self._length, self._at = keys, values, length, at
        self._rows = torch.arange(at.shape[0], device=at.device)[:, None]

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> Pair:
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
        attention.use(model)
        found = self._looked().values()
        self.layers = len(found)
        for layer, both in enumerate(found):
            for kind, one in zip(("keys", "values"), both, strict=True):
                made = one.new_zeros((rows, one.shape[1], length, one.shape[3]))
                self.register_buffer(f"{kind}_{layer}", made, persistent=False)

    def _looked(self) -> dict[int, Pair]:
        """Of one token, the keys and values in each layer."""
        look = Look(self.model.config.get_text_config().num_hidden_layers)
        nought = torch.zeros((1, 1), dtype=torch.int64, device=next(self.model.parameters()).device)
        self._called(look, nought, nought, nought[0], nought[0])
        return look.found

    def held(self) -> list[list[torch.Tensor]]:
        """Keys and values, by layer."""
        return [[getattr(self, f"{kind}_{layer}") for layer in range(self.layers)] for kind in ("keys", "values")]

    def forward(
        self, ids: torch.Tensor, at: torch.Tensor, last: torch.Tensor, upto: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Tokens and their places (rows × tokens), whose of them the scores are wanted (one place for all rows), and
        anything that is as long as the part of the cache that is looked at."""
        keys, values = self.held()
        return self._called(Window(keys, values, upto.shape[0], at), ids, at, last, upto)

    def _called(
        self, cache: Cache, ids: torch.Tensor, at: torch.Tensor, last: torch.Tensor, upto: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        found = self.model(
            input_ids=ids, attention_mask=upto[None, None, None, :] <= at[:, None, :, None], position_ids=at,
            use_cache=True, logits_to_keep=last, **{self._named: cache},
        )  # fmt: skip
        return (found.logits[:, 0],)
