"""Exact latencies of queues without batches, as oracles for the simulation: first come first served, Poisson arrivals.

M/M/c (Erlang) and M/D/c (Crommelin, in the numerically harmless form of Franx 2001). Rates are per second, percentiles
in percent, latencies (from arrival to answer) in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import poisson

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


def _poisson(mean: float, most: int) -> Floats:
    """The chances of 0 … most."""
    return poisson.pmf(np.arange(most + 1), mean)
