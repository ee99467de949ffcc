"""What a model can do with no server around it: batches of each size, one after the other, in the thread that owns it.

The ceiling that a served endpoint is held against. One process measures one variant: what stays in memory or in the
compiler's caches would be the next one's. Latency is a call's own, from start to end on the device (CUDA events) or
on the host's clock; throughput is of calls that do not wait for one another. The same inputs go through the eager
module in turn, call by call, so that a machine's moods are in both: the ratio is the median over pairs of neighbours.

It prints a line of JSON:

    python -m tailrate.serve.bare_loop '{"model": "resnet50", "variant": "compiled", "batches": [1, 4]}'
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.serve import variants
from tailrate.serve.engine.profiling import table_of
from tailrate.serve.machine import cores, cpu_model, first_line_of
from tailrate.serve.options import ServeOptions
from tailrate.serve.runner.buckets import Bucket
from tailrate.serve.runner.open_runner import CUDA_CALLS, Opening, opened, seen_by
from tailrate.serve.runner.runner import first_line, out_of_memory
from tailrate.serve.spec import ServeError, install
from tailrate.serve.variants._precision import without_tf32

if TYPE_CHECKING:
    import torch

LEAST_CALLS = 5
DRIVER = Path("/proc/driver/nvidia/version")
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
FACTS = (
    "device_name", "precision", "compile_mode", "threads", "start", "load_s", "warmup_s", "weights", "weights_bytes",
    "artefact_bytes", "parity_ok", "parity_relative_error", "parity_cosine", "parity_top1_agreement", "compilations",
    "recompiles", "graph_breaks", "graph_break_places", "cudagraph_skips",
    "peak_memory_bytes", "reserved_memory_bytes", "torch", "cuda",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """One cell of a table: a model in a variant, at some batch sizes."""

    model: str
    variant: str
    batches: Sequence[int]
    settings: Mapping[str, str] = field(default_factory=dict)
    weights: str = "random"
    device: str = "auto"
    threads: int | None = None
    cache_dir: str | None = None
    seconds: float = 2.0
    """Spent on the latency of each batch size, the eager module's share included."""
    most_calls: int = 2000
    timed: bool = True
    """False: only how long it takes to be ready, as at a second start."""
    core: bool = False
    """Whether a call is of the model's core alone, such as one step of the UNet, rather than of the whole."""
    profile: str = ""
    """A folder for traces: `calls` of the smallest and of the largest batch are profiled, and nothing is timed."""
    calls: int = 10

    def options(self) -> ServeOptions:
        return ServeOptions(
            (self.model,), (self.variant,), device=self.device, weights=self.weights, threads=self.threads,
            cache_dir=self.cache_dir, settings=self.settings, buckets=tuple(self.batches), parity_share=0.1,
            keep_on_parity_failure=True,
        )  # fmt: skip


def machine(device: str) -> dict[str, Any]:
    """What would be measured on, for whoever reads the figures elsewhere."""
    import torch

    kind = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise ServeError("there is no CUDA device that torch can use; measure with --device cpu")
    cpu = f"{cores()} cores of {cpu_model()}"
    found = {"kind": kind, "cpu": cpu, "torch": torch.__version__}
    if kind == "cpu":
        return found | {"device": f"a CPU ({torch.backends.cpu.get_cpu_capability()})"}
    return found | {"device": torch.cuda.get_device_name(0), "driver": first_line_of(DRIVER, "NVRM version")}


def measured(asked: Asked, say: Callable[[str], None]) -> dict[str, Any]:
    """The cell's figures; or `refused`, what cannot be, or `failed`, what went wrong, in a sentence."""
    with ExitStack() as kept:
        return _measured(asked, say, kept)


def _measured(asked: Asked, say: Callable[[str], None], kept: ExitStack) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        options = asked.options()
        opening = kept.enter_context(opened(options.spec(asked.model), variants.load(asked.variant), options, say))
    except ServeError as problem:
        return {"refused": str(problem)}
    except Exception as problem:
        return {"failed": first_line(problem)}
    found: dict[str, Any] = {"ready_s": time.perf_counter() - began}
    facts = opening.runner.parameters()
    found |= {name: facts[name] for name in FACTS if name in facts}
    if not asked.timed:
        return found
    loop = Loop(opening, asked.seconds, asked.most_calls, asked.core)
    if asked.profile:
        folder, name = Path(asked.profile), f"{asked.model}-{asked.variant}"
        ends = sorted({opening.runner.buckets[0], opening.runner.buckets[-1]})
        return found | {
            "profiles": {
                str(bucket.rows): loop.profile(bucket, asked.calls, folder / f"{name}-{bucket}.json.gz")
                for bucket in ends
            }
        }
    found["batches"] = {}
    for bucket in opening.runner.buckets:
        say(f"{bucket} rows")
        figures = _or_too_large(lambda bucket=bucket: loop.batch(bucket))  # type: ignore[misc]
        peak = facts.get(f"batch_{bucket}_peak_memory_bytes")
        found["batches"][str(bucket.rows)] = figures | ({} if peak is None else {"peak_memory_bytes": peak})
    found["new_shape"] = loop.new_shape()
    return found


def _or_too_large(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return measure()
    except Exception as problem:
        if not out_of_memory(problem):
            raise
        return {"failed": "does not fit into memory"}


class Loop:
    """Calls of one variant, and of the eager module on the same inputs."""

    def __init__(self, opening: Opening, seconds: float, most_calls: int, core: bool) -> None:
        import torch

        assert opening.reference is not None
        self._runner, self._seconds, self._most = opening.runner, seconds, most_calls
        self._cuda = torch.cuda if opening.runner.device != "cpu" else None
        self._whole: torch.nn.Module = opening.reference.args[0]
        self._core = opening.core if core else ""
        self._call: Callable[..., Any] = self._runner.call
        self._eager = self._whole
        if self._core:
            self._call, self._eager = opening.runner.call.args[0], getattr(self._whole, self._core)

    def batch(self, bucket: Bucket) -> dict[str, Any]:
        """Milliseconds of a call, its speed against eager, and rows per second."""
        inputs = self._inputs(bucket)
        took: tuple[list[float], list[float]] = ([], [])
        sides = (self._call, nullcontext, took[0]), (self._eager, without_tf32, took[1])
        for call, multiplying, _ in sides:
            with multiplying():
                call(*inputs)
        for _ in self._until(self._seconds):
            for call, multiplying, times in sides:
                with multiplying():
                    times.append(self._ms(call, inputs))
        own, eager = map(np.asarray, took)
        enough = math.ceil(self._seconds / 2 / max(1e-6, float(np.median(own)) / 1e3))
        return {
            "calls": len(own),
            "p50_ms": float(np.median(own)),
            "p99_ms": float(np.quantile(own, 0.99, method="higher")),
            "eager_p50_ms": float(np.median(eager)),
            "speed": median(eager / own),
            "rows_s": self._rows_s(bucket, inputs, min(max(LEAST_CALLS, enough), self._most)),
        }

    def new_shape(self) -> dict[str, Any]:
        """A call with a batch that no bucket has: the first, and one as those to come."""
        rows = self._runner.max_batch + 1
        bucket = Bucket(rows, self._runner.buckets[-1].length)
        try:
            inputs = [tensor.clone() for tensor in self._grown(rows)]
            calls = 2 if self._cuda is None else CUDA_CALLS
            first, *_, again = (self._ms(self._call, inputs) for _ in range(calls))
        except Exception as problem:  # a graph of one size, or a variant that is exact about shapes
            return {"rows": rows, "failed": first_line(problem)}
        return {"rows": bucket.rows, "first_ms": first, "again_ms": again}

    def _grown(self, rows: int) -> Iterator[torch.Tensor]:
        for tensor in self._inputs(self._runner.buckets[-1]):
            yield tensor[:1].expand(rows, *tensor.shape[1:])

    def _inputs(self, bucket: Bucket) -> list[torch.Tensor]:
        """Not the runner's own buffers, so that the eager module's calls can't disturb a variant that owns them."""
        whole = self._runner.inputs(bucket, [self._runner.example(bucket, 1)])
        return [tensor.clone() for tensor in (seen_by(self._eager, self._whole, whole) if self._core else whole)]

    def _rows_s(self, bucket: Bucket, inputs: Sequence[torch.Tensor], calls: int) -> float:
        """Of so many calls that are begun without waiting for the one before."""
        began = time.perf_counter()
        for _ in range(calls):
            self._call(*inputs)
        self._synchronize()
        return calls * bucket.rows / (time.perf_counter() - began)

    def profile(self, bucket: Bucket, calls: int, path: Path) -> dict[str, Any]:
        """Where the time of a call goes: by operator, and how much of it the device was busy."""
        from torch._C._autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        inputs = self._inputs(bucket)
        for _ in range(LEAST_CALLS):
            self._call(*inputs)
        self._synchronize()
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]) as recorded:
            began = time.perf_counter()
            for _ in range(calls):
                self._call(*inputs)
            self._synchronize()
            wall_ms = (time.perf_counter() - began) * 1e3
        path.parent.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(path))
        found = {"calls": calls, "ms": wall_ms / calls, "trace": str(path), "table": table_of(recorded)}
        if self._cuda is None:
            return found
        on_device = [event for event in recorded.events() if event.device_type == DeviceType.CUDA]
        copies = [event for event in on_device if event.name.startswith(("Memcpy", "Memset"))]
        launches = sum(event.name.startswith(LAUNCHES) for event in recorded.events())
        busy_ms = sum(event.device_time for event in on_device) / 1e3
        return found | {
            "kernels": (len(on_device) - len(copies)) / calls,
            "copies": len(copies) / calls,
            "launches": launches / calls,
            "device_ms": busy_ms / calls,
            "device_busy": min(1.0, busy_ms / wall_ms),
        }

    def _synchronize(self) -> None:
        if self._cuda is not None:
            self._cuda.synchronize()

    def _until(self, seconds: float) -> Iterator[None]:
        end = time.perf_counter() + seconds
        for number in range(self._most):
            if number >= LEAST_CALLS and time.perf_counter() > end:
                return
            yield

    def _ms(self, call: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> float:
        if self._cuda is None:
            began = time.perf_counter()
            call(*inputs)
            return (time.perf_counter() - began) * 1e3
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(*inputs)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def main() -> None:
    """In the thread that opens the model, as in a replica: compilers and CUDA graphs are bound to it."""
    if find_spec("torch") is None:
        raise SystemExit(f"tailrate: measuring a model needs torch: {install('serve')}")
    if sys.argv[1] == "--machine":
        try:
            print(json.dumps(machine(sys.argv[2])))
        except ServeError as problem:
            raise SystemExit(f"tailrate: {problem}") from None
        return
    given = json.loads(sys.argv[1])
    known = {one.name for one in fields(Asked)}
    asked = Asked(**{name: value for name, value in given.items() if name in known})
    found: list[dict[str, Any]] = []

    def work() -> None:
        found.append(measured(asked, lambda line: print(line, file=sys.stderr, flush=True)))

    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    thread = threading.Thread(target=work, name="engine")
    thread.start()
    thread.join()
    print(json.dumps(found[0] if found else {"failed": "the process ended; its log says why"}), flush=True)
    os._exit(0)  # nothing of torch's is worth waiting for


def _end_with(parent: int) -> None:
    """Nobody waits for the figures of a measurement whose process was killed, and the next one wants the machine."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
