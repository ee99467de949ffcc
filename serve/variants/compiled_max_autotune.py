"""Torch.compile, kernels and CUDA graphs tuned by measuring."""

from __future__ import annotations

from tailrate.serve.variants._inductor import in_mode

VARIANT = in_mode("max-autotune", "torch.compile, kernels and CUDA graphs tuned by measuring")
