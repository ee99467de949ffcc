"""The module as it is, one kernel after the other. In fp32 it is what every other variant is compared with."""

from __future__ import annotations

from tailrate.serve.spec import Variant
from tailrate.serve.variants._precision import FLOATS

VARIANT = Variant(
    name="eager",
    what="the module as it is",
    build=lambda making: making.module,
    precisions=FLOATS,
    stateful=True,
)
