"""Whether the rows of a soak's first chapters are still there changes nothing of its verdict."""

import json

import numpy as np
import pandas as pd
import pytest
from folders import START_NS, Load, constant, make_run, rewrite
from streamed import written as streams
from test_fault_effects import at, changed, fail, fault

from tailrate import analysis
from tailrate.analysis.records.folder import append_event, judged_path
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.verdicts.retired_chapters import UNKNOWN, main, remembered
from tailrate.analysis.verdicts.verdict import judge

RATE, CHAPTER_S = 100, 120
FLAT = constant(10)


def soaked(folder, first=FLAT, *, slo=("p99<50ms",), chapters=3, **more):
    """A soak whose first chapter had that latency, and 10 ms from then on."""
    loads = [Load("m/a", RATE, first, seconds=CHAPTER_S, **more)]
    loads += [Load("m/a", RATE, FLAT, seconds=CHAPTER_S, block=block) for block in range(1, chapters)]
    return make_run(folder, loads, mode="soak", slo=slo)


def retire(folder, chapter, *, record=True):
    """As a soak does it: the word first, then the deed."""
    run = analysis.load(folder)
    found = json.loads(json.dumps(remembered(run, [chapter]))) if record else None
    rows = pd.read_parquet(folder / "requests.parquet")
    gone = rows["step"] == chapter
    ok = int((rows["status"][gone] == "200").sum())
    totals = dict.fromkeys(("timed_out", "dropped", "lost"), 0)
    totals |= {"scheduled": int(gone.sum()), "ok": ok, "failed": int(gone.sum()) - ok}
    files = [f"requests-{chapter:04d}.arrows"]
    append_event(folder, "retired", steps=[chapter], rows=totals["scheduled"], files=files, totals=totals, judged=found)
    rewrite(folder, rows[~gone])


def grows(rng, at_s):
    return 10 + 8 * at_s


def some_slow(rng, at_s):
    return np.where(np.arange(len(at_s)) % 10 == 0, 90.0, 10.0)


def bursts(rng, at_s):
    """Of nine, at random times."""
    found = np.full(len(at_s), 10.0)
    for first in rng.integers(0, len(at_s) - 9, len(at_s) // 10_000 + 1):
        found[first : first + 9] = 90.0
    return found


@pytest.mark.parametrize(
    ("verdict", "said", "first", "how"),
    [
        ("pass", "is kept", FLAT, {}),
        ("fail", "3.3 % of 36,000 arrivals took longer", some_slow, {}),
        ("fail", "the queue grew by", grows, {"slo": ["p90<2000ms"]}),
        ("inconclusive", "of the arrivals were dropped", FLAT, {"dropped": 0.004}),
        ("inconclusive", "the load generator was late", some_slow, {"late_ms": 9.0}),
        ("fail", "errors<1% is missed", FLAT, {"failed": 0.2, "slo": ["errors<1%"]}),
        ("pass", "worth", bursts, {"slo": ["p99.8<50ms"]}),
        ("measured", "no objective was set", FLAT, {"slo": []}),
        ("inconclusive", "cannot be trusted: 0.", FLAT, {"slo": [], "dropped": 0.004}),
    ],
)
def test_a_verdict_is_the_same_without_the_rows(tmp_path, verdict, said, first, how):
    folder = soaked(tmp_path / "run", first, **how).folder
    before = judge(analysis.load(folder))
    assert (before.verdict, said in " | ".join(before.reasons)) == (verdict, True), before.reasons
    for chapter in (0, 1):
        retire(folder, chapter)
        assert judge(analysis.load(folder)) == before


def test_a_busy_load_process_is_remembered(tmp_path):
    folder = soaked(tmp_path / "run").folder
    append_event(folder, "load_cpu", time_ns=at(100), worker=0, step=0, pct=99.0)
    before = judge(analysis.load(folder))
    assert "a load process was busy for 99 % of the time" in before.reasons[0]
    retire(folder, 0)
    assert judge(analysis.load(folder)) == before


@pytest.mark.parametrize(
    ("from_s", "until_s", "verdict"),
    [(60, 70, "pass"), (60, 121, "fail"), (115, 125, "pass"), (121, 126, "pass"), (100, 345, "fail")],
)
def test_a_planned_fault_is_remembered(tmp_path, from_s, until_s, verdict):
    """One in the first chapter, at its end, or so near that its end is what the fault is held against."""
    run = soaked(tmp_path / "run", slo=["errors<1%, p99<50ms"], chapters=4)
    changed(run, lambda rows, s: fail(rows, (s >= from_s) & (s < until_s)))
    fault(run, from_s, from_s + 0.1)
    whole = analysis.load(run.folder)
    before, seen = judge(whole), whole.struck
    assert before.verdict == verdict, before.reasons
    for chapter in (0, 1):
        retire(run.folder, chapter)
        after = analysis.load(run.folder)
        assert judge(after) == before
        assert after.struck == seen


def test_a_chapter_that_was_all_fault_says_nothing(tmp_path):
    run = soaked(tmp_path / "run", chapters=5)
    changed(run, lambda rows, s: fail(rows, (s >= 119) & (s < 250)))
    fault(run, 119, 245)
    before = judge(analysis.load(run.folder))
    assert before.verdict == "pass", before.reasons
    for chapter in (0, 1, 2):
        retire(run.folder, chapter)
        assert judge(analysis.load(run.folder)) == before


def test_time_per_token_is_that_of_answers_in_several_events(tmp_path):
    """Half of the answers came in one event; of the others some took long, which of all were too few."""
    loads = [Load("m/a", 50, seconds=60, block=block) for block in range(2)]
    slo = ["p90 tpot<12ms, goodput>50%, p99 ttft<1s"]
    streams(tmp_path / "run", np.random.default_rng(3), loads, slo=slo, mode="soak")
    before = judge(analysis.load(tmp_path / "run"))
    retire(tmp_path / "run", 0)
    assert judge(analysis.load(tmp_path / "run")) == before


def test_slices_are_remembered(tmp_path):
    loads = [Load("m/a", RATE, latency, seconds=CHAPTER_S, block=k) for k, latency in enumerate((some_slow, FLAT))]
    labels = [*["short"] * 9, "long"][::-1]
    written = make_run(tmp_path / "run", loads, mode="soak", slo=["[long] p90<50ms"], labels=labels)
    before = judge(analysis.load(written.folder))
    assert "[long] p90<50ms is missed: 50 % of 2,400 arrivals" in before.reasons[0]
    retire(written.folder, 0)
    assert judge(analysis.load(written.folder)) == before


@pytest.mark.parametrize("latency", [FLAT, constant(90)])
def test_an_older_run_that_remembers_nothing_cannot_say(tmp_path, latency):
    """Nobody knows whether its figures could be trusted: it is no pass, and what looks like a miss may be none."""
    folder = soaked(tmp_path / "run", latency).folder
    retire(folder, 0, record=False)
    for number in range(2):
        start_ns = START_NS + number * 60 * 10**9
        counted = {"n": 6000, "ok": 6000, "p50_ms": 10.0, "p99_ms": 90.0}
        append_event(folder, "minute", endpoint="m/a", start_ns=start_ns, end_ns=start_ns + 60 * 10**9, **counted)
    found = judge(analysis.load(folder))
    assert (found.verdict, UNKNOWN in found.reasons[0]) == ("inconclusive", True)


def test_what_is_missed_without_it_is_missed(tmp_path):
    run = soaked(tmp_path / "run")
    changed(run, lambda rows, s: fail(rows, s >= 200))
    retire(run.folder, 0, record=False)
    assert judge(analysis.load(run.folder)).verdict == "fail"


def test_an_objective_that_was_set_later_is_not_answered_by_another(tmp_path):
    folder = soaked(tmp_path / "run").folder
    retire(folder, 0)
    manifest = Manifest.read(folder)
    manifest.scenario["slo"] = [Slo.parse("p99<60ms").as_json()]
    manifest.write(folder)
    assert UNKNOWN in judge(analysis.load(folder)).reasons[0]


def test_rows_that_a_kill_has_left_count_once(tmp_path):
    """Between the word and the deed."""
    folder = make_run(tmp_path / "run", [Load("m/a", RATE, FLAT, seconds=20)], mode="soak", sealed=False).folder
    before = analysis.load(folder)
    found = remembered(before, [0])
    append_event(folder, "retired", steps=[0], rows=2000, files=["requests-0000.arrows"], totals={}, judged=found)
    after = analysis.load(folder)
    assert after.kept == []
    assert [step.summary.n for step in after.calm] == [2000]


def test_the_program_beside_a_run_writes_what_is_asked(tmp_path):
    """Segments below a number become Parquet files; rows that it does not need are not read."""
    folder = make_run(tmp_path / "run", [Load("m/a", RATE, FLAT, seconds=20)] * 2, mode="soak", sealed=False).folder
    main(str(folder), "1", "0", "1")
    assert (folder / "requests-0000.parquet").exists()
    found = [json.loads(judged_path(folder, step).read_text()) for step in (0, 1)]
    assert [(step["index"], step["n"], step["ok"]) for one in found for step in one["steps"]] == [
        (0, 2000, 2000), (1, 2000, 2000),
    ]  # fmt: skip
