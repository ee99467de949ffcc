"""Torch.compile with CUDA graphs."""

from __future__ import annotations

from tailrate.serve.variants._inductor import in_mode

VARIANT = in_mode("reduce-overhead", "torch.compile with CUDA graphs", devices=("cuda",))
