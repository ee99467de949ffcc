"""custom_cnn: one image a request, at rising rates, eager and compiled one after the other.

tailrate serve custom_cnn
locust -f loadtest/custom_cnn.py --headless --host http://127.0.0.1:8000 --rates 5:40:5
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tailrate.loadtest._images import image_of, images
from tailrate.loadtest.engine.user import EndpointUser


class CustomCnn(EndpointUser):
    model = "custom_cnn"
    outputs = ("logits",)
    rates = "5:40:5"
    step_seconds = 20.0

    def from_row(self, row: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return image_of(self.environment.parsed_options, row["image"])

    def payload(self, rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        return images(self.environment.parsed_options, rng, rows)
