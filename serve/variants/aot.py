"""AOTInductor: exported, compiled ahead of time, and kept as a package per bucket that loads in a second or two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from serve.precision import FLOATS, convolves
from serve.spec import Making, Variant
from serve.variants._shapes import Inputs, capturing, per_bucket


def build(making: Making) -> Callable[..., Any]:
    import torch

    freeze = making.device == "cpu" and convolves(making.module)

    def make(example: Inputs, name: str) -> Callable[..., Any]:
        package = making.folder / f"{name}.pt2"
        if not package.exists():
            with capturing(example) as inputs:
                exported = torch.export.export(making.module, inputs, strict=False)
                torch._inductor.aoti_compile_and_package(
                    exported, package_path=str(package), inductor_configs={"freezing": freeze}
                )
        found: Callable[..., Any] = torch._inductor.aoti_load_package(str(package))
        return found

    return per_bucket(making, make)


VARIANT = Variant(
    name="aot",
    what="AOTInductor package, made once and loaded at each start",
    build=build,
    precisions=FLOATS,
    keeps=True,
)
