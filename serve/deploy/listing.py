"""What `tailrate serve --list` shows: every model and variant, what can be had here, and why not.

Fast, and needs nothing installed: it looks whether packages are there without loading them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tailrate.serve import models, variants
from tailrate.serve.spec import Variant, install
from tailrate.serve.variants._precision import TF32

NVIDIA = Path("/proc/driver/nvidia/version")


def has_cuda() -> bool:
    """Whether an NVIDIA driver is loaded; whether torch can use it is known when it is."""
    return NVIDIA.exists() or Path("/dev/nvidiactl").exists()


def why_not(variant: Variant, cuda: bool) -> str | None:
    """Why this cannot be had on this machine, whatever the model, or None."""
    if find_spec("torch") is None:
        return f"needs torch: {install('serve')}"
    if "cpu" not in variant.devices and not cuda:
        return "needs a CUDA device"
    missing = variants.missing(variant)
    return missing.partition(" ")[2] if missing else None


def text() -> str:
    """Two tables."""
    cuda = has_cuda()
    rows: list[tuple[str, ...]] = [("model", "settings (--set)", "what")]
    for name in models.names():
        settings = ", ".join(f"{key}={value}" for key, value in models.settings(name).items())
        rows.append((name, settings or "-", models.what(name)))
    found = [*_table(rows), ""]
    rows = [("variant", "precisions", "here", "what")]
    for name in variants.names():
        variant = variants.load(name)
        precisions = [p for p in variant.precisions if cuda or p not in TF32]
        rows.append((name, ", ".join(precisions), why_not(variant, cuda) or "yes", variant.what))
    found += _table(rows)
    found += ["", "A precision other than a variant's first follows its name: compiled-bf16."]
    return "\n".join(found)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
