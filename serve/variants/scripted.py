"""TorchScript by compiling the module's own source, frozen. Modules of plain tensors and layers only."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tailrate.serve.spec import BuildContext, ModelSpec, Variant


def build(making: BuildContext) -> Callable[..., Any]:
    import torch

    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        found: Callable[..., Any] = torch.jit.freeze(torch.jit.script(making.module))
    return found


def refuse(spec: ModelSpec) -> str | None:
    return "bert cannot be scripted: torch.jit.script does not take transformers' code" if spec.name == "bert" else None


VARIANT = Variant(name="scripted", what="TorchScript by scripting", build=build, refuse=refuse)
