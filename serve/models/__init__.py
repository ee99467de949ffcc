"""One file per model; the file's name is the model's name, and its function `spec` makes the `ModelSpec`.

A model of the user's own is `file.py:function` or `module:function`, such a function under any name; what it
returns says the name under which it is served. Keyword arguments are the model's settings (`--set key=value`),
their defaults say the type. A function that takes `weights` is told where the weights come from, because its
tensors depend on it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from tailrate.serve.models import _code_digest
from tailrate.serve.spec import ModelSpec, ServeError, unknown


def names() -> list[str]:
    return sorted(file.stem for file in Path(__file__).parent.glob("*.py") if not file.stem.startswith("_"))


def settings(name: str) -> dict[str, Any]:
    """The model's settings with their defaults."""
    accepted = inspect.signature(_function(name)).parameters
    return {key: parameter.default for key, parameter in accepted.items() if key != "weights"}


def what(name: str) -> str:
    """The first line of its file's docstring."""
    return (import_module(f"tailrate.serve.models.{name}").__doc__ or "").strip().partition("\n")[0]


def load(name: str, given: Mapping[str, str] | None = None, weights: str = "random") -> ModelSpec:
    """The model by its name, with settings as text; what is unknown or malformed is a `ServeError`."""
    known = settings(name)
    values: dict[str, Any] = {}
    for key, text in (given or {}).items():
        if key not in known:
            raise unknown(f"setting of {name}", key, list(known))
        kind = type(known[key])
        if kind not in _KINDS:
            raise ServeError(f"setting {key} of {name} has no default that says whether it is a number or a text")
        try:
            values[key] = kind(text)
        except ValueError:
            raise ServeError(f"setting {key} of {name} must be {_KINDS[kind]}, not '{text}'") from None
    function = _function(name)
    if "weights" in inspect.signature(function).parameters:
        values["weights"] = weights
    try:
        found: object = function(**values)
    except (ServeError, KeyboardInterrupt):
        raise
    except Exception as problem:
        raise ServeError(f"{name} failed: {type(problem).__name__}: {problem}") from problem
    if not isinstance(found, ModelSpec):
        raise ServeError(f"{name} must return a ModelSpec, not {type(found).__name__}")
    file = inspect.getsourcefile(function)
    return replace(found, code=_code_digest.digest(Path(file)) if file else "")


def located(reference: str) -> str:
    """A reference that means the same in any process on this machine: files by their absolute path."""
    where, _, function = reference.rpartition(":")
    return f"{Path(where).absolute()}:{function}" if where.endswith(".py") else reference


def _function(name: str) -> Callable[..., Any]:
    if ":" not in name:
        if name not in names():
            raise unknown("model", name, names())
        ours: Callable[..., Any] = import_module(f"tailrate.serve.models.{name}").spec
        return ours
    where, _, function = name.rpartition(":")
    try:
        module = _file(Path(where)) if where.endswith(".py") else import_module(where)
    except Exception as problem:
        raise ServeError(f"{where} cannot be imported: {type(problem).__name__}: {problem}") from problem
    found = getattr(module, function, None)
    if not callable(found):
        raise ServeError(f"{where} has no function '{function}' that returns a ModelSpec")
    return found  # type: ignore[no-any-return]


@cache
def _file(path: Path) -> ModuleType:
    """A module by its file; its folder is importable, as it is for a script."""
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    described = spec_from_file_location(f"tailrate_model_{path.stem}", path)
    assert described is not None
    assert described.loader is not None
    module = module_from_spec(described)
    sys.modules[described.name] = module  # so that what it defines can be found again by name
    described.loader.exec_module(module)
    return module


_KINDS = {int: "a whole number", float: "a number", str: "text"}
