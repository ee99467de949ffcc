"""What is asked of a run, in the words in which it is written, and from when on its load generator stood in the way."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

LATE_MS, LATE_SHARE = 1.0, 0.05
MOST_CPU_PCT, MOST_UNSENT = 85.0, 0.001
"""The load generator stood in the way where it sent later (P99) than a millisecond and than a twentieth of the tightest
latency objective (without one: of the median service time), was busier than this, or dropped a larger share of the
arrivals although the endpoint kept up."""

MAX_RECOVERY_S = 60.0
"""After a planned fault users are served as before within so long, where nothing else was asked for."""
BEFORE_FAULT_S = 60.0
"""How long before a fault tells what users are used to."""

LEAST_FOR_P999 = 4603
"""Arrivals that P99.9 takes at least, by MLPerf's rule; of fewer there is none, so that its absence says nothing."""

STREAM_FIGURES = ("ttft", "tpot")
PRESETS = {
    "llama2-70b-interactive": "p99 ttft<450ms, p99 tpot<40ms",
    "llama3.1-8b-interactive": "p99 ttft<500ms, p99 tpot<30ms",
}
"""By MLPerf's names."""

_SLICE = re.compile(r"\s*\[([^\[\]]+)\](.*)", re.DOTALL)
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)\s*(e2e|ttft|tpot)?\s*([<>].*)")
_THRESHOLD = re.compile(r"([a-z]\w*(?:\.\d+)?)\s*(<=?|>=?)\s*([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(%\s*/\s*h|%|ms|s|)")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A figure that is to be below or above a value, as all options write one: `p99<50ms`, `errors>5%`, `p99>5%`."""

    figure: str
    below: bool
    value: float
    unit: str
    """%, %/h, ms, s, or nothing."""

    @classmethod
    def parse(cls, text: str) -> Threshold | None:
        """None where it is none.

        >>> Threshold.parse("p99.9 <= 1.5 s")
        Threshold(figure='p99.9', below=True, value=1.5, unit='s')
        """
        match = _THRESHOLD.fullmatch(text.strip())
        return match and cls(match[1], match[2][0] == "<", float(match[3]), "".join(match[4].split()))


class Bound(NamedTuple):
    """What all but a few stay below."""

    percentile: float
    ms: float

    def text(self, figure: str) -> str:
        """
        >>> Bound(99.0, 450.0).text("ttft")
        'p99 ttft<450ms'
        """
        return f"p{self.percentile:g}{f' {figure}' * bool(figure)}<{self.ms:g}ms"


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective: a latency at a percentile and/or bounds on errors, goodput and rate.

    Of streams also on the time to the first token (TTFT) and on that for each further one (TPOT).

    >>> str(Slo.parse("p99<50ms, errors<0.1%"))
    'p99<50ms, errors<0.1%'
    >>> Slo.parse("[long] p99<200ms").slice
    'long'
    >>> Slo.parse("p99 ttft<450ms, p99 tpot<40ms").ttft
    Bound(percentile=99.0, ms=450.0)
    """

    percentile: float | None = None
    latency_ms: float | None = None
    max_error_rate: float | None = None
    min_goodput: float | None = None
    """Least share of offered arrivals that must succeed within all limits."""
    min_rate_rps: float | None = None
    slice: str | None = None
    """The label of the arrivals that it is asked of, where these are not all."""
    ttft: Bound | None = None
    tpot: Bound | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        found: dict[str, Any] = {}
        if named := _SLICE.fullmatch(text):
            found["slice"], text = named[1].strip(), named[2]
        for term in PRESETS.get(text.strip(), text).split(","):
            new = _bound(term) or _share_or_rate(term)
            if twice := found.keys() & new.keys():
                what = "latencies" if "percentile" in twice else " and ".join(sorted(twice))
                raise ValueError(f"SLO '{text}' sets two {what}; give one percentile")
            found |= new
        if "min_goodput" in found and not found.keys() & {"latency_ms", *STREAM_FIGURES}:
            raise ValueError(f"SLO '{text}' bounds goodput, which needs a latency beside it, such as p99<50ms")
        if "slice" in found and "min_rate_rps" in found:
            raise ValueError(f"SLO '{text.strip()}' asks a slice for a rate, and a rate is that of all arrivals")
        return cls(**found)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Slo:
        known: dict[str, Any] = {f.name: found.get(f.name) for f in fields(cls)}
        bounds = {name: Bound(known[name]["percentile"], known[name]["ms"]) for name in STREAM_FIGURES if known[name]}
        return cls(**known | bounds)

    def as_json(self) -> dict[str, Any]:
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            key: value._asdict() if isinstance(value, Bound) else value
            for key, value in known.items()
            if value is not None
        }

    def __str__(self) -> str:
        terms = [bound.text(name) for name, bound in self.bounds.items()]
        if self.max_error_rate is not None:
            terms.append(f"errors<{self.max_error_rate * 100:g}%")
        if self.min_goodput is not None:
            terms.append(f"goodput>{self.min_goodput * 100:g}%")
        if self.min_rate_rps is not None:
            terms.append(f"rate>={self.min_rate_rps:g}")
        return f"{self.prefix}{', '.join(terms)}"

    def without(self, texts: str) -> Slo:
        """Less the terms that are written there.

        >>> str(Slo.parse("p99<50ms, errors<0.1%").without("errors<0.1%"))
        'p99<50ms'
        """
        left = [term for term in str(self).split(", ") if term not in texts.split(", ")]
        return Slo.parse(", ".join(left)) if left else Slo()

    @property
    def bounds(self) -> dict[str, Bound]:
        """By figure; that of a whole answer is nameless."""
        whole = None if self.percentile is None else Bound(self.percentile, self.latency_ms or math.inf)
        found = {"ttft": self.ttft, "tpot": self.tpot, "": whole}
        return {name: bound for name, bound in found.items() if bound is not None}

    @property
    def prefix(self) -> str:
        """What its terms begin with: the slice."""
        return f"[{self.slice}] " if self.slice else ""


def _bound(term: str) -> dict[str, Any]:
    """Of a percentile: `p99<50ms`, `p99 ttft<450ms`; nothing where the term is none."""
    if not (match := _PERCENTILE.fullmatch(term.strip())):
        return {}
    figure, limit = match[2] or "e2e", Threshold.parse(f"{match[2] or 'e2e'}{match[3]}")
    if limit is None or not limit.below or limit.unit not in ("ms", "s"):
        raise ValueError(f"SLO term '{term.strip()}' has the wrong sign or unit; write for instance p99<50ms")
    bound = Bound(float(match[1]), limit.value * (1000.0 if limit.unit == "s" else 1.0))
    if not 0 < bound.percentile < 100 or not 0 < bound.ms < math.inf:
        raise ValueError(f"SLO term '{term.strip()}' needs a percentile in (0, 100) and a positive latency")
    return {"percentile": bound.percentile, "latency_ms": bound.ms} if figure == "e2e" else {figure: bound}


def _share_or_rate(term: str) -> dict[str, Any]:
    known = Threshold.parse(term)
    if known is None or known.figure not in ("errors", "goodput", "rate") or not 0 <= known.value < math.inf:
        raise ValueError(
            f"SLO term '{term.strip()}' is not understood; write for instance p99<50ms, errors<0.1%, "
            "goodput>95% or rate>=200, and of streams p99 ttft<450ms or p99 tpot<40ms"
        )
    match known.figure, known.below, known.unit:
        case ("errors", True, "%") | ("goodput", False, "%") if not 0 < known.value < 100:
            raise ValueError(f"SLO term '{term.strip()}' needs a share above 0 % and below 100 %")
        case "errors", True, "%":
            return {"max_error_rate": known.value / 100}
        case "goodput", False, "%":
            return {"min_goodput": known.value / 100}
        case "rate", False, "":
            return {"min_rate_rps": known.value}
    raise ValueError(f"SLO term '{term.strip()}' has the wrong sign or unit; write for instance p99<50ms")


def looked_for_s(max_recovery_s: float) -> float:
    """How long after a fault its recovery is looked for."""
    return max(600.0, 2 * max_recovery_s)


def overall(slos: Iterable[Slo]) -> list[Slo]:
    """Those of all arrivals, not of a slice."""
    return [slo for slo in slos if not slo.slice]


def searched(slos: Iterable[Slo]) -> Slo | None:
    """The objective that a search for the knee is for: the first of all arrivals that limits a latency."""
    return next((slo for slo in overall(slos) if slo.bounds), None)
