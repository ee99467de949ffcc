"""What theory says about queues, beside the simulation: exact latencies where they are known, and bounds on any fleet.

Single requests, first come first served, Poisson arrivals: M/M/c (Erlang) and M/D/c (Crommelin, in the numerically
harmless form of Franx 2001). Batches: up to which rate each rule of batching is stable, and what no fleet can do
better, however it routes and batches. Rates are per second, percentiles in percent, latencies (from arrival to answer)
in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tailrate.analysis.planning.simulator.fleet import Fleet, Rule
from tailrate.analysis.stats.array_types import Floats

MOST_STATES = 3000
TAIL = 1e-12


def erlang_c(servers: int, load: float) -> float:
    """The share of requests that have to wait; load in busy servers (Erlang).

    >>> round(erlang_c(2, 1.0), 4)
    0.3333
    """
    if load >= servers:
        return 1.0
    blocked = 1.0  # Erlang B, server by server
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def mmc_latency_s(rate_rps: float, service_s: float, servers: int, percent: float) -> float:
    """A percentile where service is exponential; inf where the servers cannot keep up."""
    load = rate_rps * service_s
    if load >= servers:
        return math.inf
    waits, served, drained = erlang_c(servers, load), 1 / service_s, servers / service_s - rate_rps

    def beyond(t: float) -> float:
        """The share that takes longer."""
        alone = math.exp(-served * t)
        if math.isclose(served, drained):
            return (1 - waits) * alone + waits * alone * (1 + served * t)
        both = (served * math.exp(-drained * t) - drained * alone) / (served - drained)
        return (1 - waits) * alone + waits * both

    return _where(lambda t: beyond(t) <= 1 - percent / 100, service_s)


def mdc_latency_s(rate_rps: float, service_s: float, servers: int, percent: float) -> float:
    """A percentile where service always takes the same time; inf where the servers cannot keep up.

    Within 0.5 % of that it comes out too low: chances are worked out for `MOST_STATES` requests at most.
    """
    load = rate_rps * service_s
    if load >= servers:
        return math.inf
    waiting = np.cumsum(_present(load, servers))[servers:]  # P(at most so many wait)

    def within(wait_s: float) -> float:
        k = int(wait_s / service_s) + 1
        left, most = rate_rps * (k * service_s - wait_s), k * servers - 1
        j = np.arange(most + 1)
        at_most = waiting[np.minimum(most - j, len(waiting) - 1)]
        return float(at_most @ _poisson(left, most))

    return service_s + _where(lambda t: within(t) >= percent / 100, service_s)


def _present(load: float, servers: int) -> Floats:
    """The chance of each number of requests in M/D/c, waiting or running.

    One service time later all that ran are gone, and a Poisson number has come.
    """
    tail = 2 * (1 - load / servers) / (load / servers)  # how fast the chances fall, roughly
    n = min(MOST_STATES, servers + int(-math.log(TAIL) / min(tail, 1.0)) + 10 * math.ceil(load**0.5) + 20)
    arrivals = _poisson(load, n - 1)
    moves = np.zeros((n, n))
    for i in range(n):
        stay = max(0, i - servers)
        moves[i, stay:] = arrivals[: n - stay]
    moves[:, -1] += 1 - moves.sum(axis=1)
    equations = moves.T - np.eye(n)
    equations[-1] = 1.0
    chances: Floats = np.linalg.solve(equations, np.append(np.zeros(n - 1), 1.0))
    return chances


def _poisson(mean: float, most: int) -> Floats:
    """The chances of 0 … most."""
    from scipy import special

    j = np.arange(most + 1)
    chances: Floats = np.exp(special.xlogy(j, mean) - mean - special.gammaln(j + 1))
    return chances


def _where(holds: Callable[[float], bool], scale: float) -> float:
    """The least t at which it begins to hold."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, scale
    while not holds(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# ---- batches


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
