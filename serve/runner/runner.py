"""What a replica's device thread runs: one batch in, its outputs and the instants between its stages out.

Owns the device; knows nothing of requests, queues or the wire. Everything here is called from one and the same
thread: torch.compile guards on it and CUDA graphs are bound to it. How a runner comes to be ready is in
`opening`, where its batches are put together in `staging`, and how several are in flight in `pipeline`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tailrate.serve.runner.buckets import Bucket, Buffers, cut, natural_length, smallest
from tailrate.serve.runner.cuda_pipeline import DEPTH, BatchResult, Flight, Pipeline
from tailrate.serve.spec import ModelSpec, Tensors, as_tuple
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    import torch

NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "status_alloc_failed",  # of cuBLAS and cuDNN
    "cublas_status_not_initialized when calling `cublascreate",  # which has found no room for its workspace
)

__all__ = ["BatchResult", "Flight", "NullRunner", "Runner", "TorchRunner", "first_line"]


class Runner(Protocol):
    """A model ready to be called."""

    max_batch: int
    depth: int
    """How many batches may be in flight; with 1, `begin` runs the batch to its end."""
    device: str
    stretched: frozenset[str]
    """Outputs that are as long as the request, in their second dimension, and come padded to the bucket's length."""

    def begin(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> Flight:
        """Runs the tensors of several requests, `rows` in all."""
        ...

    def shrink(self, rows: int) -> int:
        """A batch of so many rows did not fit into memory: no more of its size. The largest from now on."""
        ...

    def grow(self, rows: int) -> int:
        """Batches of so many rows are tried again, where they were possible once. The largest from now on."""
        ...

    def lost(self) -> str | None:
        """After a batch that failed: why nothing can be run in this process any more, or None."""
        ...

    def parameters(self) -> dict[str, Any]:
        """What the metadata says of it: scalars only, as the protocol wants."""
        ...


class NullRunner:
    """Sleeps and replies; for models without a module."""

    depth = 1
    device = "cpu"
    stretched: frozenset[str] = frozenset()

    def __init__(self, spec: ModelSpec, max_batch: int) -> None:
        assert spec.reply is not None
        self.max_batch = max_batch
        self._reply = spec.reply
        self._delay_s = spec.delay_s

    def begin(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> BatchResult:
        start = time.perf_counter_ns()
        if self._delay_s:
            time.sleep(self._delay_s)
        outputs = self._reply(rows)
        return BatchResult(outputs, start, start, time.perf_counter_ns())

    def shrink(self, rows: int) -> int:
        self.max_batch = max(1, rows // 2)
        return self.max_batch

    def grow(self, rows: int) -> int:
        self.max_batch = rows
        return self.max_batch

    def lost(self) -> str | None:
        return None

    def parameters(self) -> dict[str, Any]:
        return {"start": "warm", "warmup_s": 0.0, "parity_ok": True}


class TorchRunner:
    """A torch module in one variant on one device; `call` and `facts` are set by whoever opens it."""

    call: Callable[..., Any]
    facts: Callable[[], dict[str, Any]] = dict

    def __init__(
        self, spec: ModelSpec, device: torch.device, buckets: tuple[Bucket, ...], seed: int, cuda: Any = None
    ) -> None:
        """`cuda` is something like `torch.cuda`, in tests; else it is used where the device is one."""
        import torch

        self._spec = spec
        self._device = device
        self.buckets = self._known = buckets
        self.max_batch = buckets[-1].rows
        self._names = tuple(output.name for output in spec.outputs)
        stretched = [output.name for output in spec.outputs if len(output.shape) > 1 and output.shape[1] == -1]
        self.stretched = frozenset(stretched if spec.lengths else ())
        self.device = nvml_name(torch.cuda.get_device_properties(0)) if device.type == "cuda" else "cpu"
        if cuda is None and device.type == "cuda":
            cuda = torch.cuda
        like = spec.example(1, seed)
        self._buffers = Buffers(like, buckets) if cuda is None else None
        self._pipeline = None if cuda is None else Pipeline(like, buckets, device, cuda)
        self.depth = 1 if cuda is None else DEPTH
        self._cuda = cuda

    # ---- serving

    def begin(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> Flight:
        length = max(map(natural_length, parts)) if self._spec.lengths else None
        bucket = smallest(self.buckets, rows, length)
        if self._pipeline is not None:
            return self._pipeline.begin(parts, bucket, self._called, lambda found: self._wanted(found, rows, wanted))
        assert self._buffers is not None
        self._buffers.fill(parts, bucket)
        batched_ns = time.perf_counter_ns()
        found = self._called(*self._buffers.tensors[bucket])
        computed_ns = time.perf_counter_ns()
        outputs = {name: self._kept(tensor) for name, tensor in self._wanted(found, rows, wanted).items()}
        return BatchResult(outputs, batched_ns, batched_ns, computed_ns)

    def _called(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return as_tuple(self.call(*inputs))

    def _wanted(self, found: Sequence[torch.Tensor], rows: int, wanted: Collection[str]) -> dict[str, torch.Tensor]:
        return {name: tensor[:rows] for name, tensor in zip(self._names, found, strict=True) if name in wanted}

    def _kept(self, tensor: torch.Tensor) -> Array:
        assert self._buffers is not None
        kept: Array = (tensor.clone() if self._buffers.holds(tensor) else tensor).numpy()
        return kept

    def shrink(self, rows: int) -> int:
        most = self._use(max(1, smallest(self.buckets, rows, None).rows // 2))
        if self._cuda is not None:
            self._cuda.empty_cache()
        return most

    def grow(self, rows: int) -> int:
        return self._use(rows)

    def drop_buckets_above(self, rows: int) -> int:
        """Those of more rows are never used, but for the smallest; the largest number of rows that is left."""
        self._use(rows)
        self._known = self.buckets
        if self._cuda is not None:
            self._cuda.empty_cache()
        return self.max_batch

    def _use(self, rows: int) -> int:
        least = self._known[0].rows
        self.buckets = tuple(bucket for bucket in self._known if bucket.rows <= max(rows, least))
        self.max_batch = self.buckets[-1].rows
        return self.max_batch

    def lost(self) -> str | None:
        try:
            if self._cuda is not None:
                self._cuda.synchronize()
        except Exception as problem:  # such as a failed assertion in a kernel, after which every call fails
            return f"the device was lost: {first_line(problem)}"
        return None

    # ---- getting ready

    def example(self, bucket: Bucket, seed: int) -> dict[str, Array]:
        """Prepared tensors that fill the bucket."""
        return dict(cut(self._spec.example(bucket.rows, seed), bucket.length))

    def inputs(self, bucket: Bucket, parts: Sequence[Tensors] = ()) -> Sequence[torch.Tensor]:
        """What serving calls the module with: the very tensors, on the device, holding `parts` or what was there."""
        if self._pipeline is not None:
            return self._pipeline.inputs(bucket, parts)
        assert self._buffers is not None
        if parts:
            self._buffers.fill(parts, bucket)
        return self._buffers.tensors[bucket]

    def execute(self, bucket: Bucket, parts: Sequence[Tensors] = ()) -> tuple[torch.Tensor, ...]:
        """The outputs for these inputs, computed to the end; the next execution may overwrite them."""
        found = self._called(*self.inputs(bucket, parts))
        if self._cuda is not None:
            self._cuda.synchronize()
        return found

    def rehearse(self, bucket: Bucket, parts: Sequence[Tensors]) -> None:
        """As many batches in flight as there may be, so that no request is the first in any place of pinned memory."""
        flights = [self.begin(parts, bucket.rows, self._names) for _ in range(self.depth)]
        for flight in flights:
            flight.finish()

    def parameters(self) -> dict[str, Any]:
        return {"buckets": ",".join(map(str, self.buckets)), **self.facts()}


def nvml_name(device: Any) -> str:
    """What NVML calls the device with these properties of torch's, which has the number alone."""
    return f"{'MIG' if ' MIG ' in device.name else 'GPU'}-{device.uuid}"


def first_line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}".split("\n", 1)[0][:200]


def out_of_memory(problem: BaseException) -> bool:
    """Whether that was for want of memory, on the device or the host, so that a smaller batch may do."""
    # by name and text: torch is not imported for it, and each backend says it in its own words
    text = str(problem).lower()
    return (
        isinstance(problem, MemoryError)
        or type(problem).__name__ == "OutOfMemoryError"
        or (isinstance(problem, RuntimeError) and any(words in text for words in NO_MEMORY))
    )
