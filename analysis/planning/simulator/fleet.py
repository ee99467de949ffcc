"""A fleet of replicas, as capacity planning sees it: what a batch costs, how batches are made, who gets a request.

Frozen and without behaviour but their JSON. Times are in seconds. What happens with a fleet is `simulate`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from tailrate.analysis.stats.array_types import Floats, Ints


class Rule(StrEnum):
    """How a replica makes batches of what waits; B is the largest batch, W the batch wait."""

    OPPORTUNISTIC = "opportunistic"
    """The moment it is free: all that waits, up to B; fewer than B are kept until W after it was free with work."""
    COMPANY = "company"
    """`tailrate serve`: the same, but only a request that waits alone is kept, at most W, until a second one comes."""
    BLOCKING = "blocking"
    """Ray's `@serve.batch` around a method that blocks the event loop: what a full batch leaves over closes alone.
    Since Python 3.12 only where W is nought; with a wait it is OPPORTUNISTIC, but for four percent."""
    AWAITING = "awaiting"
    """Ray's `@serve.batch` around a method that awaits: it closes a batch W after its first item, busy or not."""


class Routing(StrEnum):
    """Which replica gets a request, by the requests that each holds, waiting or running."""

    TWO_CHOICES = "two_choices"
    """Ray Serve's own router: the emptier of two at random."""
    LEAST = "least"
    """HAProxy's leastconn, which `tailrate serve` uses: the emptiest; of equals the one that has been so longest."""
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    ONE_QUEUE = "one_queue"
    """None has a queue of its own: whoever is free takes from one for all, as instances of a Triton model do. No router
    does better. OPPORTUNISTIC alone, without outages, bounds of the queue or autoscaling."""


ROUTERS = tuple(routing for routing in Routing if routing != Routing.ONE_QUEUE)
"""To replicas with a queue each."""


class Waking(NamedTuple):
    """What a batch takes longer where its replica was idle before: threads sleep, caches and clocks cool.

    Nothing up to `from_s` of idleness, all of `extra_s` from `full_s` on, and on a straight line between.
    """

    from_s: float = 0.0
    full_s: float = 0.0
    extra_s: float = 0.0

    def after(self, idle_s: Floats) -> Floats:
        """
        >>> Waking(0.1, 0.3, 0.008).after(np.array([0.05, 0.2, np.inf])).tolist()
        [0.0, 0.004, 0.008]
        """
        if not self.extra_s:
            return np.zeros(len(idle_s))
        found: Floats = np.interp(idle_s, (self.from_s, self.full_s), (0.0, self.extra_s))
        return found


AWAKE = Waking()


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """What one replica needs for a batch, by the requests in it."""

    mean_s: Floats
    """(B + 1,): seconds for which a batch of so many occupies the replica, behind one as large; index 0 is not used."""
    spread: Floats
    """(classes, M): multipliers of a batch's time, mean 1 in each class, M a power of two: a grid of quantiles."""
    spread_class: Ints
    """(B + 1,): the row of `spread` that a batch of so many draws from."""
    overhead_s: Floats
    """(M2,), a power of two: a grid of quantiles of what a request spends outside the replica; occupies nothing."""
    answer_s: float = 0.0
    """From the end of the occupation until the answer leaves; occupies nothing."""
    waking: Waking = AWAKE
    after_s: Floats | None = None
    """(B + 1,): what a request spends outside the replica beyond `overhead_s` after a batch of so many."""
    telling_s: Floats | None = None
    """(B + 1,): behind a batch of so many, answers hold up for so long one that begins meanwhile."""
    wake_s: float = 0.0
    """An idle replica begins so long after a request came, with all that came since, where nobody waits for company."""

    def __post_init__(self) -> None:
        if not self.max_batch or not (self.mean_s[1:] > 0).all():
            raise ValueError("a batch of each size, from one request on, needs a time above 0")
        for grid in (self.spread.shape[1], len(self.overhead_s)):
            if grid.bit_count() != 1:
                raise ValueError(f"a grid of quantiles must be a power of two long, not {grid}")
        classes, of = len(self.spread), self.spread_class
        if len(of) != len(self.mean_s) or not 0 <= of.min() <= of.max() < classes:
            raise ValueError(f"each of {self.max_batch} sizes of a batch needs one of {classes} classes of spread")
        if any(one is not None and len(one) != len(self.mean_s) for one in (self.after_s, self.telling_s)):
            raise ValueError(f"each of {self.max_batch} sizes of a batch needs a time after it")

    @classmethod
    def steady(cls, mean_s: Floats, overhead_s: float = 0.0) -> Service:
        """Without spread.

        >>> Service.steady(np.array([0.0, 0.002, 0.003])).limit_rps
        666.6666666666666
        """
        sizes = np.zeros(len(mean_s), dtype=np.int64)
        return cls(np.asarray(mean_s, dtype=np.float64), np.ones((1, 1)), sizes, np.array([overhead_s]))

    @property
    def max_batch(self) -> int:
        return len(self.mean_s) - 1

    @property
    def limit_rps(self) -> float:
        """Of one replica that always has a batch of the best size."""
        return float(np.max(np.arange(1, len(self.mean_s)) / self.mean_s[1:]))

    def scaled(self, factor: float) -> Service:
        """With every batch taking so many times as long."""
        waking = self.waking._replace(extra_s=self.waking.extra_s * factor)
        telling_s = None if self.telling_s is None else self.telling_s * factor
        return replace(self, mean_s=self.mean_s * factor, waking=waking, telling_s=telling_s)

    def farther(self, factor: float) -> Service:
        """With all that a request spends outside the replica taking so many times as long."""
        after_s = None if self.after_s is None else self.after_s * factor
        return replace(self, overhead_s=self.overhead_s * factor, after_s=after_s)

    def as_json(self) -> dict[str, Any]:
        return {
            "mean_s": self.mean_s.tolist(),
            "spread": self.spread.tolist(),
            "spread_class": self.spread_class.tolist(),
            "overhead_s": self.overhead_s.tolist(),
            "answer_s": self.answer_s,
            "waking": self.waking._asdict(),
            "after_s": None if self.after_s is None else self.after_s.tolist(),
            "telling_s": None if self.telling_s is None else self.telling_s.tolist(),
            "wake_s": self.wake_s,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Service:
        return cls(
            np.asarray(found["mean_s"], dtype=np.float64),
            np.asarray(found["spread"], dtype=np.float64),
            np.asarray(found["spread_class"], dtype=np.int64),
            np.asarray(found["overhead_s"], dtype=np.float64),
            float(found.get("answer_s", 0.0)),
            Waking(**found.get("waking", {})),
            None if found.get("after_s") is None else np.asarray(found["after_s"], dtype=np.float64),
            None if found.get("telling_s") is None else np.asarray(found["telling_s"], dtype=np.float64),
            float(found.get("wake_s", 0.0)),
        )


@dataclass(frozen=True, slots=True)
class Outage:
    """A replica is down in [from_s, to_s); what it holds at `from_s` is lost, and nothing is routed to it."""

    replica: int
    from_s: float
    to_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Ray Serve's, by requests in the system; a new replica takes requests `cold_start_s` after it was asked for."""

    target_ongoing: float
    min_replicas: int
    max_replicas: int
    look_back_s: float = 30.0
    interval_s: float = 10.0
    """How often metrics are pushed."""
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    cold_start_s: float = 0.0
    initial: int | None = None
    """Replicas at the start, all of them warm; `min_replicas` where not given."""
    upscaling_factor: float = 1.0
    downscaling_factor: float = 1.0

    def __post_init__(self) -> None:
        initial = self.min_replicas if self.initial is None else self.initial
        if not 1 <= self.min_replicas <= initial <= self.max_replicas:
            raise ValueError(
                f"from {self.min_replicas} to {self.max_replicas} replicas, {initial} at first: impossible"
            )


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal replicas behind one router."""

    service: Service
    replicas: int
    max_batch: int
    batch_wait_s: float
    rule: Rule
    routing: Routing
    queue: int = 0
    """Requests that may wait in a replica; one more is refused at once. 0: any number."""
    outages: tuple[Outage, ...] = ()
    autoscaling: Autoscaling | None = None
    """`replicas` then counts for nothing."""

    @property
    def slots(self) -> int:
        """The most replicas that there can be at once."""
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas

    @property
    def limit_rps(self) -> float:
        """Of all replicas together, if batches were always of the best size there is; no rule of batching does more."""
        sizes = np.arange(1, self.max_batch + 1)
        return self.slots * float(np.max(sizes / self.service.mean_s[1 : self.max_batch + 1]))

    def as_json(self) -> dict[str, Any]:
        scaling = self.autoscaling
        return {
            "service": self.service.as_json(),
            "replicas": self.replicas,
            "max_batch": self.max_batch,
            "batch_wait_s": self.batch_wait_s,
            "rule": str(self.rule),
            "routing": str(self.routing),
            "queue": self.queue,
            "outages": [
                {"replica": one.replica, "from_s": one.from_s, "to_s": one.to_s if one.to_s < float("inf") else None}
                for one in self.outages
            ],
            "autoscaling": None if scaling is None else {name: getattr(scaling, name) for name in scaling.__slots__},
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Fleet:
        outages = (
            Outage(one["replica"], one["from_s"], float("inf") if one["to_s"] is None else one["to_s"])
            for one in found["outages"]
        )
        scaling = found["autoscaling"]
        return cls(
            Service.from_json(found["service"]),
            found["replicas"],
            found["max_batch"],
            found["batch_wait_s"],
            Rule(found["rule"]),
            Routing(found["routing"]),
            found["queue"],
            tuple(outages),
            None if scaling is None else Autoscaling(**scaling),
        )
