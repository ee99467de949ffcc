"""What the servers' metrics prove: named where their cause is in the run, and only then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from counting_server import Server
from folders import Load, constant, lognormal, queue
from test_tracks import TWO, rows_of, run_of

from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.steps.capacity import capacities
from tailrate.analysis.verdicts.metric_risks import metric_risks
from tailrate.analysis.verdicts.run import Run

KEPT = [Load("m/a", 60, constant(5), seconds=20), Load("m/a", 140, constant(5), seconds=20)]
DROWNED = [Load("m/a", 60, queue(3), seconds=20), Load("m/a", 140, queue(10), seconds=20)]
"""The second rate is above the hundred a second that it can do."""


def kinds(run: Run) -> dict[str, str]:
    return {kind: sentence for kind, _, sentence, _ in metric_risks(run)}


def test_a_run_as_it_should_be_has_nothing_to_say(tmp_path: Path) -> None:
    for number, server in enumerate((Server(), Server(labelled=False), Server(rows_in_batch=1))):
        run, _ = run_of(tmp_path / str(number), TWO, server)
        assert set(kinds(run)) <= {"no_batching"}
    assert run.metric_tracks


def test_a_queue_at_the_server_that_grows(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path / "run", DROWNED)
    said = kinds(run)["server_queue"]
    assert said.startswith("m/a at 140/s: the queue at the server grew from ")
    assert "(nv_inference_pending_request_count)" in said
    assert "server_queue" not in kinds(run_of(tmp_path / "kept", KEPT)[0])
    assert any(risk["kind"] == "server_queue" for risk in report_of(run)["risks"])


@pytest.mark.parametrize(("share", "full"), [(0.97, True), (0.6, False)])
def test_a_full_cache(tmp_path: Path, share: float, full: bool) -> None:
    run, _ = run_of(tmp_path / "run", KEPT, Server(cache=lambda at_s: share if at_s >= 20 else 0.3))
    said = kinds(run)
    assert ("cache_full" in said) is full
    if full:
        assert said["cache_full"].startswith("m/a at 140/s: the server's KV cache was full (97 % in use")


def test_what_limits_is_named_by_the_servers_own_metrics(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path / "run", DROWNED, Server(cache=lambda at_s: 0.98 if at_s >= 20 else 0.3), slo=["p99<50ms"])
    (row,) = capacities(run)
    queued = re.search(
        r"a queue at the server \(([\d.]+) at 60/s, ([\d.]+) at 140/s by nv_inference_pending", row.limited_by
    )
    means = rows_of(run, "nv_inference_pending_request_count")["mean"].tolist()
    assert queued is not None
    assert [float(word) for word in queued.groups()] == pytest.approx(means, rel=0.05)
    assert "a full KV cache (98 % in use by vllm:kv_cache_usage_perc)" in row.limited_by
    without, _ = run_of(tmp_path / "without", DROWNED, Server(endpoint="m/b"), slo=["p99<50ms"])
    assert "at the server" not in (capacities(without)[0].limited_by or "")


@pytest.mark.parametrize("labelled", [True, False])
def test_somebody_else_at_the_server_is_seen_to_one_request(tmp_path: Path, labelled: bool) -> None:
    server = Server(others_rps=0.05, labelled=labelled)
    run, written = run_of(tmp_path / "run", [Load("m/a", 100, lognormal(10), seconds=20)], server)
    ok = (written.requests["status"] == "200").sum()
    ((_, _, said, more),) = [risk for risk in metric_risks(run) if risk[0] == "server_count"]
    assert more == round(0.05 * (22 + 2)) == 1
    assert f"the server counted {ok + 1:,} requests" in said
    assert f"{ok:,} were answered here" in said


def test_what_was_no_success_here_may_have_been_one_there(tmp_path: Path) -> None:
    lost = [Load("m/a", 100, lognormal(10), seconds=20, timed_out=0.1)]
    run, written = run_of(tmp_path / "run", lost, Server(others_rps=3))
    unsure = (written.requests["status"] != "200").sum()
    assert unsure > 3 * 24
    assert "server_count" not in kinds(run)


def test_a_server_that_counts_less_than_was_answered(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path / "run", TWO, Server("a:1", "m/eager"))
    assert "server_count" not in kinds(run)
    halved = [Load("m/a", 50, seconds=20), Load("m/b", 50, seconds=20, at_s=0)]
    run, _ = run_of(tmp_path / "half", halved, Server(labelled=False, endpoint="m/a"), mode="mixed")
    assert "server_count" not in kinds(run)  # of m/a alone, as it is said to be
    run.manifest.extra["metrics"][0]["endpoint"] = ""
    again, _ = run_of(tmp_path / "again", halved, Server(labelled=False, endpoint="m/a"), mode="mixed")
    again.manifest.extra["metrics"][0]["endpoint"] = ""
    assert "answers came from elsewhere" in kinds(again)["server_count"]


def test_a_step_is_told_apart_where_the_run_is_not_bounded(tmp_path: Path) -> None:
    def found(**more: Any) -> dict[str, str]:
        server = Server(first_s=1.0, **more)
        return kinds(run_of(tmp_path / str(len(list(tmp_path.iterdir()))), TWO, server)[0])

    assert "server_count" not in found()
    assert found(others_rps=60)["server_count"].startswith("m/")


def test_counters_that_began_anew_are_said_and_held_against_nothing(tmp_path: Path) -> None:
    found = kinds(run_of(tmp_path / "run", TWO, Server(starts_s=(6.5,)))[0])
    assert "began anew during the run" in found["counter_reset"]
    assert "server_count" not in found


def test_a_page_that_was_often_away(tmp_path: Path) -> None:
    found = kinds(run_of(tmp_path / "run", TWO, Server(away_s=(4.0, 10.0)))[0])
    assert found["metrics_unseen"] == "the metrics of localhost:8002 were there at 22 of 28 looks only"
    assert "metrics_unseen" not in kinds(run_of(tmp_path / "other", TWO, Server(away_s=(4.0, 5.0)))[0])
