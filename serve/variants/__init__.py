"""One file per way of executing a model: its name with hyphens for underscores, its `VARIANT` the `Variant`.

A precision may follow: `compiled-bf16` is the file `compiled.py` at bf16. What a variant cannot do is said before
anything is loaded, where it can be known by then.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tailrate.serve.spec import ModelSpec, ServeError, Variant, install, unknown
from tailrate.serve.variants._precision import TF32


def names() -> list[str]:
    """Of the executions, without precisions."""
    files = Path(__file__).parent.glob("*.py")
    return sorted(file.stem.replace("_", "-") for file in files if not file.stem.startswith("_"))


def load(name: str) -> Variant:
    """The variant by its name; an unknown one is a `ServeError` that names the known."""
    execution = max((known for known in names() if name == known or name.startswith(known + "-")), key=len, default="")
    if not execution:
        raise unknown("variant", name, names())
    found: Variant = import_module(f"tailrate.serve.variants.{execution.replace('-', '_')}").VARIANT
    precision = name.removeprefix(execution).removeprefix("-")
    if not precision:
        return replace(found, precision=found.precisions[0])
    if precision not in found.precisions:
        raise ServeError(f"{execution} has no {precision}; it can be had in {', '.join(found.precisions)}")
    return replace(found, name=name, precision=precision)


def missing(variant: Variant) -> str | None:
    """The sentence for packages that are not installed, or None."""
    absent = [package for package in variant.packages if find_spec(package) is None]
    if not absent:
        return None
    return f"{variant.name} needs {', '.join(absent)}: {install(variant.extra)}"


def refusal(variant: Variant, spec: ModelSpec, device: str) -> str | None:
    """Why this cannot be served there, or None; `device` is cpu, cuda, or auto while that is not known."""
    if spec.build is None:
        what = f"{spec.name} has no module to execute in another way; serve it with --variants eager"
        return None if variant.name == "eager" else what
    if device not in ("auto", *variant.devices):
        return f"{variant.name} needs {' or '.join(variant.devices)}, and this is {device}"
    if variant.precision in TF32 and device == "cpu":
        return f"{variant.name} needs cuda: a CPU has no tf32"
    if spec.language and not variant.stateful:
        return f"{variant.name} cannot keep what a language model has read; serve it eager or compiled"
    return missing(variant) or variant.refuse(spec)
