"""The module as it is: fp32, one kernel after the other. What every other variant is compared with."""

from __future__ import annotations

from serve.spec import Variant

VARIANT = Variant(
    name="eager",
    precision="fp32",
    build=lambda module, mode: module,
    modes=lambda module, device: ("eager",),
)
