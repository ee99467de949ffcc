"""What others have published of the same models, to stand beside what was measured here: only ratios travel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """One published pair of figures."""

    subject: str
    batch: int
    hardware: str
    eager: float
    compiled: float
    unit: str
    """ms of a call, or /s of rows"""

    @property
    def ratio(self) -> float:
        """How many times as fast the compiled form is."""
        faster = self.compiled / self.eager
        return 1 / faster if self.unit == "ms" else faster


CLAIMS = (
    Claim("resnet50", 1, "A100, torch 2.8, reduce-overhead", 4.2, 1.8, "ms"),
    Claim("resnet50", 32, "A100, torch 2.8, reduce-overhead", 1200, 2800, "/s"),
    Claim("bert-32", 1, "A100, torch 2.8, one short sentence", 8.7, 3.1, "ms"),
    Claim("custom_cnn", 1, "A100, torch 2.8", 2.1, 0.9, "ms"),
    Claim("resnet50", 1, "RTX 3090, torch 2.6", 85.2, 213.5, "/s"),
    Claim("bert-128", 1, "RTX 3090, torch 2.6", 62, 148, "/s"),
    Claim("sd15-unet-step", 1, "RTX 3090, torch 2.6", 3.2, 5.1, "/s"),
)
