"""How much arrivals are worth to an objective: enough to keep what is far away, and not more than they are."""

from __future__ import annotations

import numpy as np
from bench.intervals import queue, window
from often import at_least, at_most, counts

from tailrate.analysis.judging.evidence import counts as evidence
from tailrate.analysis.judging.share import judged
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.stats.dependence import LEAST_BEYOND, worth
from tailrate.analysis.stats.sketch import SLICES, Sketch

P99 = 7.464
"""Of M/D/1 at a load of 0.7, in services: of twenty million arrivals."""


def no_burst() -> float:
    raise AssertionError


def kept(limit: float, seed: int) -> bool | None:
    """Of five thousand arrivals at that queue, whether they keep a limit on P99."""
    seen = window(queue(0.7, lambda rng, n: np.ones(n)), 5000, seed, arrivals=seed, limits=[limit])
    (count,) = evidence(Slo.parse(f"p99<{limit}ms"), seen, 30.0, no_burst)
    return judged(count.share, count.worth, 0.01)


@counts(40, 400)
def test_a_limit_far_above_is_kept_and_one_that_is_just_missed_seldom(seeds: int) -> None:
    far, missed = (sum(kept(times * P99, seed) is True for seed in range(seeds)) for times in (2, 0.9995))
    assert far >= at_least(0.8, seeds)
    assert missed <= at_most(0.05, seeds)


def test_where_enough_are_beyond_they_alone_say_how_dependent_they_are() -> None:
    """Ten slow spells in a body of independent arrivals: each spell is one event, of fifty."""
    rng = np.random.default_rng(1)
    slices, values = np.repeat(np.arange(SLICES), 20), np.exp(0.1 * rng.normal(size=20 * SLICES))
    spell = rng.choice(SLICES, 10, replace=False)
    values[np.isin(slices, spell)] = 9.0
    seen = Sketch.of(slices, values, [5.0, 20.0])
    beyond, far = (evidence(Slo.parse(f"p99<{limit}ms"), seen, 30.0, no_burst)[0] for limit in (5.0, 20.0))
    assert (beyond.n, beyond.beyond, far.beyond) == (len(values), 200, 0)
    assert beyond.worth == worth(seen.counts.sum(axis=1).astype(float), seen.beyond(5.0).astype(float))
    assert beyond.worth < len(values) / 10
    assert far.worth > 0.8 * len(values)
    assert beyond.by == ""
    assert far.by.startswith("as those above P")


def test_few_failures_are_worth_as_many_as_their_bursts() -> None:
    rng = np.random.default_rng(1)
    slices, values = np.repeat(np.arange(SLICES), 10), rng.exponential(size=10 * SLICES)
    values[100 : 100 + LEAST_BEYOND - 1] = np.inf
    seen = Sketch.of(slices, values, [20.0])
    (count,) = evidence(Slo.parse("errors<1%"), seen, 30.0, lambda: 9.0)
    assert (count.beyond, count.dependence, count.by) == (LEAST_BEYOND - 1, 9.0, "9 failures in a row")
    (none,) = evidence(Slo.parse("errors<1%"), Sketch.of(slices, np.ones(len(slices)), [20.0]), 30.0, no_burst)
    assert (none.beyond, none.dependence) == (0, 1.0)
