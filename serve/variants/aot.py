"""AOTInductor: exported, compiled ahead of time, and kept as a package per bucket that loads in a second or two.

Packages hold no weights: all buckets use the module's own. Only where weights are frozen, and so folded into the code,
or the module makes tensors of its own as it runs, a package is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrate.serve.spec import BuildContext, Variant
from tailrate.serve.variants._precision import FLOATS, convolves
from tailrate.serve.variants._shapes import Inputs, capturing, per_bucket


def build(making: BuildContext) -> Callable[..., Any]:
    import torch

    freeze = making.device == "cpu" and convolves(making.module)
    weights = {**dict(making.module.named_parameters()), **dict(making.module.named_buffers())}

    def make(example: Inputs, name: str) -> Callable[..., Any]:
        whole, bare = making.folder / f"{name}.whole.pt2", making.folder / f"{name}.pt2"
        if not whole.exists() and not bare.exists():
            with capturing(example) as inputs:
                exported = torch.export.export(making.module, inputs, strict=False)
                inside = freeze or not weights.keys() >= exported.constants.keys()
                torch._inductor.aoti_compile_and_package(
                    exported,
                    package_path=str(whole if inside else bare),
                    inductor_configs={"freezing": freeze, "aot_inductor.package_constants_in_so": inside},
                )
        found: Any = torch._inductor.aoti_load_package(str(whole if whole.exists() else bare))
        if bare.exists():
            own = {name: weights[name].detach() for name in found.get_constant_fqns()}
            found.load_constants(own, check_full_update=True, user_managed=True)
        call: Callable[..., Any] = found
        return call

    return per_bucket(making, make)


VARIANT = Variant(
    name="aot",
    what="AOTInductor package, made once and loaded at each start",
    build=build,
    precisions=FLOATS,
    keeps=True,
)
