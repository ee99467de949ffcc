"""`torch.compile` with static shapes, in the best mode known for the device.

On CUDA that is reduce-overhead (CUDA graphs), and the default mode where that fails to warm up. On the
CPU modules with convolutions gain most from frozen weights (BatchNorm folded, weights packed for the
kernel); others gain nothing from it and would start slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrate.serve.spec import Variant
from tailrate.serve.variants._inductor import FREEZING, build
from tailrate.serve.variants._precision import FLOATS, convolves

if TYPE_CHECKING:
    import torch


def modes(module: torch.nn.Module, device: str) -> tuple[str, ...]:
    if device == "cuda":
        return ("reduce-overhead", "default")
    return ("default" + FREEZING, "default") if convolves(module) else ("default",)


VARIANT = Variant(
    name="compiled",
    what="torch.compile, the best mode for the device",
    build=build,
    precisions=FLOATS,
    modes=modes,
    stateful=True,
    keeps=True,
)
