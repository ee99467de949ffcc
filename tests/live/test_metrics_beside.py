"""Runs that read the server's metrics beside the load: counts equal to the rows, and pages that do harm to nothing."""

import os
import signal

import psutil
import pytest
from endpoint import endpoint
from odd_pages import hangs, large, serving
from test_run import assert_ledger_closes, finish, nothing_left_running, said, start
from waiting import PATIENCE_S, until

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.records.folder import sealed_path, segments
from tailrate.analysis.run.recorded_run import seal
from tailrate.loadtest.engine.record.server_metrics.choice import MOST_SERIES

pytestmark = pytest.mark.live
assert nothing_left_running  # a fixture of all tests here, too


def test_the_server_counts_what_the_rows_say_whatever_other_pages_do(tmp_path):
    words = ["--headless", "--rates", "60", "--arrivals", "constant"]
    with endpoint(fail_every=50) as url, serving(hangs) as silent, serving(large) as many:
        manifest, rows = finish(
            tmp_path, *words, "--host", url, "--metrics", f"{url},{silent},null/eager={many}", codes=(1,)
        )
        began, others = list(rows), {silent.partition("//")[2], "null/eager"}
    assert_ledger_closes(manifest, began)
    run = analysis.load(tmp_path / "it")
    own = [track for track in run.metric_tracks if track.source not in others]
    for endpoint_ in ("null/eager", "null/compiled"):
        mine = [row for row in rows if row["endpoint"] == endpoint_]
        ok = sum(row["status"] == "200" for row in mine)
        counted = {track.name: track for track in own if track.endpoint == endpoint_}
        assert counted["nv_inference_request_success"].values[-1] == ok
        assert counted["nv_inference_request_failure"].values[-1] == len(mine) - ok > 0
    assert "server_count" not in {risk["kind"] for risk in report_of(run)["risks"]}
    looks = next(iter(own)).time_ns
    assert looks[0] < min(row["intended_ns"] for row in rows)
    assert looks[-1] > max(row["done_ns"] for row in rows)
    # the other two
    lost = [event["sentence"] for event in run.events if event["event"] == "metrics_lost"]
    assert lost == [f"no metrics from {silent}/metrics: no whole page within 2 s"]
    assert [
        event["sentence"] for event in run.events if event["event"] == "warning" and "left out" in event["sentence"]
    ]
    kept = run.metrics[(run.metrics["source"] == "null/eager") & (run.metrics["name"] == "nv_inference_count")]
    assert kept.groupby("time_ns").size().max() == MOST_SERIES
    # sealed, each row is there once
    before = len(run.metrics)
    seal(run.folder)
    assert sealed_path(run.folder, "metrics").exists()
    assert segments(run.folder, "metrics") == []
    assert len(analysis.load(run.folder).metrics) == before


def test_a_run_that_is_killed_keeps_its_metrics_and_leaves_no_reader(tmp_path):
    with endpoint() as url:
        process = start(tmp_path, "--headless", "--rates", "40", "--step-seconds=60", "--host", url, "--metrics", url)

        def looked():
            folder = tmp_path / "it"
            return (folder / "run.json").exists() and len(analysis.load(folder).metrics) > 20

        until(looked)
        readers = [child for child in psutil.Process(process.pid).children() if "reader" in " ".join(child.cmdline())]
        assert len(readers) == 1, said(tmp_path)
        assert readers[0].nice() == 19
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert psutil.wait_procs(readers, timeout=PATIENCE_S)[1] == []
    run = analysis.load(tmp_path / "it")
    assert run.manifest.status == "aborted"
    assert run.missing["metrics"] == 0
    assert any(len(track.time_ns) > 2 for track in run.metric_tracks if track.endpoint == "null/eager")


def test_what_metrics_cannot_mean_is_said_before_any_load(tmp_path):
    with endpoint() as url:
        process = start(tmp_path, "--headless", "--host", url, "--metrics", f"null/other={url}")
        assert process.wait(timeout=PATIENCE_S) == 2
    assert "--metrics names no endpoint 'null/other'; there are null/eager, null/compiled" in said(tmp_path)
    assert not (tmp_path / "it").exists()
