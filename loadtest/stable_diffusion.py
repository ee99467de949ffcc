"""stable_diffusion: one generation a request, from embeddings and a seed.

    tailrate serve stable_diffusion
    locust -f loadtest/stable_diffusion.py --headless --host http://127.0.0.1:8000 --rates 0.5:3:0.5

`--embedding 768` for an endpoint served with `--set size=sd15`. Iterations per second are requests times the steps
that the endpoint was served with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from locust import events

from tailrate.loadtest.engine.user import EndpointUser

TOKENS = 77


def options(parser: Any, **_: Any) -> None:
    parser.add_argument("--embedding", env_var="LOCUST_EMBEDDING", type=int, default=64, help="width of the embeddings")


events.init_command_line_parser.add_listener(options)


class StableDiffusion(EndpointUser):
    model = "stable_diffusion"
    outputs = ("image",)
    rates = "0.5:3:0.5"

    def payload(self, rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        width = self.environment.parsed_options.embedding
        return {
            "prompt_embeds": rng.standard_normal((rows, TOKENS, width), dtype=np.float32),
            "seed": rng.integers(0, 1 << 31, (rows, 1), dtype=np.int64),
        }
