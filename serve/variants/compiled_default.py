"""Torch.compile, default mode, weights not frozen."""

from __future__ import annotations

from tailrate.serve.variants._inductor import in_mode

VARIANT = in_mode("default", "torch.compile, default mode, weights not frozen")
