"""One file per way of executing a model; the file's name is the variant's name, its `VARIANT` the `Variant`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from serve.spec import Variant, unknown


def names() -> list[str]:
    return sorted(file.stem for file in Path(__file__).parent.glob("*.py") if not file.stem.startswith("_"))


def load(name: str) -> Variant:
    """The variant by its name; an unknown one is a `ServeError` that names the known."""
    if name not in names():
        raise unknown("variant", name, names())
    found: Variant = import_module(f"serve.variants.{name}").VARIANT
    return found
