"""What must hold of a verdict when its run is changed: a worse run never passes, and order and units are nothing."""

from collections import Counter

import pytest
from changed import SAME, WORSE, moved
from often import counts

pytestmark = pytest.mark.computes


@counts(4, 300)
def test_no_change_for_the_worse_turns_a_verdict_into_a_pass_and_order_and_units_change_none(tmp_path, seeds):
    found = [(seed, *one) for seed in range(seeds) for one in moved(tmp_path, seed)]
    names = {change.__name__ for change in WORSE}
    assert [one for one in found if one[1] in names and one[2] == "fail" and one[3] == "pass"] == []
    opened = [one for one in found if one[1] in names and one[2] == "inconclusive" and one[3] == "pass"]
    # worse data may look less dependent
    assert len(opened) <= max(1, 0.005 * len(found)), opened
    assert {one[3] for one in found if one[1] == "vanished"} == {"inconclusive"}
    same = {change.__name__ for change in SAME}
    assert [one for one in found if one[1] in same and one[2] != one[3]] == []
    # and there was something to see
    assert min(Counter(one[2] for one in found).values()) > seeds / 2
    assert len({one[2] for one in found}) == 3
