"""A row of `report.json` with its infinities back, once for the page, the other forms and the gallery.

JSON has no infinity, so null stands for a percentile that failures made infinite as well as for one that is unknown. A
row names its infinite figures; older ones did not, and theirs are told by what stands beside them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from tailrate.analysis.records.objective import LEAST_FOR_P999


def restored(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without the names."""
    named = row.get("infinite")
    infinite = _told(row) if named is None else named
    return {key: math.inf if key in infinite else value for key, value in row.items() if key != "infinite"}


def _told(row: Mapping[str, Any]) -> list[str]:
    """A percentile that is null although there were arrivals was infinite."""
    infinite = [key for key, value in row.items() if value is None and row["n"] and re.fullmatch(r"p\d+_ms", key)]
    if row["n"] < LEAST_FOR_P999 and "p999_ms" in infinite:
        infinite.remove("p999_ms")
    # where no time of sending is known, service is unknown and not infinite
    if row.get("service_p99_ms") is None and row["errors"] and row.get("late_p99_ms") is not None:
        infinite.append("service_p99_ms")
    if row["errors"] and row.get("tokens_out_rps") is not None:  # of streams a failure has an infinite TTFT and TPOT
        infinite += [key for key in row if row[key] is None and re.fullmatch(r"(ttft|tpot)_p\d+_ms", key)]
    for figure in ("", "ttft_", "tpot_"):
        low, high = (f"{figure}p99_{end}_ms" for end in ("low", "high"))
        if row.get(low) is not None and row.get(high) is None:
            infinite.append(high)
    return infinite
