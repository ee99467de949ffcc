"""A module in another precision, with fp32 on the outside: inputs are cast on the device, outputs cast back.

The eager fp32 module is shared with the reference and never changed; a cast one is a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tailrate.serve.spec import as_tuple

if TYPE_CHECKING:
    import torch

FLOATS = ("fp32", "tf32", "tf32conv", "fp16", "bf16", "amp")
"""What any variant of a torch module can be asked for: amp is autocast, to bf16 on the CPU and fp16 on CUDA."""
NO_TF32 = (False, False)
TF32 = {"tf32": (True, True), "tf32conv": (False, True)}
"""Of these, whether matrices and whether convolutions are multiplied with ten bits of each factor. `tf32conv` is what
torch does on CUDA unless it is told otherwise, and so what most figures that are published mean by fp32."""


def convolves(module: torch.nn.Module) -> bool:
    from torch.nn.modules.conv import _ConvNd

    return any(isinstance(part, _ConvNd) for part in module.modules())


def cast(module: torch.nn.Module, precision: str, device: str) -> torch.nn.Module:
    """The module in that precision; itself in fp32, in tf32 (see `set_tf32`), and where a variant casts for itself."""
    import torch

    if precision == "amp":
        return _autocast(module, device)
    if precision not in ("fp16", "bf16"):
        return module
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    with torch.inference_mode(False):  # exporters take no weights that were made in it
        return _cast(copy.deepcopy(module).to(dtype), dtype)


def _cast(inner: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    import torch

    class Cast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return _fp32(self.inner(*(x.to(dtype) if x.is_floating_point() else x for x in inputs)))

    return Cast().eval()


def _autocast(inner: torch.nn.Module, device: str) -> torch.nn.Module:
    import torch

    dtype = torch.float16 if device == "cuda" else torch.bfloat16

    class Autocast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with torch.autocast(device, dtype):
                found = self.inner(*inputs)
            return _fp32(found)

    return Autocast().eval()


def _fp32(found: Any) -> tuple[torch.Tensor, ...]:
    return tuple(y.float() if y.is_floating_point() else y for y in as_tuple(found))


def set_tf32(matrices: bool, convolutions: bool) -> None:
    """What is multiplied so on CUDA from now on, in all of this process."""
    import torch

    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matrices, convolutions


@contextmanager
def without_tf32() -> Iterator[None]:
    """For the reference, which is fp32 to the last bit that the device can give."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    set_tf32(*NO_TF32)
    try:
        yield
    finally:
        set_tf32(*before)
