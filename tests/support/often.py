"""How often something happens by chance: with fewer seeds in every run of the tests, and with more in `test-long`."""

from __future__ import annotations

import pytest
from scipy import stats


def counts(few: int, many: int) -> pytest.MarkDecorator:
    """Gives a test its `seeds`."""
    return pytest.mark.parametrize("seeds", [few, pytest.param(many, marks=pytest.mark.long)])


def at_most(share: float, seeds: int) -> int:
    """More of so many, each with this chance, happen in one of a hundred such tests."""
    return int(stats.binom.ppf(0.99, seeds, share))


def at_least(share: float, seeds: int) -> int:
    """And fewer in another one."""
    return int(stats.binom.ppf(0.01, seeds, share))
