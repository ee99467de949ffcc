"""Which arrivals count for a limit, and which are beyond it: of an answer in one event there is no time per token."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tailrate.analysis.judging.share import Term
from tailrate.analysis.stats.array_types import Bools, Floats
from tailrate.analysis.stats.sketch import as_recorded_ms
from tailrate.loadtest.engine.scenario.knee_search import Limits


def limits_of(term: Term) -> Limits:
    """All of which are to be kept."""
    return term.joint or ((term.figure, term.limit_ms),)


def held_to(figures_ms: Mapping[str, Floats], limits: Limits) -> tuple[Bools, Bools]:
    """(those that have the figure, or all where there are several limits; those beyond any of these).

    By name: the latency is nameless, of streams there are `ttft` and `tpot`; a failure is infinite, what is not is NaN.
    """
    beyond = np.zeros(len(figures_ms[""]), np.bool_)
    for name, limit_ms in limits:
        values = figures_ms[name]
        beyond |= np.isinf(values) if math.isinf(limit_ms) else values > as_recorded_ms(limit_ms)
    known = ~np.isnan(figures_ms[limits[0][0]]) if len(limits) == 1 else np.ones(len(beyond), np.bool_)
    return known, beyond
