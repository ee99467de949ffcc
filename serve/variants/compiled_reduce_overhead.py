"""Torch.compile with CUDA graphs."""

from __future__ import annotations

from serve.variants._inductor import in_mode

VARIANT = in_mode("reduce-overhead", "torch.compile with CUDA graphs", devices=("cuda",))
