"""What image classifiers share: an image per row in, logits out, and three ways for the image to come.

`fp32`: normalised by the client, 600 KB. `uint8`: a quarter of it, normalised on the device as the first layer.
`jpeg`: the file itself, decoded, resized and cropped here, as a stage of its own before the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.serve import wire
from tailrate.serve.models import _jpeg
from tailrate.serve.spec import ModelSpec, ServeError, Tensors
from tailrate.serve.wire import Array, TensorSpec, WireError

if TYPE_CHECKING:
    import torch

SHAPE = (3, 224, 224)
FORMS = {
    "fp32": TensorSpec("image", "FP32", (-1, *SHAPE)),
    "uint8": TensorSpec("image", "UINT8", (-1, *SHAPE)),
    "jpeg": TensorSpec("image", "BYTES", (-1, 1)),
}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, as every published checkpoint has it."""


def image_model(
    name: str,
    *,
    classes: int,
    build: Callable[[], torch.nn.Module],
    pretrained: Callable[[str], torch.nn.Module] | None = None,
    form: str = "fp32",
) -> ModelSpec:
    """A model that takes `image` and returns `logits`."""
    if form not in FORMS:
        raise ServeError(f"{name} takes its input as {', '.join(FORMS)}, not '{form}'")
    inputs = (FORMS[form],)

    def prepare(tensors: Tensors) -> dict[str, Array]:
        wire.check(tensors, inputs)
        image = tensors["image"]
        if form == "jpeg":
            files = [bytes(raw) for raw in image[:, 0]]
            _jpeg.check(files)
            return {"image": np.stack([_jpeg.decoded(raw, row, SHAPE[-1]) for row, raw in enumerate(files)])}
        if form == "fp32" and not _finite(image):
            raise WireError(400, "input 'image' holds NaN or infinity")
        return {"image": image}

    def example(rows: int, seed: int) -> dict[str, Array]:
        drawn = np.random.default_rng(seed)
        if form == "fp32":
            return {"image": drawn.standard_normal((rows, *SHAPE), dtype=np.float32)}
        return {"image": drawn.integers(0, 256, (rows, *SHAPE), dtype=np.uint8)}

    def wrapped(module: torch.nn.Module) -> torch.nn.Module:
        return module if form == "fp32" else _normalised(module)

    return ModelSpec(
        name=name,
        inputs=inputs,
        outputs=(TensorSpec("logits", "FP32", (-1, classes)),),
        default_outputs=("logits",),
        prepare=prepare,
        example=example,
        build=lambda: wrapped(build()),
        pretrained=None if pretrained is None else lambda source: wrapped(pretrained(source)),
        slow_prepare=form == "jpeg",
        settings={"input": form},
        parameters={"input": form},
    )


def _finite(image: Array) -> bool:
    """A sum is four times as fast as looking at each number, and finite only if they are; it may overflow, though."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(image.sum(dtype=np.float32))) or bool(np.isfinite(image).all())


def _normalised(inner: torch.nn.Module) -> torch.nn.Module:
    import torch

    class Normalised(torch.nn.Module):
        """Bytes in; its weights are the inner module's, so that checkpoints fit either form."""

        scale: torch.Tensor
        shift: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = inner
            deviation = torch.tensor(DEVIATION).view(3, 1, 1)
            self.register_buffer("scale", 1 / (255 * deviation), persistent=False)
            self.register_buffer("shift", -torch.tensor(MEAN).view(3, 1, 1) / deviation, persistent=False)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.inner(image.to(self.scale.dtype) * self.scale + self.shift)
            return found

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner.state_dict(*args, **kwargs)

        def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
            return self.inner.load_state_dict(state_dict, strict, assign)

    return Normalised()
