"""What the report shows of endpoints that answer token by token, as its rows have it; and nothing of that elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from folders import Load
from streamed import written
from test_report_page import Page, readout, run_of, shown, two_variants

from tailrate import analysis
from tailrate.analysis.text import words

LOADS = [Load(f"m/{name}", rate, seconds=12) for name in ("eager", "compiled") for rate in (50, 100)]


def streamed(folder: Path, loads: list[Load] = LOADS, **more: Any) -> tuple[dict[str, Any], str, str]:
    written(folder, np.random.default_rng(4), loads, {"m/eager": (1.5, 1.3)}, (1, 20, 30, 200), **more)
    return shown(analysis.load(folder))


def test_charts_by_rate_show_the_rows(tmp_path: Path) -> None:
    report, page, _ = streamed(tmp_path / "run")
    for prefix, limit in (
        ("ttft_", "objective: p99 ttft&lt;60ms"),
        ("tpot_", "objective: p99 tpot&lt;12ms"),
        ("gap_", ""),
    ):
        said = readout(page, f"{prefix}rates")
        for row in report["steps"]:
            (values,) = (values for title, values in said.items() if title.startswith(f"{words.rate(row_rate(row))} "))
            short = row["endpoint"].removeprefix("m/")
            assert values[f"{short} P50"] == words.ms(row[f"{prefix}p50_ms"])
            assert values[f"{short} P99"].startswith(words.ms(row[f"{prefix}p99_ms"]))
            if prefix != "gap_":
                low, high = (row[f"{prefix}p99_{end}_ms"] for end in ("low", "high"))
                assert low is None or words.interval(low, np.inf if high is None else high) in values[f"{short} P99"]
        assert limit in page


def row_rate(row: dict[str, Any]) -> float:
    return LOADS[row["index"]].rate


def test_gaps_by_their_place_are_drawn_for_each_load(tmp_path: Path) -> None:
    report, page, _ = streamed(tmp_path / "run")
    assert [*dict.fromkeys(re.findall(r"<strong>Gaps by their place in the answer at ([^<]+)<", page))] == [
        "50/s",
        "100/s",
    ]
    for number, rate in enumerate((50.0, 100.0)):
        said = readout(page, f"positions-{number}")
        mine = [row for row in report["answers"]["by_position"] if row["rate"] == rate]
        assert len(mine) > 30
        for row in mine:
            first, last = words.count(row["first"]), words.count(row["last"])
            title = f"gap {first}" if first == last else f"gaps {first} to {last}"
            assert said[title][f"{row['endpoint'].removeprefix('m/')} P50"] == words.ms(row["p50_ms"])


def test_tables_by_length_are_on_the_page_and_in_markdown(tmp_path: Path) -> None:
    report, page, text = streamed(tmp_path / "run")
    for caption, key in (
        ("By the length of the prompt, ms", "by_prompt"),
        ("By the length of the answer, ms", "by_answer"),
        ("By the turn of the session, ms", "by_turn"),
    ):
        assert caption in page
        lines = text.split(f"{caption}:")[1].split("\n\n")[1].splitlines()
        assert len(lines) == 2 + len(report["answers"][key])
    row = report["answers"]["by_prompt"][-1]
    assert f"{words.count(row['least'])}–{words.count(row['most'])}" in page


def test_tokens_over_time_add_up_to_what_came(tmp_path: Path) -> None:
    _, page, _ = streamed(tmp_path / "run", [Load("m/a", 100, seconds=20)])
    said = [value["a tokens"] for value in readout(page, "timeline").values() if "a tokens" in value]
    came = [float(each.removesuffix("/s").replace(",", "")) for each in said]
    run = analysis.load(tmp_path / "run")
    rows = run.requests()
    tokens, end_ns = rows["tokens_out"].fillna(rows["events"]), run.manifest.scenario["steps"][0]["end_ns"]
    whole, begun = (tokens[(rows[name] < end_ns).fillna(False)].sum() for name in ("last_ns", "first_ns"))
    assert 0.98 * whole <= sum(came) <= 1.02 * begun


def test_a_run_without_streams_shows_none_of_it(tmp_path: Path) -> None:
    report, page, text = shown(run_of(tmp_path / "run", two_variants([20])))
    assert not {"ttft_rates", "tpot_rates", "gap_rates", "positions-0", "tokens"} & set(Page(page).ids())
    assert "TTFT" not in text
    assert report["answers"] == {
        "by_position": [],
        "by_prompt": [],
        "by_answer": [],
        "by_turn": [],
        "beside_prompts": [],
    }
