"""A fleet of replicas with dynamic batching, simulated event by event: how long each request would have taken.

Arrivals in (seconds, ascending), a latency for each out; pure, and the same for the same seed. Times are in seconds
from the start of the arrivals' own clock, percentiles in percent (99, not 0.99). A request that is never answered, be
it refused or lost with its replica, has latency inf.

What happens at the same instant: the end of a batch, then a timer, then a replica that goes or comes, then an arrival.
Random numbers are such that a program in another language can draw the same (`simulate_kernel` has them as code):

- stream `seed`, in the order of arrivals, over the list of replicas that are up, ascending: TWO_CHOICES draws two
  positions where more than one is up, ⌊x·k / 2³²⌋ and then ⌊x·(k−1) / 2³²⌋, the second moved up by one where it is not
  below the first; the second replica gets the request if it holds fewer, else the first. RANDOM draws one position
  where more than one is up. The others draw nothing, and neither does a request that finds no replica up.
- stream `seed + 1`, in the order of arrivals: one per request, overhead_s[x mod its length].
- a batch's spread depends on its oldest request alone, so that it doesn't matter in which order replicas are looked
  at: spread[class, mix(seed, index of that request) mod its length].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tailrate.analysis.planning.simulator import event_loop as kernel
from tailrate.analysis.planning.simulator.fleet import Autoscaling, Fleet, Outage, Routing, Rule, Service
from tailrate.analysis.planning.simulator.queueing_theory import stable_below_rps
from tailrate.analysis.planning.simulator.replica_lifecycle import ReplicaStates
from tailrate.analysis.stats.array_types import Floats, Ints
from tailrate.analysis.stats.trend import percentile, rank

__all__ = [
    "Autoscaling", "Fleet", "Outage", "Outcome", "Routing", "Rule", "Service", "knee", "simulate",
]  # fmt: skip


Arrivals = Callable[[float], Floats]
"""Arrivals at a rate, ascending, in seconds; at every rate from the same seed."""
CODES = {
    Rule.OPPORTUNISTIC: kernel.OPPORTUNISTIC,
    Rule.COMPANY: kernel.COMPANY,
    Rule.BLOCKING: kernel.BLOCKING,
    Rule.AWAITING: kernel.AWAITING,
    Routing.TWO_CHOICES: kernel.TWO_CHOICES,
    Routing.LEAST: kernel.LEAST,
    Routing.ROUND_ROBIN: kernel.ROUND_ROBIN,
    Routing.RANDOM: kernel.RANDOM,
    Routing.ONE_QUEUE: kernel.ONE_QUEUE,
}
STEP = 1.12
"""By this factor rates are tried until there is one that keeps the objective next to one that doesn't."""
BEYOND = 1.05
"""A knee is believed where so many times the rate doesn't keep the objective either."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of every arrival, and how the replicas were used."""

    arrivals_s: Floats
    latency_s: Floats
    """Of each arrival; inf where refused or lost."""
    batches: Ints
    """(B + 1,): how many batches of so many requests were run."""
    busy_s: float
    """Sum over the replicas."""
    replica_s: float
    """Sum over the replicas of the time in the span for which each was there, from being asked for to being let go."""
    span_s: float
    """From the first arrival to the end of the last batch, or the last arrival."""
    refused: int
    """At once: a full queue, or no replica up."""
    lost: int
    """With their replica."""
    scaled_at_s: Floats
    """When the number of replicas that are up changed, the start included, …"""
    scaled_to: Ints
    """… and what it was from then on."""

    def quantile(self, percent: float, warm_share: float = 0.1) -> float:
        """Seconds, an exact order statistic over all arrivals but the first share of them; inf counts."""
        return percentile(self._warm(warm_share), percent)

    def keeps(self, percent: float, slo_s: float, warm_share: float = 0.1) -> bool:
        """Whether that quantile is at most `slo_s`; quicker than asking for it."""
        found = self._warm(warm_share)
        return bool(np.count_nonzero(found > slo_s) < len(found) - rank(len(found), percent))

    @property
    def utilisation(self) -> float:
        return self.busy_s / self.replica_s if self.replica_s else 0.0

    @property
    def mean_batch(self) -> float:
        """Requests per batch, NaN where none was run."""
        count = int(self.batches.sum())
        return float(self.batches @ np.arange(len(self.batches))) / count if count else float("nan")

    def _warm(self, share: float) -> Floats:
        return self.latency_s[int(len(self.latency_s) * share) :]


def simulate(arrivals_s: Floats, fleet: Fleet, seed: int = 1) -> Outcome:
    """What becomes of these arrivals.

    >>> fleet = Fleet(Service.steady(np.array([0, 0.010, 0.015])), 1, 2, 0.0, Rule.OPPORTUNISTIC, Routing.LEAST)
    >>> simulate(np.array([0.0, 0.001, 0.002]), fleet).latency_s.round(6).tolist()
    [0.01, 0.024, 0.023]
    """
    arrivals_s = np.ascontiguousarray(arrivals_s, dtype=np.float64)
    if not len(arrivals_s):
        raise ValueError("there are no arrivals to simulate")
    world = _world(arrivals_s, fleet, seed)
    crew = ReplicaStates(fleet, world)
    crew.serve()
    service, latency_s = fleet.service, world.latency_s
    last_s = max(float(world.busy_s[1]), float(arrivals_s[-1]))
    if service.answer_s or service.overhead_s.any():
        kernel.add_overhead(latency_s, service.overhead_s, service.answer_s, kernel.seeded(seed + 1))
    return Outcome(
        arrivals_s, latency_s, world.batches, float(world.busy_s[0]), crew.replica_s(last_s),
        last_s - float(arrivals_s[0]), int(world.counts[kernel.REFUSED]), crew.lost,
        np.array([at for at, _ in crew.sizes]), np.array([size for _, size in crew.sizes]),
    )  # fmt: skip


def _world(arrivals_s: Floats, fleet: Fleet, seed: int) -> kernel.SimState:
    service, n, most = fleet.service, len(arrivals_s), fleet.max_batch
    if not 1 <= most <= service.max_batch:
        raise ValueError(f"batches of {most} were asked for, and the service is known for up to {service.max_batch}")
    if not 0 <= seed < 2**32 - 1:
        raise ValueError(f"the seed must be from 0 to 2³² − 2, not {seed}")
    replicas = np.zeros(fleet.slots, dtype=kernel.REPLICA)
    for name in ("next_s", "done_s", "close_s"):
        replicas[name] = np.inf
    replicas["told_s"] = -np.inf
    nothing_s = np.zeros(len(service.mean_s))
    after_s, telling_s = (nothing_s if one is None else one for one in (service.after_s, service.telling_s))
    takes_along = fleet.batch_wait_s == 0 and fleet.rule in (Rule.OPPORTUNISTIC, Rule.COMPANY)
    one_queue = fleet.routing == Routing.ONE_QUEUE
    if one_queue and (fleet.rule != Rule.OPPORTUNISTIC or fleet.queue or fleet.outages or fleet.autoscaling):
        raise ValueError("one queue for all is known for opportunistic batches, without bounds, outages or autoscaling")
    leaves = 1 << (fleet.slots - 1).bit_length() if one_queue or fleet.routing == Routing.LEAST else 0
    return kernel.SimState(
        arrivals_s, service.mean_s, after_s, np.array(service.waking), telling_s,
        service.wake_s if takes_along else 0.0, service.spread, service.spread_class,
        CODES[fleet.rule], CODES[fleet.routing], most, float(fleet.batch_wait_s), fleet.queue, seed,
        np.full(n, np.inf), np.empty(n, np.int32), np.empty(n if fleet.rule == Rule.AWAITING else 0, np.int32),
        replicas, np.zeros(most + 1, dtype=np.int64), np.zeros(2), np.zeros(3, dtype=np.int64), kernel.seeded(seed),
        np.full(2 * leaves, np.inf), np.full(2 * leaves, np.iinfo(np.int64).max),
    )  # fmt: skip


def knee(
    fleet: Fleet,
    slo_s: float,
    percent: float,
    arrivals: Arrivals,
    *,
    seed: int = 1,
    tolerance: float = 0.005,
    from_rps: float | None = None,
    to_rps: float | None = None,
) -> float:
    """The highest rate at which the percentile is at most `slo_s`, to within the tolerance; 0.0 where there is none.

    Looked for from `to_rps`, where queues begin to grow for ever, down to `from_rps`, a hundredth of what the replicas
    could do. The percentile need not rise with the rate: where requests wait for a batch to fill it falls first.
    """
    highest = to_rps or stable_below_rps(fleet)
    lowest = from_rps or min(fleet.limit_rps, highest) / 100

    def keeps(rate_rps: float) -> bool:
        return simulate(arrivals(rate_rps), fleet, seed).keeps(percent, slo_s)

    good = fails = highest
    while not keeps(good):
        if good <= lowest:
            return 0.0
        good, fails = max(good / STEP, lowest), good
    while True:
        while fails > good * (1 + tolerance):
            middle = (good + fails) / 2
            good, fails = (middle, fails) if keeps(middle) else (good, middle)
        if good * BEYOND >= highest or not keeps(good * BEYOND):
            return good
        good, fails = good * BEYOND, highest
