"""How a runner comes to be ready: weights, the variant built, every bucket warm, and compared with eager fp32.

All of it happens in the engine's thread, which then serves. Owns the order of these steps and what the
metadata says of them afterwards.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tailrate.serve import machine, variants
from tailrate.serve.models import _weights as weights_of
from tailrate.serve.options import ServeOptions
from tailrate.serve.runner import buckets as bucket_memory
from tailrate.serve.runner import cache_folders, parity, sizes
from tailrate.serve.runner.buckets import Bucket
from tailrate.serve.runner.compile_cache import Artefacts
from tailrate.serve.runner.compile_watch import Compiler, allow_compilations, cudagraph_skips
from tailrate.serve.runner.runner import NullRunner, Runner, TorchRunner, first_line, out_of_memory
from tailrate.serve.spec import BuildContext, ModelSpec, ServeError, Variant, as_tuple
from tailrate.serve.variants._precision import NO_TF32, TF32, cast, set_tf32, without_tf32
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    import torch

    from tailrate.serve.runner.parity import Parity

Say = Callable[[str], None]

CUDA_CALLS = 3
"""Per bucket: the first compiles, the second may record a CUDA graph, the third runs as those to come."""


class Watcher(Protocol):
    """Looks on while the engine runs, and is told what it may look at once the model is ready."""

    def opened(self, compiler: Compiler, reference: Any, failure: Callable[[Parity], str | None]) -> None: ...


@contextmanager
def open_runner(
    spec: ModelSpec, variant: Variant, options: ServeOptions, say: Say, watch: Watcher | None = None
) -> Iterator[Runner]:
    """To be used by this thread, while the block lasts."""
    if spec.build is None:
        yield NullRunner(spec, options.largest_batch or spec.max_batch[0])
        return
    with opened(spec, variant, options, say) as opening:
        if watch is not None:
            watch.opened(opening.compiler, opening.reference, lambda found: found.failure(variant.precision))
        yield opening.runner


@contextmanager
def opened(spec: ModelSpec, variant: Variant, options: ServeOptions, say: Say) -> Iterator[Opening]:
    """In inference mode, which is the thread's own: nothing that is called within records anything for gradients."""
    say("loading torch")
    import torch

    with torch.inference_mode():
        yield Opening(spec, variant, options, say)


class _SeenError(Exception):
    """All that was to be found out is: what a submodule was called with."""


class _NoBetterError(Exception):
    """What was made anew fails as what was kept did."""


class Opening:
    """One runner on its way to the first request, and what is known of it since."""

    def __init__(self, spec: ModelSpec, variant: Variant, options: ServeOptions, say: Say) -> None:
        import torch

        kind = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        if kind == "cuda" and not torch.cuda.is_available():
            raise ServeError("there is no CUDA device that torch can use; serve with --device cpu")
        if why := variants.refusal(variant, spec, kind):
            raise ServeError(why)
        self._device = torch.device(kind)
        self._threads = options.replica_threads
        torch.set_num_threads(self._threads)
        self._spec, self._variant, self._seed, self._say = spec, variant, options.seed, say
        self.core = spec.core

        started = time.perf_counter()
        say("loading weights")
        self._places = options.cache_folder, options.baked_folder
        with torch.inference_mode(False):  # see `precision.cast`
            module, self._weights = weights_of.load(spec, options.weights, options.seed, *self._places)
            module = module.to(self._device)
        self._weights_bytes = sizes.module_bytes(module)
        self.runner = self._runner_of(module, options)
        self._load_s = time.perf_counter() - started
        self._open(module, options)
        failure = self.parity.failure(variant.precision)
        if failure and not options.keep_on_parity_failure:
            raise ServeError(f"{spec.name}/{variant.name} is not served: {failure}")
        self._parity_ok = failure is None
        self._peaks = sizes.peak_memory(self.runner.execute, self.runner.buckets) if kind == "cuda" else {}
        self.reference = self._reference_of(module) if options.parity_share else None
        self.compiler = Compiler()
        self.compiler.ready(options.fail_on_recompile)
        self.runner.facts = self._facts

    def _runner_of(self, module: torch.nn.Module, options: ServeOptions) -> Any:
        spec = self._spec
        rows = options.buckets or bucket_memory.sizes(options.max_batch or spec.max_batch[self._device.type == "cuda"])
        return TorchRunner(spec, self._device, bucket_memory.buckets(rows, spec.lengths), options.seed)

    def _reference_of(self, module: torch.nn.Module) -> Any:
        """What a response is compared with."""
        return partial(_reference, module, self._device)

    def _open(self, module: torch.nn.Module, options: ServeOptions) -> None:
        """Builds the variant, calls every bucket, compares; with what was kept, where the variant keeps anything."""
        artefacts = Artefacts.of(
            self._spec, self._variant.name, self._weights.digest, self._device.type, self._threads, *self._places
        )
        self._artefact_bytes = 0
        with artefacts.used(self._say) if self._variant.keeps else nullcontext():
            try:
                self._warm_and_compare(module, artefacts)
            except Exception as problem:
                if not artefacts.found:
                    raise
                self._say(f"the kept artefacts do not work and are made anew: {first_line(problem)}")
                with suppress(_NoBetterError), artefacts.anew():
                    self._warm_and_compare(module, artefacts)
                    if self.parity.failure(self._variant.precision):
                        raise _NoBetterError from problem
            if self._variant.keeps:
                self._artefact_bytes = cache_folders.size(artefacts.folder)
        self._start = "warm" if artefacts.found else "cold"

    def _warm_and_compare(self, module: torch.nn.Module, artefacts: Artefacts) -> None:
        started = time.perf_counter()
        self._try_modes(module, artefacts.folder)
        self._warmup_s = time.perf_counter() - started
        self._say("comparing with eager fp32")
        buckets = str(self.runner.buckets)
        known = artefacts.notes.get("parity") if artefacts.found and artefacts.notes["buckets"] == buckets else None
        # the same code and weights gave these figures: the smallest bucket shows that it is still the same
        some = self.runner.buckets[:1] if known else self.runner.buckets
        self.parity = self._compare(module, some)
        if artefacts.found and (why := self.parity.failure(self._variant.precision)) and not self._failed(artefacts):
            raise ServeError(why)  # made of something else, for all that the key knows
        if known:
            self.parity = parity.worst(self.parity, parity.Parity(**known))
        elif self._variant.keeps:
            artefacts.keep({"parity": asdict(self.parity), "buckets": buckets})

    def _failed(self, artefacts: Artefacts) -> bool:
        """Whether these were no better when they were made."""
        known = artefacts.notes.get("parity")
        return known is not None and parity.Parity(**known).failure(self._variant.precision) is not None

    def _try_modes(self, module: torch.nn.Module, folder: Path) -> None:
        modes = self._variant.modes(getattr(module, self._spec.core) if self._spec.core else module, self._device.type)
        set_tf32(*TF32.get(self._variant.precision, NO_TF32))
        for mode in modes:
            try:
                self._mode = mode
                self.runner.call = self._built(module, mode, folder)
                before = cudagraph_skips()
                self._warm()
                if mode == "reduce-overhead" and (skips := cudagraph_skips() - before):
                    raise ServeError(f"torch skipped CUDA graphs {skips} times, which are all that this mode adds")
                return
            except Exception as problem:
                if mode == modes[-1]:
                    raise
                self._say(f"mode {mode} fails to warm up, trying the next: {first_line(problem)}")
                _forget_compiled()

    def _built(self, module: torch.nn.Module, mode: str, folder: Path) -> Any:
        """The whole, or the whole around its core in this variant."""
        core = self._spec.core
        made: torch.nn.Module = getattr(module, core) if core else module
        examples = []
        for bucket in self.runner.buckets:
            inputs = tuple(self.runner.inputs(bucket, [self.runner.example(bucket, self._seed)]))
            examples.append(seen_by(made, module, inputs) if core else inputs)
        kind = self._device.type
        ready = cast(made, self._variant.precision, kind)
        built = self._variant.build(BuildContext(self._spec, ready, tuple(examples), kind, mode, folder, self._say))
        whole: Any = module
        return partial(whole.with_core, built) if core else built

    def _warming(self, what: str, unit: str = "") -> Iterator[Any]:
        """Each of the runner's shapes, and says so; the compiler is loaded by what was built, or by its first call."""
        for number, bucket in enumerate(self.runner.buckets, start=1):
            allow_compilations(2 * len(self.runner.buckets))
            self._say(f"warming {what} {number} of {len(self.runner.buckets)} ({bucket}{unit})")
            yield bucket

    def _warm(self) -> None:
        calls = CUDA_CALLS if self._device.type == "cuda" else 1
        for bucket in self._warming("bucket", " rows"):
            example = [self.runner.example(bucket, self._seed)]
            fewer = [other.rows for other in self.runner.buckets if other.rows < bucket.rows]
            try:
                for _ in range(calls):
                    self.runner.execute(bucket, example)
                if self.runner.depth > 1:
                    self.runner.rehearse(bucket, example)
                continue
            except Exception as problem:
                if not fewer or not out_of_memory(problem):
                    raise
            left = self.runner.drop_buckets_above(fewer[-1])  # only now is gone what the batch held that failed
            self._say(f"{bucket} rows do not fit into memory: batches hold at most {left}")
            return

    def _compare(self, module: torch.nn.Module, buckets: Sequence[Bucket]) -> parity.Parity:
        """On inputs that the warm-up has not seen."""
        found: list[tuple[torch.Tensor, ...]] = []
        wanted: list[tuple[torch.Tensor, ...]] = []
        for bucket in buckets:
            example = [self.runner.example(bucket, self._seed + 1 + bucket.rows)]
            # cloned at once: the next replay of a CUDA graph overwrites its outputs
            found.append(tuple(tensor.cpu().clone() for tensor in self.runner.execute(bucket, example)))
            with without_tf32():
                wanted.append(tuple(tensor.cpu() for tensor in as_tuple(module(*self.runner.inputs(bucket)))))
        join = [[_joined(pieces) for pieces in zip(*side, strict=True)] for side in (found, wanted)]
        return parity.compare(*join)

    def _facts(self) -> dict[str, Any]:
        import torch

        cuda = self._device.type == "cuda"
        return {
            "device_name": torch.cuda.get_device_name(0) if cuda else f"CPU {machine.cpu_model()}",
            "precision": self._variant.precision,
            "compile_mode": self._mode or self._variant.name,
            "threads": self._threads,
            "start": self._start,
            "load_s": round(self._load_s, 3),
            "warmup_s": round(self._warmup_s, 3),
            "weights": self._weights.origin,
            "weights_digest": self._weights.digest,
            "weights_bytes": self._weights_bytes,
            "artefact_bytes": self._artefact_bytes,
            "parity_ok": self._parity_ok,
            **{f"parity_{key}": value for key, value in asdict(self.parity).items()},
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if cuda else _peak_memory_bytes(),
            **self._peaks,
            **self.compiler.facts(),
            "torch": str(torch.__version__),  # its own class of text would make who unpickles it import torch
            "cuda": torch.version.cuda if cuda else None,
            "host": socket.gethostname(),
        }


def _reference(module: torch.nn.Module, device: torch.device, inputs: Sequence[Array]) -> tuple[torch.Tensor, ...]:
    """What the eager fp32 module makes of a request's arrays."""
    import torch

    with without_tf32():
        return as_tuple(module(*(torch.from_numpy(array).to(device) for array in inputs)))


def seen_by(part: torch.nn.Module, whole: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What a submodule is called with, the first time; nothing is done beyond that."""

    def stop(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        raise _SeenError(given)

    hook = part.register_forward_pre_hook(stop)
    try:
        whole(*inputs)
    except _SeenError as seen:
        return seen.args[0]  # type: ignore[no-any-return]
    finally:
        hook.remove()
    raise ServeError("the module never calls the part of it that is named as its core")


def _joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """One row after the other, however long they are."""
    import torch

    flat = [piece.flatten(1) for piece in pieces]
    width = max(piece.shape[1] for piece in flat)
    return torch.cat([torch.nn.functional.pad(piece, (0, width - piece.shape[1])) for piece in flat])


def _forget_compiled() -> None:
    import torch

    torch._dynamo.reset()


def _peak_memory_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
