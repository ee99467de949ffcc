"""Figures of benchmarks: medians of rounds with the lowest and the highest, and the line of JSON that comes last.

What is compared takes turns, round by round, so that a minute in which the machine is slow meets all of it. A median
without its spread does not say whether a difference is more than the machine makes by itself; the best of some rounds
says what luck there was.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)
Found = TypeVar("Found")
Spread = dict[str, float]


def in_turns(rounds: int, ways: Mapping[Name, Callable[[], Found]]) -> dict[Name, list[Found]]:
    """What each way found in each round; a round visits all of them."""
    found: dict[Name, list[Found]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return found


def spread(values: Iterable[float]) -> Spread:
    """`spread([3, 1, 2])` is a median of 2 between 1 and 3."""
    found = [float(value) for value in values]
    return {"median": statistics.median(found), "low": min(found), "high": max(found), "rounds": len(found)}


def spreads(rows: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Of each figure that the rounds have: one row for each round."""
    return {key: spread(row[key] for row in rows) for key in rows[0]}


def over(ours: Iterable[float], theirs: Iterable[float]) -> Spread:
    """Of the ratios within each round: both sides met the same minute."""
    return spread(mine / its for mine, its in zip(ours, theirs, strict=True))


def shown(found: Spread, form: str = ".1f", width: int = 0) -> str:
    """`12.3 (11.9–13.0)`: the median, the lowest and the highest."""
    return f"{found['median']:{form}} ({found['low']:{form}}–{found['high']:{form}})".rjust(width)


def last_line(benchmark: str, **found: Any) -> None:
    """Prints what machines read; what is no number, such as the mean of nothing, is null in JSON."""
    print(json.dumps({"benchmark": benchmark} | _plain(found), allow_nan=False), flush=True)


def left_out(benchmark: str, why: str) -> None:
    """The last line of a benchmark that cannot run here."""
    print(f"{benchmark}: left out, {why}")
    last_line(benchmark, left_out=why)


def _plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found
