"""Figures of streams against the same definitions written down as loops over rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from folders import Load, make_run
from streamed import written

from tailrate.analysis import load
from tailrate.analysis.counting.answer_shape import TURNS, by_answer, by_position, by_prompt, by_turn
from tailrate.analysis.counting.streams import count_streams
from tailrate.analysis.run.bins import latency_bins
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.verdicts.run import Run


def at(values: list[float], percent: float) -> float:
    return float(np.quantile(np.array(values), percent / 100, method="higher"))


def tokens_of(row: dict[str, Any]) -> int:
    """The server's count, else our tokenizer's, else that of events."""
    return int(row.get("tokens_out") or row.get("text_tokens") or row.get("events") or 0)


def expected(rows: list[dict[str, Any]], step: dict[str, Any]) -> dict[str, Any]:
    begin, end = step["start_ns"] + int(step["settle_s"] * 1e9), step["end_ns"]
    mine = [row for row in rows if row["step"] == step["index"] and begin <= row["intended_ns"] < end]
    ttft, tpot, sent, gaps, stall, met = [], [], [], [], [], 0
    for row in mine:
        ok, first = row["status"] == "200", row.get("first_ns")
        ttft.append((first - row["intended_ns"]) / 1e6 if first else math.inf)
        if first:
            sent.append((first - row["sent_ns"]) / 1e6)
        tokens, head = tokens_of(row), row.get("first_tokens") or 1
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
            came["out"] += inside / row["events"] * tokens_of(row)
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
    whole = count_streams(load(tmp_path / "run"))
    path = tmp_path / "run" / "requests.parquet"
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=97)
    run = load(tmp_path / "run")
    assert len(run.tables["requests"].parts) > 10
    apart = count_streams(run)
    assert whole.tallies.keys() == apart.tallies.keys()
    for key, tally in whole.tallies.items():
        other = apart.tallies[key]
        for name in (
            "n",
            "ok",
            "single",
            "uncounted",
            "counted_here",
            "events",
            "tokens_out",
            "prompt_tokens",
            "cached_tokens",
        ):
            assert getattr(tally, name) == getattr(other, name), name
        assert tally.arrived_out == pytest.approx(other.arrived_out)
        assert (tally.gaps.counts == other.gaps.counts).all()
        assert (tally.missed == other.missed).all()
        for name in ("ttft", "tpot", "stall", "ttft_sent"):
            mine, its = (np.sort(np.concatenate(getattr(each, name))) for each in (tally, other))
            assert (mine == its).all(), name
        for name in ("tokens_by_time", "ttft_by_time", "tpot_by_time"):
            assert getattr(tally, name) == pytest.approx(getattr(other, name)), name
    assert whole.shapes.keys() == apart.shapes.keys()
    for level, shape in whole.shapes.items():
        for each in fields(shape):
            assert (getattr(shape, each.name) == getattr(apart.shapes[level], each.name)).all(), each.name


def in_windows(run: Run, rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """Successes of the windows, with the rate that was asked for."""
    for step in run.manifest.scenario["steps"]:
        begin = step["start_ns"] + int(step["settle_s"] * 1e9)
        for row in rows:
            if row["step"] == step["index"] and row["status"] == "200" and begin <= row["intended_ns"] < step["end_ns"]:
                yield row, step["rate"]


def near(found: float | None, values: list[float], percent: float) -> bool:
    """At most 3.2 % above it; None of P99 where there are not enough."""
    if found is None:
        return percent == 99 and len(values) < 100
    return at(values, percent) <= found <= 1.032 * at(values, percent)


def test_gaps_are_told_by_their_place_in_the_answer(tmp_path: Path) -> None:
    rows = written(tmp_path / "run", np.random.default_rng(5))
    run = load(tmp_path / "run")
    expected: dict[tuple[float, int], list[float]] = {}
    for row, rate in in_windows(run, rows):
        for place, gap in enumerate(row["gaps_us"], start=1):
            octave = place.bit_length() - 1
            expected.setdefault((rate, 4 * octave + 4 * (place - (1 << octave)) // (1 << octave)), []).append(gap / 1e3)
    found = list(by_position(run.counted_streams.shapes))
    assert len(found) == len(expected) > 20
    for one in found:
        octave = one.first.bit_length() - 1
        values = expected[one.rate, 4 * octave + 4 * (one.first - (1 << octave)) // (1 << octave)]
        assert one.gaps == len(values)
        assert near(one.p50_ms, values, 50)
        assert near(one.p99_ms, values, 99)
    assert [(one.first, one.last) for one in found[:9]] == [(k, k) for k in range(1, 8)] + [(8, 9), (10, 11)]


def test_what_depends_on_a_length_is_told_by_it(tmp_path: Path) -> None:
    rows = written(tmp_path / "run", np.random.default_rng(6))
    run = load(tmp_path / "run")
    ttft: dict[tuple[float, int], list[float]] = {}
    whole: dict[tuple[float, int], list[float]] = {}
    each: dict[tuple[float, int], list[float]] = {}
    for row, rate in in_windows(run, rows):
        ttft.setdefault((rate, row["tokens_in"].bit_length()), []).append((row["first_ns"] - row["intended_ns"]) / 1e6)
        tokens, head = tokens_of(row), row["first_tokens"] or 1
        key = rate, tokens.bit_length()
        whole.setdefault(key, []).append((row["last_ns"] - row["intended_ns"]) / 1e6)
        if row["events"] > 1 and tokens > head:
            each.setdefault(key, []).append((row["last_ns"] - row["first_ns"]) / (tokens - head) / 1e6)
    prompts, answers = list(by_prompt(run.counted_streams.shapes)), list(by_answer(run.counted_streams.shapes))
    assert {(one.rate, one.most.bit_length()) for one in prompts} == ttft.keys()
    assert {(one.rate, one.most.bit_length()) for one in answers} == whole.keys()
    for prompt in prompts:
        values = ttft[prompt.rate, prompt.least.bit_length()]
        assert prompt.answers == len(values)
        assert near(prompt.ttft_p50_ms, values, 50)
        assert near(prompt.ttft_p99_ms, values, 99)
    for answer in answers:
        key = answer.rate, answer.least.bit_length()
        assert answer.answers == len(whole[key])
        assert near(answer.p50_ms, whole[key], 50)
        assert near(answer.p99_ms, whole[key], 99)
        assert near(answer.tpot_p50_ms, each[key], 50) if key in each else answer.tpot_p50_ms is None
        assert near(answer.tpot_p99_ms, each.get(key, []), 99)


def test_turns_of_sessions_are_told_one_by_one(tmp_path: Path) -> None:
    rows = written(tmp_path / "run", np.random.default_rng(8))
    run = load(tmp_path / "run")
    of: dict[tuple[float, int], list[dict[str, Any]]] = {}
    for row, rate in in_windows(run, rows):
        of.setdefault((rate, min(row["turn"], TURNS - 1)), []).append(row)
    found = list(by_turn(run.counted_streams.shapes))
    assert {(one.rate, one.turn) for one in found} == of.keys()
    assert len(of) == 2 * TURNS
    for one in found:
        mine = of[one.rate, one.turn]
        values = [(row["first_ns"] - row["intended_ns"]) / 1e6 for row in mine]
        assert one.answers == len(mine)
        assert near(one.ttft_p50_ms, values, 50)
        assert near(one.ttft_p99_ms, values, 99)
        assert one.prompt_tokens == pytest.approx(np.mean([row["tokens_in"] for row in mine]))
        known = [row for row in mine if row["cached_tokens"] is not None]
        share = sum(row["cached_tokens"] for row in known) / sum(row["tokens_in"] for row in known)
        assert one.cached_pct == pytest.approx(100 * share)


def test_what_came_when_is_told_by_the_slices_of_the_run(tmp_path: Path) -> None:
    rows = written(tmp_path / "run", np.random.default_rng(7))
    run = load(tmp_path / "run")
    line, counted = Timeline.of(run), count_streams(run)
    tokens, late, slow = np.zeros(line.slices), np.zeros(line.slices), np.zeros(line.slices)

    def at_ns(instant: int) -> int:
        return min(max((instant - line.zero_ns) // line.slice_ns, 0), line.slices - 1)

    for row in rows:
        if first := row.get("first_ns"):
            each = tokens_of(row) / row["events"]
            for k in range(row["events"]):
                instant = first + 1000 * sum(row["gaps_us"][:k])
                if instant < line.zero_ns + line.slices * line.slice_ns:  # else it is in no slice
                    tokens[at_ns(instant)] += each
        late[at_ns(row["intended_ns"])] += not first or first - row["intended_ns"] >= 32_000_000
        slow[at_ns(row["intended_ns"])] += row["status"] != "200"
    found = {name: np.zeros(line.slices) for name in ("tokens", "late", "slow")}
    edge = int(latency_bins(np.array([32_000_000]))[0])
    for tally in counted.tallies.values():
        found["tokens"] += tally.tokens_by_time
        mine = slice(tally.first, tally.first + len(tally.ttft_by_time))
        found["late"][mine] += tally.ttft_by_time[:, edge:].sum(axis=1)
        found["slow"][mine] += tally.tpot_by_time[:, -1]
    assert found["tokens"] == pytest.approx(tokens)
    assert found["late"] == pytest.approx(late)
    assert found["slow"] == pytest.approx(slow)


def test_tokens_of_a_window_come_from_answers_of_other_steps_too(tmp_path: Path) -> None:
    rows = written(tmp_path / "run", np.random.default_rng(8))
    run = load(tmp_path / "run")
    crossing = 0
    ends = [step["end_ns"] for step in run.manifest.scenario["steps"]]
    for row in rows:
        if first := row.get("first_ns"):
            crossing += first < ends[0] <= row["last_ns"] and row["step"] == 0
    assert crossing > 0  # else `test_every_figure…` says nothing of them


def test_a_run_without_streams_has_none(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [Load("m/a", 100)])
    run = load(tmp_path / "run")
    assert run.streams == {}
    assert run.steps["ttft_p99_ms"].isna().all()
