"""What image classifiers share: one fp32 image per row in, logits out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from serve import wire
from serve.spec import ModelSpec, Tensors
from serve.wire import Array, TensorSpec, WireError

if TYPE_CHECKING:
    import torch

SHAPE = (3, 224, 224)


def image_model(
    name: str,
    *,
    classes: int,
    build: Callable[[], torch.nn.Module],
    pretrained: Callable[[str], torch.nn.Module] | None = None,
) -> ModelSpec:
    """A model that takes `image` and returns `logits`."""
    inputs = (TensorSpec("image", "FP32", (-1, *SHAPE)),)

    def prepare(tensors: Tensors) -> dict[str, Array]:
        wire.check(tensors, inputs)
        if not np.isfinite(tensors["image"]).all():
            raise WireError(400, "input 'image' holds NaN or infinity")
        return {"image": tensors["image"]}

    def example(rows: int, seed: int) -> dict[str, Array]:
        return {"image": np.random.default_rng(seed).standard_normal((rows, *SHAPE), dtype=np.float32)}

    return ModelSpec(
        name=name,
        inputs=inputs,
        outputs=(TensorSpec("logits", "FP32", (-1, classes)),),
        default_outputs=("logits",),
        prepare=prepare,
        example=example,
        build=build,
        pretrained=pretrained,
    )
