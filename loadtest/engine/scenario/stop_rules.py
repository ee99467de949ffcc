"""When a soak ends early: `errors>5%,slo,replica`, and the memory of a process of the harness. Pure.

errors>5%   of a minute's arrivals failed, at any endpoint
slo         an endpoint missed an objective in three chapters in a row
replica     fewer replicas answered than once did, for three minutes in a row
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tailrate.analysis.judging.judge import Judgement
from tailrate.analysis.judging.share import judged
from tailrate.analysis.records.objective import Threshold

IN_A_ROW = 3
LEAST_N = 20
"""Arrivals of a minute that say something about a share; for each replica, about who answers."""
TERMS = "errors>5%, slo, replica"


class AnsweredMinute(Protocol):
    """What a stop rule asks of a minute of one endpoint."""

    endpoint: str
    replicas: set[str]
    """That answered in it."""

    @property
    def n(self) -> int:
        """Its arrivals."""

    @property
    def ok(self) -> int:
        """Those that succeeded."""


@dataclass(slots=True)
class Stop:
    """`minute`, `chapter` and `memory` return the sentence that says why to stop, or None."""

    most_errors: float | None = None
    slo: bool = False
    replica: bool = False
    most_memory_mb: float = 0.0
    _missed: Counter[str] = field(default_factory=Counter)
    _fewer: Counter[str] = field(default_factory=Counter)
    _replicas: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, most_memory_mb: float = 0.0) -> Stop:
        """Raises `ValueError` with one sentence.

        >>> Stop.parse("errors>5%, slo").most_errors
        0.05
        """
        found = cls(most_memory_mb=most_memory_mb)
        for term in filter(None, (term.strip() for term in re.split("[,;]", text))):
            known = Threshold.parse(term)
            if known and (known.figure, known.below, known.unit) == ("errors", False, "%") and known.value >= 0:
                found.most_errors = known.value / 100
            elif term in ("slo", "replica"):
                setattr(found, term, True)
            else:
                raise ValueError(f"'{term}' is not understood; write some of {TERMS}")
        return found

    def minute(self, minute: AnsweredMinute) -> str | None:
        name, n = minute.endpoint, minute.n
        share = (n - minute.ok) / max(1, n)
        if self.most_errors is not None and n and judged(share, n, self.most_errors) is False:
            return f"{share:.1%} of the arrivals at {name} failed within a minute, more than {self.most_errors:.1%}"
        if not self.replica:
            return None
        most, before = self._replicas.get(name, (0, 0))
        answered = len(minute.replicas)
        # in the minute in which one takes the place of another, both have answered
        most = max(most, min(before, answered))
        self._replicas[name] = most, answered
        self._fewer[name] = self._fewer[name] + 1 if answered < most and n >= LEAST_N * most else 0
        if self._fewer[name] >= IN_A_ROW:
            return f"only {answered} of {most} replicas of {name} have answered for {IN_A_ROW} minutes"
        return None

    def chapter(self, endpoint: str, answers: Sequence[Judgement]) -> str | None:
        missed = [answer for answer in answers if answer.kept is False]
        self._missed[endpoint] = self._missed[endpoint] + 1 if missed else 0
        if not self.slo or self._missed[endpoint] < IN_A_ROW:
            return None
        return f"{endpoint} missed the objective in {IN_A_ROW} chapters in a row: {missed[0].sentence}"

    def memory(self, role: str, rss_bytes: int) -> str | None:
        if self.most_memory_mb and rss_bytes > self.most_memory_mb * 1e6:
            return f"the memory of {role} is {rss_bytes / 1e6:.0f} MB, more than {self.most_memory_mb:g}"
        return None
