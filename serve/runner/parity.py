"""Is a variant still the same model? Its outputs against those of the eager fp32 module, on seeded inputs.

Every bucket is compared, since every bucket is code of its own. The gate is on relative error and cosine;
top-1 agreement is only reported: random weights leave ties that a last bit decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TOLERANCE = {
    "fp32": (1e-3, 0.9999),
    # ten bits: fifty convolutions make up to 0.1 and 0.996 of it (tests/serve/variants/test_precision.py)
    "tf32": (0.2, 0.99),
    "tf32conv": (0.2, 0.99),
    "fp16": (0.1, 0.998),  # ten bits, rounded: 0.04 and 0.9995
    "bf16": (0.25, 0.98),  # eight bits, fifty layers: ResNet-50 with random weights has 0.15 and 0.992
    "amp": (0.25, 0.98),
    "int8": (0.3, 0.98),
}
"""By precision: the largest relative error and the smallest cosine that pass."""


@dataclass(frozen=True, slots=True)
class Parity:
    """How far a variant is from its reference, over all outputs."""

    max_abs_error: float
    relative_error: float
    """Largest error ÷ largest reference value, of the worst output."""
    cosine: float
    """Of the worst row."""
    top1_agreement: float
    """Share of rows whose largest value of the first output is in the same place."""

    def failure(self, precision: str) -> str | None:
        """None within the tolerance of this precision, else the sentence with the figures."""
        error, cosine = TOLERANCE[precision]
        if self.relative_error <= error and self.cosine >= cosine:  # false for NaN, as it must be
            return None
        return (
            f"its outputs are not those of eager fp32: relative error {self.relative_error:.2g} (at most {error:g}), "
            f"cosine {self.cosine:.6f} (at least {cosine:g}), top-1 agreement {self.top1_agreement:.2f}"
        )


def worst(one: Parity, other: Parity) -> Parity:
    """Of two comparisons of the same variant."""
    return Parity(
        max(one.max_abs_error, other.max_abs_error),
        max(one.relative_error, other.relative_error),
        min(one.cosine, other.cosine),
        min(one.top1_agreement, other.top1_agreement),
    )


def compare(found: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> Parity:
    """Both are outputs in the order of the spec, rows first."""
    import torch

    max_abs, relative, cosine = 0.0, 0.0, 1.0
    for have, want in zip(found, reference, strict=True):
        a, b = have.double().flatten(1), want.double().flatten(1)
        error = (a - b).abs().max()
        if not want.is_floating_point():
            error = (error - 1).clamp_min(0)  # one unit is rounding
        worst = torch.nn.functional.cosine_similarity(a, b, dim=1).min()
        # max(nan, …) of Python would hide a NaN; torch's propagates it
        max_abs, relative, cosine = (
            torch.stack((error, error.new_tensor(max_abs))).max().item(),
            torch.stack((error / b.abs().max().clamp_min(1e-12), error.new_tensor(relative))).max().item(),
            torch.stack((worst, worst.new_tensor(cosine))).min().item(),
        )
    first, wanted = found[0].flatten(1), reference[0].flatten(1)
    agree = (first.argmax(1) == wanted.argmax(1)).double().mean().item()
    return Parity(max_abs, relative, cosine, agree)
