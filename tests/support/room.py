"""Memory of so many bytes and no more: what tensors take of it counts for as long as anything holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Room(TorchDispatchMode):
    """Of what is made while it is on; weights and inputs, made before, take nothing."""

    def __init__(self, most: float = float("inf")) -> None:
        super().__init__()
        self.most = most
        self.peak = self.refused = 0
        self._held: dict[StorageWeakRef, int] = {}

    @property
    def used(self) -> int:
        self._held = {storage: size for storage, size in self._held.items() if not storage.expired()}
        return sum(self._held.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(found):
            if storage._cdata not in given:
                self._take(storage)
        return found

    def _take(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        if self.used + size > self.most:
            self.refused += 1
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")
        self._held[StorageWeakRef(storage)] = size
        self.peak = max(self.peak, self.used)


def _storages(tree: object) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
