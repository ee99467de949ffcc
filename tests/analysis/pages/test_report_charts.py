"""The charts by percentile, batch, stage and energy, and what stands beside them: as in the report, absent without."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import folders
import numpy as np
import pandas as pd
import pytest
from folders import Load, Waveform, constant, queue
from test_report_page import Page, readout, run_of, shown, two_variants

from tailrate import analysis
from tailrate.analysis.exports import report_json
from tailrate.analysis.pages.html import svg
from tailrate.analysis.pages.report.charts import batches, by_rate, percentiles
from tailrate.analysis.pages.report.sections.risks import SEVERITIES
from tailrate.analysis.pages.report.sections.same_model import sameness
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.steps.latency_breakdown import STAGES
from tailrate.analysis.text import words
from tailrate.analysis.verdicts.run import Run


def batched(folder: Path, loads: Sequence[Load], sizes: Sequence[int], **options: Any) -> Run:
    """A run in which the batch of an endpoint's k-th request has `sizes[k mod …]` rows and takes 2 ms a row."""
    run_of(folder, loads, **options)
    rows = pd.read_parquet(folder / "requests.parquet")
    rows["batch_rows"] = pd.array(np.resize(np.array(sizes), len(rows)), dtype="Int64")
    rows["compute_ms"] = 2.0 * rows["batch_rows"].astype(float)
    rows.loc[rows["status"] != "200", ["batch_rows", "compute_ms"]] = None
    folders.rewrite(folder, rows)
    return analysis.load(folder)


def places(page: str, figure: str) -> list[list[Any]]:
    """Where each value of a figure lies on x, in per cent of its width."""
    found = json.loads(page.split(f'id="{figure}"')[1].split('application/json">')[1].split("</script>")[0])
    return list(found["places"])


# ---- by percentile


def test_a_curve_shows_the_values_of_the_report(tmp_path: Path) -> None:
    report, page, _ = shown(run_of(tmp_path / "run", two_variants([20])))
    said = readout(page, "percentiles-0")
    for number, name in enumerate(("eager", "compiled")):
        curve = report["curves"][number]
        known = dict(zip(curve["percentile"], curve["latency_ms"], strict=True))
        assert (
            said["50 % are faster, 1 of 2 slower"][name]
            == words.ms(known[50])
            == words.ms(report["steps"][number]["p50_ms"])
        )
    assert "0 % are faster" not in said


def test_the_axis_gives_each_nine_the_same_room(tmp_path: Path) -> None:
    _, page, _ = shown(run_of(tmp_path / "run", [Load("m/a", 500, seconds=8)]))
    x = {float(title.split()[0]): at for at, title, _ in places(page, "percentiles-0")}
    assert x[99] - x[90] == pytest.approx(x[99.9] - x[99], abs=0.02)
    assert x[90] - 0 == pytest.approx(x[99] - x[90], abs=0.02)


def test_the_objective_stands_at_its_percentile_and_latency() -> None:
    curve = {"index": 0, "endpoint": "m/a", "percentile": [0, 50, 90, 99], "latency_ms": [1, 10, 20, 40]}
    row = {"index": 0, "endpoint": "m/a", "rate": 10, "asked": "10/s", "p99_ms": 40.0}
    drawn = percentiles.percentile_charts([row], [curve], {"m/a": 0}, [Slo(99, 25.0)])
    assert drawn is not None
    place = re.search(r'x="([\d.]+)%" y="([\d.]+)" class="mark"><path d="M-7', drawn)
    assert place is not None
    scale, y = svg.Scale(1.0, 115.0, log=True), svg.fitting([10, 20, 40, 27.5])
    assert float(place[1]) == pytest.approx(100 * scale(100), abs=0.01)
    assert float(place[2]) == pytest.approx(300 * (1 - y(25.0)), abs=0.1)
    assert "objective p99&lt;25ms" in drawn


def test_a_curve_leaves_at_the_top_where_failures_begin(tmp_path: Path) -> None:
    _, page, _ = shown(run_of(tmp_path / "run", [Load("m/a", 100, constant(10), failed=0.2)]))
    said = readout(page, "percentiles-0")
    assert said["50 % are faster, 1 of 2 slower"]["a"] == words.ms(10.0)
    assert said["90 % are faster, 1 of 10 slower"]["a"] == "∞"
    assert "failures are reached" in page


def test_the_rate_shown_first_is_the_highest_at_which_all_have_a_curve(tmp_path: Path) -> None:
    loads = [Load("m/a", rate, seconds=8) for rate in (20, 40)] + [
        Load("m/b", 20, seconds=8),
        Load("m/b", 60, queue(50)),
    ]
    _, page, _ = shown(run_of(tmp_path / "run", loads))
    pressed = dict(re.findall(r'data-choose="\d" aria-pressed="(\w+)">([^<]+)<', page))
    assert pressed["true"] == "20/s"


def test_a_run_of_overloaded_steps_has_no_curve(tmp_path: Path) -> None:
    report, page, _ = shown(run_of(tmp_path / "run", [Load("m/a", 60, queue(50))]))
    assert report["curves"] == []
    assert "percentiles" not in Page(page).ids()


# ---- latency and rate


def interval(rate: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"rate": rate, "offered_rps": rate, "p99_ms": 5.0, "p99_low_ms": low, "p99_high_ms": high}


def test_the_interval_is_an_area_between_neighbours_and_a_bar_alone() -> None:
    panel = svg.Panel(svg.Scale(0, 60), svg.Scale(0, 10), 100)
    rows = [
        interval(10, 4, 6),
        interval(20, 4, 6),
        interval(30, None, None),
        interval(40, 4, 6),
        interval(50, 4, math.inf),
    ]
    assert by_rate.bands(panel, rows, 0) == {10, 20}
    assert len(panel.marks) == 1
    assert panel.marks[0].count("L") == 3


# ---- batches


def test_batches_show_their_share_and_what_they_cost(tmp_path: Path) -> None:
    run = batched(tmp_path / "run", [Load("m/a", 100, constant(9)), Load("m/a", 200, constant(9))], [1, 4, 4, 4])
    _, page, markdown = shown(run)
    share = readout(page, "batches-0")
    assert float(share["4 rows"]["a"].split()[0]) == pytest.approx(75, abs=1)
    assert "2 rows" not in share
    assert readout(page, "compute_ms")["4 rows"]["a"].startswith("8\u00a0ms (")
    assert readout(page, "rows_per_second")["4 rows"]["a"].startswith("500/s (")
    assert re.search(r"\| m/a \| 4 \| [\d,]+ \| 8 \| 500 \|", markdown)


def test_all_steps_together_count_each_request_once() -> None:
    row = {"endpoint": "m/a", "batch_rows": 4}
    found = batches.together(
        [
            {**row, "requests": 30, "compute_ms": 2.0, "rows_per_second": 2000.0},
            {**row, "requests": 10, "compute_ms": 6.0, "rows_per_second": 4000 / 6},
            {**row, "requests": 60, "compute_ms": None, "rows_per_second": None},
        ]
    )
    assert found == [{**row, "requests": 100, "compute_ms": 3.0, "rows_per_second": pytest.approx(4000 / 3)}]


@pytest.mark.parametrize(("most", "groups"), [(3, "1 2 3"), (16, None), (20, "1 2 3–4 5–8 9–16 17–32")])
def test_many_sizes_share_bars_by_octave(most: int, groups: str | None) -> None:
    found = batches.groups(most)
    assert [batches.named(group) for group in found] == (groups or " ".join(map(str, range(1, 17)))).split()
    assert all(before[1] + 1 == after[0] for before, after in pairwise(found))


def test_batches_of_one_size_are_one_sentence(tmp_path: Path) -> None:
    _, page, markdown = shown(run_of(tmp_path / "run", [Load("m/a", 20)]))
    assert "Every request ran in a batch of 4" in Page(page).text("batches")
    assert "## Batches" not in markdown


# ---- stages and energy


def test_a_bar_has_the_times_of_the_table(tmp_path: Path) -> None:
    report, page, _ = shown(run_of(tmp_path / "run", two_variants([20, 40])))
    said = readout(page, "stages-1")["P50 at 40/s"]
    row = next(r for r in report["breakdown"] if r["index"] == 3 and r["percentile"] == 50)
    assert said["compute"] == words.ms(row["compute_ms"])
    assert said["total"] == words.ms(sum(row[name] or 0.0 for name in STAGES))


def test_a_bar_that_is_much_longer_than_the_others_is_cut_and_marked(tmp_path: Path) -> None:
    loads = [Load("m/a", rate, seconds=8) for rate in (20, 30, 40)] + [Load("m/a", 60, queue(60), seconds=8)]
    _, page, _ = shown(run_of(tmp_path / "run", loads))
    assert page.count('class="onward"') == 2
    assert "arrow goes on above" in Page(page).text("stages")


def test_energy_is_drawn_as_the_table_has_it(tmp_path: Path) -> None:
    report, page, _ = shown(run_of(tmp_path / "run", two_variants([20]), devices=[Waveform()]))
    step = report["steps"][0]
    said = readout(page, "joules")["20/s offered"]
    assert said["eager"] == f"{words.significant(step['joules_per_request'])} J"
    assert said["eager above idle"] == f"{words.significant(step['net_joules_per_request'])} J"
    assert readout(page, "power")["20/s offered"]["eager"] == f"{words.significant(step['power_w'])} W"
    assert (
        readout(page, "memory")["20/s offered"]["eager"] == f"{words.significant(step['mem_peak_bytes'] / 2**30)} GiB"
    )


def test_a_foreign_server_has_neither_batches_nor_energy(tmp_path: Path) -> None:
    _, page, markdown = shown(run_of(tmp_path / "run", [Load("bert/a", 20)], devices=[], foreign=True))
    assert not {"batches", "energy", "stages"} & set(Page(page).ids())
    assert "## Batches" not in markdown


# ---- the same model, and risks


def test_the_same_model_is_told_before_and_after_the_run(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [Load("m/compiled", 20)])
    run.manifest.endpoints[0]["name"] = "it"
    before = {"parity_ok": True, "parity_cosine": 0.99999961, "parity_relative_error": 4.3e-7, "start": "cold"}
    before |= {"recompiles": 0, "graph_breaks": 2, "artefact_bytes": 1048576, "warmup_s": 41.25, "reason": None}
    run.manifest.endpoints[0] |= {"parameters": before, "parameters_after": before | {"recompiles": 3}}
    report = report_json.report_of(run)
    same = sameness(View.of(run, report))
    shown_as = dict(zip(same.heads, (cell.shown for cell in same.rows[0]), strict=True))
    assert shown_as == {
        "endpoint": "it",
        "same as eager fp32": "yes ✓",
        "start": "cold",
        "relative error": "4.3e-07",
        "cosine": "0.999999",  # never rounded up to 1
        "warm-up, s": "41.2",
        "graph breaks": "2",
        "recompiles": "0 → 3",
        "kept artefacts": "1 MiB",
    }
    assert same.heads[same.numbers_from] == "relative error"
    _, page, markdown = shown(run)
    assert "0 → 3" in (text := Page(page).text("endpoints"))
    assert "m/compiled" not in text
    assert "| 0 → 3 |" in markdown


def test_a_server_that_says_nothing_of_itself_has_no_such_table(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [Load("m/a", 20)])
    run.manifest.endpoints[0].pop("parameters")
    run.manifest.endpoints[0].pop("max_batch")
    _, page, markdown = shown(run)
    assert "endpoints" not in Page(page).ids()
    assert "same model" not in markdown


RISKS = [
    {"kind": "x", "severity": "limit", "sentence": "one day only"},
    {"kind": "y", "severity": "wrong", "sentence": "<b> & 3 answers differ"},
    {"kind": "z", "severity": "doubt", "sentence": "the clocks were held down"},
]


def test_risks_are_told_by_weight_in_words(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [Load("m/a", 20)])
    _, page, markdown = shown(run, risks=RISKS)
    said = Page(page).text("risks")
    assert "✕ Wrong <b> & 3 answers differ ? In doubt the clocks were held down ! Limit one day only" in said
    assert "- **Wrong**: &lt;b&gt; &amp; 3 answers differ\n- **In doubt**: the clocks" in markdown
    assert list(SEVERITIES) == ["wrong", "doubt", "limit"]


@pytest.mark.parametrize("none", [[], None])
def test_without_risks_there_is_no_such_section(tmp_path: Path, none: Any) -> None:
    _, page, markdown = shown(run_of(tmp_path / "run", [Load("m/a", 20)]), risks=none)
    assert "risks" not in Page(page).ids()
    assert "## Risks" not in markdown
