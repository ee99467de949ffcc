"""A few layers of a few microseconds: the harness's own limit with a real module behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrate.serve import wire
from tailrate.serve.spec import ModelSpec, ServeError, Tensors
from tailrate.serve.wire import Array, TensorSpec

if TYPE_CHECKING:
    import torch

CLASSES = 10


def spec(*, width: int = 64, depth: int = 1) -> ModelSpec:
    """`depth` hidden layers of `width`, then ten outputs."""
    if not 1 <= width <= 1 << 14 or not 1 <= depth <= 256:
        raise ServeError("mlp takes width from 1 to 16384 and depth from 1 to 256")
    inputs = (TensorSpec("x", "FP32", (-1, width)),)

    def prepare(tensors: Tensors) -> dict[str, Array]:
        wire.check(tensors, inputs)
        return dict(tensors)

    def build() -> torch.nn.Module:
        from torch import nn

        hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, CLASSES))

    return ModelSpec(
        name="mlp",
        inputs=inputs,
        outputs=(TensorSpec("y", "FP32", (-1, CLASSES)),),
        default_outputs=("y",),
        prepare=prepare,
        example=lambda rows, seed: {"x": np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)},
        build=build,
        max_batch=(64, 256),
        settings={"width": width, "depth": depth},
    )
