"""Run folders whose answers are streams of all kinds: whole, of one event, cut, failed, counted or not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from folders import Load, make_run

from tailrate.analysis.records.rows import REQUEST_COLUMNS, arrow_type

SLO = "p99 ttft<60ms, p99 tpot<12ms, p99<500ms, goodput>50%"
TWO_STEPS = (
    Load("m/a", 100, seconds=8, failed=0.05),
    Load("m/a", 200, seconds=8, timed_out=0.03, dropped=0.02),
)


def written(
    folder: Path,
    rng: np.random.Generator,
    steps: Sequence[Load] = TWO_STEPS,
    slower: Mapping[str, tuple[float, float]] | None = None,
    lengths: Sequence[int] = (1, 2, 30),
    slo: str | Sequence[str] = SLO,
    **more: Any,
) -> list[dict[str, Any]]:
    """Its rows. `slower`: by endpoint, how many times as long a first token and a gap take; `lengths` are events."""
    made = make_run(folder, list(steps), slo=[slo] if isinstance(slo, str) else [*slo], seed=4, **more)
    path = made.folder / "requests.parquet"
    table = pq.read_table(path)
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row |= stream(row, rng, *(slower or {}).get(row["endpoint"], (1.0, 1.0)), lengths)
    columns = {
        name: pa.array([row.get(name) for row in rows], arrow_type(pa, kind)) for name, kind in REQUEST_COLUMNS.items()
    }
    pq.write_table(pa.table(columns).replace_schema_metadata(table.schema.metadata), path)
    manifest = json.loads((made.folder / "run.json").read_text())
    for entry in manifest["endpoints"]:
        entry["streams"] = True
    (made.folder / "run.json").write_text(json.dumps(manifest))
    return rows


def stream(
    row: dict[str, Any], rng: np.random.Generator, first_takes: float, gap_takes: float, lengths: Sequence[int]
) -> dict[str, Any]:
    ok = row["status"] == "200"
    if row["sent_ns"] is None or (not ok and rng.random() < 0.5):
        return {}
    events = int(rng.choice(lengths))
    gaps = (gap_takes * rng.lognormal(9, 0.5, events - 1)).astype(np.uint32)
    first = row["sent_ns"] + int(first_takes * rng.lognormal(17, 0.5))
    last = first + 1000 * int(gaps.sum())
    tokens = None if rng.random() < 0.1 else events + int(rng.integers(0, 5))
    counted = None if rng.random() < 0.5 else events + int(rng.integers(0, 5))
    found = {
        "first_ns": first, "last_ns": last, "plain_ns": first, "events": events, "gaps_us": gaps.tolist(),
        "done_ns": last + 2_000_000 if ok else row["done_ns"], "tokens_in": int(rng.integers(1, 900)),
        "tokens_out": tokens if ok else None, "text_tokens": counted,
        "first_tokens": int(rng.integers(1, 3)) if rng.random() < 0.3 else None,
        "cached_tokens": 5 if rng.random() < 0.5 else None, "finish": "length" if ok else None,
        "session": row["seq"] // 19, "turn": row["seq"] % 19,
    }  # fmt: skip
    return found if ok else found | {"status": "cut", "error": "it broke off"}
