"""TensorRT by way of torch.compile's backend of that name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrate.serve.spec import BuildContext, Variant


def build(making: BuildContext) -> Callable[..., Any]:
    import torch
    import torch_tensorrt  # noqa: F401  # registers the backend

    return torch.compile(making.module, backend="tensorrt", dynamic=False)


VARIANT = Variant(
    name="tensorrt",
    what="TensorRT",
    build=build,
    precisions=("fp32", "fp16"),
    devices=("cuda",),
    packages=("torch_tensorrt",),
    extra="tensorrt",
)
