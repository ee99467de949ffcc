"""What a replica's device thread runs: one batch in, its outputs and the instants between its stages out.

Owns the device and its staging buffers; knows nothing of requests, queues or the wire. Everything here is
called from one and the same thread: torch.compile guards on it and CUDA graphs are bound to it. How a
runner comes to be ready is in `opening`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from serve.spec import ModelSpec, Tensors
from serve.wire import Array

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Ran:
    """A batch's outputs, rows first, and the ends of its stages on `time.perf_counter_ns`."""

    outputs: dict[str, Array]
    batched_ns: int
    copied_in_ns: int
    computed_ns: int


class Runner(Protocol):
    """A model ready to be called; `run` takes the tensors of several requests, `rows` in all."""

    max_batch: int
    device: str

    def run(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> Ran: ...

    def parameters(self) -> dict[str, Any]:
        """What the metadata says of it: scalars only, as the protocol wants."""
        ...


class NullRunner:
    """Sleeps and replies; for models without a module."""

    def __init__(self, spec: ModelSpec, max_batch: int) -> None:
        assert spec.reply is not None
        self.max_batch = max_batch
        self.device = "cpu"
        self._reply = spec.reply
        self._delay_s = spec.delay_s

    def run(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> Ran:
        start = time.perf_counter_ns()
        if self._delay_s:
            time.sleep(self._delay_s)
        outputs = self._reply(rows)
        return Ran(outputs, start, start, time.perf_counter_ns())

    def parameters(self) -> dict[str, Any]:
        return {"start": "warm", "warmup_s": 0.0, "parity_ok": True}


class TorchRunner:
    """A torch module in one variant on one device; `call` and `facts` are set by whoever opens it."""

    call: Callable[..., Any]
    facts: Callable[[], dict[str, Any]] = dict

    def __init__(self, spec: ModelSpec, device: torch.device, buckets: tuple[int, ...], seed: int) -> None:
        import torch

        self._device = device
        self.device = f"GPU-{torch.cuda.get_device_properties(0).uuid}" if device.type == "cuda" else "cpu"
        self.max_batch = max(buckets)
        self.buckets = buckets
        self._names = tuple(output.name for output in spec.outputs)
        self._staging = {bucket: self._stage(spec, bucket, seed) for bucket in buckets}

    def _stage(self, spec: ModelSpec, bucket: int, seed: int) -> list[torch.Tensor]:
        """One buffer per input that every batch of this bucket is collated into."""
        import torch

        pinned = self._device.type == "cuda"
        buffers = []
        for tensor in spec.example(bucket, seed).values():
            buffer = torch.from_numpy(tensor).clone()
            buffers.append(buffer.pin_memory() if pinned else buffer)
        return buffers

    def run(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> Ran:
        bucket = next(size for size in self.buckets if size >= rows)
        self.collate(parts, rows, bucket)
        batched_ns = time.perf_counter_ns()
        found, copied_in_ns = self.execute(bucket)
        computed_ns = time.perf_counter_ns()
        outputs = {
            name: tensor[:rows].cpu().numpy() for name, tensor in zip(self._names, found, strict=True) if name in wanted
        }
        return Ran(outputs, batched_ns, copied_in_ns, computed_ns)

    def collate(self, parts: Sequence[Tensors], rows: int, bucket: int) -> None:
        """Copies the requests' rows one after the other into the bucket's buffers and zeroes what is left."""
        for place, buffer in enumerate(self._staging[bucket]):
            target = buffer.numpy()
            at = 0
            for part in parts:
                tensor = tuple(part.values())[place]
                target[at : at + len(tensor)] = tensor
                at += len(tensor)
            target[rows:] = 0

    def inputs(self, bucket: int) -> list[torch.Tensor]:
        return [buffer.to(self._device, non_blocking=True) for buffer in self._staging[bucket]]

    def execute(self, bucket: int) -> tuple[tuple[torch.Tensor, ...], int]:
        """The outputs, computed to the end, and when the inputs were on the device."""
        inputs = self.inputs(bucket)
        self._wait()
        copied_in_ns = time.perf_counter_ns()
        found = as_tuple(self.call(*inputs))
        self._wait()
        return found, copied_in_ns

    def _wait(self) -> None:
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize()

    def parameters(self) -> dict[str, Any]:
        return {"buckets": ",".join(map(str, self.buckets)), **self.facts()}


def as_tuple(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def first_line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}".split("\n", 1)[0][:200]
