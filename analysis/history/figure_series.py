"""One endpoint in one environment over many runs, and each of its headline figures from run to run.

Runs are of one lineage where what an endpoint runs on, and how it is asked, are the same: device, precision, batching,
torch, CUDA, driver, Ray, and the scenario's settings with its objective. What a history is kept to follow (the code:
git, tailrate, the server's version, weights) starts no new one, nor do the load generator's own packages.

Figures are told apart on a scale on which noise is additive: logarithms, or for shares twice the arc sine of the root,
whose variance is one over the number of arrivals whatever the share is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tailrate.analysis.history.run_summary import Entry, Level, StartFacts
from tailrate.analysis.text import words

Load = tuple[float, int]
"""Rate and concurrency, one of them 0."""
Reader = Callable[[Entry, str], "FigureReading | None"]

_VERSIONS = ("torch", "cuda", "driver", "ray")
_NOT_THE_ENVIRONMENT = ("device", "device name", "weights", "weights digest")
_ASKED_ANEW = ("rates", "seed", "variants", "total seconds", "keep hours", "keep gb", "stop on", "max memory mb")
"""Settings in which runs of a lineage may differ: rates, since figures are compared at one that runs have in common,
and how long a soak goes on and what it keeps."""
_LENGTHS = ("step length", "settle length")
_AS_LONG_AS_NEEDED = ("knee", "soak")
"""Modes whose steps differ in length from run to run without a meaning."""


_MOST = 700.0
"""The logarithm of the largest figure that is written."""


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A headline figure."""

    title: str
    unit: str
    better: int
    """1 where more is better, −1 where less is."""
    least: float
    """On its scale: a smaller change is of no account, however sure."""
    share: bool = False
    lost: str = ""
    """What it means to have no value on the scale."""

    def has(self, value: float) -> bool:
        """Whether the value is on the scale."""
        return math.isfinite(value) and (self.share or value > 0)

    def scaled(self, value: float) -> float:
        return 2 * math.asin(math.sqrt(value)) if self.share else math.log(value)

    def value(self, scaled: float) -> float:
        return math.sin(min(max(scaled, 0.0), math.pi) / 2) ** 2 if self.share else math.exp(min(scaled, _MOST))

    def written(self, value: float | None) -> str:
        if value is None:
            return words.ABSENT
        return f"{words.significant(100 * value)} %" if self.share else words.with_unit(self.unit)(value)


_INFINITE = "it is overloaded, or so much fails that it is infinite"

KINDS = {
    "capacity": FigureKind("capacity", "/s", +1, 0.01, lost="no rate kept the objective"),
    "p50": FigureKind("P50", "\u00a0ms", -1, 0.01, lost=_INFINITE),
    "p99": FigureKind("P99", "\u00a0ms", -1, 0.01, lost=_INFINITE),
    "ttft": FigureKind("TTFT P99", "\u00a0ms", -1, 0.01, lost=_INFINITE),
    "tpot": FigureKind("TPOT P99", "\u00a0ms", -1, 0.01, lost=_INFINITE),
    "joules": FigureKind("J/request", "\u00a0J", -1, 0.01),
    "joules_per_token": FigureKind("J/token", "\u00a0J", -1, 0.01),
    "errors": FigureKind("errors", "", -1, 0.01, share=True),
    "start": FigureKind("start", "\u00a0s", -1, 0.05),
    "parity": FigureKind("parity error", "", -1, 0.1),
}


@dataclass(frozen=True, slots=True)
class FigureReading:
    """A figure in one run."""

    value: float
    """Infinite where failures or overload made it so; a capacity is 0 where no rate kept the objective."""
    low: float | None = None
    high: float | None = None
    error: float = 0.0
    """Standard error within the run, on the figure's scale; 0 where the run does not know it."""

    @property
    def bound(self) -> bool:
        """Of a capacity: it is that or more, since no rate that was tried missed."""
        return self.low is not None and self.high is None


@dataclass(frozen=True, slots=True)
class FigureTrack:
    """One figure from run to run: what `expectation` judges."""

    key: str
    at: str
    """The load, or how it started (cold, warm)."""
    of: Reader
    """How it is read from a run, of an endpoint."""
    readings: list[FigureReading | None]
    """One for each run of the lineage."""

    @property
    def kind(self) -> FigureKind:
        return KINDS[self.key]

    @property
    def title(self) -> str:
        return title(self.key, self.at)


@dataclass(frozen=True, slots=True)
class Lineage:
    endpoint: str
    environment: dict[str, str]
    entries: list[Entry]
    """Oldest first."""

    @property
    def newest(self) -> Entry:
        return self.entries[-1]

    def tracks(self) -> list[FigureTrack]:
        """Every figure that the newest run has, or most of those before."""
        return [track for track in tracks(self.entries, self.endpoint) if _spoken_of(track.readings)]


def lineages(entries: Iterable[Entry]) -> list[Lineage]:
    """Of runs in order of time; the one with the newest run comes last."""
    groups: dict[tuple[object, ...], Lineage] = {}
    for entry in entries:
        for endpoint in dict.fromkeys(level.endpoint for level in entry.levels):
            found = environment(entry, endpoint)
            key = (endpoint, *sorted(found.items()))
            groups.setdefault(key, Lineage(endpoint, found, [])).entries.append(entry)
    return sorted(groups.values(), key=lambda one: (one.newest.time_ns, one.newest.name, one.endpoint))


def environment(entry: Entry, endpoint: str) -> dict[str, str]:
    """What figures of a run depend on beside the code, by name."""
    of = {name: said for (group, name), said in entry.origin.items() if group == endpoint}
    found = {name: said for name, said in of.items() if name not in _NOT_THE_ENVIRONMENT}
    # another card of the same make is no other device
    if device := of.get("device name") or of.get("device"):
        found["device"] = device
    left_out = (*_ASKED_ANEW, *(_LENGTHS if entry.mode in _AS_LONG_AS_NEEDED else ()))
    for (group, name), said in entry.origin.items():
        if group == "setting" and name not in left_out:
            found[name] = said
        elif group == "version" and name in _VERSIONS:
            found.setdefault(name, said)
        elif (group, name) == ("host", "load cpus"):
            found[name] = said
    return found


def tracks(entries: Sequence[Entry], endpoint: str) -> list[FigureTrack]:
    """Every figure, at what the last of the runs and most others have."""
    start = (entries[-1].opened.get(endpoint) or StartFacts()).start
    last = [level for level in entries[-1].of_endpoint(endpoint) if _believed(level)]
    load = common_load([entry.of_endpoint(endpoint) for entry in entries], {level.load for level in last})
    found = readers(load, start)
    return [
        FigureTrack(key, at, read, [read(entry, endpoint) for entry in entries]) for key, (at, read) in found.items()
    ]


def common_load(levels: Iterable[Sequence[Level]], among: Collection[Load] = ()) -> Load | None:
    """Of some loads, or else all, the highest of those that most of several runs can speak of."""
    said = Counter(load for found in levels for load in {level.load for level in found if not level.doubtful})
    return max(among or said, key=lambda load: (said[load], load), default=None)


def readers(load: Load | None, start: str) -> dict[str, tuple[str, Reader]]:
    """By figure, at what it is read and how; `start` is cold or warm."""
    found: dict[str, tuple[str, Reader]] = {"capacity": ("", _capacity)}
    if load:
        found |= {key: (words.load(*load), partial(_at, load, read)) for key, read in _AT_LOAD.items()}
    return found | {"start": (start, partial(_start, start)), "parity": ("", _parity)}


def title(key: str, at: str) -> str:
    """`P99 at 200/s`, `warm start`, `capacity`."""
    if key in _AT_LOAD:
        return f"{KINDS[key].title} at {at}"
    return f"{at} {KINDS[key].title}".strip()


def _spoken_of(readings: Sequence[FigureReading | None]) -> bool:
    *earlier, newest = readings
    return newest is not None or sum(one is not None for one in earlier) > len(earlier) / 2


# ---- readers


def _believed(level: Level) -> bool:
    return level.overloaded or not level.doubtful


def _positive(value: float | None) -> FigureReading | None:
    return FigureReading(value) if value is not None and 0 < value < math.inf else None


def _start(start: str, entry: Entry, endpoint: str) -> FigureReading | None:
    """A cold start compiles, so that it is another figure than a warm one."""
    opened = entry.opened.get(endpoint)
    return _positive(opened.seconds) if opened and opened.start == start else None


def _parity(entry: Entry, endpoint: str) -> FigureReading | None:
    opened = entry.opened.get(endpoint)
    return _positive(opened.parity_error) if opened else None


def _capacity(entry: Entry, endpoint: str) -> FigureReading | None:
    """The highest rate that kept the objective, as sure as the step to the lowest that missed it."""
    kept = entry.kept.get(endpoint)
    if kept is None or not kept.rising or (kept.low_rps or kept.high_rps) is None:
        return None
    low, high = max(kept.low_rps or 0.0, 0.0), kept.high_rps
    error = math.log(high / low) / math.sqrt(12) if high and high > low > 0 else 0.0
    return FigureReading(low, low, high, error)


def _at(load: Load, read: Callable[[Level], FigureReading | None], entry: Entry, endpoint: str) -> FigureReading | None:
    found = next((level for level in entry.of_endpoint(endpoint) if level.load == load), None)
    return read(found) if found and _believed(found) else None


def _latency(key: str) -> Callable[[Level], FigureReading | None]:
    name = key.removesuffix("_ms")

    def read(level: Level) -> FigureReading | None:
        value, low, high = (level.figures.get(f"{name}{end}_ms") for end in ("", "_low", "_high"))
        if level.overloaded and (value is not None or name in ("p50", "p99")):  # no percentile describes it
            return FigureReading(math.inf)
        if value is None or value <= 0:
            return None
        if low is None or high is None or not 0 < low <= high < math.inf:
            return FigureReading(value)
        return FigureReading(value, low, high, math.log(high / low) / (2 * 1.96))

    return read


def _figure(key: str) -> Callable[[Level], FigureReading | None]:
    return lambda level: _positive(level.figures.get(key))


def _errors(level: Level) -> FigureReading | None:
    if level.arrivals <= 0:
        return None
    share = min(max(level.errors / level.arrivals, 0.0), 1.0)
    return FigureReading(share, error=1 / math.sqrt(level.arrivals))


_AT_LOAD: Mapping[str, Callable[[Level], FigureReading | None]] = {
    "p50": _latency("p50_ms"), "p99": _latency("p99_ms"), "ttft": _latency("ttft_p99_ms"),
    "tpot": _latency("tpot_p99_ms"), "joules": _figure("joules_per_request"),
    "joules_per_token": _figure("joules_per_token"), "errors": _errors,
}  # fmt: skip
