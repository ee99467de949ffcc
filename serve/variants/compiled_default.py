"""Torch.compile, default mode, weights not frozen."""

from __future__ import annotations

from serve.variants._inductor import in_mode

VARIANT = in_mode("default", "torch.compile, default mode, weights not frozen")
