"""Which token comes next: the best one, or one drawn by its probability, on the device and for all rows at once.

A draw depends on the answer's seed and on how many tokens it has, on nothing else: not on who else is being answered,
nor on the order of rows. The random numbers are a hash of these (SplitMix64), turned into Gumbel noise: the best of the
scores with that noise is drawn as the softmax says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_GOLDEN, _A, _B = -7046029254386353131, -4658895280553007687, -7723592293110705685
"""SplitMix64's, as signed numbers."""
ROW, PLACE = 0x632BE59BD9B4E019, 0x2545F4914F6CDD1D
COLDEST = 1e-5
"""Below this temperature the best token is always chosen: float32 has no room for scores divided by 1e-40."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one answer's tokens are chosen."""

    temperature: float = 0.0
    """0, and less than `COLDEST`: always the best."""
    top_p: float = 1.0
    """Of the probability, from the best token on, among which one is drawn."""
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature < COLDEST


def chosen(scores: torch.Tensor, how: list[Sampling], counts: list[int]) -> torch.Tensor:
    """One token for each row; `counts`: how many it has had."""
    import torch

    best = scores.argmax(dim=-1)
    if all(one.greedy for one in how):
        return best
    device = scores.device
    warmth = torch.tensor([1.0 if one.greedy else one.temperature for one in how], device=device, dtype=torch.float32)
    cold = torch.tensor([one.greedy for one in how], device=device)
    seeds = torch.tensor([_signed(one.seed) for one in how], device=device)
    scaled = scores.float() / warmth[:, None]
    if any(one.top_p < 1 for one in how if not one.greedy):
        scaled = _nucleus(scaled, torch.tensor([one.top_p for one in how], device=device))
    noise = gumbel(seeds, torch.tensor(counts, device=device), scores.shape[-1])
    return torch.where(cold, best, (scaled + noise).argmax(dim=-1))


def without(scores: torch.Tensor, banned: Sequence[Sequence[int]]) -> torch.Tensor:
    """The scores with those tokens of each row out of reach."""
    import torch

    pairs = [(row, token) for row, tokens in enumerate(banned) for token in tokens]
    if not pairs:
        return scores
    rows, tokens = torch.tensor(pairs, device=scores.device).T
    return scores.index_put((rows, tokens), scores.new_tensor(float("-inf")))


Likely = tuple[tuple[int, float], ...]
"""Tokens, each with the logarithm of its probability: the chosen one, then the most likely ones."""


def most_likely(scores: torch.Tensor, many: Sequence[int | None], numbers: Sequence[int]) -> dict[int, Likely]:
    """By row, where it is asked for: so many beside the token that was chosen."""
    asked = [row for row, some in enumerate(many) if some is not None]
    if not asked:
        return {}
    logs = scores[asked].float().log_softmax(dim=-1)
    values, places = (found.tolist() for found in logs.topk(max(1, *(many[row] or 0 for row in asked)), dim=-1))
    found = {}
    for k, row in enumerate(asked):
        pairs = list(zip(places[k], values[k], strict=True))[: many[row]]
        found[row] = ((numbers[row], float(logs[k, numbers[row]])), *pairs)
    return found


def gumbel(seeds: torch.Tensor, counts: torch.Tensor, many: int) -> torch.Tensor:
    """Of each row and token; in double precision, as a rare token's turn is a number near 1."""
    import torch

    place = torch.arange(1, many + 1, device=seeds.device)
    mixed = _mixed(_mixed(seeds + counts * _signed(ROW))[:, None] + place * _signed(PLACE))
    uniform = ((mixed >> 11) & ((1 << 53) - 1)).double().add_(0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


def _nucleus(scaled: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Without what lies behind that share; the best token always stays."""
    ordered, places = scaled.sort(dim=-1, descending=True)
    shares = ordered.softmax(dim=-1)
    before = shares.cumsum(dim=-1) - shares
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (before > 0), float("-inf"))
    return ordered.new_empty(ordered.shape).scatter_(-1, places, ordered)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finish; shifts of signed numbers are cut to what those of unsigned ones would be."""
    x = x + _GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _A
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _B
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
