"""The eager module recorded as one CUDA graph per bucket, which share a pool of memory; no compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrate.serve.spec import BuildContext, Variant
from tailrate.serve.variants._graphs import recorded
from tailrate.serve.variants._precision import FLOATS
from tailrate.serve.variants._shapes import per_bucket


def build(making: BuildContext) -> Callable[..., Any]:
    import torch

    pool = torch.cuda.graph_pool_handle()
    return per_bucket(making, lambda example, name: recorded(making.module, example, pool))


VARIANT = Variant(
    name="cudagraph",
    what="the eager module as one CUDA graph per bucket",
    build=build,
    precisions=FLOATS,
    devices=("cuda",),
    stateful=True,
)
