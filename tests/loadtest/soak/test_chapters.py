"""What a soak is made of: chapters, minutes, early ends, files on a full disk, and a ledger closed after a kill."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from endpoint import endpoint
from schedules import schedule_of
from test_run import await_rows, nothing_left_running, read, said, start  # noqa: F401
from waiting import PATIENCE_S

from tailrate import analysis
from tailrate.analysis.judging.judge import Judgement
from tailrate.analysis.records.folder import append_event, mend_events, parts, read_events, segment_path, segments
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.rows import REQUEST_COLUMNS
from tailrate.analysis.run.compact import compact
from tailrate.analysis.run.recorded_run import seal
from tailrate.analysis.soak.soak_verdict import Limits
from tailrate.loadtest.engine.clock import MOST_KEPT, Offset
from tailrate.loadtest.engine.modes import defaults, from_options
from tailrate.loadtest.engine.record import resume
from tailrate.loadtest.engine.record import run_folder as folders
from tailrate.loadtest.engine.record.run_folder import RunFolder
from tailrate.loadtest.engine.record.segments import Segment, schema_of
from tailrate.loadtest.engine.scenario import soak_limits
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.scenario.steps import StepPlan
from tailrate.loadtest.engine.scenario.stop_rules import Stop
from tailrate.loadtest.engine.soak import timers
from tailrate.loadtest.engine.soak.chapters import SoakConduct
from tailrate.loadtest.engine.soak.minutes import Minutes

S = 1_000_000_000
SOAK = ["--mode=soak", "--chapter-seconds=3", "--rates=100"]


def scenario(**given):
    usual = defaults({})
    return from_options("null", "null", Namespace(**usual | {"mode": "soak", "rates": "40"} | given), usual)


def chapters(soak, endpoints, elapsed_s, **there):
    return soak.mode.chapters(StepPlan(soak, **there), endpoints, elapsed_s)


def batch(numbers, *, step=0, status="200", at_ns=0, latency_ms=5, endpoint="m/a", replica="r0", every_ns=S // 10):
    """Arrivals a tenth of a second apart."""
    rows = []
    for seq in numbers:
        due = at_ns + seq * every_ns
        done = None if status == "lost" else due + int(latency_ms * 1e6)
        known = {"worker": 0, "seq": seq, "step": step, "endpoint": endpoint, "intended_ns": due, "sent_ns": due}
        rows.append({**dict.fromkeys(REQUEST_COLUMNS), **known, "done_ns": done, "status": status, "replica": replica})
    return pa.RecordBatch.from_pylist(rows, schema=schema_of(REQUEST_COLUMNS))


# ---- the plan


def test_chapters_follow_each_other_until_the_time_is_over():
    clock = [0.0]
    found = []
    for block in chapters(scenario(total_seconds=25.0, chapter_seconds=10.0), ["a/x", "a/y"], lambda: clock[0]):
        found.append(block)
        clock[0] += block[0].seconds + 0.5
    assert [[step.index for step in block] for block in found] == [[0, 1], [2, 3], [4, 5]]
    assert [block[0].seconds for block in found] == [10, 10, 4]
    assert [block[0].settle_s for block in found] == [5, 0, 0]
    assert {step.rate for block in found for step in block} == {20}
    assert len({step.seed for block in found for step in block}) == 6  # arrivals of its own for each
    assert [[step.phase for step in block] for block in found] == [[0, 0.5]] * 3


def test_a_resumed_soak_has_the_chapters_that_it_would_have_had():
    whole = scenario(total_seconds=50.0, chapter_seconds=10.0, daily="sine:0.8:40")
    times = iter([0.0, 10.0, 20.0, 30.0, 40.0, 50.0])
    first = list(chapters(whole, ["a/x"], lambda: next(times)))
    times = iter([30.0, 40.0, 50.0])
    rest = list(chapters(whole, ["a/x"], lambda: next(times), blocks=3, steps=3))
    assert [block[0].index for block in rest] == [3, 4]
    for before, after in zip(first[3:], rest, strict=True):
        assert before[0].offsets(whole.pattern).tolist() == after[0].offsets(whole.pattern).tolist()


def test_the_daily_curve_goes_on_over_the_chapters():
    whole = scenario(total_seconds=100.0, chapter_seconds=25.0, daily="sine:0.8:100", rates="400")
    times = iter([0.0, 25.0, 50.0, 75.0, 100.0])
    counts = [len(block[0].offsets(whole.pattern)) for block in chapters(whole, ["a/x"], lambda: next(times))]
    mean = 400 * 25 * (1 + 0.8 * 2 / np.pi * np.array([1, 1, -1, -1]))
    assert np.abs(counts - mean).max() < 5 * np.sqrt(mean.max())
    for number, expected in enumerate(mean):
        found = whole.mode.to_be_expected(400, ["a/x"], 25.0 * number, 25.0 * (number + 1))
        assert found == {"a/x": pytest.approx(expected, abs=1)}
    assert whole.peak_rps == pytest.approx(720)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rates": "10,20"}, "mode soak has one rate"),
        ({"settle_seconds": 600.0}, "leaves nothing of --chapter-seconds 600"),
        ({"daily": "sine:0.5"}, "--daily 'sine:0.5' is not understood"),
        ({"daily": "sine:0.5:60", "shape": "sine:0.5"}, "give one of them"),
        ({"stop_on": "errors<5%"}, "'errors<5%' is not understood; write some of errors>5%, slo, replica"),
        ({"limits": "p99_step<10ms"}, "--limits 'p99_step<10ms' is not understood; write some of p99_trend<5%/h, p99_"),
        ({"limits": "p98<3%"}, "--limits 'p98<3%' is not understood"),
        ({"limits": "memory<1%/h, memory<2%/h"}, "--limits 'memory<2%/h' is a second limit of memory"),
        ({"limits": "p99_trend<0%/h"}, "--limits 'p99_trend<0%/h' allows nothing"),
        ({"keep_hours": -1.0}, "--keep-hours must be at least 0"),
        ({"mode": "hold", "resume": "runs/x"}, "--resume is for mode soak, not for hold"),
        ({"rows": "1,x"}, "--rows must be at least 1"),
    ],
)
def test_what_makes_no_soak_is_said(given, sentence):
    with pytest.raises(ScenarioError) as caught:
        scenario(**given)
    assert sentence in str(caught.value)


def test_limits_stand_in_the_manifest_under_the_names_that_the_analysis_has():
    asked = "p99_step < 12.5%; p99_trend<1 %/h,memory<0.5%/ h, stall<50ms, gap<2%"
    found = scenario(limits=asked).as_json()["soak"]
    assert found == {"p99_step_pct": 12.5, "p99_trend_pct_h": 1, "memory_pct_h": 0.5, "stall_ms": 50, "gap_pct": 2}
    assert (
        set(found) == {key for key, _ in soak_limits.TERMS.values()} == {one.name for one in fields(Limits)} - {"asked"}
    )
    assert soak_limits.parse(soak_limits.EXAMPLE).keys() == found.keys()
    assert scenario().as_json()["soak"] == {}
    assert "soak" not in scenario(mode="hold").as_json()


@pytest.mark.live
def test_the_mix_of_a_night_is_a_locustfile(tmp_path):
    words = ["--rates=40", "--total-seconds=4", "--chapter-seconds=2", "--settle-seconds=0.5", "--idle-seconds=0"]
    path = Path(__file__).parents[3] / "loadtest/soak.py"
    command = [sys.executable, "-m", "locust", "-f", str(path), "--headless", "--only-summary", "--run-id=it", *words]
    with endpoint(model="bert") as url:
        command += ["--host", url, "--run-dir", str(tmp_path), "--logfile", str(tmp_path / "log")]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=path.parents[1]
        )
    assert done.returncode == 0, done.stderr
    run = analysis.load(tmp_path / "it")
    assert (run.manifest.status, run.manifest.scenario["mode"], run.manifest.scenario["name"]) == (
        "complete", "soak", "soak",
    )  # fmt: skip
    rows = run.requests()
    assert set(rows["endpoint"]) == {"bert/eager", "bert/compiled"}
    assert set(rows["rows"]) == {1, 4}
    # int64 ids, 16 to 128 in a row, and some JSON before them
    sizes = set((rows["bytes_in"] // rows["rows"] // 8).tolist())
    assert {size // 16 for size in sizes} >= {1, 4, 8}
    assert [event["used_bytes"] > 0 for event in run.events if event["event"] == "disk"] == [True]


# ---- what is noted beside it


def test_minutes_count_every_arrival_once_and_end_with_their_chapter():
    minutes = Minutes(timeout_s=10)
    minutes.begin(0, 90 * S)
    minutes.see(batch(range(700), every_ns=S // 10))  # 70 s
    minutes.see(batch(range(5), status="503", endpoint="m/b", every_ns=S))
    assert minutes.over(71 * S) == []  # an arrival of the first minute may still be under way
    a, b = minutes.over(73 * S)
    assert (a.endpoint, a.n, a.ok, a.start_ns, a.end_ns) == ("m/a", 600, 600, 0, 60 * S)
    assert a.as_json()["p99_ms"] == pytest.approx(5, rel=0.005)
    assert (b.statuses, b.as_json()["p50_ms"], b.as_json()["replicas"]) == ({"503": 5}, None, 1)
    (rest,) = minutes.over()
    assert (rest.n, rest.start_ns, rest.end_ns) == (100, 60 * S, 90 * S)
    assert minutes.over() == []


def minute_of(n, failed=0, replicas=("r0",)):
    minutes = Minutes(timeout_s=1)
    minutes.begin(0, 60 * S)
    for place, replica in enumerate(replicas):
        minutes.see(batch(range(place, n - failed, len(replicas)), every_ns=1, replica=replica))
    if failed:
        minutes.see(batch(range(n - failed, n), every_ns=1, status="500", replica=None))
    (minute,) = minutes.over()
    return minute


def test_errors_beyond_a_share_end_it():
    stop = Stop.parse("errors>5%")
    assert stop.minute(minute_of(100, failed=5)) is None
    assert stop.minute(minute_of(100, failed=9)) is None  # so many fail by chance where 5 % do
    assert stop.minute(minute_of(2, failed=1)) is None
    said = stop.minute(minute_of(100, failed=12))
    assert said == "12.0% of the arrivals at m/a failed within a minute, more than 5.0%"


def test_an_objective_missed_three_chapters_in_a_row_ends_it():
    stop = Stop.parse("slo")
    missed, kept, open_ = ([Judgement(answer, "p99<50ms is it")] for answer in (False, True, None))
    said = [stop.chapter("m/a", answers) for answers in (missed, missed, kept, missed, missed, open_, *[missed] * 3)]
    assert said[:8] == [None] * 8
    assert said[8] == "m/a missed the objective in 3 chapters in a row: p99<50ms is it"
    assert [Stop.parse("").chapter("m/a", missed) for _ in range(4)] == [None] * 4


def test_a_replica_that_stays_away_ends_it_and_one_that_was_replaced_does_not():
    stop = Stop.parse("replica")
    pair = ("r0", "r1")
    replaced = [minute_of(90, replicas=names) for names in (pair, pair, ("r0", "r1", "r2"), *[("r0", "r2")] * 5)]
    assert [stop.minute(minute) for minute in replaced] == [None] * 8
    said = [stop.minute(minute_of(90, replicas=("r0",))) for _ in range(3)]
    assert said == [None, None, "only 1 of 2 replicas of m/a have answered for 3 minutes"]


def test_memory_beyond_what_was_allowed_ends_it():
    stop = Stop.parse("", most_memory_mb=100)
    assert stop.memory("load 0", 99_000_000) is None
    assert stop.memory("load 0", 101_000_000) == "the memory of load 0 is 101 MB, more than 100"


FOOTPRINT = """
import json, os, sys
from tailrate.loadtest.engine.soak import process_usage
own = process_usage.ProcessUsage()
before = process_usage.rss_bytes()
block = bytearray(b"x") * 50_000_000
found = own.look()
with open(sys.argv[1]) as held:
    more = own.look()["open_files"] - found["open_files"]
print(json.dumps([found["pid"] == os.getpid(), found["rss_bytes"] - before > 40_000_000, more]))
"""


def test_the_footprint_is_that_of_the_process():
    # one of its own: files of other tests may be closed here at any moment
    command = [sys.executable, "-c", FOOTPRINT, __file__]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}
    )
    assert json.loads(done.stdout) == [True, True, 1]


def test_clock_windows_do_not_grow_with_the_length():
    offset = Offset(0)
    for second in range(3 * MOST_KEPT):
        sent = second * S
        offset.see(sent, sent + 2_000_000 + second, sent + 2_000_000 + second, sent + 1_000_000)
    assert len(offset.best()) <= MOST_KEPT
    entry = offset.as_json("host")
    assert entry["drift_ppm"] == pytest.approx(0.001, rel=0.01)
    assert abs(entry["offset_ns"] - 1_500_000 - entry["at_ns"] / S) < 2


@pytest.mark.parametrize(
    ("cron", "calendar"),
    [
        ("30 2 * * 1-5", "Mon..Fri *-*-* 02:30:00"),
        ("0 */6 * * *", "*-*-* 00/6:00:00"),
        ("5 4 1,15 * *", "*-*-1,15 04:05:00"),
        ("0 0 */2 * 0", "Sun *-*-1/2 00:00:00"),
        ("daily", "daily"),
    ],
)
def test_a_cron_line_in_the_words_of_systemd(cron, calendar):
    assert timers.calendar(cron) == calendar


# ---- files


def manifest_of(path, **scenario):
    return Manifest(path.name, "running", {"steps": [], **scenario})


@pytest.fixture
def opened(tmp_path):
    told = []
    tmp_path = tmp_path / "run"
    tmp_path.mkdir()
    files = RunFolder(tmp_path, manifest_of(tmp_path), time.time_ns, told.append)
    yield files, told
    for segment in files._segments.values():
        segment._file.close()


class Refusing:
    """A file whose disk takes so many more bytes, then a part of the next write, then nothing until it is freed."""

    def __init__(self, real, left, *, truncates=True):
        self.real, self.left, self.truncates = real, left, truncates

    def write(self, raw):
        taken = min(len(raw), self.left)
        self.left -= taken
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.real.write(raw[:taken])

    def truncate(self, size):
        if not self.truncates:
            raise OSError(errno.EIO, "Input/output error")
        return self.real.truncate(size)

    def __getattr__(self, name):
        return getattr(self.real, name)


def rows_of(folder):
    return analysis.load(folder).requests(columns=["step", "seq"])["seq"].tolist()


@pytest.mark.parametrize("left", [0, 1, 100, 3000])
@pytest.mark.parametrize("truncates", [True, False])
def test_a_batch_that_a_full_disk_took_a_part_of_is_taken_back(tmp_path, left, truncates):
    segment = Segment(tmp_path, "requests", REQUEST_COLUMNS)
    segment.write(batch(range(10)))
    segment._file = Refusing(segment._file, left, truncates=truncates)
    with pytest.raises(OSError, match="No space" if truncates else "Input/output"):
        segment.write(batch(range(10, 60)))
    assert segment.torn is not truncates
    if truncates:  # then what comes later can be read, too
        segment._file.left = 1 << 30
        segment.write(batch(range(60, 70)))
        segment.close()
    segment._file.close()
    manifest_of(tmp_path).write(tmp_path)
    assert rows_of(tmp_path) == [*range(10), *(range(60, 70) if truncates else ())]


@pytest.mark.parametrize("truncates", [True, False])
def test_rows_wait_in_memory_while_the_disk_is_full_and_none_is_lost(opened, monkeypatch, truncates):
    files, told = opened
    monkeypatch.setattr(folders, "RETRY_S", 0.0)
    files.requests(batch(range(10)))
    full = Refusing(files._segments["requests"]._file, 700, truncates=truncates)
    files._segments["requests"]._file = full
    for first in range(10, 50, 10):
        files.requests(batch(range(first, first + 10)))
    files.manifest.write(files.path)
    # a segment that cannot be mended is left for a new one, which this disk takes
    assert rows_of(files.path) == list(range(10 if truncates else 50))
    why = "No space left on device" if truncates else "Input/output error"
    assert told[0]["sentence"] == f"the run folder cannot be written: {why}; trying again"
    assert files.lost is None
    full.left = 1 << 30
    files.requests(batch(range(50, 60)))
    assert rows_of(files.path) == list(range(60))
    assert "nothing is lost" in told[-1]["sentence"]
    files.end_chapter([0], 0, 60)
    assert files.totals() == {"scheduled": 60, "ok": 60, "failed": 0, "timed_out": 0, "dropped": 0, "lost": 0}


def test_a_disk_that_stays_full_ends_the_run_and_what_was_not_written_is_lost(opened, monkeypatch):
    files, _ = opened
    monkeypatch.setattr(folders, "RETRY_S", 0.0)
    monkeypatch.setattr(folders, "MOST_BYTES", 5000)
    files.requests(batch(range(10)))
    files._segments["requests"]._file = Refusing(files._segments["requests"]._file, 100)
    for first in range(10, 500, 10):
        files.requests(batch(range(first, first + 10)))
    assert files.lost == "the run folder cannot be written: No space left on device"
    assert files._held_bytes < 2 * 5000  # bounded, however long it goes on
    files.end_chapter([0], 0, 500)
    files.close()
    files.manifest.write(files.path)
    assert files.totals() == {"scheduled": 500, "ok": 10, "failed": 0, "timed_out": 0, "dropped": 0, "lost": 490}
    assert rows_of(files.path) == list(range(10))


def test_an_event_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    append_event(tmp_path, "first")
    real, left = os.write, [20]

    def write(out, raw):
        taken = min(left[0], len(raw))
        left[0] -= taken
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(out, raw[:taken])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            append_event(tmp_path, "second")
    append_event(tmp_path, "third")
    assert [event["event"] for event in read_events(tmp_path)] == ["first", "third"]


def test_a_torn_line_is_taken_away_before_others_follow(tmp_path):
    append_event(tmp_path, "first")
    with (tmp_path / "events.jsonl").open("a") as out:
        out.write('{"time_ns": 1')
    assert [event["event"] for event in read_events(tmp_path)] == ["first"]
    mend_events(tmp_path)
    append_event(tmp_path, "second")
    assert [event["event"] for event in read_events(tmp_path)] == ["first", "second"]


def small_disk(path, size):
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small disk takes a user who may mount one")


@pytest.mark.live
def test_a_run_on_a_disk_that_is_full_ends_by_itself_with_a_folder_that_can_be_read(tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    small_disk(disk, "1536k")
    try:
        with endpoint() as url:
            words = ["--rates=600", "--total-seconds=60", "--chapter-seconds=20", "--host", url, "--run-dir", str(disk)]
            words += ["--mode=soak", "--timeout=2", "--logfile", str(tmp_path / "log")]
            code = (
                "from tailrate.loadtest.engine.record import run_folder as f; f.PATIENCE_S = 2.0;"
                "import sys; sys.argv[0] = 'locust';"
                "from locust.main import main; main()"
            )
            command = [
                sys.executable,
                "-c",
                code,
                "-f",
                str(Path(__file__).parents[3] / "loadtest/null.py"),
                "--headless",
            ]
            done = subprocess.run(
                [*command, "--only-summary", "--run-id=it", "--settle-seconds=1", "--idle-seconds=0", *words],
                capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=Path(__file__).parents[3],
            )  # fmt: skip
        folder = disk / "it"
        manifest = Manifest.read(folder)
        assert manifest.status == "aborted", done.stderr
        assert manifest.extra["stopped"] == "the run folder cannot be written: No space left on device"
        totals = dict(manifest.totals)
        assert totals.pop("scheduled") == sum(totals.values())
        assert totals["lost"] > 0
        run = analysis.load(folder)
        rows = run.requests()
        assert len(rows) == sum(totals.values()) - totals["lost"]
        assert rows["ok"].sum() == totals["ok"] > 500
        assert run.missing == {"requests": 0, "devices": 0, "metrics": 0}
        assert [event for event in run.events if event["event"] == "aborted"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def files(tmp_path, chapters=4):
    """A folder of so many chapters of a hundred rows."""
    path = tmp_path / "run"
    path.mkdir()
    files = RunFolder(path, manifest_of(path), lambda: 10**6 * S, lambda _: None)
    files.manifest.extra["chapters"] = files.chapters
    for number in range(chapters):
        for first in range(0, 100, 20):
            files.requests(batch(range(first, first + 20), step=number, at_ns=number * 600 * S))
        files.end_chapter([number], (number + 1) * 600 * S, 100)
        files.turn()
    files.manifest.write(path)
    yield files
    for segment in files._segments.values():
        segment._file.close()


def assert_whole(folder, steps=(0, 1, 2, 3)):
    found = analysis.load(folder)
    rows = found.requests(columns=["step", "seq"])
    assert Counter(map(tuple, rows.itertuples(index=False))) == {(step, seq): 1 for step in steps for seq in range(100)}
    assert found.missing["requests"] == 0
    return found


def test_closed_segments_become_parquet_and_any_mixture_is_read(files):
    folder = files.path
    assert len(segments(folder, "requests")) == 5
    assert_whole(folder)
    compact(folder, 2)
    assert [len(parts(folder, "requests")), len(segments(folder, "requests"))] == [2, 3]
    assert_whole(folder)
    files.close()
    files.manifest.status = "complete"
    files.manifest.write(folder)
    before = analysis.load(folder)
    seal(folder)
    assert len(before.requests()) == 400  # loaded before, read after
    assert {path.name for path in folder.iterdir()} == {
        "run.json",
        "events.jsonl",
        "requests.parquet",
        "devices.parquet",
    }
    assert_whole(folder)
    # what went on after somebody had sealed it
    more = RunFolder(folder, files.manifest, time.time_ns, lambda _: None)
    more.requests(batch(range(100), step=4))
    more.close()
    compact(folder, 100)
    assert_whole(folder, range(5))
    seal(folder)
    assert_whole(folder, range(5))


def test_a_segment_that_is_there_twice_for_a_moment_counts_once(files):
    raw = {path: path.read_bytes() for path in segments(files.path, "requests")[:2]}
    compact(files.path, 2)
    for path, content in raw.items():  # as a kill between the new file's place and the old one's end leaves it
        path.write_bytes(content)
    assert_whole(files.path)
    compact(files.path, 2)
    assert not [path for path in raw if path.exists()]
    assert_whole(files.path)


def test_compaction_without_space_leaves_what_there_was(files, monkeypatch):

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            compact(files.path, 2)
    assert not list(files.path.glob("*.part"))
    assert_whole(files.path)


EVER = 10**9 * S


def judge_and_retire(files, keep_s, keep_bytes, now_ns, told_ns=EVER):
    """As two chapters do it, one after the other."""
    files.compact(files.retire(keep_s, keep_bytes, now_ns, told_ns))
    files._compactor.wait()
    files.retire(keep_s, keep_bytes, now_ns, told_ns)


def test_the_oldest_rows_are_deleted_and_the_ledger_knows_of_them(files):
    folder = files.path
    judge_and_retire(files, 0, 0, 10**6 * S)
    assert_whole(folder)
    # the first chapter ended at 600 s, the second at 1200 s
    judge_and_retire(files, 3600.0, 0, (3600 + 1300) * S)
    found = assert_whole(folder, (2, 3))
    assert [(event["steps"], event["rows"]) for event in found.events if event["event"] == "retired"] == [
        ([0], 100), ([1], 100),
    ]  # fmt: skip
    assert found.retired == 200
    judge_and_retire(files, 0, 1.0, 0)  # a byte: nothing but what is still written may stay
    files.manifest.totals, files.manifest.status = files.totals(), "complete"
    files.close()
    files.manifest.write(folder)
    seal(folder)
    run = analysis.load(folder)
    assert (len(run.requests()), run.retired, run.manifest.totals["scheduled"]) == (0, 400, 400)
    assert run.missing["requests"] == 0


def test_what_was_reported_before_it_went_on_can_still_be_deleted(files):
    folder = files.path
    files.manifest.scenario["mode"], files.manifest.status = "soak", "aborted"
    files.close()
    files.manifest.write(folder)
    seal(folder)
    assert (len(parts(folder, "requests")), segments(folder, "requests")) == (5, [])
    assert_whole(folder)
    more = RunFolder(folder, Manifest.read(folder), time.time_ns, lambda _: None)
    judge_and_retire(more, 3600.0, 0, (3600 + 1300) * S)
    more.close()
    assert_whole(folder, (2, 3))
    whole = Manifest.read(folder)
    whole.status = "complete"
    whole.write(folder)
    seal(folder)
    assert parts(folder, "requests") == []
    assert_whole(folder, (2, 3))


def test_a_chapter_is_judged_before_it_is_deleted_and_the_word_about_it_says_what_it_showed(files):
    steps = [{"index": k, "endpoint": "m/a", "rate": 10.0, "seconds": 600.0, "block": k} for k in range(4)]
    times = [{"start_ns": k * 600 * S, "end_ns": (k + 1) * 600 * S} for k in range(4)]
    files.manifest.scenario |= {"mode": "soak", "steps": [one | at for one, at in zip(steps, times, strict=True)]}
    files.manifest.scenario["slo"] = [{"percentile": 90.0, "latency_ms": 50.0}]
    files.manifest.write(files.path)
    files.retire(3600.0, 0, (3600 + 1300) * S, EVER)
    assert_whole(files.path)
    judge_and_retire(files, 3600.0, 0, (3600 + 1300) * S, told_ns=700 * S)  # and a fault began then
    found = assert_whole(files.path, (1, 2, 3))
    (chapter,) = found.kept
    (step,) = chapter["steps"]
    assert (step["index"], step["n"], step["ok"], step["trusted"]) == (0, 100, 100, True)
    assert step["windows"][0][1]["counts"][0]["beyond"] == 0
    files.close()
    assert not list(files.path.glob("chapter-*"))


def test_no_rows_go_from_which_a_fault_is_still_to_be_told(files, monkeypatch):
    """From a minute before it began until ten minutes after its end, when a recovery is looked for no longer."""
    clock, told = [1000 * S], []
    soak = scenario(keep_hours=1.0)
    conduct = SoakConduct(soak, soak.mode, [], files, lambda: clock[0], print, conductor_too=False)
    monkeypatch.setattr(files, "retire", lambda *given: told.append(given[-1] // S) or [])
    monkeypatch.setattr(files, "compact", list)
    known = {"id": 0, "start_ns": 2000 * S}
    for at_s, fault in (
        (1500, None),
        (2500, known | {"phase": "begin", "end_ns": None}),
        (4000, known | {"phase": "end", "end_ns": 3700 * S}),
        (4300, None),
        (4301, {"id": 1, "phase": "refused", "start_ns": 4301 * S, "end_ns": 4301 * S}),
    ):
        clock[0] = at_s * S
        if fault:
            conduct.fault(fault)
        conduct.over()
    assert told == [1440, 1940, 1940, 4240, 4241]


def test_a_kill_between_the_word_and_the_deed_of_deletion_counts_nothing_twice(files, monkeypatch):

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            judge_and_retire(files, 3600.0, 0, (3600 + 700) * S)
    found = assert_whole(files.path)
    assert found.retired == 0


# ---- a ledger closed after a kill


@pytest.mark.parametrize("spacing", ["constant", "poisson"])
def test_what_was_due_and_has_no_row_is_lost(tmp_path, spacing):
    pattern = {"arrivals": spacing, "burstiness": 1.0, "shape": "flat"}
    times = {"start_ns": 1000 * S, "end_ns": 1060 * S}
    step = {
        "index": 0,
        "endpoint": "m/a",
        "rate": 10.0,
        "seconds": 60.0,
        "settle_s": 0.0,
        "block": 0,
        "seed": 7,
    } | times
    manifest = manifest_of(tmp_path, **pattern)
    manifest.scenario["steps"] = [step]
    due = schedule_of(manifest)
    by = {seq: at for (_, seq), at in due.items() if at < 1020 * S}
    seen = np.array([seq for seq, at in by.items() if at < 1019 * S and seq != 3])
    lost = resume.close(tmp_path, manifest, {0: seen}, {"200": len(seen)}, 1019 * S + S // 2, 4)
    assert segment_path(tmp_path, "requests", 4).exists()
    assert lost == len(by) - len(seen) > 1
    _, rows = read(tmp_path)
    assert {row["seq"]: row["intended_ns"] for row in rows} == {seq: at for seq, at in by.items() if seq not in seen}
    assert {row["status"] for row in rows} == {"lost"}
    found = Manifest.read(tmp_path)
    assert (found.extra["interrupted_ns"], found.status) == (1020 * S, "aborted")
    assert (found.scenario["steps"][0]["end_ns"], found.scenario["steps"][0]["seconds"]) == (1020 * S, 20)
    nothing = {"failed": 0, "timed_out": 0, "dropped": 0}
    assert found.totals == {"scheduled": len(by), "ok": len(seen), "lost": lost} | nothing
    # a second look finds nothing more
    assert resume.close(tmp_path, found, {}, {}, 5000 * S, 5) == 0
    assert Manifest.read(tmp_path).totals == found.totals


def kill_and_check(tmp_path, url, after_s):
    """A folder that was killed at any instant: readable, no wrong row, at most a second of them missing."""
    folder = tmp_path / "it"
    process = start(tmp_path, "--headless", "--host", url, *SOAK, "--total-seconds=30", "--settle-seconds=0.1")
    await_rows(folder, 1)
    began_s = time.monotonic()
    time.sleep(after_s)
    stood_s = time.monotonic() - began_s - after_s  # nobody wrote rows while the whole machine stood still
    process.kill()
    killed_ns = time.time_ns()
    process.wait()
    run = analysis.load(folder)
    rows = run.requests(columns=["step", "seq", "endpoint", "intended_ns", "sent_ns", "done_ns", "status"])
    found = {(row.step, row.seq): row.intended_ns for row in rows.itertuples()}
    assert len(found) == len(rows)
    manifest = json.loads((folder / "run.json").read_text())
    due = schedule_of(Manifest.read(folder))
    assert all(due[key] == at for key, at in found.items())
    assert rows["status"].isin(["200"]).all()
    assert (rows["done_ns"] > rows["sent_ns"]).all()
    missing = [key for key, at in due.items() if at < killed_ns - (1.1 + stood_s) * 1e9 and key not in found]
    assert not missing, (len(missing), manifest["scenario"]["steps"][-1])
    assert run.missing == {"requests": 0, "devices": 0, "metrics": 0}
    seal(folder)
    assert len(analysis.load(folder).requests(columns=["step"])) == len(rows)
    return len(rows)


@pytest.mark.live
@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2))])
def test_a_soak_killed_at_any_instant_loses_a_second_of_rows_at_most(tmp_path, number):
    with endpoint() as url:
        assert kill_and_check(tmp_path, url, random.Random(number).uniform(1.5, 5)) > 0


@pytest.mark.live
def test_it_ends_early_when_the_endpoint_fails_too_often(tmp_path):
    with endpoint(fail_every=4) as url:
        process = start(
            tmp_path, "--headless", "--host", url, *SOAK, "--total-seconds=60", "--settle-seconds=0.1",
            "--stop-on=errors>5%",
        )  # fmt: skip
        process.wait(timeout=PATIENCE_S)
    manifest, rows = read(tmp_path / "it")
    assert manifest.status == "aborted", said(tmp_path)
    assert "failed within a minute, more than 5.0%" in manifest.extra["stopped"]
    (event,) = (event for event in read_events(tmp_path / "it") if event["event"] == "aborted")
    assert event["sentence"] == manifest.extra["stopped"]
    totals = dict(manifest.totals)
    run = analysis.load(tmp_path / "it")
    assert totals.pop("scheduled") == sum(totals.values()) == len(run.requests()) >= len(rows)
    assert manifest.extra["interrupted_ns"] == event["time_ns"] or manifest.extra["interrupted_ns"] <= event["time_ns"]


@pytest.mark.live
def test_what_a_planned_fault_does_is_no_reason_to_end_early(tmp_path):
    plan = tmp_path / "plan.csv"
    plan.write_text("at_s,fault,target,seconds\n0,slow_client,1,3\n")
    with endpoint(fail_every=4) as url:
        process = start(
            tmp_path, "--headless", "--host", url, *SOAK, "--total-seconds=6", "--settle-seconds=0.1",
            "--stop-on=errors>5%,slo", f"--faults={plan}", "--slo=p99<1ms",
        )  # fmt: skip
        process.wait(timeout=PATIENCE_S)
    assert read(tmp_path / "it")[0].status == "complete", said(tmp_path)


@pytest.mark.live
def test_sigterm_keeps_what_there_is_and_leaves_no_process(tmp_path):
    with endpoint() as url:
        process = start(tmp_path, "--headless", "--host", url, *SOAK, "--total-seconds=60", "--settle-seconds=0.1")
        await_rows(tmp_path / "it", 300)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0, said(tmp_path)
    run = analysis.load(tmp_path / "it")
    assert run.manifest.status == "aborted"
    totals = dict(run.manifest.totals)
    assert totals.pop("scheduled") == sum(totals.values()) == len(run.requests())
    assert segment_path(tmp_path / "it", "requests", 0).exists() or parts(tmp_path / "it", "requests")
