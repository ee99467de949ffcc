"""torchvision's ResNet-50: an image in, a thousand logits out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrate.serve.models._image import image_model
from tailrate.serve.spec import ModelSpec

if TYPE_CHECKING:
    import torch


def spec(*, input: str = "fp32") -> ModelSpec:  # noqa: A002  # it is the setting's name
    """`input` is how the image comes: fp32, uint8 or jpeg."""
    return image_model("resnet50", classes=1000, build=build, pretrained=pretrained, form=input)


def build() -> torch.nn.Module:
    from torchvision.models import resnet50

    module: torch.nn.Module = resnet50(weights=None)
    return module


def pretrained(source: str) -> torch.nn.Module:
    """torchvision's current best ImageNet weights, downloaded into its own cache."""
    from torchvision.models import ResNet50_Weights

    # by itself torchvision would unpickle whatever came
    found = ResNet50_Weights.DEFAULT.get_state_dict(progress=False, check_hash=True, weights_only=True)
    module = build()
    module.load_state_dict(found)
    return module
