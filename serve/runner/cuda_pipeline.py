"""Batches on their way over a CUDA device: copied in while the one before computes, copied out behind it.

Owns the streams, and the pinned and the device buffers of each batch in flight. The host waits for nothing but
the end of a batch: where its time went is read from events on the device afterwards. Outputs are copied on the
stream that computes, so the next replay of a CUDA graph cannot overwrite them before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from tailrate.serve.runner.buckets import Bucket, Buffers
from tailrate.serve.spec import Tensors
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    import torch

DEPTH = 2
"""Batches in flight: one computes, the next is copied in."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch's outputs, rows first, and the ends of its stages on `time.perf_counter_ns`."""

    outputs: dict[str, Array]
    batched_ns: int
    copied_in_ns: int
    computed_ns: int
    waited_ns: int = 0
    """How long it lay on the device behind another batch; the stages are without it, so it was begun later."""

    def done(self) -> bool:
        return True

    def finish(self) -> BatchResult:
        """Itself: what was run at once is a flight that has landed."""
        return self


class Flight(Protocol):
    """A batch that was begun."""

    def done(self) -> bool: ...

    def finish(self) -> BatchResult:
        """Waits for the end of it, or raises what went wrong; called once."""
        ...


class Failed:
    """A batch that could not be begun: found out in its turn, after those in flight before it."""

    def __init__(self, problem: Exception) -> None:
        self._problem = problem

    def done(self) -> bool:
        return True

    def finish(self) -> BatchResult:
        raise self._problem


class Slot:
    """What one batch in flight needs: its inputs on both sides of the bus, and the marks between its stages."""

    def __init__(self, like: Tensors, buckets: Sequence[Bucket], device: torch.device, cuda: Any) -> None:
        self.host = Buffers(like, buckets, pinned=device.type == "cuda")
        self.device = Buffers(like, buckets, device)
        # copy begun, copied in, compute begun, computed, copied out
        # of which the last is waited for: asleep, or each replica would keep a core busy with it
        self.marks = [cuda.Event(enable_timing=True, blocking=mark == 4) for mark in range(5)]


class Pipeline:
    """Of one runner; `cuda` is `torch.cuda`, or something like it in tests."""

    def __init__(self, like: Tensors, buckets: Sequence[Bucket], device: torch.device, cuda: Any) -> None:
        self._cuda = cuda
        self._copying = cuda.Stream()
        self.free = [Slot(like, buckets, device, cuda) for _ in range(DEPTH)]

    def begin(
        self,
        parts: Sequence[Tensors],
        bucket: Bucket,
        call: Callable[..., tuple[torch.Tensor, ...]],
        keep: Callable[[Sequence[torch.Tensor]], dict[str, torch.Tensor]],
    ) -> CudaFlight:
        """`keep` chooses from what `call` returns what is to be copied out."""
        slot = self.free.pop()
        try:
            return self._begin(slot, parts, bucket, call, keep)
        except BaseException:
            with contextlib.suppress(Exception):  # what was begun may still read the slot's buffers
                self._cuda.synchronize()
            self.free.append(slot)
            raise

    def _begin(self, slot: Slot, parts: Sequence[Tensors], bucket: Bucket, call: Any, keep: Any) -> CudaFlight:
        slot.host.fill(parts, bucket)
        batched_ns = time.perf_counter_ns()
        copy_begun, copied_in, compute_begun, computed, copied_out = slot.marks
        computing = self._cuda.current_stream()
        with self._cuda.stream(self._copying):
            copy_begun.record(self._copying)
            self._copy_in(slot, bucket)
            copied_in.record(self._copying)
        computing.wait_event(copied_in)
        compute_begun.record(computing)
        found = call(*slot.device.tensors[bucket])
        computed.record(computing)
        outputs = {name: self._copied_out(tensor) for name, tensor in keep(found).items()}
        copied_out.record(computing)
        return CudaFlight(self, slot, outputs, batched_ns)

    def _copy_in(self, slot: Slot, bucket: Bucket) -> None:
        for source, target in zip(slot.host.tensors[bucket], slot.device.tensors[bucket], strict=True):
            target.copy_(source, non_blocking=True)

    def _copied_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """Into pinned memory of its own, which torch gives to a later batch once nobody holds it any longer."""
        import torch

        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return target.copy_(tensor, non_blocking=True)

    def inputs(self, bucket: Bucket, parts: Sequence[Tensors] = ()) -> Sequence[torch.Tensor]:
        """On the device, after a copy that is waited for; for warm-up and parity, while nothing is in flight."""
        slot = self.free[-1]
        if parts:
            slot.host.fill(parts, bucket)
        self._copy_in(slot, bucket)
        self._cuda.synchronize()
        return slot.device.tensors[bucket]


class CudaFlight:
    """One batch in flight."""

    def __init__(self, pipeline: Pipeline, slot: Slot, outputs: dict[str, torch.Tensor], batched_ns: int) -> None:
        self._pipeline = pipeline
        self._slot = slot
        self._outputs = outputs
        self._batched_ns = batched_ns

    def done(self) -> bool:
        return bool(self._slot.marks[-1].query())

    def finish(self) -> BatchResult:
        try:
            self._slot.marks[-1].synchronize()
            return self._ran(time.perf_counter_ns())
        finally:
            self._pipeline.free.append(self._slot)

    def _ran(self, now_ns: int) -> BatchResult:
        h2d_ns, waited_ns, compute_ns, d2h_ns = (
            max(0, round(before.elapsed_time(after) * 1e6)) for before, after in pairwise(self._slot.marks)
        )
        copied_in_ns = self._batched_ns + h2d_ns
        computed_ns = min(copied_in_ns + waited_ns + compute_ns, now_ns - d2h_ns)
        outputs = {name: tensor.numpy() for name, tensor in self._outputs.items()}
        # it waited for the device behind another batch: that is queueing, so its stages begin that much later
        copied_in_ns = min(copied_in_ns + waited_ns, computed_ns)
        return BatchResult(
            outputs, min(self._batched_ns + waited_ns, copied_in_ns), copied_in_ns, computed_ns, waited_ns
        )
