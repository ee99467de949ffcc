"""TorchScript by tracing, frozen: one trace per bucket, since a trace may have the batch written into it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tailrate.serve.spec import BuildContext, Variant
from tailrate.serve.variants._shapes import Inputs, capturing, per_bucket


def build(making: BuildContext) -> Callable[..., Any]:
    import torch

    def make(example: Inputs, name: str) -> Callable[..., Any]:
        with capturing(example) as inputs, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated, and warns of every shape that it writes down
            traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                making.module, inputs, check_trace=False, strict=False
            )
            found: Callable[..., Any] = torch.jit.freeze(traced)
        return found

    return per_bucket(making, make)


VARIANT = Variant(name="traced", what="TorchScript by tracing", build=build, precisions=("fp32", "fp16", "bf16"))
