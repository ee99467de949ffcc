"""How answers went by the place in them, by their length and by their turn in a session, for each load asked for.

Counted in bins of 3 %, so a percentile is at most 3 % too high.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np

from tailrate.analysis.stats.array_types import Ints
from tailrate.analysis.stats.select import COARSE, ENOUGH, bins, near

TIME_BINS, LENGTHS = (52 << COARSE) + 2, 32
"""For a time in ns; classes of length, each twice the one before: 1, 2–3, 4–7 … tokens."""
GAP_BINS = (33 << COARSE) + 2
"""For a gap in us, of 32 bits."""
QUARTERS = 2
"""Classes of position to an octave, as a power of two: the first, second … gap of an answer, the 10th to 11th …"""
POSITIONS = 24 << QUARTERS
TURNS = 16
"""Told apart; all later ones are the last of these."""

Level: TypeAlias = tuple[str, float, int]
"""Endpoint, rate, concurrency: what was asked for, in one step or several."""


@dataclass(slots=True, eq=False)
class AnswerShape:
    """Successes of all steps of a level."""

    gaps_us: Ints
    """By class of position and bin."""
    ttft_ns: Ints
    """By class of prompt length and bin."""
    tpot_ns: Ints
    """By class of answer length and bin, of those that have one, …"""
    latency_ns: Ints
    """… and of all."""
    turns_ns: Ints
    """Times to the first token, by turn and bin."""
    turns_tokens: Ints
    """By turn: prompts whose length is known, their tokens; tokens of those of which it is known what was held in a
    cache, and how many were."""

    def add(self, other: AnswerShape) -> None:
        for each in fields(self):
            mine = getattr(self, each.name)
            mine += getattr(other, each.name)


def by_length(tokens: Ints, ns: Ints) -> Ints:
    """Counts by class of length and bin."""
    return by_class(np.frexp(np.maximum(tokens, 1))[1] - 1, LENGTHS, ns)


def by_class(classes: Ints, most: int, ns: Ints) -> Ints:
    """Counts by class and bin; whatever is beyond the last class is in it."""
    cells = np.minimum(classes, most - 1) * TIME_BINS + np.minimum(bins(ns, COARSE), TIME_BINS - 1)
    return np.bincount(cells, minlength=most * TIME_BINS).reshape(most, TIME_BINS)


@dataclass(frozen=True, slots=True)
class Asked:
    endpoint: str
    rate: float
    concurrency: int


@dataclass(frozen=True, slots=True)
class AtPosition(Asked):
    """Gaps that were the first-th to last-th of their answer."""

    first: int
    last: int
    gaps: int
    p50_ms: float | None
    p99_ms: float | None
    """None of fewer than a hundred."""


@dataclass(frozen=True, slots=True)
class ByPrompt(Asked):
    """Successes whose prompt had so many tokens."""

    least: int
    most: int
    answers: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class ByAnswer(Asked):
    """Successes that had so many tokens."""

    least: int
    most: int
    answers: int
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class ByTurn(Asked):
    """Successes that were the turn-th of their session, from 0."""

    turn: int
    answers: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    prompt_tokens: float | None
    """In the mean."""
    cached_pct: float | None
    """Of these tokens, where the server says."""


def by_position(shapes: Mapping[Level, AnswerShape]) -> Iterator[AtPosition]:
    edges = ((np.arange(POSITIONS + 1) + (1023 << QUARTERS)) << (52 - QUARTERS)).view(np.float64)
    begins = np.ceil(edges).astype(np.int64)
    for level, shape in shapes.items():
        for place in np.flatnonzero(shape.gaps_us.any(axis=1)).tolist():
            counts = shape.gaps_us[place]
            first, last = int(begins[place]), int(begins[place + 1]) - 1
            yield AtPosition(*level, first, last, int(counts.sum()), *_both(counts, 1e3))


def by_prompt(shapes: Mapping[Level, AnswerShape]) -> Iterator[ByPrompt]:
    for level, shape in shapes.items():
        for k in np.flatnonzero(shape.ttft_ns.any(axis=1)).tolist():
            counts = shape.ttft_ns[k]
            yield ByPrompt(*level, 1 << k, (2 << k) - 1, int(counts.sum()), *_both(counts, 1e6))


def by_answer(shapes: Mapping[Level, AnswerShape]) -> Iterator[ByAnswer]:
    for level, shape in shapes.items():
        for k in np.flatnonzero(shape.latency_ns.any(axis=1)).tolist():
            counts = shape.latency_ns[k]
            both = (*_both(shape.tpot_ns[k], 1e6), *_both(counts, 1e6))
            yield ByAnswer(*level, 1 << k, (2 << k) - 1, int(counts.sum()), *both)


def by_turn(shapes: Mapping[Level, AnswerShape]) -> Iterator[ByTurn]:
    for level, shape in shapes.items():
        for turn in np.flatnonzero(shape.turns_ns.any(axis=1)).tolist():
            counts = shape.turns_ns[turn]
            said, prompts, knowing, held = shape.turns_tokens[turn].tolist()
            cached = 100 * held / knowing if knowing else None
            both = _both(counts, 1e6)
            yield ByTurn(*level, turn, int(counts.sum()), *both, prompts / said if said else None, cached)


def _both(counts: Ints, per_ms: float) -> tuple[float | None, float | None]:
    """Median and P99 in ms."""
    n = int(counts.sum())
    p50, p99 = (near(counts, percent, COARSE) / per_ms if n else None for percent in (50.0, 99.0))
    return p50, p99 if n >= ENOUGH else None
