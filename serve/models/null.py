"""No model: a fixed reply after a fixed delay, so that the harness itself can be measured.

`x` takes a body of any size and is never looked at; needs neither torch nor a device.
"""

from __future__ import annotations

import numpy as np

from tailrate.serve import wire
from tailrate.serve.spec import ModelSpec, ServeError, Tensors
from tailrate.serve.wire import Array, TensorSpec


def spec(*, delay_ms: float = 0.0, reply_bytes: int = 16) -> ModelSpec:
    """`delay_ms` is slept per batch, whatever its size; `reply_bytes` is the size of each row's reply."""
    if not 0 <= delay_ms < 60_000 or not 1 <= reply_bytes <= 1 << 24:
        raise ServeError("null takes delay_ms from 0 to 60000 and reply_bytes from 1 to 16777216")
    inputs = (TensorSpec("x", "UINT8", (-1, -1)),)
    row = np.resize(np.arange(256, dtype=np.uint8), (1, reply_bytes))

    def prepare(tensors: Tensors) -> dict[str, Array]:
        wire.check(tensors, inputs)
        return dict(tensors)

    return ModelSpec(
        name="null",
        inputs=inputs,
        outputs=(TensorSpec("y", "UINT8", (-1, reply_bytes)),),
        default_outputs=("y",),
        prepare=prepare,
        example=lambda rows, seed: {"x": np.zeros((rows, 1), np.uint8)},
        reply=lambda rows: {"y": np.broadcast_to(row, (rows, reply_bytes))},
        delay_s=delay_ms / 1e3,
        max_batch=(64, 64),
        settings={"delay_ms": delay_ms, "reply_bytes": reply_bytes},
        parameters={"delay_ms": delay_ms},
    )
