"""What headers say, as columns: our own server's way of writing them is read in a shorter way than anybody's."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tailrate.loadtest.engine.endpoint.row_fields import row_fields
from tailrate.serve import wire


@given(st.lists(st.floats(0, 2e9), min_size=5, max_size=5))
def test_stages_as_our_server_writes_them_are_read_as_anybodys(stages: list[float]) -> None:
    text = wire.format_timing(stages)
    found, bad = [], [Counter[str](), Counter[str]()]
    for written, count in zip((text, text.replace(", ", ",")), bad, strict=True):
        found.append(row_fields({wire.TIMING: written}, count))
    assert found[0] == found[1]
    assert bad[0] == bad[1]
    if sum(stages) <= wire.MOST_MS:
        assert found[0]["server_ms"] == round(sum(stages), 4)
