"""What is asked of a run, in the words in which it is written, and from when on its load generator stood in the way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

LATE_MS, LATE_SHARE = 1.0, 0.05
MOST_CPU_PCT, MOST_UNSENT = 85.0, 0.001
"""The load generator stood in the way where it sent later (P99) than a millisecond or a twentieth of the median service
time, was busier than this, or dropped a larger share of the arrivals although the endpoint kept up."""

MAX_RECOVERY_S = 60.0
"""After a planned fault users are served as before within so long, where nothing else was asked for."""

LEAST_FOR_P999 = 4603
"""Arrivals that P99.9 takes at least, by MLPerf's rule; of fewer there is none, so that its absence says nothing."""

_SLICE = re.compile(r"\s*\[([^\[\]]+)\](.*)", re.DOTALL)
_THRESHOLD = re.compile(r"([a-z]\w*(?:\.\d+)?)\s*(<=?|>=?)\s*([+-]?\d+(?:\.\d+)?)\s*(%\s*/\s*h|%|ms|s|)")


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


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective: a latency at a percentile and/or bounds on errors, goodput and rate.

    >>> Slo.parse("p99<50ms, errors<0.1%")
    Slo(percentile=99.0, latency_ms=50.0, max_error_rate=0.001, min_goodput=None, min_rate_rps=None, slice=None)
    >>> Slo.parse("[long] p99<200ms").slice
    'long'
    """

    percentile: float | None = None
    latency_ms: float | None = None
    max_error_rate: float | None = None
    min_goodput: float | None = None
    """Least share of offered arrivals that must succeed within `latency_ms`."""
    min_rate_rps: float | None = None
    slice: str | None = None
    """The label of the arrivals that it is asked of, where these are not all."""

    @classmethod
    def parse(cls, text: str) -> Slo:
        found: dict[str, Any] = {}
        if named := _SLICE.fullmatch(text):
            found["slice"], text = named[1].strip(), named[2]
        for term in text.split(","):
            known = Threshold.parse(term)
            word, value = (known.figure, known.value) if known else ("", 0.0)
            percent = re.fullmatch(r"p(\d{1,2}(?:\.\d+)?)", word)
            if known is None or not (percent or word in ("errors", "goodput", "rate")) or value < 0:
                raise ValueError(
                    f"SLO term '{term.strip()}' is not understood; write for instance p99<50ms, errors<0.1%, "
                    "goodput>95% or rate>=200"
                )
            if percent and known.below and known.unit in ("ms", "s"):
                if "latency_ms" in found:
                    raise ValueError(f"SLO '{text}' sets two latencies; give one percentile")
                found |= {"percentile": float(percent[1]), "latency_ms": value * (1000.0 if known.unit == "s" else 1.0)}
                if not 0 < found["percentile"] < 100 or value <= 0:
                    raise ValueError(f"SLO term '{term.strip()}' needs a percentile in (0, 100) and a positive latency")
            elif word == "errors" and known.below and known.unit == "%":
                found["max_error_rate"] = value / 100
            elif word == "goodput" and not known.below and known.unit == "%":
                found["min_goodput"] = value / 100
            elif word == "rate" and not known.below and known.unit == "":
                found["min_rate_rps"] = value
            else:
                raise ValueError(f"SLO term '{term.strip()}' has the wrong sign or unit; write for instance p99<50ms")
        if "min_goodput" in found and "latency_ms" not in found:
            raise ValueError(f"SLO '{text}' bounds goodput, which needs a latency beside it, such as p99<50ms")
        if "slice" in found and "min_rate_rps" in found:
            raise ValueError(f"SLO '{text.strip()}' asks a slice for a rate, and a rate is that of all arrivals")
        return cls(**found)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Slo:
        return cls(**{f.name: found.get(f.name) for f in fields(cls)})

    def as_json(self) -> dict[str, float | str]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        terms = []
        if self.percentile is not None:
            terms.append(f"p{self.percentile:g}<{self.latency_ms:g}ms")
        if self.max_error_rate is not None:
            terms.append(f"errors<{self.max_error_rate * 100:g}%")
        if self.min_goodput is not None:
            terms.append(f"goodput>{self.min_goodput * 100:g}%")
        if self.min_rate_rps is not None:
            terms.append(f"rate>={self.min_rate_rps:g}")
        return f"{self.prefix}{', '.join(terms)}"

    @property
    def prefix(self) -> str:
        """What its terms begin with: the slice."""
        return f"[{self.slice}] " if self.slice else ""


def overall(slos: Iterable[Slo]) -> list[Slo]:
    """Those of all arrivals, not of a slice."""
    return [slo for slo in slos if not slo.slice]
