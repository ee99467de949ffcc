"""What the variants of `torch.compile` share: static shapes, one mode, weights frozen where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from serve.precision import FLOATS
from serve.spec import Making, Variant

FREEZING = "+freezing"


def build(making: Making) -> Callable[..., Any]:
    import torch

    torch._inductor.config.freezing = making.mode.endswith(FREEZING)
    return torch.compile(making.module, dynamic=False, fullgraph=False, mode=making.mode.removesuffix(FREEZING))


def in_mode(mode: str, what: str, devices: tuple[str, ...] = ("cpu", "cuda")) -> Variant:
    """`torch.compile` in just this mode."""
    return Variant(
        name=f"compiled-{mode}",
        what=what,
        build=build,
        precisions=FLOATS,
        modes=lambda module, device: (mode,),
        devices=devices,
        keeps=True,
    )
