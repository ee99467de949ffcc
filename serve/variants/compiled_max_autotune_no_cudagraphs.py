"""Torch.compile, kernels tuned by measuring."""

from __future__ import annotations

from tailrate.serve.variants._inductor import in_mode

VARIANT = in_mode("max-autotune-no-cudagraphs", "torch.compile, kernels tuned by measuring")
