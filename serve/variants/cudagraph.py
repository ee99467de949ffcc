"""The eager module recorded as one CUDA graph per bucket, which share a pool of memory; no compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailrate.serve.spec import BuildContext, Variant
from tailrate.serve.variants._precision import FLOATS
from tailrate.serve.variants._shapes import Inputs, per_bucket

if TYPE_CHECKING:
    import torch

REHEARSALS = 3


def build(making: BuildContext) -> Callable[..., Any]:
    import torch

    pool = torch.cuda.graph_pool_handle()

    def make(example: Inputs, name: str) -> Callable[..., Any]:
        held = tuple(tensor.clone() for tensor in example)
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(REHEARSALS):
                making.module(*held)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            found = making.module(*held)

        def call(*inputs: torch.Tensor) -> Any:
            for mine, given in zip(held, inputs, strict=True):
                mine.copy_(given)
            graph.replay()
            return found

        return call

    return per_bucket(making, make)


VARIANT = Variant(
    name="cudagraph",
    what="the eager module as one CUDA graph per bucket",
    build=build,
    precisions=FLOATS,
    devices=("cuda",),
)
