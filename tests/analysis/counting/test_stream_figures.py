"""Figures of streams against the same definitions written down as loops over rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from folders import Load, make_run

from tailrate.analysis import load
from tailrate.analysis.counting.streams import stream_tallies
from tailrate.analysis.records.rows import REQUEST_COLUMNS, arrow_type

SLO = "p99 ttft<60ms, p99 tpot<12ms, p99<500ms, goodput>50%"


def written(folder: Path, rng: np.random.Generator, **more: Any) -> list[dict[str, Any]]:
    """A run of two steps whose answers are streams of all kinds; its rows."""
    steps = [Load("m/a", 100, seconds=8, failed=0.05), Load("m/a", 200, seconds=8, timed_out=0.03, dropped=0.02)]
    made = make_run(folder, steps, slo=[SLO], seed=4, **more)
    path = made.folder / "requests.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        row |= stream(row, rng)
    columns = {
        name: pa.array([row.get(name) for row in rows], arrow_type(pa, kind)) for name, kind in REQUEST_COLUMNS.items()
    }
    pq.write_table(pa.table(columns).replace_schema_metadata(table.schema.metadata), path)
    manifest = json.loads((made.folder / "run.json").read_text())
    for entry in manifest["endpoints"]:
        entry["streams"] = True
    (made.folder / "run.json").write_text(json.dumps(manifest))
    return rows


def stream(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    ok = row["status"] == "200"
    if row["sent_ns"] is None or (not ok and rng.random() < 0.5):
        return {}
    events = int(rng.choice([1, 2, 30]))
    gaps = rng.lognormal(9, 0.5, events - 1).astype(np.uint32)
    first = row["sent_ns"] + int(rng.lognormal(17, 0.5))
    last = first + 1000 * int(gaps.sum())
    tokens = None if rng.random() < 0.1 else events + int(rng.integers(0, 5))
    found = {
        "first_ns": first, "last_ns": last, "plain_ns": first, "events": events, "gaps_us": gaps.tolist(),
        "done_ns": last + 2_000_000 if ok else row["done_ns"], "tokens_in": int(rng.integers(1, 900)),
        "tokens_out": tokens if ok else None, "first_tokens": int(rng.integers(1, 3)) if rng.random() < 0.3 else None,
        "cached_tokens": 5 if rng.random() < 0.5 else None, "finish": "length" if ok else None,
    }  # fmt: skip
    return found if ok else found | {"status": "cut", "error": "it broke off"}


def at(values: list[float], percent: float) -> float:
    return float(np.quantile(np.array(values), percent / 100, method="higher"))


def expected(rows: list[dict[str, Any]], step: dict[str, Any]) -> dict[str, Any]:
    begin, end = step["start_ns"] + int(step["settle_s"] * 1e9), step["end_ns"]
    mine = [row for row in rows if row["step"] == step["index"] and begin <= row["intended_ns"] < end]
    ttft, tpot, sent, gaps, stall, met = [], [], [], [], [], 0
    for row in mine:
        ok, first = row["status"] == "200", row.get("first_ns")
        ttft.append((first - row["intended_ns"]) / 1e6 if first else math.inf)
        if first:
            sent.append((first - row["sent_ns"]) / 1e6)
        tokens, head = row.get("tokens_out") or row.get("events") or 0, row.get("first_tokens") or 1
        own = None
        if not ok:
            own = math.inf
        elif row["events"] > 1 and tokens > head:
            own = (row["last_ns"] - first) // (tokens - head) / 1e6
        if own is not None:
            tpot.append(own)
        if ok:
            gaps += row["gaps_us"]
            stall += [max(row["gaps_us"]) / 1e3] if row["gaps_us"] else []
        whole = (row["last_ns"] - row["intended_ns"]) / 1e6 if ok else math.inf
        met += ttft[-1] <= 60 and (own or 0) <= 12 and whole <= 500
    seconds = (end - begin) / 1e9
    came = {"in": 0.0, "out": 0.0}
    for row in rows:
        if first := row.get("first_ns"):
            instants = [first + 1000 * sum(row["gaps_us"][:k]) for k in range(row["events"])]
            inside = sum(begin <= instant < end for instant in instants)
            came["out"] += inside / row["events"] * (row["tokens_out"] or row["events"])
            came["in"] += row["tokens_in"] if begin <= first < end else 0
    return {
        **{f"ttft_p{p}_ms": at(ttft, p) for p in (50, 90, 95, 99)}, "ttft_sent_p99_ms": at(sent, 99),
        "tpot_p50_ms": at(tpot, 50), "tpot_p99_ms": at(tpot, 99), "stall_p99_ms": at(stall, 99),
        "gap_p50_ms": at(gaps, 50) / 1e3, "gap_p99_ms": at(gaps, 99) / 1e3, "goodput_rps": met / seconds,
        "tokens_in_rps": came["in"] / seconds, "tokens_out_rps": came["out"] / seconds,
        "p50_ms": at(
            [(row["last_ns"] - row["intended_ns"]) / 1e6 if row["status"] == "200" else math.inf for row in mine], 50
        ),
    }  # fmt: skip


def test_every_figure_is_what_its_definition_says(tmp_path: Path) -> None:
    rows = written(tmp_path / "run", np.random.default_rng(2))
    run = load(tmp_path / "run")
    for step, summary in zip(run.manifest.scenario["steps"], run.steps.to_dict("records"), strict=True):
        for name, value in expected(rows, step).items():
            near = 2e-3 if name.startswith("gap") else 1e-9
            assert summary[name] == pytest.approx(value, rel=near), name
        for name in ("ttft", "tpot"):
            low, high = summary[f"{name}_p99_low_ms"], summary[f"{name}_p99_high_ms"]
            assert low <= summary[f"{name}_p99_ms"] <= high
    assert run.measured[0].summary.slo is False
    assert "p99 ttft<60ms is missed" in " ".join(run.measured[0].summary.reasons)


def test_parts_add_up_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "run", np.random.default_rng(3))
    whole = stream_tallies(load(tmp_path / "run"))
    path = tmp_path / "run" / "requests.parquet"
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=97)
    run = load(tmp_path / "run")
    assert len(run.tables["requests"].parts) > 10
    apart = stream_tallies(run)
    assert whole.keys() == apart.keys()
    for key, tally in whole.items():
        other = apart[key]
        for name in ("n", "ok", "single", "uncounted", "events", "tokens_out", "prompt_tokens", "cached_tokens"):
            assert getattr(tally, name) == getattr(other, name), name
        assert tally.arrived_out == pytest.approx(other.arrived_out)
        assert (tally.gaps.counts == other.gaps.counts).all()
        assert (tally.missed == other.missed).all()
        for name in ("ttft", "tpot", "stall", "ttft_sent"):
            mine, its = (np.sort(np.concatenate(getattr(each, name))) for each in (tally, other))
            assert (mine == its).all(), name


def test_a_run_without_streams_has_none(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [Load("m/a", 100)])
    run = load(tmp_path / "run")
    assert run.streams == {}
    assert run.steps["ttft_p99_ms"].isna().all()
