"""Dynamic quantisation by torchao: linear layers in int8, the rest as it is."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

from tailrate.serve.spec import BuildContext, Variant


def build(making: BuildContext) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        module = copy.deepcopy(making.module)
        quantize_(module, Int8DynamicActivationInt8WeightConfig())
    return module


VARIANT = Variant(
    name="int8",
    what="linear layers in int8, quantised as they run (torchao)",
    build=build,
    precisions=("int8",),
    packages=("torchao",),
    extra="int8",
)
