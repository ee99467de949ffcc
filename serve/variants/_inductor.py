"""What the variants of `torch.compile` share: static shapes, one mode, weights frozen where that is asked for.

On the CPU every bucket is compiled ahead of its first call and kept as a file, so that the next start neither
traces nor compiles. That asks for a graph without breaks, and there are no guards: a bucket's shapes are all that may
come. What has breaks, frozen weights (which such a file cannot hold) and everything on CUDA is compiled as it is
called, and finds the compiler's cache at the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tailrate.serve.spec import BuildContext, Variant
from tailrate.serve.variants._precision import FLOATS
from tailrate.serve.variants._shapes import Inputs, per_bucket

FREEZING = "+freezing"


def build(making: BuildContext) -> Callable[..., Any]:
    import torch

    freeze = torch._inductor.config.freezing = making.mode.endswith(FREEZING)
    mode = making.mode.removesuffix(FREEZING)
    if making.device == "cpu" and not freeze and hasattr(torch.compiler, "load_compiled_function"):
        if hasattr(torch._dynamo.config, "enable_aot_compile"):  # torch 2.11 does it only when told so
            torch._dynamo.config.enable_aot_compile = True
        try:
            return per_bucket(making, partial(_ahead, making, mode))
        except Exception as problem:
            reason = str(problem).strip().partition("\n")[0]
            making.say(f"it cannot be compiled ahead, so each start traces it again: {reason[:200]}")
            torch._dynamo.reset()
    return torch.compile(making.module, dynamic=False, fullgraph=False, mode=mode)


def _ahead(making: BuildContext, mode: str, example: Inputs, name: str) -> Callable[..., Any]:
    """One bucket, from its file where there is one."""
    import torch

    kept = making.folder / f"{name}.compiled"
    if kept.exists():
        with kept.open("rb") as file:
            found: Any = torch.compiler.load_compiled_function(file)
    else:
        options = {**torch._inductor.list_mode_options(mode), "guard_filter_fn": _no_guards}
        compiled: Any = torch.compile(type(making.module).forward, fullgraph=True, dynamic=False, options=options)
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
