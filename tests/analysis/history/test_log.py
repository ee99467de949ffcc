"""The history file: it outlives folders, takes several writers, and is unharmed by whatever is in it."""

from __future__ import annotations

import errno
import json
import math
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from folders import Load
from histories import noisy, run_of
from test_index import ODD, places, run_in, shown
from waiting import PATIENCE_S

from tailrate.analysis.history import log, overview
from tailrate.analysis.history.by_factor import Contrast, contrasts
from tailrate.analysis.history.figure_series import KINDS, lineages
from tailrate.analysis.history.log import FILE, key_of
from tailrate.analysis.history.regression import judge
from tailrate.analysis.history.run_summary import Entry, SustainedRate
from tailrate.analysis.history.text import spark
from tailrate.analysis.records.folder import RunError
from tailrate.analysis.text.table import plain

ROOT = Path(__file__).parents[3]
HOSTILE = "a\nb\x1b[31m\u202e[bold]\udcff"
BROKEN = "is left out, it is not as tailrate writes it"


def lines(runs: Path) -> list[str]:
    return (runs / FILE).read_text(encoding="ascii").splitlines()


def names(runs: Path) -> list[str]:
    return [entry.name for entry in log.read(runs).entries]


def kept(entry: Entry) -> Entry:
    """What the history keeps of it."""
    figures = {key: one for key, one in entry.kept.items() if one.rising}
    bare = {key: SustainedRate(one.low_rps, one.high_rps, None, True) for key, one in figures.items()}
    return replace(entry, said="", reasons=[], limits_ms=[], kept=bare, page=False, reported=True)


# ---- the file


def test_a_run_comes_back_as_it_was_reported(tmp_path: Path) -> None:
    run_in(tmp_path, "r", [Load("m/eager", 50), Load("m/eager", 150), Load("m/eager", 300, failed=0.2)], day=1)
    whole = Entry.of(tmp_path / "r")
    assert any(level.figures["p99_ms"] == math.inf for level in whole.levels)
    assert log.add(tmp_path, [whole]) == 1
    found = log._parsed((tmp_path / FILE).read_bytes(), tmp_path)
    (entry,) = found.entries
    assert entry.levels == [
        replace(level, figures={key: value and pytest.approx(value, rel=1e-8) for key, value in level.figures.items()})
        for level in whole.levels
    ]
    assert replace(entry, levels=[]) == replace(kept(whole), levels=[])
    assert not found.problems


def test_without_a_file_the_folders_are_read_and_nothing_is_written(tmp_path: Path) -> None:
    run_in(tmp_path, "one", [Load("m/eager", 20)])
    (tmp_path / "notes").mkdir()
    assert names(tmp_path) == ["one"]
    assert not (tmp_path / FILE).exists()
    with pytest.raises(RunError, match=f"holds neither a {FILE} nor a run folder"):
        log.read(tmp_path / "notes")


def test_history_outlives_folders_and_goes_on_with_those_it_has_not(tmp_path: Path) -> None:
    for day, name in enumerate(("one", "two")):
        run_in(tmp_path, name, [Load("m/eager", 20)], day=day)
    assert overview.added([tmp_path]) == [f"2 of 2 runs added to {tmp_path / FILE}"]
    shutil.rmtree(tmp_path / "one")
    run_in(tmp_path, "three", [Load("m/eager", 20)], day=2)
    assert names(tmp_path) == ["one", "two", "three"]
    assert len(lines(tmp_path)) == 2


def test_only_what_changed_is_written_again_and_the_last_line_holds(tmp_path: Path) -> None:
    first, second = run_of(1), run_of(1, by={"p99": 2.0})
    assert [log.add(tmp_path, [one]) for one in (first, first, second, second, first)] == [1, 0, 1, 0, 1]
    ((_, (found, *_)),) = judge(lineages(log.read(tmp_path).entries), figures=["p99"])
    assert found.newest
    assert found.newest.value == 40


def test_a_run_that_is_judged_anew_is_said(tmp_path: Path) -> None:
    runs = [replace(run_of(day), state="pass") for day in range(5)]
    log.add(tmp_path, runs)
    assert not [said for said in overview.overview(tmp_path).sentences() if "anew" in said]
    log.add(tmp_path, [replace(run, state="inconclusive") for run in runs[:1]])
    (said,) = (said for said in overview.overview(tmp_path).sentences() if "anew" in said)
    assert said == f"Judged anew: {runs[0].name} (pass, now cannot say)."
    log.add(tmp_path, [replace(run, state="fail") for run in runs[1:]])
    (said,) = (said for said in overview.overview(tmp_path).sentences() if "anew" in said)
    last = ", ".join(f"{run.name} (pass, now fail)" for run in runs[2:])
    assert said == f"Judged anew: {last} and 2 more."


def test_a_name_used_again_is_another_run(tmp_path: Path) -> None:
    log.add(tmp_path, [run_of(1, "nightly"), run_of(2, "nightly")])
    held = log.read(tmp_path)
    assert len(held.entries) == 2
    assert held.find("nightly") == held.entries[1]


@pytest.mark.parametrize("state", ["running", "aborted", "unreported", "broken"])
def test_what_has_no_figures_is_not_kept(tmp_path: Path, state: str) -> None:
    assert log.add(tmp_path, [replace(run_of(1), state=state)]) == 0


def test_a_report_feeds_the_history_that_there_is(tmp_path: Path) -> None:
    run_in(tmp_path, "r", [Load("m/eager", 20)])
    log.follow(tmp_path / "r")
    assert not (tmp_path / FILE).exists()
    (tmp_path / FILE).touch()
    log.follow(tmp_path / "r")
    assert names(tmp_path) == ["r"]
    assert len(lines(tmp_path)) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"schema": 7}',
        b'{"schema": 1}',
        b'{"schema": 1, "pin": "x", "run": "y"}',
        b'{"schema": 1, "pin": "x", "run": "y", "time_ns": "soon"}',
        b'{"schema": 1, "pin": "x", "run": "y", "time_ns": 1%s}' % (b"0" * 30),
        b'{"schema": 1, "accept": "x", "time_ns": 1, "who": "a", "why": "b", "at_ns": 1%s}' % (b"0" * 30),
        b'{"schema": 1, "accept": "x", "time_ns": 1, "who": "a", "why": "b", "at_ns": 1e400}',
        b'{"schema": %s}' % (b"9" * 5000),
        b"[" * 10_000,
    ],
)
def test_a_broken_line_costs_itself_alone(tmp_path: Path, line: bytes) -> None:
    log.add(tmp_path, [run_of(1)])
    with (tmp_path / FILE).open("ab") as out:
        out.write(line + b"\n")
    log.add(tmp_path, [run_of(2)])
    held = log.read(tmp_path)
    assert [entry.name for entry in held.entries] == ["run-001", "run-002"]
    (problem,) = held.problems
    assert problem.startswith(f"{tmp_path / FILE}, line 2 {BROKEN}")
    assert overview.overview(tmp_path).sentences()[-1] == plain(f"{problem}.")


def test_a_folder_that_nobody_may_look_into_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_in(tmp_path, "mine", [Load("m/eager", 50)], day=1)
    (tmp_path / "theirs").mkdir()
    real = Path.is_file

    def refused(path: Path) -> bool:
        if path.parent.name == "theirs":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "is_file", refused)
    assert names(tmp_path) == ["mine"]


def test_many_broken_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{\n" * 5)
    log.add(tmp_path, [run_of(1)])
    *_, before, last = overview.overview(tmp_path).sentences()
    assert before.startswith(f"{tmp_path / FILE}, line 3 ")
    assert last == "So are 2 more lines."


def test_no_value_anywhere_in_a_line_stops_it(tmp_path: Path) -> None:
    entries = noisy(1, 6)
    log.add(tmp_path, entries)
    *before, last = lines(tmp_path)
    line = json.loads(last)
    for held, key in places(line):
        kept = held[key]
        for value in ODD:
            held[key] = value
            (tmp_path / FILE).write_text("\n".join([*before, json.dumps(line), ""]))
            shown = overview.overview(tmp_path)
            assert list(shown.tables())
            json.dumps(shown.as_json(), allow_nan=False)
            shown.sentences()
        held[key] = kept


def test_a_line_that_is_being_written_is_passed_over_and_one_cut_short_is_closed(tmp_path: Path) -> None:
    log.add(tmp_path, [run_of(1)])
    with (tmp_path / FILE).open("ab") as out:
        out.write(b'{"schema": 1, "na')
    assert log.read(tmp_path).problems == []
    log.add(tmp_path, [run_of(2)])
    assert names(tmp_path) == ["run-001", "run-002"]
    assert len(log.read(tmp_path).problems) == 1


def test_a_last_line_without_its_newline_counts(tmp_path: Path) -> None:
    log.add(tmp_path, [run_of(1), run_of(2)])
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text().rstrip())
    log.add(tmp_path, [run_of(3)])
    assert names(tmp_path) == ["run-001", "run-002", "run-003"]


@pytest.mark.live
def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path[:] = {sys.path!r}
from pathlib import Path
from tailrate.analysis.history import log as history
from histories import run_of
for day in range(40):
    history.add(Path(sys.argv[1]), [run_of(day, sys.argv[2] + str(day)), run_of(day, "both")])
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], cwd=ROOT) for name in "ab"]
    assert [writer.wait(timeout=PATIENCE_S) for writer in writers] == [0, 0]
    held = log.read(tmp_path)
    assert not held.problems
    assert len(lines(tmp_path)) == len(held.entries) == 3 * 40  # what both had was written once


def test_a_file_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    for act in (lambda: log.read(tmp_path), lambda: log.add(tmp_path, [run_of(1)])):
        with pytest.raises(RunError, match=f"{FILE} cannot be (read|written): Is a directory"):
            act()
    run_in(tmp_path, "r", [Load("m/eager", 20)])
    assert shown(tmp_path).cells["runs"]  # the gallery is made all the same


def test_a_full_disk_takes_a_line_whole_or_not_at_all(tmp_path: Path) -> None:
    log.add(tmp_path, [run_of(1)])
    before = (tmp_path / FILE).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        with pytest.raises(RunError, match=f"{FILE} cannot be written: File too large"):
            log.add(tmp_path, [run_of(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / FILE).read_bytes() == before


# ---- pins


def test_a_pin_moves_and_goes_and_its_run_outlives_its_folder(tmp_path: Path) -> None:
    for day, name in enumerate(("one", "two")):
        run_in(tmp_path, name, [Load("m/eager", 20)], day=day)
    assert overview.pinned(tmp_path, ("main", "one"), None) == [f"main is pinned to one in {tmp_path / FILE}"]
    assert log.pinned_folder("main", [tmp_path]) == tmp_path / "one"
    overview.pinned(tmp_path, ("main", str(tmp_path / "two")), None)
    held = log.read(tmp_path)
    assert held.find("main") == held.entries[1]
    assert [held.names_of(entry) for entry in held.entries] == [[], ["main"]]
    shutil.rmtree(tmp_path / "two")
    assert overview.overview(tmp_path, against="main").judged
    with pytest.raises(RunError, match=f"main is pinned to two, whose folder is gone; tailrate history {tmp_path}"):
        log.pinned_folder("main", [tmp_path])
    assert overview.pinned(tmp_path, None, "main") == ["main is pinned no more"]
    assert log.pinned_folder("main", [tmp_path, tmp_path]) is None
    with pytest.raises(RunError, match="nothing is pinned as main"):
        log.unpin(tmp_path, "main")


@pytest.mark.parametrize(
    ("pin", "said"),
    [
        (("main", "three"), "--pin main three: there is no such run in "),
        (("one", "one"), "--pin one: a name is letters, digits and . _ + - only, and that of no file in "),
        (("a b", "one"), "--pin a b: a name is letters"),
        (("../x", "one"), "--pin ../x: a name is letters"),
        (("main", "cut"), "cut has no figures to pin: This run was aborted and has no report"),
    ],
)
def test_what_cannot_be_pinned_is_said(tmp_path: Path, pin: tuple[str, str], said: str) -> None:
    run_in(tmp_path, "one", [Load("m/eager", 20)])
    run_in(tmp_path, "cut", [Load("m/eager", 20)], status="aborted")
    (tmp_path / "cut" / "report.json").unlink()
    run = str(tmp_path / "cut") if pin[1] == "cut" else pin[1]
    with pytest.raises(RunError) as problem:
        overview.pinned(tmp_path, (pin[0], run), None)
    assert str(problem.value).startswith(said)


# ---- one fact across runs


def compared(entries: list[Entry], by: str, figure: str = "p99") -> list[Contrast]:
    endpoints = {level.endpoint for entry in entries for level in entry.levels}
    return contrasts(entries, by, endpoints, [figure])


def test_torch_versions_are_compared_with_the_spread_between_runs() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for seed in range(200):
        entries = [
            run_of(
                day,
                by={"p99": float(np.exp(0.03 * rng.normal())) * (1.2 if day > 5 else 1)},
                facts={("m/a", "torch"): "2.11" if day > 5 else "2.10", ("m/a", "cuda"): "13" if day > 5 else "12"},
            )
            for day in range(12)
        ]
        (found,) = compared(entries, "torch")
        held += (found.low or math.inf) <= 1.2 <= (found.high or 0.0)
        assert seed or (found.base, found.value, found.base_runs, found.runs) == ("2.10", "2.11", 6, 6)
        assert seed or (found.differs, found.along) == (True, ("cuda",))
    assert 180 <= held <= 199


def test_variants_of_the_same_runs_are_paired() -> None:
    entries = []
    for day, run in enumerate(noisy(6, 7)):
        (level,) = run.levels
        figures = {**level.figures, "p99_ms": (level.figures["p99_ms"] or 0) * (0.5 + 0.001 * (day % 2))}
        levels = [replace(level, endpoint="m/compiled", figures=figures), replace(level, endpoint="m/eager")]
        entries.append(replace(run, levels=levels, origin={}))
    (found,) = compared(entries, "variant")
    assert (found.endpoint, found.base, found.value, found.differs) == ("m", "eager", "compiled", True)
    assert found.ratio == pytest.approx(0.5, rel=0.01)
    assert (found.high or math.inf) < 0.51  # 3 % of noise is in both


def test_one_run_each_has_no_interval_and_nothing_else_alike_is_said(tmp_path: Path) -> None:
    entries = [run_of(day, facts={("m/a", "device name"): f"GPU {day}"}) for day in range(2)]
    (found,) = compared(entries, "gpu")
    assert (found.ratio, found.low, found.differs) == (1, None, None)
    assert compared([replace(e, objective=str(d)) for d, e in enumerate(entries)], "ray") == []
    other = [run_of(d, facts={("m/a", "torch"): str(d), ("setting", "rows"): str(d)}) for d in range(2)]
    assert compared(other, "torch") == []
    log.add(tmp_path, other)
    with pytest.raises(RunError, match="--by torch: no endpoint was measured at more than one value of it, all else"):
        overview.compared(tmp_path, "torch")
    with pytest.raises(RunError, match="takes no --against"):
        overview.compared(tmp_path, "torch", against="x")


# ---- in words


def test_every_sentence(tmp_path: Path) -> None:
    entries = noisy(1, 20, worse=["p50", "p99"], times=1.5, last=9)
    log.add(tmp_path, entries)
    log.pin(tmp_path, "main", entries[0])
    assert [said.split(": ×")[0] for said in overview.overview(tmp_path).sentences()] == [
        "P50 at 100/s of m/a changed for the worse with run-020 (2026-10-11)",
        "P99 at 100/s of m/a changed for the worse with run-020 (2026-10-11)",
        "main is pinned to run-000.",
    ]
    said = overview.overview(tmp_path, figure="p99", against="main").sentences()[0]
    assert said.startswith("P99 at 100/s of m/a is worse in run-028: ")
    assert " of main (run-000), expected " in said
    (tmp_path / FILE).unlink()
    log.add(tmp_path, [*entries[:8], run_of(9, errors=200, by={"p99": math.inf})])
    errors, lost = sorted(s for s in overview.overview(tmp_path).sentences() if " is worse " in s)[::-1]
    assert errors.startswith("errors at 100/s of m/a is worse in run-009: 4 %, +3.8")
    assert " points from 8 earlier runs, expected 0.0030–0.443 %." in errors
    assert lost == (
        "P99 at 100/s of m/a is worse in run-009: it is overloaded, or so much fails that it is infinite, and was not "
        "in any earlier run (8 earlier runs)."
    )
    (tmp_path / FILE).unlink()
    log.add(tmp_path, [run_of(1), run_of(2)])
    figures = "capacity, P50 at 100/s, P99 at 100/s, J/request at 100/s, errors at 100/s, warm start, parity error"
    assert overview.overview(tmp_path).sentences() == [
        f"m/a cannot be judged by {figures}: there is 1 of the 5 earlier runs that it takes."
    ]


def test_a_table_names_what_is_new_in_its_environment(tmp_path: Path) -> None:
    log.add(tmp_path, [run_of(day, facts={("m/a", "torch"): "2.12.0" if day > 6 else "2.11.0"}) for day in range(9)])
    first, second = overview.overview(tmp_path).tables()
    assert first.title == "m/a, NVIDIA H200, torch 2.11.0: 7 runs, 2026-09-21 to 2026-09-27"
    assert second.title.endswith("2 runs, 2026-09-28 to 2026-09-29; other than above: torch 2.11.0 → 2.12.0")
    assert first.rows[2][:3] == ["P99 at 100/s", "40 ms", "×1"]
    assert first.rows[2][4:] == ["▅" * 7, "no change"]
    assert [row[0] for row in first.rows] == [
        "capacity", "P50 at 100/s", "P99 at 100/s", "J/request at 100/s", "errors at 100/s", "warm start",
        "parity error",
    ]  # fmt: skip
    assert first.rows[0][1] == "800–816/s"


def test_bars_rise_with_the_figure_and_noise_looks_calm() -> None:
    def bars(*values: float) -> str:
        ((_, (found, *_)),) = judge(lineages([run_of(k, by={"p99": v}) for k, v in enumerate(values)]), figures=["p99"])
        return spark(found.track)

    assert bars(1, 2, 4, 8) == "▁▃▆█"
    assert set(bars(1, 1.01, 0.99, 1)) <= set("▄▅")
    assert bars(1, math.inf, 2) == "▁∞█"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    facts = {("version", "git"): HOSTILE, ("m/a", "torch"): HOSTILE}
    log.add(tmp_path, [run_of(day, f"{HOSTILE}{day}", facts=facts) for day in range(8)])
    assert len(lines(tmp_path)) == 8
    found = overview.overview(tmp_path, figure="p99")
    texts = [text for block in found.tables() for row in [[block.title], *block.rows] for text in row]
    assert all(text.isprintable() for text in [*texts, *found.sentences()])
    assert any("a\ufffdb\ufffd[31m\ufffd[bold]?" in text for text in texts)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"figure": "p42"}, f"--figure p42: known are {', '.join(KINDS)}"),
        ({"endpoint": "m/b"}, "--endpoint m/b: no run has it; known are m/a"),
        ({"since": "soon"}, "--since soon is not understood; write for instance 2026-11-01 or 30d"),
        ({"since": "2030-01-01"}, "no run has figures since 2030-01-01"),
        ({"against": "main"}, "--against main: there is no such pin or run in RUNS; nothing is pinned"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path: Path, asked: dict[str, str], said: str) -> None:
    log.add(tmp_path, [run_of(1)])
    with pytest.raises(RunError) as problem:
        overview.overview(tmp_path, **asked)
    assert str(problem.value) == said.replace("RUNS", str(tmp_path))


def test_the_gallery_shows_pins_and_calls(tmp_path: Path) -> None:
    for day in range(7):
        run_in(tmp_path, f"r{day}", [Load("m/eager", 20, failed=0.3 if day == 6 else 0)], day=day, mode="hold")
    overview.pinned(tmp_path, ("main", "r2"), None)
    page = shown(tmp_path)
    heads, *rows = [[text for _, text in cells] for cells in page.cells["runs"]]
    said = [cells[heads.index("conclusion")] for cells in rows]
    assert "worse: P50 at 20/s ×1." in said[0]
    assert ", P99 at 20/s, J/request at 20/s ×1." in said[0]
    assert said[0].endswith(" points (m/eager)")
    assert said[4].endswith("pinned as main")
    assert not any("pinned" in text or "worse:" in text for text in (*said[1:4], *said[5:]))


def test_a_pin_is_of_a_run_and_not_of_a_name(tmp_path: Path) -> None:
    before, after = run_of(1, "nightly"), run_of(2, "nightly")
    log.pin(tmp_path, "main", before)
    log.add(tmp_path, [after])
    found = log.read(tmp_path).find("main")
    assert found
    assert key_of(found) == key_of(before)
