"""What a series did over hours: where its level jumped, from where on it drifts, and how surely that is no chance.

A series is a level plus changes plus noise. Changes are steps, trends (nothing until an instant, then so much by cell)
and spells (another level for a while). The clearest change is looked for first, then the clearest of what is left, as
in E-divisive; its statistic has the exponent 2, for which it is a difference of means over values that were calmed, and
a trend is tested beside the steps, as either looks like the other.

Neighbouring minutes resemble each other, so what chance does is not what it does to independent values. The noise that
is left is taken to be autoregressive, and is drawn again some hundred times: how much the clearest of all candidates
shows in these is what the real one is held against. That pays for having looked everywhere, too. Pure: arrays in,
numbers out; a hole is NaN. How often it is wrong: tests/bench/soak_findings.py.

Where the load followed a curve by plan, what follows the load is fitted beside level and changes, as a cubic function
of it, so that a change is one at equal load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailrate.analysis.stats.array_types import Floats, Ints
from tailrate.analysis.stats.blocks import calm, in_blocks
from tailrate.analysis.stats.remembering_noise import Noise, beyond, fit

BLOCKS = 160
"""A longer series is taken in runs of cells, each by its median, so that a lone cell is none to speak of."""
LEAST = 24
"""Blocks under which nothing is said."""
SIDE = 4
"""Blocks of the shortest spell, and on either side of a step."""
CLEAR = 0.01
"""A change less sure than this is not looked behind."""
MOST = 6
"""Changes of one series."""
ENDS = 12
"""Times the mean that chance comes to, of what the start of a trend or the end of a spell has to explain."""
NEW = 0.2
"""Of a candidate's shape that those found before do not have."""
POWERS = 3
"""Of the load: a queue's P99 over a sensible range of it is a cubic to a fraction of a per cent."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """One change of level or slope; cells are counted from the start of the series."""

    kind: str
    """step, spell or trend"""
    start: int
    end: int | None
    """Of a spell: the first cell after it."""
    size: float
    """By how much the level changes; of a trend by how much in each cell."""
    error: float
    """Standard error of the size."""
    p_value: float


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """What a series did."""

    changes: tuple[ChangePoint, ...]
    """The clearest first."""
    level: float
    """Where it started."""
    fitted: Floats
    """Level and changes, by cell."""
    slope_error: float
    """Standard error of a trend over the whole series, by cell."""
    step_error: float
    """Standard error of a step in its middle."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    kind: str
    start: int
    end: int | None = None

    def shape(self, times: Floats | Ints) -> Floats:
        """By how much of its size it raises each instant."""
        if self.kind == "trend":
            return np.maximum(times - self.start, 0.0)
        inside: Floats = ((times >= self.start) & (times < (math.inf if self.end is None else self.end))).astype(float)
        return inside


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """Of the known blocks, each its level, its place, and a row of what follows the load."""

    level: Floats
    known: Ints
    beside: Floats

    def part(self, some: slice) -> _Blocks:
        return _Blocks(self.level[some], self.known[some], self.beside[some])

    def design(self, chosen: Sequence[_Candidate]) -> Floats:
        return np.column_stack([np.ones(len(self.known)), *(one.shape(self.known) for one in chosen), self.beside])


def drift(
    values: Floats, *, by: str = "median", floor: float = 0.0, load: Floats | None = None, seed: int = 1
) -> Drift | None:
    """What the values did; None where there are too few. `floor`: less noise than that is not believed.

    `load`: what was asked for in each cell, where that changed by plan.
    """
    size = max(1, -(-len(values) // BLOCKS))
    levels = in_blocks(values, size, by)
    known = np.flatnonzero(~np.isnan(levels)).astype(np.int64)
    if len(known) < LEAST:
        return None
    floor = max(floor, 1e-9 * abs(float(np.median(levels[known]))))  # what sums are rounded by
    follows = _powers(values, load)
    beside = np.array([in_blocks(column, size, "mean")[known] for column in follows.T]).reshape(-1, len(known)).T
    blocks = _Blocks(calm(levels[known], floor), known, beside)
    rng = np.random.default_rng(seed)
    chosen: list[_Candidate] = []
    p_values: list[float] = []
    while True:
        p_value, clearest, draws = _clearest(blocks, chosen, _candidates(known), floor, rng)
        if p_value > CLEAR and not chosen:  # two jumps hide each other in what they leave
            p_value, clearest = _in_halves(blocks, floor, rng)
        if p_value > CLEAR or len(chosen) == MOST:
            return _fitted(values, follows, blocks, size, chosen, p_values, draws)
        p_values.append(p_value)
        chosen.append(_sharpened(clearest, blocks, chosen, draws))


def _powers(values: Floats, load: Floats | None) -> Floats:
    """A column for each power of the load, each zero in the mean; none where it was even."""
    known = ~np.isnan(values)
    if load is None or np.ptp(load[known]) < 1e-3 * abs(load[known]).max():
        return np.zeros((len(values), 0))
    even = (load - load[known].mean()) / load[known].std()
    columns = even[:, None] ** np.arange(1, POWERS + 1)
    found: Floats = columns - columns[known].mean(axis=0)
    return found


def _clearest(
    blocks: _Blocks, chosen: Sequence[_Candidate], candidates: Sequence[_Candidate], floor: float,
    rng: np.random.Generator,
) -> tuple[float, _Candidate, Floats]:  # fmt: skip
    """The clearest of the candidates beside those chosen, how often chance shows as much, and draws of the noise."""
    level, known = blocks.level, blocks.known
    shapes = np.array([one.shape(known) for one in candidates]).T
    frame, _ = np.linalg.qr(blocks.design(chosen))
    left, apart = level - frame @ (frame.T @ level), shapes - frame @ (frame.T @ shapes)
    length, wide = np.linalg.norm(apart, axis=0), np.linalg.norm(shapes - shapes.mean(axis=0), axis=0)
    apart = np.where(length > NEW * wide, apart / np.maximum(length, 1e-12), 0.0)
    rest = _rest(left[:, None], apart)
    loud = _loudness(rest[:, 0], known, chosen)[:, None]
    seen = Noise.of(rest / loud, known, floor)
    # what a change leaves is too little to be all of the noise; what it leaves of draws says by how much
    again = loud * seen.draw(rng)
    draws = loud * seen.unbiased(*fit(_rest(again - frame @ (frame.T @ again), apart) / loud, known)).draw(rng)
    drawn = draws - frame @ (frame.T @ draws)
    shown = apart.T @ drawn
    spread = np.maximum(shown.std(axis=1), 1e-12)
    clear = np.abs(apart.T @ left) / spread
    carry, fresh = fit(_rest(drawn, apart) / loud, known)
    most = (np.abs(shown) / spread[:, None]).max(axis=0) * (1 - carry.sum(axis=1)) / fresh
    number = int(np.argmax(clear))
    return beyond(float(clear[number]) / seen.long_run, most), candidates[number], draws


def _loudness(rest: Floats, known: Ints, chosen: Sequence[_Candidate]) -> Floats:
    """How large the noise is between the jumps found so far: what is slower for a stall is also less even."""
    ends = sorted({edge for one in chosen if one.kind != "trend" for edge in (one.start, one.end or one.start)})
    part = np.searchsorted(ends, known, side="right")
    counts, power = np.bincount(part), np.bincount(part, rest**2)
    spread = np.sqrt(power / np.maximum(counts, 1))
    # too few blocks to tell: as the whole
    spread = np.where(counts >= LEAST // 2, spread, np.sqrt(np.mean(rest**2)))
    level = float(np.sqrt(np.mean(spread[part] ** 2)))
    return np.maximum(spread[part] / level, 0.05) if level > 0 else np.ones(len(rest))


def _in_halves(blocks: _Blocks, floor: float, rng: np.random.Generator) -> tuple[float, _Candidate]:
    """The clearest jump of either half by itself, which is a second look."""
    middle = len(blocks.known) // 2
    found = [(1.0, _Candidate("step", int(blocks.known[middle])))]
    for half in (blocks.part(slice(0, middle)), blocks.part(slice(middle, None))):
        if len(half.known) >= LEAST:
            jumps = [one for one in _candidates(half.known) if one.kind != "trend"]
            p_value, clearest, _ = _clearest(half, (), jumps, floor, rng)
            found.append((min(1.0, 3 * p_value), clearest))
    return min(found, key=lambda pair: pair[0])


def _rest(left: Floats, apart: Floats) -> Floats:
    """Without the change that would explain most of each column, be it there or chance."""
    along = apart.T @ left
    clearest = np.abs(along).argmax(axis=0)
    rest: Floats = left - apart[:, clearest] * along[clearest, np.arange(left.shape[1])]
    return rest


def _fitted(
    values: Floats, follows: Floats, blocks: _Blocks, size: int, chosen: Sequence[_Candidate],
    p_values: Sequence[float], draws: Floats,
) -> Drift:  # fmt: skip
    """Sizes together, their errors from the noise, and instants as fine as the cells."""
    inverse = np.linalg.pinv(blocks.design(chosen))
    sizes, errors = inverse @ blocks.level, (inverse @ draws).std(axis=1)
    values = values - follows @ sizes[1 + len(chosen) :]
    cells = np.arange(len(values), dtype=np.float64)
    in_blocks = (cells - (size - 1) / 2) / size
    shapes = [one.shape(in_blocks) for one in chosen]
    changes = []
    for number, one in enumerate(chosen):
        amount, error = float(sizes[1 + number]), float(errors[1 + number])
        if one.kind == "trend":
            start, end = one.start * size, None
            amount, error = amount / size, error / size
        else:
            rest = sizes[0] + sum((s * sizes[1 + k] for k, s in enumerate(shapes) if k != number), np.zeros(len(cells)))
            start = _edge(values - rest, one.start * size, size, 0.0, amount)
            end = None if one.end is None else _edge(values - rest, one.end * size, size, amount, 0.0)
            shapes[number] = ((cells >= start) & (cells < (math.inf if end is None else end))).astype(float)
        changes.append(ChangePoint(one.kind, start, end, amount, error, p_values[number]))
    fitted = sizes[0] + sum((s * sizes[1 + k] for k, s in enumerate(shapes)), np.zeros(len(cells)))
    known = blocks.known
    frame, _ = np.linalg.qr(blocks.design(()))

    def error_of(shape: Floats) -> float:
        apart = shape - frame @ (frame.T @ shape)
        return float((apart @ draws).std()) / max(float(apart @ apart), 1e-300)

    halves = (np.arange(len(known)) >= len(known) // 2).astype(float)
    return Drift(tuple(changes), float(sizes[0]), fitted, error_of(known.astype(float)) / size, error_of(halves))


def _sharpened(one: _Candidate, blocks: _Blocks, others: Sequence[_Candidate], draws: Floats) -> _Candidate:
    """With its ends to the block: candidates lie further apart. It has no start, or end, where one explains no more."""
    known, design = blocks.known, blocks.design(others)
    last = int(known[-1]) + 1

    def left(tried: _Candidate) -> float:
        whole = np.column_stack([design, tried.shape(known)])
        rest = blocks.level - whole @ np.linalg.lstsq(whole, blocks.level, rcond=None)[0]
        return float(rest @ rest)

    if one.kind == "step":
        return one
    reach = len(known) // 10 if one.kind == "trend" else ((one.end or last) - one.start) // 3 + 1
    latest = int(known[-len(known) // 8]) if one.kind == "trend" else (one.end or last) - SIDE
    near = range(max(0, one.start - reach), min(latest, one.start + reach) + 1)
    best = min((_Candidate(one.kind, start, one.end) for start in near), key=left, default=one)
    if best.end is not None:
        ends = range(max(best.start + SIDE, best.end - reach), min(last, best.end + reach) + 1)
        best = min((_Candidate("spell", best.start, end) for end in ends), key=left, default=best)
    simple = _Candidate("trend", 0) if one.kind == "trend" else _Candidate("step", best.start)
    # by as much as chance makes the one with an end more the better one
    frame, _ = np.linalg.qr(np.column_stack([design, simple.shape(known)]))
    more = best.shape(known) - frame @ (frame.T @ best.shape(known))
    by_chance = float(((more @ (draws - frame @ (frame.T @ draws))) ** 2).mean()) / max(float(more @ more), 1e-300)
    return simple if left(simple) - left(best) < ENDS * by_chance else best


def _edge(values: Floats, about: int, size: int, before: float, after: float) -> int:
    """The cell near `about` at which the values go over from one level to another (least absolute differences)."""
    first, last = max(0, about - 2 * size), min(len(values), about + 2 * size + 1)
    near = values[first:last]
    gain = np.nan_to_num(np.abs(near - before) - np.abs(near - after))
    # after[k:] gains what before[:k] does not lose
    total = np.append(np.cumsum(gain[::-1])[::-1], 0.0)
    return first + int(np.argmax(total))


def _candidates(known: Ints) -> list[_Candidate]:
    """Everything that may have happened, in blocks."""
    n, last = len(known), int(known[-1]) + 1
    found = [_Candidate("trend", 0)]
    found += [_Candidate("trend", int(known[k])) for k in range(n // 20, n - n // 8, max(1, n // 40))]
    found += [_Candidate("step", int(known[k])) for k in range(SIDE, n - SIDE + 1)]
    length = n // 2
    while length >= SIDE:
        hop = max(1, length // 4)
        for k in range(SIDE, n - SIDE - length + 1, hop):
            found.append(_Candidate("spell", int(known[k]), int(known[k + length]) if k + length < n else last))
        length = int(length / 1.5)
    return found
