"""What a search is told of a probe is what the report says of the same rows."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from folders import Load, constant, lognormal, make_run, rewrite
from searched import knee_run

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.judging.share import terms
from tailrate.analysis.steps.by_rate import at_rates
from tailrate.loadtest.engine.live.step_stats import Live
from tailrate.loadtest.engine.scenario.knee_search import KneeObjective
from tailrate.loadtest.engine.scenario.steps import LoadStep


def seen(folder, run):
    """By the search, and by the report."""
    (plan,), (slo,) = run.manifest.scenario["steps"], run.manifest.slos
    table = pq.read_table(folder / "requests.parquet")
    due_s = (table["intended_ns"].to_numpy() - plan["start_ns"]) / 1e9
    step = LoadStep(0, plan["endpoint"], plan["rate"], plan["seconds"], plan["settle_s"], 0, 1)
    live = Live(step, plan["start_ns"], due_s, keep=True, slos=[slo])
    for batch in table.to_batches(max_chunksize=500):
        live.see(batch)
    searched, *vetoes = terms(slo)
    objective = KneeObjective(((searched.figure, searched.limit_ms),), searched.allowed)
    return live.outcome(objective, plan["seconds"], 10.0, False, vetoes), run.measured[0]


@pytest.mark.parametrize("lost", ["dropped", "timed_out"])
@pytest.mark.parametrize(
    ("slow_from_s", "slow_to_s", "overloaded"),
    [(39.7, 40, False), (10, 38, True), (10, 40, True), (0, 40, False), (0, 8, False)],
)
def test_a_queue_filled_up_or_did_not_for_both(tmp_path, lost, slow_from_s, slow_to_s, overloaded):
    load = Load(
        "m/a", 100, lambda rng, at_s: np.where((at_s > slow_from_s) & (at_s < slow_to_s), 45.0, 10.0),
        seconds=40, settle_s=5, **{lost: 0.06},
    )  # fmt: skip
    run = analysis.load(make_run(tmp_path / "run", [load], slo=["p99<50ms"], mode="knee").folder)
    probe, step = seen(tmp_path / "run", run)
    assert probe.overloaded is step.overloaded is overloaded
    assert bool(probe.hindered) is bool(step.showed.doubts)


@pytest.mark.parametrize(
    ("fates", "overloaded"),
    [({"failed": 0.93, "dropped": 0.07}, True), ({"failed": 0.97, "dropped": 0.03}, False), ({"dropped": 1.0}, False)],
)
def test_what_is_said_of_a_step_without_a_success_is_said_by_both(tmp_path, fates, overloaded):
    load = Load("m/a", 100, constant(5), seconds=40, settle_s=5, **fates)
    run = analysis.load(make_run(tmp_path / "run", [load], slo=["p99<50ms"], mode="knee").folder)
    probe, step = seen(tmp_path / "run", run)
    assert probe.overloaded is step.overloaded is overloaded
    assert bool(probe.hindered) is bool(step.showed.doubts)


@pytest.mark.parametrize("seed", [0, 1, 17, 18])
def test_errors_are_vetoed_where_the_report_calls_them_missed(tmp_path, seed):
    """Some seven of three thousand, of which the report says how many came in a row."""
    load = Load("m/a", 100, lognormal(10), seconds=30, failed=0.0025)
    slo = ["p99<50ms, errors<0.05%"]
    run = analysis.load(make_run(tmp_path / "run", [load], slo=slo, mode="knee", seed=seed).folder)
    probe, _ = seen(tmp_path / "run", run)
    (at,) = at_rates(run.measured, 0, run.manifest.slos[0])
    assert probe.vetoes == (("errors<0.05%", at.answers[1].kept),)


def test_of_answers_without_a_figure_nothing_is_counted(tmp_path):
    """A quarter has a time per token, and two in a hundred of these are slow."""
    run = knee_run(tmp_path / "run", [Load("m/a", 100, constant(300), seconds=40)], ["p99 tpot<40ms"])
    rows = pq.read_table(tmp_path / "run" / "requests.parquet").to_pandas()
    rows["events"] = np.where(rows["seq"] % 4 == 0, 5, 1)
    rows["first_ns"] = rows["done_ns"] - 4 * np.where(rows["seq"] % 200 == 0, 60, 5) * 1_000_000
    rewrite(tmp_path / "run", rows)
    probe, step = seen(tmp_path / "run", analysis.load(run.folder))
    assert (probe.n, probe.missed) == (1000, 20)
    assert (step.windows[0].counts[0].n, step.windows[0].counts[0].beyond) == (1000, 20)
    rewrite(tmp_path / "run", rows.assign(events=1))
    probe, _ = seen(tmp_path / "run", analysis.load(run.folder))
    assert (probe.n, probe.hindered) == (0, "no arrival was recorded that has what is searched for")


def test_a_probe_that_was_cut_before_it_settled_is_missed_by_the_report_too(tmp_path):
    probes = [
        Load("m/a", 100, constant(5), seconds=20, settle_s=5),
        Load("m/a", 300, constant(5), seconds=6, settle_s=10),
    ]
    run = knee_run(tmp_path / "run", probes, ["p99<50ms, rate>=300"], cut=1, low_rps=100, high_rps=300)
    report = report_of(run)
    assert report["verdict"] == "fail"
    assert report["reasons"][0].endswith("at 300/s p99<50ms is missed: the queue grows without bound")
    assert report["steps"][1]["reasons"] == ["the queue grows without bound"]
    assert report["trust"]["overloaded_steps"] == [1]
