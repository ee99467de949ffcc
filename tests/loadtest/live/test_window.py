"""While a step runs, the judge is told what the report tells it, from the same rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from folders import Load, constant, make_run
from streamed import written as streamed
from test_step_stats import START, batch

from tailrate import analysis
from tailrate.analysis.judging.evidence import counts
from tailrate.analysis.judging.judge import Window, answers
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.records.rows import REQUEST_COLUMNS
from tailrate.analysis.stats.sketch import Sketch
from tailrate.loadtest.engine.live.step_stats import Live
from tailrate.loadtest.engine.record.segments import schema_of
from tailrate.loadtest.engine.scenario.steps import LoadStep

FLAT = constant(10)


def live_of(folder):
    """The run's one step, seen in batches in the order of answers, as load processes send them."""
    run = analysis.load(folder)
    (plan,) = run.manifest.scenario["steps"]
    table = pq.read_table(folder / "requests.parquet")
    due_s = (table["intended_ns"].to_numpy() - plan["start_ns"]) / 1e9
    step = LoadStep(0, plan["endpoint"], plan["rate"], plan["seconds"], plan["settle_s"], 0, 1)
    found = Live(step, plan["start_ns"], due_s, slos=run.manifest.slos, streams=run.manifest.streams)
    over = table["done_ns"].combine_chunks().fill_null(0).to_numpy()
    over = np.where(over == 0, table["intended_ns"].to_numpy(), over)
    schema = schema_of(REQUEST_COLUMNS)
    columns = [
        table[one.name].cast(one.type) if one.name in table.column_names else pa.nulls(len(table), one.type)
        for one in schema
    ]
    rows = pa.table(columns, schema=schema).take(np.argsort(over, kind="stable")).combine_chunks()
    for part in rows.to_batches(max_chunksize=500):
        found.see(part)
    return found, run.measured[0]


def slow_half(rng, at_s):
    return np.where(np.arange(len(at_s)) % 10 == 0, 90.0, 10.0)


@pytest.mark.parametrize(
    ("kept", "latency", "slo", "how"),
    [
        (True, FLAT, "p99<50ms, errors<1%", {}),
        (False, slow_half, "p99<50ms", {}),
        (None, FLAT, "p99<50ms", {"dropped": 0.05}),
        (None, FLAT, "p99<50ms", {"dropped": 0.004}),
        (None, FLAT, "p99<50ms", {"dropped": 1.0}),
        (False, lambda rng, at_s: 10 + 8 * at_s, "p90<2000ms", {}),
        (False, lambda rng, at_s: np.where(at_s > 20, 45.0, 10.0), "p99<50ms", {"dropped": 0.06}),
        (None, slow_half, "p99<50ms", {"late_ms": 9.0}),
        (None, FLAT, "p99 ttft<40ms", {}),
        (False, FLAT, "errors<1%, p99<50ms", {"failed": 0.1}),
        (True, FLAT, "p90<50ms, goodput>80%, errors<1%", {"settle_s": 10.0, "failed": 0.002}),
    ],
)
def test_the_judge_is_told_what_the_report_tells_it(tmp_path, kept, latency, slo, how):
    load = Load("m/a", 100, latency, seconds=60, **how)
    found, measured = live_of(make_run(tmp_path / "run", [load], slo=[slo], mode="hold").folder)
    mine, theirs = found.answers(), measured.windows[0]
    assert [one.kept for one in mine] == [one.kept for one in answers(Slo.parse(slo), [theirs])]
    assert mine[0].kept is kept
    (window,) = found.window.windows(lambda at_s: np.searchsorted(np.arange(6000) / 100, at_s))
    for one, other in zip(window.counts, theirs.counts, strict=True):
        assert (one.n, one.beyond) == (other.n, other.beyond)
        assert theirs.overloaded or one.dependence == pytest.approx(other.dependence, rel=0.05)
    assert bool(window.overloaded) is bool(theirs.overloaded)
    assert (bool(window.late), window.doubts) == (bool(theirs.late), theirs.doubts)


def test_time_per_token_is_that_of_answers_in_several_events(tmp_path):
    slo = "p90 ttft<60ms, p90 tpot<12ms, goodput>50%, p99<500ms"
    load = Load("m/a", 100, seconds=30, failed=0.02)
    streamed(tmp_path / "run", np.random.default_rng(2), [load], slo=slo, mode="hold")
    found, measured = live_of(tmp_path / "run")
    (window,) = found.window.windows(lambda at_s: np.searchsorted(np.arange(3000) / 100, at_s))
    told = [[(one.n, one.beyond) for one in each.counts] for each in (window, measured.windows[0])]
    assert told[0] == told[1]
    assert len({n for n, _ in told[0]}) == 2  # of TPOT there are fewer
    assert [one.kept for one in found.answers()] == [one.kept for one in answers(Slo.parse(slo), measured.windows)]


def test_few_misses_are_worth_what_the_report_says():
    """A burst of nine, which are too few to show by themselves that they come together."""
    slo, at_s = Slo.parse("p99.8<50ms"), np.arange(12_000) / 100
    for seed in range(4):
        rng = np.random.default_rng(seed)
        latency = 10.0 + rng.random(len(at_s))
        first = rng.integers(0, len(at_s) - 9)
        latency[first : first + 9] = 90.0
        found = Live(LoadStep(0, "m/a", 100.0, 120.0, 0.0, 0, 1), START, at_s, slos=[slo])
        found.see(batch(at_s, latency))
        rows = counts(slo, Sketch.of((at_s // 0.6).astype(np.int64), latency, [50.0]), 120.0, lambda: 1.0)
        (report,), (live,) = answers(slo, [Window(rows)]), found.answers()
        assert (report.kept, live.kept) == (True, True)


def test_slices_grow_with_the_time_and_nothing_is_lost():
    slo = Slo.parse("p99<50ms")
    at_s = np.arange(6000) / 100
    found = Live(LoadStep(0, "m/a", 100.0, 60.0, 0.0, 0, 1), START, at_s, slos=[slo])
    for first in range(0, 6000, 50):
        part = at_s[first : first + 50]
        found.see(batch(part, np.where(part % 1 < 0.015, 90.0, 10.0)))
        (window,) = found.window.windows(lambda at: np.searchsorted(at_s, at))
        assert window.counts[0].n == first + 50
        assert window.counts[0].seconds == pytest.approx(part[-1], rel=0.02, abs=0.01)
    assert window.counts[0].beyond == 120


def test_a_queue_is_seen_to_grow_while_it_does_and_never_where_it_does_not():
    slo = Slo.parse("p90<2000ms")
    at_s = np.arange(6000) / 100
    shapes = {True: 10 + 8 * at_s, False: np.full(6000, 900.0)}  # which takes its first second to fill
    for grows, latency in shapes.items():
        over_s, told = at_s + latency / 1e3, []
        found = Live(LoadStep(0, "m/a", 100.0, 60.0, 0.0, 0, 1), START, at_s, slos=[slo])
        for now_s in range(1, 60):
            mine = (over_s < now_s) & (over_s >= now_s - 1)
            found.see(batch(at_s[mine], latency[mine]))
            told.append(bool(found.shown.overloaded))
        assert told[30:] == [grows] * 29
        assert any(told) is grows


def test_what_a_busy_or_a_lost_load_process_did_is_no_answer():
    slo = Slo.parse("p99<50ms")
    at_s = np.arange(2000) / 100
    found = Live(LoadStep(0, "m/a", 100.0, 20.0, 0.0, 0, 1), START, at_s, slos=[slo])
    found.see(batch(at_s, np.full(2000, 90.0)))
    assert found.answers()[0].kept is False
    found.window.cpu_pct = 99.0
    assert "a load process was busy for 99 % of the time" in found.answers()[0].sentence
    found.window.cpu_pct = None
    found.lose(1, 2)
    assert "a load process was lost" in found.answers()[0].sentence


def test_failures_in_a_row_are_told_by_their_numbers():
    rows = batch(np.arange(100) / 100, np.full(100, 5.0), ["500" if k in (3, 4, 5, 40) else "200" for k in range(100)])
    place = rows.schema.get_field_index("seq")
    rows = rows.set_column(place, rows.schema.field(place), pa.array(range(100), rows.schema.field(place).type))
    found = Live(LoadStep(0, "m/a", 100.0, 1.0, 0.0, 0, 1), START, np.arange(100) / 100, slos=[Slo.parse("errors<9%")])
    found.see(rows)
    (window,) = found.window.windows(lambda at_s: np.searchsorted(np.arange(100) / 100, at_s))
    assert window.counts[0].by == "2 failures in a row"
