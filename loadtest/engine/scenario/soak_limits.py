"""What a soak may show at most: `--limits "p99_step<10%, p99_trend<5%/h, memory<1%/h"`. Pure.

    p99_trend   P99 rises by so much by hour         stall    requests are held up by so much, again and again
    p99_step    P99 jumps by so much                 memory   the server's memory grows by so much by hour, in all
    gap         nothing was measured for so much of the soak

What is given stands in the manifest as `scenario.soak`, and a soak that cannot say whether it was kept says so; the
others' values are the analysis' own, and hold as far as the soak can see.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tailrate.analysis.records.objective import Threshold

TERMS: Mapping[str, tuple[str, str]] = {
    "p99_trend": ("p99_trend_pct_h", "%/h"),
    "p99_step": ("p99_step_pct", "%"),
    "memory": ("memory_pct_h", "%/h"),
    "stall": ("stall_ms", "ms"),
    "gap": ("gap_pct", "%"),
}
"""The key in the manifest, and the unit."""
EXAMPLE = "p99_trend<5%/h, p99_step<10%, memory<1%/h, stall<50ms, gap<10%"


def parse(text: str) -> dict[str, float]:
    """Raises `ValueError` with one sentence.

    >>> parse("p99_step<10%, memory<0.5%/h")
    {'p99_step_pct': 10.0, 'memory_pct_h': 0.5}
    """
    found: dict[str, float] = {}
    for term in filter(None, (term.strip() for term in re.split("[,;]", text))):
        known = Threshold.parse(term)
        key, unit = TERMS.get(known.figure, ("", "")) if known else ("", "")
        if known is None or not known.below or known.unit != unit or known.value < 0:
            raise ValueError(f"'{term}' is not understood; write some of {EXAMPLE}")
        if key in found:
            raise ValueError(f"'{term}' is a second limit of {known.figure}")
        if not known.value:
            raise ValueError(f"'{term}' allows nothing, and something always changes a little")
        found[key] = known.value
    return found
