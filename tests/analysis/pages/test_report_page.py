"""The page and the Markdown of a run: numbers are the report's, hostile text stays text, absent data stays out."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import folders
import numpy as np
import pyarrow.parquet as pq
import pytest
from folders import START_NS, Load, Waveform, queue

from tailrate import analysis
from tailrate.analysis.exports import report_json
from tailrate.analysis.pages import assets
from tailrate.analysis.pages.html import markup, svg
from tailrate.analysis.pages.report import write
from tailrate.analysis.pages.report.charts import time_slices
from tailrate.analysis.pages.report.page import headline
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.text import words
from tailrate.analysis.verdicts.run import Run

S = 10**9
CPU = Waveform("cpu", power=False, counter=False, util_pct=50.0)
EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\"'&|`_*"


def two_variants(rates: Sequence[float] = (20, 40, 60), **changed: Any) -> list[Load]:
    """Eager can serve 45 requests a second, compiled 83."""
    loads = []
    for rate in rates:
        loads.append(Load("custom_cnn/eager", rate, queue(22.0), settle_s=1.0, **changed))
        loads.append(Load("custom_cnn/compiled", rate, queue(12.0), settle_s=1.0, **changed))
    return loads


def run_of(folder: Path, loads: Sequence[Load] | None = None, **options: Any) -> Run:
    """A run at `p99<50ms` whose manifest also says what a server says, and in which a replica was lost."""
    known: dict[str, Any] = {"slo": ["p99<50ms"], "poisson": True, "devices": [CPU]}
    manifest = folders.make_run(folder, two_variants() if loads is None else loads, **(known | options)).manifest
    for endpoint in manifest.endpoints:
        endpoint["parameters"] = {"warmup_s": 3.25, "parity": {"cosine": 0.9998}}
    manifest.extra["command"] = "tailrate run custom_cnn --rates 20,40,60"
    manifest.write(folder)
    append_event(folder, "replica_lost", time_ns=START_NS + 2 * S, replica="r-7")
    return analysis.load(folder)


def shown(run: Run, **changed: Any) -> tuple[dict[str, Any], str, str]:
    """The report, the page and the Markdown."""
    report = report_json.report_of(run) | changed
    markdown, page = write(run, report)
    return report, page.read_text(encoding="utf-8"), markdown.read_text(encoding="utf-8")


class Page(HTMLParser):
    """What a reader sees: texts and cells by section; tags as they were met."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.section = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"": []}
        self.cells: dict[str, list[list[tuple[str | None, str]]]] = {}
        self.cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "section":
            self.section = str(found["id"])
            self.texts[self.section], self.cells[self.section] = [], []
        elif tag == "tr":
            self.cells[self.section].append([])
        elif tag in ("td", "th"):
            self.cell = True
            self.cells[self.section][-1].append((found.get("data-value"), ""))

    def handle_endtag(self, tag: str) -> None:
        self.cell = self.cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.texts[self.section].append(data)
        if self.cell:
            row = self.cells[self.section][-1]
            row[-1] = (row[-1][0], row[-1][1] + data)

    def text(self, section: str = "") -> str:
        return " ".join(" ".join(self.texts[section]).split())

    def ids(self) -> list[str]:
        return [str(found["id"]) for tag, found in self.tags if tag in ("section", "figure")]


def readout(page: str, figure: str) -> dict[str, dict[str, str]]:
    """The values that a figure shows on hover: place → label → value."""
    found = json.loads(page.split(f'id="{figure}"')[1].split('application/json">')[1].split("</script>")[0])
    return {
        title: {found["labels"][k][1]: value for k, value in enumerate(values) if value is not None}
        for _, title, values in found["places"]
    }


def test_the_page_shows_the_numbers_of_the_report(tmp_path: Path) -> None:
    report, page, _ = shown(run_of(tmp_path / "run"))
    seen = Page(page)
    head, *rows = seen.cells["steps"][1:]
    names = [text for _, text in head]
    assert len(rows) == len(report["steps"]) == 6
    for row, step in zip(rows, report["steps"], strict=True):
        by_name = dict(zip(names, row, strict=True))
        assert by_name["endpoint"][1] == step["endpoint"]
        for name, key in (("offered", "offered_rps"), ("P50", "p50_ms"), ("P99", "p99_ms"), ("failed", "errors")):
            expected = float("inf") if step[key] is None else step[key]
            assert float(by_name[name][0] or "nan") == expected
            assert by_name[name][1] == (words.count if key == "errors" else words.significant)(expected)
    assert report["reasons"][0] in seen.text()
    hover = readout(page, "hockey")
    assert list(hover) == ["20/s offered", "40/s offered", "60/s offered"]
    assert hover["20/s offered"]["eager P50"] == words.ms(report["steps"][0]["p50_ms"])
    assert hover["60/s offered"]["compiled P50"] == words.ms(report["steps"][5]["p50_ms"])


def test_infinite_percentiles_are_drawn_and_said(tmp_path: Path) -> None:
    report, page, markdown = shown(run_of(tmp_path / "run", [Load("m/eager", 20), Load("m/eager", 50, failed=0.2)]))
    assert [step["p99_ms"] is None for step in report["steps"]] == [False, True]
    said = readout(page, "hockey")["50/s offered"]
    assert said["eager P99"].startswith("∞")
    assert said["eager failed"] == f"{report['steps'][1]['errors']} of {report['steps'][1]['n']}"
    assert page.count('d="M-5 0L0-9L5 0Z"') == 2  # of the hockey stick, and of the curve at 50/s
    assert "| ∞ " in markdown


def test_every_part_of_a_full_run_is_there(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    report, page, _ = shown(run)
    seen = Page(page)
    assert [name for name in seen.ids() if not name[-1].isdigit()] == [
        *("rates", "hockey", "achieved", "capacity", "percentiles", "time", "timeline", "pairs", "stages"),
        *("batches", "endpoints", "steps", "risks", "trust", "ran", "again"),
    ]
    assert "custom_cnn/eager" in seen.text("ran")
    assert seen.text("ran").endswith("duration 60 s")
    assert "0:02 replica lost: replica r-7" in seen.text("time")
    assert ["warmup", "3.25 s", "3.25 s"] in [[text for _, text in row] for row in seen.cells["endpoints"]]
    assert "tailrate run custom_cnn --rates 20,40,60" in seen.text("again")
    assert f"recorded {words.count(report['trust']['ledger']['recorded'])}" in seen.text("trust")
    for row, pair in zip(seen.cells["pairs"][1:], report["pairs"], strict=True):
        assert row[2][1] == words.pair_sentence(pair)
    levels = [int(tag[1]) for tag, _ in seen.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert len(page) < 500_000


def test_stages_add_up_to_the_latency(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", two_variants([20]))
    _, page, _ = shown(run)
    head, first, *_ = Page(page).cells["stages"]
    row = {name: text for (_, name), (_, text) in zip(head, first, strict=True)}
    step = run.measured[0]
    assert float(row["total"]) == pytest.approx(step.summary.p50_ms, rel=0.03)
    assert float(row["compute"]) == pytest.approx(0.25 * (step.summary.p50_ms - 0.1), rel=0.03)
    assert float(row["network"]) == pytest.approx(0.05 * (step.summary.p50_ms - 0.1), rel=0.03)  # the server's is 95 %
    assert float(row["client"]) == pytest.approx(0.1)


def test_what_is_absent_in_the_run_is_absent_in_the_page(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [Load("bert/eager", 20)], devices=[], foreign=True)
    _, page, markdown = shown(run)
    seen = Page(page)
    assert not {"pairs", "stages"} & set(seen.ids())
    assert "no device samples" in seen.text("time")
    assert "GPU" not in seen.text("trust")
    heads = {text for _, text in seen.cells["steps"][1]}
    assert "P50" in heads
    assert not {"queue", "use, %", "power, W", "round"} & heads
    for text in (" ".join(" ".join(texts) for texts in seen.texts.values()), markdown):
        assert not re.search(r"\b(nan|None|inf|NaN)\b", text)


def test_a_gpu_run_shows_power_and_the_utilisation_pitfall(tmp_path: Path) -> None:
    _, page, _ = shown(run_of(tmp_path / "run", two_variants([20]), devices=[Waveform()]))
    slices = readout(page, "timeline")
    assert slices["0:03–0:04"]["GPU use"] == "90 %"
    assert slices["0:03–0:04"]["GPU memory"] == "0.931 GiB"
    power_w = Waveform().power_w(np.arange(3.0, 4.0, 0.1)).mean()
    assert float(slices["0:03–0:04"]["power"].removesuffix(" W")) == pytest.approx(power_w, rel=0.02)
    assert "any kernel ran" in Page(page).text("trust")


def test_the_time_line_counts_every_arrival_once(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    rows = run.requests()
    found = time_slices.slices(run, Timeline.of(run))
    assert list(found) == ["custom_cnn/eager", "custom_cnn/compiled"]
    assert sum(each.n.sum() for each in found.values()) == len(rows)
    assert sum(each.failed.sum() for each in found.values()) == (~rows["ok"]).sum()
    assert sum(each.answered.sum() for each in found.values()) == rows["ok"].sum()
    for second in (0, 3, 7):
        inside = rows["intended_ns"].between(START_NS + second * S, START_NS + (second + 1) * S, inclusive="left")
        latency = np.where(rows["ok"], rows["latency_ms"], np.inf)[inside]
        for q, mine in ((0.5, found["custom_cnn/eager"].p50_ms), (0.99, found["custom_cnn/eager"].p99_ms)):
            assert mine[second] == pytest.approx(np.quantile(latency, q, method="higher"), rel=0.03)


def unpacked(png: bytes) -> np.ndarray[Any, Any]:
    """The shades of a grey picture of four bits."""
    width, height = struct.unpack(">II", png[16:24])
    start = png.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(png[start:]), dtype=np.uint8).reshape(height, -1)[:, 1:]
    return np.stack([lines >> 4, lines & 15], axis=2).reshape(height, -1)[:, :width]


def test_the_heat_map_shows_where_the_successes_of_each_slice_lie(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    found = time_slices.slices(run, Timeline.of(run))["custom_cnn/compiled"]
    first, last = found.rows() or (0, 0)
    picture = unpacked(time_slices.heat(found.counts, first, last))[::-1].T  # by slice, low latencies first
    rows = found.counts[:, first:last].reshape(len(found.counts), -1, 4).sum(axis=2)
    assert picture.shape == rows.shape
    assert ((picture > 0) == (rows > 0)).all()
    busy = rows.any(axis=1)
    assert (picture[busy].max(axis=1) == 15).all()
    assert (rows[busy, picture[busy].argmax(axis=1)] == rows[busy].max(axis=1)).all()
    assert rows.sum() == found.n.sum() - found.failed.sum()


@pytest.mark.parametrize("seconds", [1, 999, 1001, 90_000, 10_000_000])
def test_a_long_run_has_at_most_a_thousand_slices(seconds: int) -> None:
    line = Timeline.over(0, seconds * S)
    assert line.seconds / line.slice_s <= 1000


def test_an_aborted_run_says_so_on_top(tmp_path: Path) -> None:
    _, page, markdown = shown(run_of(tmp_path / "run", stopped_s=25.0, status="aborted"))
    assert "This run was aborted" in Page(page).text()
    assert "This run was aborted" in markdown
    assert "cannot say" in Page(page).text()
    assert len(re.findall(r'class="step s\d', page)) == 3  # of six steps of ten seconds


def test_a_source_without_endpoints_and_event_times_is_still_drawn(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [Load("m/eager", 20)])
    path = run.folder / "requests.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["endpoint"]), path)
    with (run.folder / "events.jsonl").open("a") as events:
        events.write('{"event": "fault"}\n')
    _, page, _ = shown(analysis.load(run.folder))
    assert "eager P99" in readout(page, "timeline")["0:03–0:04"]


def test_a_run_in_which_everything_failed_draws_no_finite_latency(tmp_path: Path) -> None:
    _, page, markdown = shown(run_of(tmp_path / "run", two_variants([20], failed=1.0)))
    assert set(readout(page, "hockey")["20/s offered"].values()) >= {"∞", "0/s"}
    assert "nan" not in page
    assert "nan" not in markdown


def test_a_run_without_steps_is_one_sentence(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", stopped_s=0.0, devices=[], status="aborted")
    run.manifest.scenario["steps"].clear()
    _, page, markdown = shown(run)
    assert "nothing to draw" in Page(page).text("rates")
    assert not {"hockey", "timeline", "steps"} & set(Page(page).ids())
    assert "## Steps" not in markdown


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [Load(f"m/{EVIL}", 20), Load("m/plain", 20)])
    append_event(run.folder, EVIL, time_ns=START_NS + S, sentence=EVIL)
    run = analysis.load(run.folder)
    run.manifest.extra["command"] = f"{EVIL}```"
    _, page, markdown = shown(run, conclusion=EVIL, reasons=[EVIL])
    seen = Page(page)
    assert EVIL in seen.text()
    assert f"m/{EVIL}" in seen.text("steps")
    assert "img" not in {tag for tag, _ in seen.tags}
    scripts = [found for tag, found in seen.tags if tag == "script"]
    assert [found.get("type") for found in scripts] == ["application/json"] * page.count('class="chart"') + [None]
    assert any(label.endswith(" P99") and EVIL in label for label in readout(page, "hockey")["20/s offered"])
    above, fenced = markdown.split("````\n")[:2]
    assert "<img" not in above
    assert "<script" not in above
    assert EVIL in fenced


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    assert shown(run) == shown(analysis.load(run.folder))
    assert not list(run.folder.glob("*.part"))


def test_the_page_asks_for_nothing_outside_itself(tmp_path: Path) -> None:
    _, page, _ = shown(run_of(tmp_path / "run", two_variants([20])))
    for tag, found in Page(page).tags:
        assert not found.get("src"), tag
        assert str(found.get("href") or "#").startswith(("#", "data:,", "data:image/png;base64,"))
    assert "url(" not in page.replace("url(#heat", "")
    assert "@import" not in page


def test_markdown_is_one_page_of_the_same_words(tmp_path: Path) -> None:
    report, _, markdown = shown(run_of(tmp_path / "run"))
    assert markdown.startswith("# Load test of synthetic\n")
    for pair in report["pairs"]:
        assert words.pair_sentence(pair) in markdown
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    # every step, and how much each of the two can take and whether it is the same model
    assert sum("custom_cnn/" in line and " against " not in line for line in tables) == len(report["steps"]) + 4
    assert "```\ntailrate run custom_cnn --rates 20,40,60\n```" in markdown


PAIR = {"a": "m/eager", "b": "m/compiled", "rate": 10, "p50_ratio": 1.5, "rounds": 3, "note": None}


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ((1.8, 1.6, 2.0, 0.1), "compiled is 1.8× faster at P99 than eager (1.6–2)"),
        ((0.5, 0.4, 0.625, 0.1), "compiled is 2× slower at P99 than eager (1.6–2.5)"),
        ((1.02, 0.95, 1.1, 0.075), "no difference shown at P99 (0.95–1.1); one under 7.5 % would not have shown"),
        ((1.31, None, None, None), "compiled seems 1.3× faster at P99 than eager, but there is no interval"),
        ((None, None, None, None), "cannot be compared: one of the two has no finite P99"),
    ],
)
def test_a_pair_in_plain_words(figures: tuple[float | None, ...], sentence: str) -> None:
    keys = ("p99_ratio", "ratio_low", "ratio_high", "smallest_visible")
    assert words.pair_sentence(PAIR | dict(zip(keys, figures, strict=True))) == sentence


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (5.0, "5"), (4.5, "4.50"), (0.0304, "0.030"), (78.94, "78.9"), (1234.5, "1,234"), (-2.5, "−2.50")),
        *((None, "–"), (float("nan"), "–"), (float("inf"), "∞")),
    ],
)
def test_numbers_are_written_with_three_digits(value: float | None, text: str) -> None:
    assert words.significant(value) == text


def test_scales_have_round_ticks_inside_them() -> None:
    assert svg.Scale(0, 63).ticks(8) == [0, 10, 20, 30, 40, 50, 60]
    assert svg.Scale(12, 1900, log=True).ticks(9) == pytest.approx([20, 50, 100, 200, 500, 1000])
    assert svg.fitting([3, 30]).log is False
    assert svg.fitting([3, 300]).log is True
    assert svg.fitting([float("inf")]).log is False


def test_a_line_breaks_at_gaps_and_between_infinities() -> None:
    panel = svg.Panel(svg.Scale(0, 10), svg.Scale(0, 10), 100)
    inf = float("inf")
    panel.line([(0, 0), (1, 5), (2, inf), (3, inf), (4, inf), (5, 5), (6, None), (7, 5), (8, 5)], "p99")
    path = re.search('d="(.*?)"', panel.marks[0])
    assert path is not None
    pieces = path[1].split("M")[1:]
    assert [len(piece.split("L")) for piece in pieces] == [3, 2, 2, 2]
    assert pieces[0].endswith("200.0 0")  # infinity lies on the upper edge


def test_tags_escape_all_but_markup() -> None:
    found = markup.tag("p", "<&", markup.tag("b", 1), None, class_='"', data_n=0, hidden=True, title=None)
    assert found == '<p class="&quot;" data-n="0" hidden>&lt;&amp;<b>1</b></p>'


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", [0, 1])
def test_text_colours_contrast_with_both_backgrounds(theme: int) -> None:
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", assets.style())
    palette = {name: luminance((light, dark)[theme]) for name, light, dark in found}
    for name in ("ink", "quiet", "good", "bad", "unsure", *(f"s{n}" for n in range(6))):
        low, high = sorted((palette[name], palette["paper"]))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


def test_more_stands_higher() -> None:
    panel = svg.Panel(svg.Scale(0, 10), svg.Scale(0, 10), 100)
    for value in (0, 2.5, 10):
        panel.dot(5, value, "dot")
    assert [float(y) for y in re.findall('cy="(.*?)"', "".join(panel.marks))] == [100, 75, 0]


@pytest.mark.parametrize(
    ("conclusion", "short"),
    [
        (
            "On this machine's CPU (torch 2.15), m/b sustains at least 18 requests/s at P90 ≤ 250 ms, above which the "
            "load generator gave up first, 1.5 times the rate of a; m/a sustains 6 to 12. At 18/s b is faster.",
            "m/b sustains at least 18 requests/s at P90 ≤ 250 ms.",
        ),
        ("This run cannot say whether the objective is met: m/a: too few.", None),
        ("", "."),
        ("no sentence at all", "no sentence at all."),
    ],
)
def test_the_headline_is_one_short_sentence(conclusion: str, short: str | None) -> None:
    assert headline(conclusion) == (short or conclusion)
