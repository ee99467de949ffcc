"""What a replica's device thread runs: one batch in, its outputs and the instants between its stages out.

`open_runner` loads, compiles, warms and compares, and returns something ready to serve. All of it must be
called from one and the same thread: torch.compile guards on it and CUDA graphs are bound to it. Owns the
device and its staging buffers; knows nothing of requests, queues or the wire.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from serve import parity, warmup
from serve import weights as weights_of
from serve.options import ServeOptions
from serve.spec import ModelSpec, ServeError, Tensors, Variant
from serve.wire import Array

if TYPE_CHECKING:
    import torch

Say = Callable[[str], None]


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


def open_runner(spec: ModelSpec, variant: Variant, options: ServeOptions, say: Say) -> Runner:
    if spec.build is None:
        return NullRunner(spec, options.max_batch or spec.max_batch[0])
    return TorchRunner(spec, variant, options, say)


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
    """A torch module in one variant on one device, every bucket warm."""

    def __init__(self, spec: ModelSpec, variant: Variant, options: ServeOptions, say: Say) -> None:
        say("loading torch")
        import torch

        kind = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        if why := variant.refuse(spec, kind):
            raise ServeError(why)
        if kind == "cuda" and not torch.cuda.is_available():
            raise ServeError("there is no CUDA device that torch can use; serve with --device cpu")
        self._device = torch.device(kind)
        self.device = f"GPU-{torch.cuda.get_device_properties(0).uuid}" if kind == "cuda" else "cpu"
        self.max_batch = options.max_batch or spec.max_batch[kind == "cuda"]
        self._threads = options.threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(self._threads)
        self._spec, self._variant = spec, variant
        self._buckets = warmup.buckets(self.max_batch)
        self._names = tuple(output.name for output in spec.outputs)
        cache = options.cache_folder

        started = time.perf_counter()
        say("loading weights")
        module, self._weights = weights_of.load(spec, options.weights, options.seed, cache)
        module = module.to(self._device)
        torch.inference_mode().__enter__()  # for the rest of this thread's life
        self._staging = {bucket: self._stage(bucket, options.seed) for bucket in self._buckets}
        loaded = time.perf_counter()
        self._start = self._warm(module, cache, say)
        warm = time.perf_counter()
        say("comparing with eager fp32")
        self.parity = self._compare(module, options.seed)
        failure = self.parity.failure(variant.precision)
        if failure and not options.keep_on_parity_failure:
            raise ServeError(f"{spec.name}/{variant.name} is not served: {failure}")
        self._parity_ok = failure is None
        self._load_s, self._warmup_s = loaded - started, warm - loaded
        self._compilations = warmup.compilations()

    # ---- before the first request

    def _stage(self, bucket: int, seed: int) -> list[torch.Tensor]:
        """One buffer per input that every batch of this bucket is collated into."""
        import torch

        pinned = self._device.type == "cuda"
        buffers = []
        for tensor in self._spec.example(bucket, seed).values():
            buffer = torch.from_numpy(tensor).clone()
            buffers.append(buffer.pin_memory() if pinned else buffer)
        return buffers

    def _warm(self, module: torch.nn.Module, cache: Path, say: Say) -> str:
        """Builds the variant and calls every bucket; says whether compiled artefacts were found."""
        if not self._variant.compiles:
            self._try_modes(module, say)
            return "cold"
        warmup.allow_compilations(2 * len(self._buckets))
        artefacts = warmup.Artefacts.of(self._spec, self._variant, self._device.type, self._threads, cache)
        with artefacts.used(say):
            found = artefacts.complete.exists()
            try:
                self._try_modes(module, say)
            except Exception:
                if not found:
                    raise
                say("the kept artefacts do not work and are made anew")
                artefacts.clear()
                found = False
                self._try_modes(module, say)
            artefacts.complete.touch()
        return "warm" if found else "cold"

    def _try_modes(self, module: torch.nn.Module, say: Say) -> None:
        modes = self._variant.modes(module, self._device.type)
        for mode in modes:
            try:
                self._call = self._variant.build(module, mode)
                for number, bucket in enumerate(self._buckets, start=1):
                    say(f"warming bucket {number} of {len(self._buckets)} ({bucket} rows)")
                    for _ in range(warmup.CALLS):
                        self._execute(bucket)
                self._mode = mode
                return
            except Exception as problem:
                if mode == modes[-1]:
                    raise
                say(f"mode {mode} fails to warm up, trying the next: {first_line(problem)}")
                _forget_compiled()

    def _compare(self, module: torch.nn.Module, seed: int) -> parity.Parity:
        """Over all buckets, on inputs that the warm-up has not seen."""
        import torch

        found: list[tuple[torch.Tensor, ...]] = []
        wanted: list[tuple[torch.Tensor, ...]] = []
        for bucket in self._buckets:
            self._collate([self._spec.example(bucket, seed + 1 + bucket)], bucket, bucket)
            # cloned at once: the next replay of a CUDA graph overwrites its outputs
            found.append(tuple(tensor.cpu().clone() for tensor in self._execute(bucket)[0]))
            wanted.append(tuple(tensor.cpu() for tensor in _as_tuple(module(*self._inputs(bucket)))))
        join = [[torch.cat(pieces) for pieces in zip(*side, strict=True)] for side in (found, wanted)]
        return parity.compare(*join)

    # ---- each batch

    def run(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> Ran:
        bucket = next(size for size in self._buckets if size >= rows)
        self._collate(parts, rows, bucket)
        batched_ns = time.perf_counter_ns()
        found, copied_in_ns = self._execute(bucket)
        computed_ns = time.perf_counter_ns()
        outputs = {
            name: tensor[:rows].cpu().numpy() for name, tensor in zip(self._names, found, strict=True) if name in wanted
        }
        return Ran(outputs, batched_ns, copied_in_ns, computed_ns)

    def _collate(self, parts: Sequence[Tensors], rows: int, bucket: int) -> None:
        """Copies the requests' rows one after the other into the bucket's buffers and zeroes what is left."""
        for place, buffer in enumerate(self._staging[bucket]):
            target = buffer.numpy()
            at = 0
            for part in parts:
                tensor = tuple(part.values())[place]
                target[at : at + len(tensor)] = tensor
                at += len(tensor)
            target[rows:] = 0

    def _inputs(self, bucket: int) -> list[torch.Tensor]:
        return [buffer.to(self._device, non_blocking=True) for buffer in self._staging[bucket]]

    def _execute(self, bucket: int) -> tuple[tuple[torch.Tensor, ...], int]:
        """The outputs, computed to the end, and when the inputs were on the device."""
        inputs = self._inputs(bucket)
        self._wait()
        copied_in_ns = time.perf_counter_ns()
        found = _as_tuple(self._call(*inputs))
        self._wait()
        return found, copied_in_ns

    def _wait(self) -> None:
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize()

    # ---- what it says of itself

    def parameters(self) -> dict[str, Any]:
        import torch

        cuda = self._device.type == "cuda"
        return {
            "device_name": torch.cuda.get_device_name(0) if cuda else "cpu",
            "precision": self._variant.precision,
            "compile_mode": self._mode,
            "buckets": ",".join(map(str, self._buckets)),
            "threads": self._threads,
            "start": self._start,
            "load_s": round(self._load_s, 3),
            "warmup_s": round(self._warmup_s, 3),
            "weights": self._weights.origin,
            "weights_digest": self._weights.digest,
            "parity_ok": self._parity_ok,
            **{f"parity_{key}": value for key, value in asdict(self.parity).items()},
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if cuda else _peak_memory_bytes(),
            "graph_breaks": warmup.graph_breaks(),
            "compilations": self._compilations,
            "recompiles": warmup.compilations() - self._compilations,
            "torch": torch.__version__,
            "cuda": torch.version.cuda if cuda else None,
            "tf32_convolutions": cuda and torch.backends.cudnn.allow_tf32,
            "host": socket.gethostname(),
        }


def _as_tuple(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def first_line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}".split("\n", 1)[0][:200]


def _forget_compiled() -> None:
    import torch

    torch._dynamo.reset()


def _peak_memory_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
