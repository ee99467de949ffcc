"""Objectives of tokens where rows are read once more: of a slice, and without the time of planned faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from folders import START_NS, Load
from streamed import written
from test_fault_effects import fault
from test_stream_figures import tokens_of

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.judging.judge import answers
from tailrate.analysis.pages.report.markdown import markdown
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.steps import fault_windows

TERMS = "p90 ttft<70ms, p99 tpot<12ms, p99<500ms, goodput>50%, errors<10%"
LIMITS = {"ttft": 70.0, "tpot": 12.0, "": 500.0}
STEPS = (Load("m/a", 100, seconds=20, failed=0.05), Load("m/a", 200, seconds=20, timed_out=0.03))


def took_ms(row: dict[str, Any]) -> dict[str, float]:
    """What is limited, infinite of a failure; NaN where there is none."""
    ok, first = row["status"] == "200", row.get("first_ns")
    tokens, head = tokens_of(row), row.get("first_tokens") or 1
    tpot = math.inf if not ok else math.nan
    if ok and row["events"] > 1 and tokens > head:
        tpot = (row["last_ns"] - first) // (tokens - head) / 1e6
    ttft = (first - row["intended_ns"]) / 1e6 if first else math.inf
    return {"ttft": ttft, "tpot": tpot, "": (row["last_ns"] - row["intended_ns"]) / 1e6 if ok else math.inf}


def truth(rows: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """(arrivals, those beyond) for each of the terms."""
    took = [took_ms(row) for row in rows]
    found = []
    for name, limit in LIMITS.items():
        known = [each[name] for each in took if not math.isnan(each[name])]
        found.append((len(known), sum(ms > limit for ms in known)))
    missed = sum(any(each[name] > limit for name, limit in LIMITS.items()) for each in took)
    return [*found, (len(rows), missed), (len(rows), sum(row["status"] != "200" for row in rows))]


def test_a_slice_of_all_says_what_all_say(tmp_path: Path) -> None:
    """To an objective of its own what the one pass says to the same objective of all arrivals."""
    rng = np.random.default_rng(3)
    rows = written(tmp_path / "run", rng, STEPS, slo=[TERMS, f"[x] {TERMS}"], labels=("x",))
    run = analysis.load(tmp_path / "run")
    for step in run.measured:
        whole, part = (window.counts for window in step.windows)
        mine = [row for row in rows if row["step"] == step.summary.index]
        assert [(each.n, each.beyond) for each in whole] == [(each.n, each.beyond) for each in part] == truth(mine)
        for one, other in zip(whole, part, strict=True):
            assert one.dependence == pytest.approx(other.dependence, rel=0.02)
        said = [
            [(answer.kept, answer.sentence.replace("[x] ", "")) for answer in answers(slo, [window])]
            for slo, window in zip(run.manifest.slos, step.windows, strict=True)
        ]
        assert said[0] == said[1]
    for row, step in zip(run.slices.to_dict("records"), run.measured, strict=True):
        assert row["ttft_p99_ms"] == step.summary.ttft_p99_ms
        assert row["tpot_p99_ms"] == step.summary.tpot_p99_ms
    text = markdown(View.of(run, report_of(run)))
    assert "TTFT P99, ms" in text.partition("## By slice")[2]


def test_a_slice_is_judged_by_its_own_tokens(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    labels = ("chat", "chat", "search")
    slos = ["[chat] p90 ttft<1s", "[search] p90 ttft<1ms", "[search] p50 tpot<1s, goodput>99%"]
    rows = written(tmp_path / "run", rng, STEPS, slo=slos, labels=labels)
    run = analysis.load(tmp_path / "run")
    for step in run.measured:
        for label, found in run.slices_of(step_of(run, step), "m/a", step.tally.grid).items():
            mine = [row for row in rows if row["step"] == step.summary.index and row["label"] == label]
            assert found.n == len(mine)
        judged = zip(run.manifest.slos, step.windows, strict=True)
        assert [answer.kept for slo, one in judged for answer in answers(slo, [one])] == [True, False, True, False]
        # the goodput's own limit is that of TPOT alone
        count = step.windows[2].counts[1]
        took = [took_ms(row)["tpot"] for row in rows if row["step"] == step.summary.index and row["label"] == "search"]
        assert (count.n, count.beyond) == (len([t for t in took if t == t]), sum(t > 1000 for t in took))


def step_of(run: Any, step: Any) -> Any:
    return next(plan for plan in run.manifest.scenario["steps"] if plan["index"] == step.summary.index)


def test_the_time_of_planned_faults_is_left_out_of_tokens_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = written(tmp_path / "run", rng, (Load("m/a", 100, seconds=60, failed=0.02),), slo=[TERMS], mode="hold")
    before = analysis.load(tmp_path / "run").measured[0].windows[0].counts
    assert [(each.n, each.beyond) for each in before] == truth(rows)
    fault(SimpleNamespace(folder=tmp_path / "run"), 20, 30)  # type: ignore[arg-type]
    run = analysis.load(tmp_path / "run")
    (left,) = run.calm
    taken = fault_windows.spans(run, "m/a")
    assert fault_windows.lost_s(taken, START_NS, START_NS + 60 * 10**9) > 9
    rest = [row for row in rows if not any(begin <= row["intended_ns"] < end for begin, end in taken)]
    assert [(each.n, each.beyond) for each in left.windows[0].counts] == truth(rest)
    assert len(rest) < 0.9 * len(rows)
