"""The servers' metrics in the report: the table's figures, the lanes' values, and neither where there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from counting_server import Server, tell
from folders import START_NS, Load, constant, make_run
from test_report_page import Page, readout, shown, two_variants
from test_tracks import SUCCESS, TWO, run_of

from tailrate import analysis
from tailrate.analysis.pages.report.charts.metric_lanes import metric_lanes
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.text import words


def test_a_lane_has_the_answers_of_each_slice(tmp_path: Path) -> None:
    run, written = run_of(tmp_path / "run", TWO)
    line = Timeline.of(run)
    lanes = {lane.name: lane for lane in metric_lanes(run.metric_tracks, line, {"m/eager": 0, "m/compiled": 1})}
    for each, name in zip(lanes["requests/s"].lines, ("m/eager", "m/compiled"), strict=True):
        mine = written.requests[written.requests["endpoint"] == name]
        done_s = (mine["done_ns"].to_numpy(dtype=np.int64) - START_NS) / 1e9
        expected = np.histogram(done_s, np.arange(line.slices + 1))[0]
        assert line.slice_s == 1
        assert each.values[: line.slices - 1] == pytest.approx(expected[: line.slices - 1])
    under_way = lanes["pending, requests"].lines[0].values
    assert len(under_way) == line.slices
    assert np.nanmax(under_way) > 0


def test_the_page_shows_each_metric_of_each_step_with_its_meaning(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path / "run", TWO, Server(cache=lambda at_s: 0.4))
    report, page, markdown = shown(run)
    seen = Page(page)
    head, *rows = seen.cells["server"]
    names = [text for _, text in head]
    figures = {(row["index"], row["metric"]): row for row in report["metrics"]}
    for index, cells in enumerate(rows):
        by_name = dict(zip(names, cells, strict=True))
        counted = figures[index, SUCCESS]
        assert float(by_name["requests"][0] or "nan") == counted["delta"]
        rate = words.significant(counted["rate"])
        assert by_name["requests"][1] == f"{words.significant(counted['delta'])} ({rate}/s)"
        assert float(by_name["pending, requests"][0] or "nan") == figures[
            index, "nv_inference_pending_request_count"
        ]["mean"]  # fmt: skip
        assert by_name["KV cache, share"][1] == "0.400"
    assert "Requests that wait to be executed. (nv_inference_pending_request_count)" in seen.text("server")
    assert "By the metrics of localhost:8002 (Triton, vLLM)" in seen.text("server")
    said = readout(page, "timeline")
    assert any("eager requests" in values for values in said.values())
    assert any("KV cache" in values for values in said.values())
    assert "## What the server counted" in markdown
    assert "nv_inference" not in markdown.partition("## What the server counted")[0]


def test_without_metrics_there_is_neither_section_nor_lane(tmp_path: Path) -> None:
    make_run(tmp_path / "run", two_variants([20]))
    _, page, markdown = shown(analysis.load(tmp_path / "run"))
    assert "server" not in Page(page).ids()
    assert "server: " not in page
    assert "What the server counted" not in markdown


def test_of_many_metrics_the_most_telling_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 50, constant(90))])
    tell(written)
    entry = written.manifest.extra["metrics"][0]
    plain = next(says for says in entry["metrics"] if says["name"] == SUCCESS) | {"role": ""}
    queue = plain | {"name": "nv_inference_pending_request_count", "kind": "gauge", "role": "queue", "title": "queue"}
    names = ("nv_inference_count", "nv_inference_exec_count", SUCCESS)
    entry["metrics"] = [*(plain | {"name": name, "title": name} for name in names), queue]
    written.manifest.write(written.folder)
    run = analysis.load(written.folder)
    lanes = metric_lanes(run.metric_tracks, Timeline.of(run), {"m/a": 0})
    assert [lane.name.partition(",")[0] for lane in lanes] == ["queue", *names]
    monkeypatch.setattr("tailrate.analysis.pages.report.charts.metric_lanes.MOST_LANES", 2)
    assert len(metric_lanes(run.metric_tracks, Timeline.of(run), {"m/a": 0})) == 2
