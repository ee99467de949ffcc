"""What is known of a running test, from rows, samples and events alone: no socket, no sleep."""

import json

import numpy as np
import pyarrow as pa
import pytest
from test_step_stats import START, batch

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.analysis.records.objective import Slo
from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.live.board import Board, warning
from tailrate.loadtest.engine.live.histogram import Histogram
from tailrate.loadtest.engine.live.points import DEVICES, LENGTH, RATES, LivePoints, together
from tailrate.loadtest.engine.record.segments import schema_of
from tailrate.loadtest.engine.scenario.steps import LoadStep

S = 1_000_000_000
FACTS = {"run": "it", "folder": "runs/it"}


def board(slo="p99<50ms", names=("m/eager", "m/compiled")):
    found = Board(Base(0))
    found.open(FACTS, names, [Slo.parse(slo)], START)
    return found


def step(index=0, endpoint="m/eager", rate=100.0, seconds=10.0, **more):
    return LoadStep(index, endpoint, rate, seconds, 0.0, index, 1, **more)


def even(rate=100.0, seconds=10.0):
    return np.arange(int(rate * seconds)) / rate


def at(seconds):
    return START + int(seconds * S)


def points(found):
    return [json.loads(text) for text in found.history.after(0)]


def column(found, name, endpoint="0"):
    place = RATES.index(name)
    return [point["e"][endpoint][place] if endpoint in point["e"] else None for point in points(found)]


def samples(*rows):
    """(host, device, index, util, memory) of each sample."""
    columns = dict(zip(("host", "device", "index", "util_pct", "mem_bytes"), zip(*rows, strict=True), strict=True))
    schema = schema_of(DEVICE_COLUMNS)
    return pa.record_batch(
        [pa.array(columns.get(field.name, [None] * len(rows)), field.type) for field in schema], schema=schema
    )


# ---- percentiles


@pytest.mark.parametrize("q", [0.0, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("count", [1, 2, 50, 5000])
def test_a_histogram_is_within_half_a_percent_of_the_order_statistic(q, count):
    values = np.random.default_rng(count).lognormal(2, 1.5, count)
    found = Histogram()
    for part in np.array_split(values, 3):
        found.add(part)
    assert found.quantile(q) == pytest.approx(np.quantile(values, q, method="higher"), rel=0.005, abs=1e-3)


def test_what_never_ended_is_infinite_in_a_histogram():
    found = Histogram()
    assert found.quantile(0.5) is None
    found.add(np.arange(1.0, 99.0), infinite=2)
    assert found.quantile(0.5) == pytest.approx(51, rel=0.005)
    assert found.quantile(0.99) is None


def test_histograms_put_together_are_that_of_all():
    parts, whole = [Histogram(), Histogram()], Histogram()
    for part, values in zip(parts, (np.array([1.0, 2, 3]), np.array([10.0, 20])), strict=True):
        part.add(values, 1)
        whole.add(values, 1)
    parts[0].merge(parts[1])
    assert [parts[0].quantile(q) for q in (0, 0.5, 0.7, 1)] == [whole.quantile(q) for q in (0, 0.5, 0.7, 1)]


# ---- history


def point(t, ok=10, p99=20.0, util=50.0):
    return {
        "t": t,
        "s": 1,
        "e": {"0": [12, ok, 1, 0, 0, 5.0, p99, 3, 1.0, None, None]},
        "d": {"0": [util, None, None, None, None]},
    }


@pytest.mark.computes
def test_a_day_stays_small_and_nothing_is_lost_of_what_was_counted():
    history = LivePoints()
    for t in range(1, 86401):
        history.add(point(t, p99=90.0 if t == 1000 else 20.0))
    found = [json.loads(text) for text in history.after(0)]
    assert len(found) < 9 * (LENGTH + 2)
    assert sum(len(text) for text in history.after(0)) < 500_000
    assert sum(one["s"] for one in found) == 86400
    assert sum(one["e"]["0"][RATES.index("ok")] for one in found) == 864_000
    assert [one["t"] for one in found] == sorted(one["t"] for one in found)
    assert found[-1] == point(86400)  # the newest are as they came
    assert max(one["e"]["0"][RATES.index("p99_ms")] for one in found) == 90  # a bad moment stays visible


def test_points_that_grow_are_whole_like_those_before_them():
    history, wide = (
        LivePoints(length=4),
        {str(number): [12, 10, 1, 0, 0, 5.0, 20.0, 3, 1.0, None, None] for number in range(40)},
    )
    points = [point(t) | ({"e": wide} if t > 6 else {}) for t in range(1, 9)]
    for one in points:
        history.add(one)
    assert [json.loads(text) for text in history.after(4)] == points[4:]


def test_a_reader_gets_what_is_newer_than_it_has():
    history = LivePoints(length=4)
    for t in range(1, 20):
        history.add(point(t))
    assert [json.loads(text)["t"] for text in history.after(16)] == [17, 18, 19]
    assert history.after(19) == []


def test_two_points_together_keep_what_only_one_has_and_that_a_percentile_was_infinite():
    one, two = point(1, ok=30, util=20.0), point(2, ok=10, p99=None, util=40.0)
    two["e"] = {"0": [*two["e"]["0"]], "1": [5, 5, 0, 0, 0, 1.0, 2.0, 0, 1.0, 3.0, 40]}
    two["e"]["0"][RATES.index("p50_ms")] = 9.0
    found = together(one, two)
    assert found["s"] == 2
    assert found["e"]["0"] == [24, 40, 2, 0, 0, 6.0, None, 3, 2.0, None, None]
    assert found["e"]["1"] == two["e"]["1"]
    assert found["d"]["0"][0] == 30


# ---- a run


def test_every_second_is_a_point_with_the_rates_the_percentiles_and_the_level():
    found = board()
    live = found.begin(step(), at(0), even())
    due = even()
    live.see(batch(due, np.full(1000, 250.0)))
    live.end(10.0)
    found.close("complete", at(10.25))
    assert column(found, "offered") == [100] * 10 + [0]
    assert column(found, "ok") == [75] + [100] * 9 + [25]  # answered a quarter of a second later
    assert column(found, "in_flight") == [25] * 10 + [0]
    assert column(found, "step_s") == [1.0] * 10 + [0.0]
    assert set(column(found, "p50_ms")) == set(column(found, "p99_ms")) == {250.0}
    assert column(found, "ok", "1") == [None] * 11


def test_a_second_is_a_point_only_when_every_process_has_reported_it_and_late_rows_are_not_lost():
    found = board()
    live = found.begin(step(), at(0), even())
    due = even()
    live.see(batch(due[:150], np.full(150, 1.0)))
    found.tick(at(1.9))
    assert points(found) == []
    found.tick(at(2.1))
    assert column(found, "ok") == [100]
    live.see(batch(due[:7], np.full(7, 1.0)))  # of a process that was slow to report
    live.see(batch(due[150:200], np.full(50, 1.0)))
    found.tick(at(3.1))
    assert column(found, "ok") == [100, 107]


def test_failures_drops_and_lateness_are_counted_by_second_and_so_far():
    found = board(slo="p99<50ms, errors<1%")
    live = found.begin(step(), at(0), even())
    due = even()[:100]
    statuses = ["200"] * 90 + ["500"] * 4 + ["timeout"] * 3 + ["dropped"] * 3
    live.see(batch(due, np.full(100, 5.0), statuses, late_ms=3.0))
    found.tick(at(2.1))
    assert [column(found, name)[0] for name in ("ok", "failed", "dropped", "late")] == [90, 7, 3, 100]
    assert column(found, "p99_ms") == [None]
    (row, other) = found.state(at(2.1))["endpoints"]
    assert (row["failed"], row["dropped"], row["late"]) == ({"500": 4, "timeout": 3}, 3, 100)
    assert (row["p50_ms"], row["p99_ms"], row["late_p99_ms"]) == (5.0, None, 3.0)
    assert other == {"endpoint": "m/compiled", "step": None}
    doubts = " | ".join(found.state(at(2.1))["doubts"])
    assert "m/eager is not trusted: the load generator was late: P99 3 ms, where 2.50 ms would do no harm" in doubts
    assert "m/eager is not trusted: 3 % of the arrivals were dropped although the queue did not grow" in doubts
    assert "so far errors<1% cannot be said: 3 % of the arrivals were dropped" in doubts


def test_what_the_report_trusts_is_no_warning():
    """One arrival that was sent late, and one of many that was dropped."""
    found = board()
    live = found.begin(step(), at(0), even())
    due = even()[:900]
    live.see(batch(due[1:], np.full(899, 1.0), ["dropped", *["200"] * 898]))
    live.see(batch(due[:1], [6.0], late_ms=5.0))
    found.tick(at(9.5))
    assert found.state(at(9.5))["endpoints"][0]["late"] == 1
    assert "dropped" in found.state(at(9.5))["doubts"][0]  # 0.11 %
    live.see(batch(even()[900:], np.full(100, 1.0)))
    assert found.state(at(10))["doubts"] == []


def test_offered_and_achieved_count_from_the_steps_start_to_what_is_reported():
    found = board()
    found.tick(at(3.1))
    live = found.begin(step(), at(3.5), even())
    assert found.state(at(3.2))["endpoints"][0]["achieved_rps"] is None
    due = even()[:500]
    live.see(batch(due + 3.5, np.full(500, 1.0)))
    found.tick(at(8.1))
    row = found.state(at(8.1))["endpoints"][0]
    assert (row["offered_rps"], row["achieved_rps"]) == (100, 100)
    assert (row["running"], row["rate"], row["in_flight"]) == (True, 100, 0)
    live.end(10.0)
    row = found.state(at(14))["endpoints"][0]
    assert (row["running"], row["achieved_rps"]) == (False, 50)
    assert column(found, "step_s")[2:4] == [None, 0.5]


def test_a_lost_process_is_not_waited_for():
    found = board()
    live = found.begin(step(), at(0), even())
    due = even()
    rows = batch(due[:100], np.full(100, 1.0))
    worker = pa.array(np.arange(100) % 2, pa.int32())
    rows = rows.set_column(rows.schema.get_field_index("worker"), "worker", worker)
    live.see(rows)
    found.tick(at(2.1))
    live.lose(1, 2)
    live.see(batch(due[100:300:2], np.full(100, 1.0)))
    found.tick(at(4.1))
    assert column(found, "in_flight") == [0, 0, 0]
    assert column(found, "ok") == [100, 50, 50]


def test_a_closed_loop_has_no_offered_rate_and_as_many_under_way_as_asked():
    found = board()
    live = found.begin(step(rate=0.0, concurrency=8), at(0), np.empty(0))
    live.see(batch([0.1, 0.2, 1.2], [5.0, 5.0, 5.0]))
    found.tick(at(3.1))
    assert column(found, "offered") == [None, None]
    assert column(found, "ok") == [2, 1]
    assert column(found, "in_flight") == [8, 8]
    row = found.state(at(3.1))["endpoints"][0]
    assert (row["offered_rps"], row["concurrency"], row["achieved_rps"]) == (None, 8, 1.5)


def test_two_endpoints_at_once_and_two_steps_of_one_in_a_second():
    found = board()
    first = found.begin(step(seconds=0.5), at(0), even(seconds=0.5))
    other = found.begin(step(1, "m/compiled"), at(0), even())
    first.see(batch(even(seconds=0.5), np.full(50, 1.0)))
    first.end(0.5)
    second = found.begin(step(2, seconds=0.5), at(0.5), even(seconds=0.5))
    second.see(batch(even(seconds=0.5) + 0.5, np.full(50, 3.0)))
    other.see(batch(even()[:100], np.full(100, 2.0)))
    found.tick(at(2.1))
    (only,) = points(found)
    assert only["e"]["0"][:2] == [100, 100]
    assert only["e"]["0"][RATES.index("step_s")] == 1.0
    assert only["e"]["0"][RATES.index("p99_ms")] == 3.0
    assert only["e"]["1"][:2] == [100, 100]


def test_of_several_steps_in_a_row_the_one_under_way_is_shown():
    found = board()
    parts = [found.begin(step(n, rate=rate, start_s=4.0 * n), at(4 * n), even()) for n, rate in enumerate((10, 30, 20))]

    def shown(seconds):
        state = found.state(at(seconds))
        return [one["index"] for one in state["steps"]], state["endpoints"][0]["rate"]

    assert shown(1) == ([0], 10)
    assert shown(5) == ([1], 30)
    assert shown(9) == ([2], 20)
    for live in parts:
        live.see(batch([(live.start_ns - START) / 1e9], [1.0]))
        live.end(4.0)
    assert shown(13) == ([], 20)
    found.begin(step(3, rate=40), at(14), even())
    assert shown(13.9) == ([3], 40)  # about to begin


def test_what_is_left_follows_the_plan_and_the_steps():
    found = board()
    found.plan(2, [10.3, 10.3], 2.0, at(2.0))
    assert found.state(at(1.0))["left_s"] == pytest.approx(23.6)
    found.begin(step(), at(5.0), even())
    state = found.state(at(8.0))
    assert state["left_s"] == pytest.approx(19.6)
    assert (state["of"], state["steps"][0]["left_s"]) == (2, 7.0)
    searching = board()
    searching.plan(None, None, 0.0, at(0))
    searching.begin(step(), at(0), even())
    assert searching.state(at(1))["left_s"] is None
    assert searching.state(at(1))["steps"][0]["left_s"] == 9.0


def test_a_soak_tells_its_chapter_and_its_disk():
    found = board()
    found.facts |= {"mode": "soak", "total_s": 28800.0}
    found.plan(6, [10.3, 10.3, 10.3], 2.0, at(2.0))
    assert found.state(at(1.0))["soak"] == {
        "chapter": None, "of": 3, "total_s": 28800.0, "used_bytes": None, "free_bytes": None,
    }  # fmt: skip
    found.event({"event": "disk", "time_ns": at(1), "used_bytes": 7, "free_bytes": 9})
    found.begin(step(2), at(5.0), even())
    told = found.state(at(8.0))["soak"]
    assert (told["chapter"], told["used_bytes"], told["free_bytes"]) == (3, 7, 9)
    assert found.events(0) == []
    assert board().state(at(1.0))["soak"] is None


def test_faults_are_told_as_they_begin_and_end():
    found = board()
    known = {"event": "fault", "fault": "cpu_taken", "target": "4", "id": 0}
    found.event(known | {"time_ns": at(1), "phase": "begin", "sentence": "4 busy processes"})
    found.event(known | {"time_ns": at(31), "phase": "end", "sentence": "it is over"})
    found.event(known | {"time_ns": at(40), "target": "", "phase": "refused", "sentence": "403"})
    found.event({"event": "gap", "time_ns": at(50), "start_ns": at(41), "end_ns": at(50), "scheduled": {}})
    assert [(event["t"], event["warning"]) for event in found.events(0)] == [
        (1.0, "cpu_taken 4 is injected: 4 busy processes"),
        (31.0, "cpu_taken 4 is over"),
        (40.0, "cpu_taken was not injected: 403"),
        (50.0, "the soak went on; nothing was sent since it was interrupted"),
    ]


def test_devices_are_averaged_over_what_came_at_once_and_go_stale():
    found = board()
    found.samples(samples(("h", "GPU-1", 0, 80.0, 2**30), ("h", "GPU-1", 0, 90.0, 2**30)), at(1.0))
    found.samples(samples(("h", "cpu", 0, 5.0, None)), at(1.5))
    found.tick(at(3.0))
    (_, device) = points(found)
    assert device["d"]["0"] == [85.0, 2**30, None, None, None]
    state = found.state(at(3.0))
    assert [one["name"] for one in state["devices"]] == ["GPU 0", "CPU"]
    assert [one["stale"] for one in state["devices"]] == [False, False]
    assert found.state(at(9.0))["devices"][0]["stale"]
    found.tick(at(12.0))
    assert points(found)[-1]["d"] == {}
    found.samples(samples(("other", "cpu", 0, 6.0, None)), at(12.0))
    assert [one["name"] for one in found.state(at(12.0))["devices"]] == ["h GPU 0", "h CPU", "other CPU"]
    found.samples(samples(("third", "cpu:third", 0, 6.0, None)), at(12.0))
    assert [one["name"] for one in found.state(at(12.0))["devices"]][-1] == "third CPU"
    assert DEVICES[:2] == ("util_pct", "mem_bytes")


def test_the_cursor_gives_what_is_new_and_another_runs_cursor_everything():
    found = board()
    live = found.begin(step(), at(0), even())
    live.see(batch(even()[:300], np.full(300, 1.0)))
    found.event({"event": "warning", "time_ns": at(1), "sentence": "first"})
    first = json.loads(found.answer("", at(3.1)))
    assert first["whole"]
    assert [one["t"] for one in first["points"]] == [1, 2]
    assert [one["warning"] for one in first["events"]] == ["first"]
    again = json.loads(found.answer(first["cursor"], at(3.5)))
    assert not again["whole"]
    assert (again["points"], again["events"]) == ([], [])
    found.event({"event": "worker_lost", "time_ns": at(3), "worker": 1, "steps": [0]})
    later = json.loads(found.answer(first["cursor"], at(4.1)))
    assert [one["t"] for one in later["points"]] == [3]
    assert "a load process was lost" in later["events"][0]["warning"]
    for other in ("1.2.3", "x", f"{START}.x.0", "....", f"{START}.²." + "9" * 50):
        assert json.loads(found.answer(other, at(4.1)))["whole"]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"event": "load_cpu", "worker": 2, "pct": 91.2}, "load process 2 was busy for 91 %"),
        ({"event": "device", "sentence": "GPU 1 fell off the bus"}, "GPU 1 fell off the bus"),
        ({"event": "telemetry_lost", "sentence": ""}, "no device samples come any more"),
        ({"event": "step_cut", "sentence": "the queue grows"}, "a step was cut short: the queue grows"),
        ({"event": "step_end"}, None),
        ({"event": "idle"}, None),
    ],
)
def test_what_is_a_warning(event, said):
    assert (warning(event) or "").startswith(said or "")
    assert (warning(event) is None) == (said is None)


def test_a_load_process_that_had_time_is_no_event():
    found = board()
    found.event({"event": "load_cpu", "worker": 0, "pct": 20.0, "time_ns": at(1)})
    found.event({"event": "idle", "time_ns": at(1)})
    assert found.events(0) == []
    found.event({"event": "load_cpu", "worker": 0, "pct": 95.0, "time_ns": at(1)})
    assert len(found.events(0)) == 1


def test_the_end_makes_points_of_what_is_left_and_stops_the_clock():
    found = board()
    live = found.begin(step(seconds=3.0), at(0), even(seconds=3.0))
    live.see(batch(even(seconds=3.0), np.full(300, 1.0)))
    found.close("aborted", at(3.2))
    assert sum(count or 0 for count in column(found, "ok")) == 300
    before = len(points(found))
    found.tick(at(100))
    assert len(points(found)) == before == 4
    state = found.state(at(100))
    assert (state["status"], state["elapsed_s"], state["steps"], state["left_s"]) == ("aborted", 3.2, [], None)


def test_before_a_start_there_is_nothing_and_a_failure_says_why():
    found = Board(Base(0))
    empty = json.loads(found.answer("", at(0)))
    assert (empty["state"]["status"], empty["points"], empty["events"]) == ("waiting", [], [])
    found.fail("nothing answers at http://x")
    found.close("aborted", at(1))
    assert found.state(at(2))["status"] == "failed"
    assert found.state(at(2))["doing"] == "nothing answers at http://x"


def test_a_finished_step_keeps_no_arrivals():
    found = board()
    live = found.begin(step(), at(0), even(), keep=True)
    live.see(batch(even(), np.full(1000, 1.0)))
    live.end(10.0)
    found.tick(at(20))
    assert live.drained
    assert live.due(10.0) == 0  # the schedule has been let go
    assert found.state(at(20))["endpoints"][0]["p50_ms"] == 1.0


def test_of_sessions_nobody_here_knows_how_many_wait():
    found = board()
    live = found.begin(step(rate=5.0, sessions=True), at(0), even()[:3])
    live.see(batch([0.1, 0.2, 1.2], [5.0, 5.0, 5.0]))
    found.tick(at(3.1))
    assert column(found, "offered") == [None, None]
    assert column(found, "in_flight") == [None, None]
    row = found.state(at(3.1))["endpoints"][0]
    assert (row["offered_rps"], row["in_flight"], row["achieved_rps"]) == (None, None, 1.5)
