"""Charts for notebooks: drawn from frames, they show what the report shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chromium import CHROMIUM, tabbed
from folders import START_NS, Load, Waveform, rewrite
from test_report_page import EVIL, S, readout, run_of, shown

from tailrate import analysis
from tailrate.analysis import plot
from tailrate.analysis.pages.report.charts.time_slices import from_rows, slices
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.text import words
from tailrate.analysis.verdicts.run import Run

FIRST = "document.querySelector"
LOADED = "new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    found = run_of(tmp_path_factory.mktemp("plot") / "run", devices=[Waveform()])
    rows = found.requests(columns=list(found.tables["requests"].names))
    rows["batch_rows"] = pd.Series(np.arange(len(rows)) % 3 + 1, dtype="Int64").where(rows["status"] == "200")
    rewrite(found.folder, rows)
    return analysis.load(found.folder)


def test_a_hockey_stick_of_a_run_is_that_of_its_report(run: Run) -> None:
    report, page, _ = shown(run)
    assert readout(plot.hockey_stick(run).html, "hockey") == readout(page, "hockey")
    assert "objective: p99&lt;50ms" in plot.hockey_stick(run).html
    said = readout(plot.hockey_stick(run.steps, slo="p90<30ms").html, "hockey")
    assert len(said) == 6  # a frame knows what arrived, not what was asked for
    first = said[f"{words.rate(report['steps'][0]['offered_rps'])} offered"]
    assert first["eager P50"] == words.ms(report["steps"][0]["p50_ms"])


def test_frames_may_be_cut_joined_and_renamed(run: Run) -> None:
    two = pd.concat([run.steps, run.steps.assign(endpoint="other/run", p99_ms=1.0)])
    html = plot.hockey_stick(two[["endpoint", "offered_rps", "p50_ms", "p99_ms"]]).html
    assert {label.split(" ")[0] for values in readout(html, "hockey").values() for label in values} == {
        "custom_cnn/eager", "custom_cnn/compiled", "other/run",
    }  # fmt: skip
    assert set(readout(plot.achieved(run.steps).html, "achieved")) == {
        f"{words.rate(value)} offered" for value in run.steps["offered_rps"]
    }
    power = readout(plot.energy(run).html, "power")
    assert power["20/s offered"]["eager"] == f"{words.significant(run.steps['power_w'][0])} W"


def test_percentiles_of_rows_are_exact(run: Run) -> None:
    rows = run.requests(step=[2, 3])
    said = readout(plot.percentiles(rows, slo="p99<50ms").html, "percentiles-0")
    mine = rows[rows["endpoint"] == "custom_cnn/eager"]
    latency = np.where(mine["ok"], mine["latency_ms"], np.inf)
    at_90 = next(values for title, values in said.items() if title.startswith("90 %"))
    assert at_90["eager"] == words.ms(float(np.quantile(latency, 0.9, method="higher")))


def test_batches_of_rows(run: Run) -> None:
    said = readout(plot.batches(run.requests()).html, "compute_ms")
    good = run.requests().query("ok and batch_rows == 2 and endpoint == 'custom_cnn/compiled'")
    mean = words.ms(float(good["compute_ms"].mean()))
    assert said["2 rows"]["compiled"] == f"{mean} ({words.count(len(good))} requests)"


def test_the_time_line_of_rows_is_the_one_that_was_counted_on_the_way(run: Run) -> None:
    line = Timeline.of(run)
    for name, wanted in slices(run, line).items():
        found = from_rows(run.requests(), line)[name]
        assert (found.counts == wanted.counts).all()
        assert (found.answered == wanted.answered).all()
        assert np.array_equal(found.p99_ms, wanted.p99_ms, equal_nan=True)
    figure = plot.time_line(run.requests(), run.devices, run.manifest.scenario["steps"])
    said = readout(figure.html, "timeline")
    assert said["0:03–0:04"]["GPU use"] == "90 %"
    inside = run.requests()["intended_ns"].between(START_NS + 3 * S, START_NS + 4 * S, inclusive="left")
    assert said["0:03–0:04"]["eager offered"] == words.rate(float(inside.sum()))
    assert next(iter(readout(plot.time_line(run.requests(step=0)).html, "timeline"))) == "0:00–0:01"


def test_misuse_is_one_sentence(run: Run) -> None:
    with pytest.raises(ValueError, match="needs the column p99_ms"):
        plot.hockey_stick(run.steps.drop(columns="p99_ms"))
    with pytest.raises(ValueError, match="no step has an arrival"):
        plot.achieved(run.steps.iloc[:0])
    with pytest.raises(ValueError, match="there are no requests"):
        plot.time_line(run.requests().iloc[:0])
    with pytest.raises(ValueError, match="told no sizes"):
        plot.batches(run.requests().assign(batch_rows=np.nan))
    with pytest.raises(ValueError, match="SLO term 'fast' is not understood"):
        plot.hockey_stick(run, slo="fast")


def test_a_kept_figure_is_a_page_and_hostile_text_stays_text(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [Load(f"m/{EVIL}", 20)], devices=[])
    page = plot.hockey_stick(run).save(tmp_path / "chart.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert EVIL not in page
    assert "<img" not in page


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
def test_in_a_notebook_a_figure_has_a_frame_of_its_own_and_answers(run: Run, tmp_path: Path) -> None:
    figures = [plot.hockey_stick(run), plot.time_line(run.requests(), run.devices), plot.percentiles(run.requests())]
    notebook = tmp_path / "notebook.html"
    shown = "".join(figure._repr_html_() for figure in figures)
    notebook.write_text(f'<!doctype html><meta charset="windows-1252"><body>{shown}', encoding="utf-8")
    with tabbed() as tab:
        page = tab.open(notebook.as_uri(), "about:srcdoc", width=1000, height=3000)
        frames: list[Any] = page.frames[1:]
        assert [frame.locator("figure.chart").count() for frame in frames] == [1, 1, 1]
        for frame in frames:  # high enough for all of it
            root = "document.documentElement"
            assert frame.evaluate(f"{root}.scrollHeight <= {root}.clientHeight")
        # by script, at once: on a busy machine a frame may not have been drawn yet, hears of no key or pointer, and
        # drawing it anew hides what it showed
        key = "new KeyboardEvent('keydown', {key: 'Home'})"
        tip = f"{FIRST}('.probe').dispatchEvent({key}); return {FIRST}('.tip:not([hidden])').textContent"
        assert "eager P99" in frames[0].evaluate(f"{LOADED}.then(() => {{{tip}}})")
        zoomed = f"{FIRST}('[data-zoom=in]').click(); return {FIRST}('.range').textContent"
        assert frames[1].evaluate(f"{LOADED}.then(() => {{{zoomed}}})") != ""
        tab.leave()
