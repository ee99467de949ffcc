"""`torch.compile` with static shapes, in the best mode known for the device.

On CUDA that is reduce-overhead (CUDA graphs), and the default mode where that fails to warm up. On the
CPU modules with convolutions gain most from frozen weights (BatchNorm folded, weights packed for the
kernel); others gain nothing from it and would start slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from serve.spec import ModelSpec, Variant

if TYPE_CHECKING:
    import torch


def modes(module: torch.nn.Module, device: str) -> tuple[str, ...]:
    if device == "cuda":
        return ("reduce-overhead", "default")
    from torch.nn.modules.conv import _ConvNd

    convolves = any(isinstance(part, _ConvNd) for part in module.modules())
    return ("default+freezing", "default") if convolves else ("default",)


def build(module: torch.nn.Module, mode: str) -> Callable[..., Any]:
    import torch

    torch._inductor.config.freezing = mode.endswith("+freezing")
    return torch.compile(module, dynamic=False, fullgraph=False, mode=mode.removesuffix("+freezing"))


def refuse(spec: ModelSpec, device: str) -> str | None:
    return f"{spec.name} has no module to compile; serve it as {spec.name}/eager" if spec.build is None else None


VARIANT = Variant(name="compiled", precision="fp32", build=build, modes=modes, refuse=refuse, compiles=True)
