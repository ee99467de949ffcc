"""resnet50: one normalised 224 × 224 image a request (600 KB as fp32), at rising rates.

tailrate serve resnet50
locust -f loadtest/resnet50.py --headless --host http://127.0.0.1:8000 --rates 2:20:2

Where it is served with `--set input=uint8` or `input=jpeg`, say `--input` likewise (JPEG with `--images FOLDER`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tailrate.loadtest._images import image_of, images
from tailrate.loadtest.engine.user import EndpointUser


class ResNet50(EndpointUser):
    model = "resnet50"
    outputs = ("logits",)
    rates = "2:12:2"

    def from_row(self, row: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return image_of(self.environment.parsed_options, row["image"])

    def payload(self, rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        return images(self.environment.parsed_options, rng, rows)
