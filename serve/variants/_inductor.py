"""What the variants of `torch.compile` share: static shapes, one mode, weights frozen where that is asked for.

Every bucket is compiled ahead of its first call and kept as a file, so that the next start neither traces nor compiles.
That asks for a graph without breaks, and there are no guards: a bucket's shapes are all that may come. Where a mode has
CUDA graphs, what was compiled ahead is recorded as one here: what is loaded from a file has none of the compiler's.
What has breaks and frozen weights (which such a file cannot hold) is compiled as it is called, and finds the compiler's
cache at the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tailrate.serve.spec import BuildContext, Variant
from tailrate.serve.variants._graphs import recorded
from tailrate.serve.variants._precision import FLOATS
from tailrate.serve.variants._shapes import Inputs, per_bucket

FREEZING = "+freezing"
GRAPHS = "triton.cudagraphs"
"""The compiler's own name for whether a mode has CUDA graphs."""


def build(making: BuildContext) -> Callable[..., Any]:
    import torch

    freeze = torch._inductor.config.freezing = making.mode.endswith(FREEZING)
    mode = making.mode.removesuffix(FREEZING)
    if not freeze and hasattr(torch.compiler, "load_compiled_function"):
        if hasattr(torch._dynamo.config, "enable_aot_compile"):  # torch 2.11 does it only when told so
            torch._dynamo.config.enable_aot_compile = True
        try:
            return _ahead(making, mode)
        except Exception as problem:
            reason = str(problem).strip().partition("\n")[0]
            making.say(f"it cannot be compiled ahead, so each start traces it again: {reason[:200]}")
            torch._dynamo.reset()
    return torch.compile(making.module, dynamic=False, fullgraph=False, mode=mode)


def _ahead(making: BuildContext, mode: str) -> Callable[..., Any]:
    import torch

    options = dict(torch._inductor.list_mode_options(mode))
    graphs = options.pop(GRAPHS, False) and making.device == "cuda"
    pool = torch.cuda.graph_pool_handle() if graphs else None

    def make(example: Inputs, name: str) -> Callable[..., Any]:
        call = _from_file(making, options, example, name)
        return recorded(call, example, pool) if graphs else call

    return per_bucket(making, make)


def _from_file(making: BuildContext, options: dict[str, Any], example: Inputs, name: str) -> Callable[..., Any]:
    """One bucket, compiled where there is no file of it yet."""
    import torch

    kept = making.folder / f"{name}.compiled"
    if kept.exists():
        with kept.open("rb") as file:
            found: Any = torch.compiler.load_compiled_function(file)
    else:
        asked = {**options, "guard_filter_fn": _no_guards}
        compiled: Any = torch.compile(type(making.module).forward, fullgraph=True, dynamic=False, options=asked)
        found = compiled.aot_compile(((making.module, *example), {}))
        found.save_compiled_function(str(kept))
    return partial(found, making.module)


def _no_guards(guards: Any) -> list[bool]:
    return [False for _ in guards]


def in_mode(mode: str, what: str, devices: tuple[str, ...] = ("cpu", "cuda")) -> Variant:
    """`torch.compile` in just this mode."""
    return Variant(
        name=f"compiled-{mode}",
        what=what,
        build=build,
        precisions=FLOATS,
        modes=lambda module, device: (mode,),
        devices=devices,
        stateful=True,
        keeps=True,
    )
