"""The small convolutional net of the published eager/compiled tables: three convolutions, ten classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrate.serve.models._image import image_model
from tailrate.serve.spec import ModelSpec

if TYPE_CHECKING:
    import torch


def spec(*, input: str = "fp32") -> ModelSpec:  # noqa: A002  # it is the setting's name
    """`input` is how the image comes: fp32, uint8 or jpeg."""
    return image_model("custom_cnn", classes=10, build=build, form=input)


def build() -> torch.nn.Module:
    """3→64→128→256 channels, each 3×3 convolution with BatchNorm, ReLU and 2×2 pooling; then a linear layer."""
    from torch import nn

    layers: list[nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))
