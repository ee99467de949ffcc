"""null: no model behind it, so what is measured is the harness and the request path themselves.

    tailrate serve null --variants eager
    locust -f loadtest/null.py --headless --host http://127.0.0.1:8000 --rates 100:500:100

`--body-bytes` sets the size of the request: 600000 is an fp32 image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from locust import events

from tailrate.loadtest.engine.user import EndpointUser


def options(parser: Any, **_: Any) -> None:
    parser.add_argument("--body-bytes", env_var="LOCUST_BODY_BYTES", type=int, default=1024, help="bytes per row")


events.init_command_line_parser.add_listener(options)


class Null(EndpointUser):
    model = "null"
    rates = "50:200:50"
    step_seconds = 15.0
    inputs = {"x": "uint8"}  # noqa: RUF012

    def payload(self, rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        size = self.environment.parsed_options.body_bytes
        return {"x": rng.integers(0, 256, (rows, size), dtype=np.uint8)}
