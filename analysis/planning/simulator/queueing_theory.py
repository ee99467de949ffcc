"""What theory says about queues with batches, beside the simulation: up to which rate each rule of batching is stable,
and what no fleet can do better, however it routes and batches.

Rates are per second, percentiles in percent, latencies (from arrival to answer) in seconds.
"""

from __future__ import annotations

import math

import numpy as np

from tailrate.analysis.planning.simulator.fleet import Fleet, Rule
from tailrate.analysis.stats.array_types import Floats


def _poisson(mean: float, most: int) -> Floats:
    """The chances of 0 … most."""
    from scipy import special

    j = np.arange(most + 1)
    chances: Floats = np.exp(special.xlogy(j, mean) - mean - special.gammaln(j + 1))
    return chances


def stable_below_rps(fleet: Fleet) -> float:
    """The rate from which queues grow for ever, of all replicas together.

    Under pressure every rule but AWAITING runs full batches. AWAITING closes a batch W after its first request however
    many wait: its batches are of min(B, 1 + Poisson(λW)), and it is stable while they can be run as fast as they close.
    """
    mean_s, most = fleet.service.mean_s, fleet.max_batch
    full = most / mean_s[most]
    if fleet.rule != Rule.AWAITING:
        return float(fleet.slots * full)

    def busy(rate_rps: float) -> float:
        chances = _poisson(rate_rps * fleet.batch_wait_s, most - 1)[: most - 1]
        of = np.append(chances, 1 - chances.sum())  # of 1 … B requests
        return float(rate_rps * (of @ mean_s[1 : most + 1]) / (of @ np.arange(1, most + 1)))

    rates = np.linspace(0, 1.001 * fleet.limit_rps / fleet.slots, 2001)[1:]
    over = next((at for at, rate in enumerate(rates) if busy(rate) >= 1), None)
    if over is None:
        return fleet.limit_rps
    low, high = rates[over] - rates[0], rates[over]
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if busy(middle) >= 1 else (middle, high)
    return float(fleet.slots * high)


def needed(fleet: Fleet, rate_rps: float, slo_s: float, percent: float) -> float:
    """Replicas without which no routing and no batching could keep the percentile at that rate; not rounded up.

    Requests within the objective ran in batches short enough for it, at best in the most efficient of these; the
    others may have run in any.
    """
    possible_s, each_s = _costs(fleet)
    quick = each_s[possible_s <= slo_s]
    share = percent / 100
    return rate_rps * float(share * quick.min() + (1 - share) * each_s.min()) if len(quick) else math.inf


def quickest_s(fleet: Fleet, rate_rps: float, percent: float) -> float:
    """A percentile below which no routing and no batching could bring these replicas; inf where they cannot keep up."""
    possible_s, _ = _costs(fleet)
    return min((at for at in possible_s if needed(fleet, rate_rps, at, percent) <= fleet.slots), default=math.inf)


def _costs(fleet: Fleet) -> tuple[Floats, Floats]:
    """By the size of a batch: the shortest latency in it, and seconds of a replica for each request."""
    service, sizes = fleet.service, np.arange(1, fleet.max_batch + 1)
    shortest = service.spread.min(axis=1)[service.spread_class[sizes]]
    outside_s = float(service.overhead_s.min()) + service.answer_s
    return service.mean_s[sizes] * shortest + outside_s, service.mean_s[sizes] / sizes
