"""How a runner comes to be ready: weights, the variant built, every bucket warm, and compared with eager fp32.

All of it happens in the engine's thread, which then serves. Owns the order of these steps and what the
metadata says of them afterwards.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve import parity, staging, warmup
from serve import weights as weights_of
from serve.compiler import Compiler, allow_compilations
from serve.options import ServeOptions
from serve.runner import NullRunner, Runner, TorchRunner, as_tuple, first_line
from serve.spec import ModelSpec, ServeError, Variant
from serve.wire import Array

if TYPE_CHECKING:
    import torch

    from serve.watch import Watch

Say = Callable[[str], None]


def open_runner(
    spec: ModelSpec, variant: Variant, options: ServeOptions, say: Say, watch: Watch | None = None
) -> Runner:
    if spec.build is None:
        return NullRunner(spec, options.largest_batch or spec.max_batch[0])
    opened = Opening(spec, variant, options, say)
    if watch is not None:
        watch.opened(opened.compiler, opened.reference, lambda found: found.failure(variant.precision))
    return opened.runner


class Opening:
    """One runner on its way to the first request, and what is known of it since."""

    def __init__(self, spec: ModelSpec, variant: Variant, options: ServeOptions, say: Say) -> None:
        say("loading torch")
        import torch

        kind = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        if why := variant.refuse(spec, kind):
            raise ServeError(why)
        if kind == "cuda" and not torch.cuda.is_available():
            raise ServeError("there is no CUDA device that torch can use; serve with --device cpu")
        self._device = torch.device(kind)
        self._threads = options.replica_threads
        torch.set_num_threads(self._threads)
        self._spec, self._variant, self._seed = spec, variant, options.seed
        cache = options.cache_folder

        started = time.perf_counter()
        say("loading weights")
        module, self._weights = weights_of.load(spec, options.weights, options.seed, cache)
        module = module.to(self._device)
        torch.inference_mode().__enter__()  # for the rest of this thread's life
        rows = options.buckets or staging.sizes(options.max_batch or spec.max_batch[kind == "cuda"])
        buckets = staging.buckets(rows, spec.lengths)
        self.runner = TorchRunner(spec, self._device, buckets, options.seed)
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
        self.reference = partial(_reference, module, self._device) if options.parity_share else None
        self.compiler = Compiler()
        self.compiler.ready(options.fail_on_recompile)
        self.runner.facts = self._facts

    def _warm(self, module: torch.nn.Module, cache: Path, say: Say) -> str:
        """Builds the variant and calls every bucket; says whether compiled artefacts were found."""
        if not self._variant.compiles:
            self._try_modes(module, say)
            return "cold"
        allow_compilations(2 * len(self.runner.buckets))
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
                self.runner.call = self._variant.build(module, mode)
                for number, bucket in enumerate(self.runner.buckets, start=1):
                    say(f"warming bucket {number} of {len(self.runner.buckets)} ({bucket} rows)")
                    example = [self.runner.example(bucket, self._seed)]
                    for _ in range(warmup.CALLS):
                        self.runner.execute(bucket, example)
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
        for bucket in self.runner.buckets:
            example = [self.runner.example(bucket, seed + 1 + bucket.rows)]
            # cloned at once: the next replay of a CUDA graph overwrites its outputs
            found.append(tuple(tensor.cpu().clone() for tensor in self.runner.execute(bucket, example)))
            wanted.append(tuple(tensor.cpu() for tensor in as_tuple(module(*self.runner.inputs(bucket)))))
        join = [[torch.cat(pieces) for pieces in zip(*side, strict=True)] for side in (found, wanted)]
        return parity.compare(*join)

    def _facts(self) -> dict[str, Any]:
        import torch

        cuda = self._device.type == "cuda"
        return {
            "device_name": torch.cuda.get_device_name(0) if cuda else "cpu",
            "precision": self._variant.precision,
            "compile_mode": self._mode,
            "threads": self._threads,
            "start": self._start,
            "load_s": round(self._load_s, 3),
            "warmup_s": round(self._warmup_s, 3),
            "weights": self._weights.origin,
            "weights_digest": self._weights.digest,
            "parity_ok": self._parity_ok,
            **{f"parity_{key}": value for key, value in asdict(self.parity).items()},
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if cuda else _peak_memory_bytes(),
            **self.compiler.facts(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda if cuda else None,
            "tf32_convolutions": cuda and torch.backends.cudnn.allow_tf32,
            "host": socket.gethostname(),
        }


def _reference(module: torch.nn.Module, device: torch.device, inputs: Sequence[Array]) -> tuple[torch.Tensor, ...]:
    """What the eager fp32 module makes of a request's arrays."""
    import torch

    return as_tuple(module(*(torch.from_numpy(array).to(device) for array in inputs)))


def _forget_compiled() -> None:
    import torch

    torch._dynamo.reset()


def _peak_memory_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
