"""Which rows of a file each request carries. Pure: every load process that asks gets the same answer.

Requests of a run are numbered from 0; a step says which number its first arrival has (`LoadStep.data_from`), and the
arrival's own number is added to that. So who sends an arrival makes no difference to what it carries.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

PERIOD = 1024
"""After so many requests their sizes come again, where several are asked for."""


@dataclass(frozen=True)
class Deal:
    """Rows in the order of the file, or drawn: each once, in an order of its own, before any comes again."""

    rows: int
    """Of the file."""
    drawn: bool
    unique: bool
    """No row goes out twice."""
    seed: int
    sizes: tuple[int, ...] = (1,)
    """Rows in each request; of several each request draws one."""

    def of(self, request: int) -> tuple[int, ...]:
        """The rows of a request."""
        first = self.before(request)
        return tuple(self._at(place) for place in range(first, first + self._lengths[request % len(self._lengths)]))

    def before(self, requests: int) -> int:
        """How many rows the first so many requests carry."""
        passes, place = divmod(requests, len(self._lengths))
        return passes * self._ends[-1] + (self._ends[place - 1] if place else 0)

    @property
    def most(self) -> int | None:
        """How many requests there can be; None: any number, as rows come again."""
        if not self.unique:
            return None
        passes, left = divmod(self.rows, self._ends[-1])
        return passes * len(self._lengths) + bisect_right(self._ends, left)

    @cached_property
    def _lengths(self) -> list[int]:
        """Of the requests of a period."""
        several = len(set(self.sizes)) > 1
        found: list[int] = np.random.default_rng([self.seed]).choice(self.sizes, PERIOD if several else 1).tolist()
        return found

    @cached_property
    def _ends(self) -> list[int]:
        found: list[int] = np.cumsum(self._lengths).tolist()
        return found

    def _at(self, place: int) -> int:
        passes, number = divmod(place, self.rows)
        return int(_order(self.rows, self.seed, passes)[number]) if self.drawn else number


@lru_cache(2)
def _order(rows: int, seed: int, passes: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, passes, rows]).permutation(rows)


class Handout:
    """Says from which number on each step's requests carry rows, so that a run goes through the file once.

    Steps with the same arrivals, as endpoints have them that take turns, carry the same rows; where each row may go out
    once only, every step has rows of its own.
    """

    def __init__(self, deal: Deal, next_request: int = 0) -> None:
        self._deal, self._next = deal, next_request
        self._alike: dict[tuple[int, float, float], int] = {}

    def first(self, seed: int, rate: float, seconds: float, arrivals: int) -> int | None:
        """Of a step with so many arrivals (0: nobody knows how many); None where the rows do not suffice."""
        most = self._deal.most
        if most is not None and (self._next + arrivals > most or self._next >= most):
            return None
        key = (seed, rate, seconds)
        if not self._deal.unique and key in self._alike:
            return self._alike[key]
        self._alike[key], self._next = self._next, self._next + arrivals
        return self._alike[key]

    def used(self, until: int) -> None:
        """A closed loop came so far."""
        self._next = max(self._next, until)

    @property
    def left(self) -> int | None:
        """Requests that there are rows for."""
        return None if self._deal.most is None else self._deal.most - self._next
