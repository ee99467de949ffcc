"""How much an endpoint weighs: bytes of its weights, and of device memory per batch size.

Measured once, when everything is warm: asking the allocator for its peak costs more than some batches do. On
the CPU there is no allocator that could be asked, and a process's peak does not belong to any one batch: absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

B = TypeVar("B")


def module_bytes(module: torch.nn.Module) -> int:
    """Of its parameters and buffers, tied ones once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in (*module.parameters(), *module.buffers())
    }
    return sum(storages.values())


def peak_memory(execute: Callable[[B], object], buckets: Iterable[B], memory: Any = None) -> dict[str, int]:
    """Peak device memory while a batch of each size runs, as metadata; the caller is on CUDA, and warm.

    Allocated memory, weights included; what CUDA graphs hold for their replays counts as reserved only.
    """
    if memory is None:
        import torch

        memory = torch.cuda
    found = {"warmup_peak_memory_bytes": memory.max_memory_allocated()}
    for bucket in buckets:
        memory.synchronize()
        memory.reset_peak_memory_stats()
        execute(bucket)
        memory.synchronize()
        found[f"batch_{bucket}_peak_memory_bytes"] = memory.max_memory_allocated()
    return found | {"reserved_memory_bytes": memory.memory_reserved()}
