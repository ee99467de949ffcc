"""mlp: 64 numbers a request, a few microseconds of model; what is measured is all the rest.

tailrate serve mlp
locust -f loadtest/mlp.py --headless --host http://127.0.0.1:8000 --rates 200:1000:200
"""

from __future__ import annotations

import numpy as np

from tailrate.loadtest.engine.user import EndpointUser


class Mlp(EndpointUser):
    model = "mlp"
    outputs = ("y",)
    rates = "200:1000:200"
    step_seconds = 15.0
    inputs = {"x": "float32"}  # noqa: RUF012

    def payload(self, rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        return {"x": rng.standard_normal((rows, 64), dtype=np.float32)}
