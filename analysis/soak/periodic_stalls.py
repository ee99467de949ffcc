"""Periodic stalls: a garbage collector, a flush, a scrape, by which requests are held up every so many seconds.

The slowest request of each tenth of a second is folded at a period: cycles below each other, each cut into phases. By
chance any phase is among the slowest tenth of its cycle once in ten times; one that is in most of them is a stall. As
each cycle is held against itself, slow drift does not show. Tried are the periods that timers usually have, and those
at which the autocorrelation of the slow seconds peaks. Owns its pass over the rows, which only soaks make.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tailrate.analysis.records.folder import REQUESTS
from tailrate.analysis.run.arrays import Chunk, scan
from tailrate.analysis.run.bins import NEVER
from tailrate.analysis.run.columns import WHOLE
from tailrate.analysis.stats.array_types import Floats
from tailrate.analysis.stats.distributions import betainc
from tailrate.analysis.stats.ratio import LEVEL

if TYPE_CHECKING:
    from tailrate.analysis.run.time_axis import Timeline
    from tailrate.analysis.verdicts.run import Run

Singles = npt.NDArray[np.float32]

TENTHS = 10
USUAL_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
PHASES = 60
LEAST_CYCLES = 8
SURELY_CYCLES = 16
"""From so many cycles on, a stall need appear in only `MOSTLY` of them, not in each."""
MOSTLY = 0.66
"""The share of the cycles in which a stall must appear."""
MOST, MOST_PARTS = 5, 10
"""Stalls of one endpoint; parts of a period that are tried in its place."""
LARGER = 1.5
"""One that is so much larger than a known one is no rest of it."""
MATTERS, MATTERS_MS = 0.2, 1.0
"""A stall holds requests up by so much of what they usually take, and by so much."""


@dataclass(frozen=True, slots=True)
class Stall:
    period_s: float
    start_s: float
    """Of the first one, since the start of the series."""
    end_s: float | None
    """Where they stopped."""
    size_ms: float
    """By how much the slowest request of a stall is slower than the slowest elsewhere, the median of each."""
    low_ms: float
    high_ms: float
    """Between which half of the stalls lie."""
    p_value: float
    seen: float
    """How often it was seen, the more the less likely it is by chance."""


def peaks(run: Run, line: Timeline) -> dict[str, Floats]:
    """By endpoint: the longest latency in ms of the requests due in each tenth of a second; NaN where there is none."""
    length = line.slices * line.slice_s * TENTHS
    found: dict[str, Singles] = {}

    def gather(chunk: Chunk) -> list[tuple[str, int, Singles]]:
        if not len(chunk):
            return []
        intended, done = chunk.whole("intended_ns"), chunk.whole(WHOLE)
        codes, names = chunk.text("endpoint")
        at = (intended - line.zero_ns) * TENTHS // 10**9
        good = (done != NEVER) & (at >= 0) & (at < length)
        latency = ((done - intended) / 1e6).astype(np.float32)
        pieces = []
        for code, name in enumerate(names):
            mine = good & (codes == code)
            if mine.any():
                first = int(at[mine].min())
                most = np.full(int(at[mine].max()) - first + 1, -1.0, dtype=np.float32)
                np.maximum.at(most, at[mine] - first, latency[mine])
                pieces.append((name, first, most))
        return pieces

    for pieces in scan(run.tables[REQUESTS], ("endpoint", "intended_ns", WHOLE), gather):
        for name, first, most in pieces:
            whole = found.setdefault(name, np.full(length, -1.0, dtype=np.float32))
            part = whole[first : first + len(most)]
            np.maximum(part, most, out=part)
    return {name: np.where(whole < 0, math.nan, whole) for name, whole in found.items()}


def stalls(peak: Floats) -> list[Stall]:
    """Of one endpoint, the clearest first; each is taken out before the next is looked for, or it would hide that."""
    found: list[Stall] = []
    for _ in range(MOST):
        periods = [*USUAL_S, *_recurring(peak)]
        tried = [stall for period_s in periods if (stall := _folded(peak, period_s, len(periods))) is not None]
        if not tried:
            break
        clearest = max(tried, key=lambda one: one.seen)
        if not any(_again(clearest, known) for known in found):
            found.append(clearest)
        peak = _without(peak, clearest)
    return found


def _again(stall: Stall, known: Stall) -> bool:
    """Whether it is what is left of a known one, at its period or a multiple of it."""
    ratio = stall.period_s / known.period_s
    return (
        ratio > 0.9 and abs(ratio - round(ratio)) <= min(0.1, 0.02 * ratio) and stall.size_ms <= LARGER * known.size_ms
    )


def _without(peak: Floats, stall: Stall) -> Floats:
    """With a hole where it was, and a phase on either side."""
    at_s = (np.arange(len(peak)) + 0.5) / TENTHS
    width_s = stall.period_s / _phases(stall.period_s)
    rest: Floats = np.where((at_s - stall.start_s + width_s) % stall.period_s < 3 * width_s, math.nan, peak)
    return rest


def smallest(peak: Floats) -> tuple[float, float] | None:
    """(ms, s): by how long a stall must hold requests up to show, at usual periods of up to so many seconds."""
    periods = [one for one in USUAL_S if len(peak) / TENTHS / one >= SURELY_CYCLES]
    if not periods or np.isnan(peak).all():
        return None
    cycles = _cycles(peak, periods[-1])
    # four of five of what is usual, so much later, is among the slowest tenth of four of five cycles
    slowest = np.nanquantile(cycles[~np.isnan(cycles).all(axis=1)], 0.9, axis=1)
    apart = float(np.quantile(slowest, 0.8)) - float(np.nanquantile(cycles, 0.2))
    return max(apart, MATTERS * float(np.nanmedian(cycles)), MATTERS_MS), periods[-1]


def _cycles(peak: Floats, period_s: float) -> Floats:
    """The slowest request by cycle and phase, NaN where there is none."""
    phases = _phases(period_s)
    count = int(len(peak) / TENTHS / period_s)
    at = np.floor((np.arange(len(peak)) + 0.5) * (phases / (period_s * TENTHS))).astype(np.int64)
    used = (at < count * phases) & ~np.isnan(peak)
    most = np.full(count * phases, -1.0)
    np.maximum.at(most, at[used], peak[used])
    return np.where(most < 0, math.nan, most).reshape(count, phases)


def _phases(period_s: float) -> int:
    return max(2, min(PHASES, int(period_s * TENTHS + 1e-6)))


def _slow(cycles: Floats) -> Floats:
    """1 where a phase is among the slowest tenth of its cycle, else 0."""
    phases = cycles.shape[1]
    top = _top(phases)
    filled = np.where(np.isnan(cycles), -1.0, cycles)
    limit = np.partition(filled, phases - top, axis=1)[:, phases - top]
    return ((filled >= limit[:, None]) & (filled > 0)).astype(np.float64)


def _top(phases: int) -> int:
    """A tenth, and two at least: a stall may lie across the border of two."""
    return max(2, phases // 10)


def _folded(peak: Floats, period_s: float, tried: int) -> Stall | None:
    cycles = _cycles(peak, period_s)
    count, phases = cycles.shape
    known = ~np.isnan(cycles)
    if count < LEAST_CYCLES or phases < 5:
        return None
    slow = _slow(cycles)
    # a cycle in which nobody came at this phase says nothing of it
    first, last, phase = longest(np.where(known, slow - (MOSTLY - 0.06), 0.0))
    length, hits = int(known[first:last, phase].sum()), float(slow[first:last, phase].sum())
    if length < LEAST_CYCLES or hits < MOSTLY * length:
        return None
    # of equal latencies more than a tenth are the slowest, and where few phases have any so are these
    by_chance = max(_top(phases) / phases, float(slow[first:last].sum() / known[first:last].sum()))
    # any phase, any beginning and end, any period
    looks = phases * (count * (count - 1) / 2) * tried
    p_value = min(1.0, looks * betainc(hits, length - hits + 1, by_chance))
    held, usual = cycles[first:last, phase], float(np.nanmedian(cycles[first:last]))
    low, middle, high = (float(q) - usual for q in np.nanquantile(held, [0.25, 0.5, 0.75]))
    if middle < max(MATTERS * usual, MATTERS_MS) or p_value > LEVEL:
        return None
    begin = (first + phase / phases) * period_s
    end = None if last >= count - 2 else (last - 1 + phase / phases) * period_s
    return Stall(period_s, begin, end, middle, low, high, p_value, -hits * math.log(by_chance))


def longest(scores: Floats) -> tuple[int, int, int]:
    """Of the columns' runs the one with the largest sum: its first row, the row after it, its column."""
    total = np.vstack([np.zeros(scores.shape[1]), np.cumsum(scores, axis=0)])
    lowest = np.minimum.accumulate(total, axis=0)
    gain = total - lowest
    last, phase = np.unravel_index(int(np.argmax(gain)), gain.shape)
    first = int(np.argmin(total[: last + 1, phase]))
    return first, int(last), int(phase)


# ---- periods that nobody would guess


def _recurring(peak: Floats) -> Iterator[float]:
    """Periods at which what is slow comes again, by its autocorrelation: of three seconds and more, second by second,
    and of one to ten tenth by tenth, as seconds blur what comes again after few of them."""
    yield from _again_after(peak, TENTHS, 3 * TENTHS)
    yield from _again_after(peak, 1, TENTHS, 10 * TENTHS)


def _again_after(peak: Floats, wide: int, least: int, most: int | None = None) -> Iterator[float]:
    """In slots that are so many tenths wide, from the least period on, in tenths; periods are seconds."""
    if len(peak) < 3 * LEAST_CYCLES * LEAST_CYCLES * TENTHS:
        return
    slots = peak[: len(peak) // wide * wide].reshape(-1, wide)
    slowest = np.where(np.isnan(slots), -1.0, slots).max(axis=1)
    n, ten_minutes = len(slowest), 600 * TENTHS // wide
    # against its own ten minutes, so that hours do not differ
    slow = np.zeros(n)
    for begin in range(0, n, ten_minutes):
        part = slowest[begin : begin + ten_minutes]
        if (known := part[part >= 0]).size >= 30:
            slow[begin : begin + ten_minutes] = part > max(0.0, float(np.quantile(known, 0.95)))
    slow -= slow.mean()
    if not slow.any():
        return
    power = np.abs(np.fft.rfft(slow, 2 * n)) ** 2
    reach, first = n // 4, least // wide
    again = np.fft.irfft(power)[:reach] / (n - np.arange(reach))
    noise = 1.4826 * float(np.median(np.abs(again[3:] - np.median(again[3:])))) + 1e-12
    end = min(reach - 1, n // LEAST_CYCLES, most // wide if most else n)
    inner, before, after = again[first:end], again[first - 1 : end - 1], again[first + 1 : end + 1]
    high = (inner > 6 * noise) & (inner >= before) & (inner > after)
    lags: list[float] = []
    found: list[float] = []
    for lag in (np.flatnonzero(high) + first).tolist():
        if again[lag] < 0.5 * inner.max() or any(abs(lag / p - round(lag / p)) < 0.05 for p in lags):
            continue
        found.append(_part(peak, _tuned(peak, again, float(lag), wide / TENTHS)))
        lags.append(found[-1] * TENTHS / wide)
        if len(found) == 3:
            break
    cycles = len(peak) / TENTHS / np.array(USUAL_S)
    for period in found:
        # a usual period would get out of step with it by more than a phase
        if all(abs(period / usual - 1) * n * _phases(usual) > 1 for usual, n in zip(USUAL_S, cycles, strict=True)):
            yield period


def _part(peak: Floats, period_s: float) -> float:
    """The shortest whole part of it that fits as well: of half seconds the autocorrelation sees every second one."""

    def fits(part_s: float) -> float:
        slow = _slow(_cycles(peak, part_s))
        return float(slow.sum(axis=0).max()) / max(1, len(slow))

    whole = fits(period_s)
    parts = (period_s / n for n in range(MOST_PARTS, 1, -1) if period_s / n >= 1)
    return next((part_s for part_s in parts if fits(part_s) >= 0.9 * whole), period_s)


def _tuned(peak: Floats, again: Floats, lag: float, slot_s: float) -> float:
    """The period as fine as it has to be not to get out of step over the whole series; the lag is in slots."""
    period, times = lag, 2
    while times * period + 2 < len(again):
        about = round(times * period)
        period = (about - 1 + int(np.argmax(again[about - 1 : about + 2]))) / times
        times *= 2
    period, reach = period * slot_s, 1.5 * slot_s / max(2, times // 2)
    width = period / _phases(period)
    hop = max(width * period / (len(peak) / TENTHS) / 2, reach / 100)
    tries = period + np.arange(-reach, reach + hop, hop)
    return float(max(tries, key=lambda one: _slow(_cycles(peak, one)).sum(axis=0).max() * one))
