"""One file per model; the file's name is the model's name, and its function `spec` makes the `ModelSpec`.

The keyword arguments of `spec` are the model's settings (`--set key=value`), their defaults say the type.
A `spec` that takes `weights` is told where the weights come from, because its tensors depend on it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from serve.spec import ModelSpec, ServeError, unknown


def names() -> list[str]:
    return sorted(file.stem for file in Path(__file__).parent.glob("*.py") if not file.stem.startswith("_"))


def settings(name: str) -> dict[str, Any]:
    """The model's settings with their defaults."""
    if name not in names():
        raise unknown("model", name, names())
    accepted = inspect.signature(import_module(f"serve.models.{name}").spec).parameters
    return {key: parameter.default for key, parameter in accepted.items() if key != "weights"}


def what(name: str) -> str:
    """The first line of its file's docstring."""
    return (import_module(f"serve.models.{name}").__doc__ or "").strip().partition("\n")[0]


def load(name: str, given: Mapping[str, str] | None = None, weights: str = "random") -> ModelSpec:
    """The model by its name, with settings as text; what is unknown or malformed is a `ServeError`."""
    known = settings(name)
    values: dict[str, Any] = {}
    for key, text in (given or {}).items():
        if key not in known:
            raise unknown(f"setting of {name}", key, list(known))
        kind = type(known[key])
        try:
            values[key] = kind(text)
        except ValueError:
            raise ServeError(f"setting {key} of {name} must be {_KINDS[kind]}, not '{text}'") from None
    module = import_module(f"serve.models.{name}")
    if "weights" in inspect.signature(module.spec).parameters:
        values["weights"] = weights
    found: ModelSpec = module.spec(**values)
    return found


_KINDS = {int: "a whole number", float: "a number", str: "text"}
