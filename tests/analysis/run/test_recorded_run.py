import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from folders import GPU, START_NS, Load, Waveform, Written, constant, lognormal, make_run, rewrite

from tailrate import analysis
from tailrate.analysis.pages.report.charts.time_slices import from_rows, slices
from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.analysis.records.folder import EVENTS, MANIFEST, RunError, append_event, segment_path
from tailrate.analysis.records.manifest import WRITER, Manifest
from tailrate.analysis.records.process import began
from tailrate.analysis.records.rows import REQUEST_COLUMNS
from tailrate.analysis.run import recorded_run, tables
from tailrate.analysis.run.compact import move
from tailrate.analysis.run.device_tracks import STATE
from tailrate.analysis.run.recorded_run import seal, settle_missing
from tailrate.analysis.run.tables import Stored
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.verdicts.run import Run
from tailrate.analysis.verdicts.verdict import judge
from tailrate.loadtest.engine.record.manifest import _writer

LOADS = [Load("bert/eager", 50, lognormal(20)), Load("bert/compiled", 50, lognormal(10), failed=0.1, dropped=0.1)]


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _segments(folder: Path, **changes: Any) -> Written:
    return make_run(folder, LOADS, devices=[Waveform()], sealed=False, **changes)


def _killed(folder: Path, pid: int) -> Written:
    written = _segments(folder, status="running")
    found = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(found | {"pid": pid, "host": socket.gethostname()}))
    return written


def _dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _same_rows(run: Run, written: Written) -> None:
    """Every recorded column of every row, whatever the order of rows."""
    for found, truth, columns in (
        (run.requests(), written.requests, REQUEST_COLUMNS),
        (run.devices, written.devices, DEVICE_COLUMNS),
    ):
        assert len(found) == len(truth)
        keys = [name for name in ("step", "seq", "time_ns") if name in columns]
        found, truth = (frame.sort_values(keys, ignore_index=True) for frame in (found, truth))
        for name, kind in columns.items():
            if name not in truth:  # written before there was such a column
                assert found[name].isna().all(), name
                continue
            assert (found[name].isna() == truth[name].isna()).all(), name
            known = found[name].notna()
            if kind == "string":
                assert found.loc[known, name].astype(object).tolist() == truth.loc[known, name].tolist(), name
            else:
                assert found.loc[known, name].tolist() == truth.loc[known, name].tolist(), name


def test_a_sealed_folder_gives_the_rows_that_were_written(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", LOADS, devices=[Waveform()])
    run = analysis.load(written.folder)
    _same_rows(run, written)
    assert run.missing == {"requests": 0, "devices": 0, "metrics": 0}
    assert run.manifest == written.manifest
    assert run.requests()["endpoint"].dtype == "category"
    assert run.requests()["intended_ns"].dtype == np.int64
    assert run.requests()["sent_ns"].dtype == pd.Int64Dtype()


def test_derived_columns_are_differences_of_the_recorded_ones(tmp_path: Path) -> None:
    rows = analysis.load(make_run(tmp_path / "run", LOADS).folder).requests()
    answered = rows["done_ns"].notna()
    assert (rows.loc[answered, "latency_ms"] * 1e6).round().tolist() == (
        rows.loc[answered, "done_ns"] - rows.loc[answered, "intended_ns"]
    ).tolist()
    assert np.allclose(rows.loc[answered, "late_ms"], 0.1, atol=1e-9)
    assert np.allclose(rows["service_ms"] + rows["late_ms"], rows["latency_ms"], equal_nan=True)
    assert (rows["ok"] == (rows["status"] == "200")).all()
    assert rows.loc[rows["status"] == "dropped", "latency_ms"].isna().all()


def test_segments_are_read_without_writing_anything(tmp_path: Path) -> None:
    written = _segments(tmp_path / "run")
    before = _files(written.folder)
    run = analysis.load(written.folder)
    _same_rows(run, written)
    assert len(run.steps) == 2
    assert _files(written.folder) == before


def test_sealing_keeps_every_row_and_may_be_repeated(tmp_path: Path) -> None:
    written = _segments(tmp_path / "run")
    seal(written.folder)
    once = _files(written.folder)
    assert set(once) == {"run.json", "events.jsonl", "requests.parquet", "devices.parquet"}
    _same_rows(analysis.load(written.folder), written)
    seal(written.folder)
    assert _files(written.folder) == once
    assert analysis.load(written.folder).missing == {"requests": 0, "devices": 0, "metrics": 0}


def test_a_sealed_run_needs_nothing_but_three_files(tmp_path: Path) -> None:
    written = _segments(tmp_path / "run")
    seal(written.folder)
    (written.folder / "events.jsonl").unlink()
    _same_rows(analysis.load(written.folder), written)


def test_a_run_that_is_sealed_after_it_was_loaded_can_still_be_read(tmp_path: Path) -> None:
    written = _segments(tmp_path / "run")
    runs = [analysis.load(written.folder) for _ in range(3)]
    seal(written.folder)
    _same_rows(runs[0], written)
    assert len(runs[1].steps) == 2
    assert len(runs[2].joined()) == len(written.requests)


def test_a_segment_written_after_sealing_is_added(tmp_path: Path) -> None:
    written = _segments(tmp_path / "run")
    seal(written.folder)
    other = _segments(tmp_path / "other", seed=2)
    segment_path(other.folder, "requests", 0).rename(segment_path(written.folder, "requests", 1))
    assert len(analysis.load(written.folder).requests()) == 2000
    seal(written.folder)
    assert len(analysis.load(written.folder).requests()) == 2000


@pytest.mark.parametrize("instant", range(15))
def test_a_crash_of_sealing_neither_loses_nor_doubles_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instant: int
) -> None:
    written = _segments(tmp_path / "run")
    left = [instant]

    def failing(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(*args, **kwargs)

        return call

    # two tables × (write, fsync, rename, fsync of the folder, removal of the segment and of its part), the reserve, and
    # two to spare
    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, "write_table", failing(pq.ParquetWriter.write_table))
        patched.setattr(os, "fsync", failing(os.fsync))
        patched.setattr(Path, "replace", failing(Path.replace))
        patched.setattr(Path, "unlink", failing(Path.unlink))
        if instant < 13:
            with pytest.raises(KeyboardInterrupt):
                seal(written.folder)
        else:
            seal(written.folder)
    _same_rows(analysis.load(written.folder), written)
    seal(written.folder)
    _same_rows(analysis.load(written.folder), written)
    assert not list(written.folder.glob("*.arrows"))


def test_two_programs_that_seal_at_once_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = _segments(tmp_path / "run")
    real = Stored.write

    def overtaken(stored: Stored, path: Path) -> None:
        monkeypatch.setattr(Stored, "write", real)
        seal(written.folder)  # the other one, from beginning to end
        real(stored, path)

    monkeypatch.setattr(Stored, "write", overtaken)
    seal(written.folder)
    _same_rows(analysis.load(written.folder), written)


@pytest.mark.parametrize("read", [seal, analysis.load, lambda folder: analysis.load(folder).requests()])
def test_what_a_killed_run_left_behind_may_still_move_its_rows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    """The program that makes Parquet files of closed segments ends by itself, later than the load process."""
    written = _killed(tmp_path / "run", _dead_pid())
    first = segment_path(written.folder, "requests", 0)
    later = _segments(tmp_path / "later", seed=2)  # two moves, the second after a first look has been in vain
    segment_path(later.folder, "requests", 0).rename(segment_path(written.folder, "requests", 1))
    real, left = recorded_run.find, [first, segment_path(written.folder, "requests", 1)]

    def overtaken(folder: Path, table: str) -> Stored:
        found = real(folder, table)
        if table == "requests" and left:
            move(left.pop(0), table)
        return found

    monkeypatch.setattr(recorded_run, "find", overtaken)
    read(written.folder)
    assert not left
    assert analysis.load(written.folder).manifest.totals["ok"] > 0
    assert len(analysis.load(written.folder).requests()) == 2000


def test_a_folder_that_is_deleted_while_it_is_read_is_not_an_empty_run(tmp_path: Path) -> None:
    run = analysis.load(_segments(tmp_path / "run").folder)
    shutil.rmtree(run.folder)
    with pytest.raises(RunError, match="is not there any more"):
        run.requests()


def test_a_kill_inside_a_batch_loses_that_batch_only(tmp_path: Path) -> None:
    written = _killed(tmp_path / "run", _dead_pid())
    kept = written.cut(batches=7, extra_bytes=100)
    assert 0 < kept < len(written.requests)
    run = analysis.load(written.folder)
    assert len(run.requests()) == kept
    assert run.missing["requests"] == len(written.requests) - kept
    assert run.manifest.status == "aborted"
    seal(written.folder)
    again = analysis.load(written.folder)
    assert len(again.requests()) == kept
    assert again.missing == run.missing
    assert Manifest.read(written.folder).status == "aborted"
    assert "pid" not in Manifest.read(written.folder).extra


def test_a_cut_between_two_batches_is_counted_too(tmp_path: Path) -> None:
    written = _segments(tmp_path / "run")
    kept = written.cut(batches=3)
    assert analysis.load(written.folder).missing["requests"] == len(written.requests) - kept


def test_a_damaged_segment_is_kept_and_named_and_what_can_be_read_of_it_sealed(tmp_path: Path) -> None:
    written = _segments(tmp_path / "run")
    path = segment_path(written.folder, "requests", 0)
    size, rows = written.batch_ends[4]
    raw = bytearray(path.read_bytes())
    raw[size + 4 : size + 8] = b"\xff" * 4
    path.write_bytes(raw)
    for _ in range(2):
        seal(written.folder)
        assert path.read_bytes() == raw
        assert not list(written.folder.glob("devices-*"))
        run = analysis.load(written.folder)
        assert len(run.requests()) == rows
        assert run.missing["requests"] == len(written.requests) - rows
        assert f"{path.name} cannot be read beyond {rows} rows, so it is kept as it is" in judge(run).reasons
        assert judge(run).exit_code == 3


def test_damage_that_looks_like_the_end_of_the_stream_is_none(tmp_path: Path) -> None:
    written = _segments(tmp_path / "run")
    path = segment_path(written.folder, "requests", 0)
    raw = bytearray(path.read_bytes())
    raw[written.batch_ends[4][0] + 4 : written.batch_ends[4][0] + 8] = bytes(4)
    path.write_bytes(raw)
    seal(written.folder)
    assert path.read_bytes() == raw


@pytest.mark.parametrize("text", ["", "x", "mine", "my notes", "my own notes, which are not rows at all"])
def test_a_file_of_somebody_else_that_is_named_like_a_segment_is_left_alone(tmp_path: Path, text: str) -> None:
    written = _segments(tmp_path / "run")
    notes = written.folder / "requests-7.arrows"
    notes.write_text(text)
    seal(written.folder)
    assert notes.read_text() == text
    assert [path.name for path in written.folder.glob("*.arrows")] == [notes.name]
    assert any("requests-7.arrows" in reason for reason in judge(analysis.load(written.folder)).reasons)


def test_a_batch_that_a_kill_cut_short_is_no_damage(tmp_path: Path) -> None:
    written = _killed(tmp_path / "run", _dead_pid())
    kept = written.cut(batches=7, extra_bytes=100)
    events = (written.folder / EVENTS).read_text().splitlines(keepends=True)
    said = [line for line in events if "requests-" not in line or json.loads(line)["rows"] <= kept]
    (written.folder / EVENTS).write_text("".join(said))
    seal(written.folder)
    assert not list(written.folder.glob("*.arrows"))
    run = analysis.load(written.folder)
    assert (len(run.requests()), run.missing["requests"], run.unread) == (kept, 0, {})


def test_a_segment_of_a_resumed_run_that_is_damaged_stays(tmp_path: Path) -> None:
    written = _segments(tmp_path / "run")
    path = segment_path(written.folder, "requests", 0)
    written.cut(batches=3, extra_bytes=50)
    raw = path.read_bytes()
    settle_missing(analysis.load(written.folder))
    move(path, "requests")
    seal(written.folder)
    assert path.read_bytes() == raw


def test_what_the_disk_refuses_to_read_is_an_error_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = _segments(tmp_path / "run")

    def refusing(_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pa.ipc, "open_stream", refusing)
    with pytest.raises(RunError, match=r"requests-0000\.arrows cannot be read: .*Input/output error"):
        seal(written.folder)
    assert list(written.folder.glob("*.arrows"))


def test_a_folder_named_like_a_home_folder_is_not_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    make_run(tmp_path / "home" / "run", LOADS)
    make_run(tmp_path / "here" / "~" / "sealed" / "run", LOADS[:1])
    _segments(tmp_path / "here" / "~" / "run")
    monkeypatch.chdir(tmp_path / "here")
    assert len(analysis.load("~/sealed/run").requests()) == 500
    assert len(analysis.load("~/run").requests()) == 1000
    seal("~/run")
    assert len(analysis.load("~/run").requests()) == 1000


@pytest.mark.parametrize("size", [0, 4, 60])
def test_a_segment_cut_in_its_header_holds_no_rows(tmp_path: Path, size: int) -> None:
    written = _killed(tmp_path / "run", _dead_pid())
    written.cut(batches=0, extra_bytes=size)
    seal(written.folder)
    run = analysis.load(written.folder)
    assert len(run.requests()) == 0
    assert run.missing["requests"] == len(written.requests)
    assert len(run.devices) == len(written.devices)


def test_totals_of_a_killed_run_come_from_its_rows(tmp_path: Path) -> None:
    written = _killed(tmp_path / "run", _dead_pid())
    kept = written.cut(batches=15, extra_bytes=1)
    totals = seal(written.folder).totals
    status = analysis.load(written.folder).requests()["status"]
    assert totals["ok"] == (status == "200").sum()
    assert totals["failed"] == (status == "503").sum() > 0
    assert totals["dropped"] == (status == "dropped").sum() > 0
    assert totals["lost"] == len(written.requests) - kept
    assert totals["scheduled"] == len(written.requests)
    assert Manifest.read(written.folder).finished_ns == analysis.load(written.folder).requests()["done_ns"].max()


def test_a_run_that_is_still_written_can_be_read_but_not_sealed(tmp_path: Path) -> None:
    written = _killed(tmp_path / "run", os.getpid())
    assert analysis.load(written.folder).manifest.status == "running"
    with pytest.raises(RunError, match=f"still being written by process {os.getpid()}"):
        seal(written.folder)
    assert list(written.folder.glob("*.arrows"))


def test_a_folder_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    written = _segments(tmp_path / os.fsdecode(b"run\xff"))
    seal(written.folder)
    _same_rows(analysis.load(written.folder), written)


def test_who_begins_a_run_says_since_when_it_is_there() -> None:
    assert _writer() == {"pid": os.getpid(), "pid_since": began(os.getpid()), "host": socket.gethostname()}
    assert began(2**31) is None


@pytest.mark.parametrize(
    ("pid", "since", "state"),
    [
        ("ours", "its", "running"),
        ("ours", 1, "aborted"),
        (1, 1, "aborted"),
        (1, "its", "running"),
        (0, None, "aborted"),
        (-1, None, "aborted"),
        (2**40, None, "aborted"),
    ],
)
def test_a_process_that_has_the_number_of_the_writer_is_not_the_writer(
    tmp_path: Path, pid: int | str, since: int | str | None, state: str
) -> None:
    number = os.getpid() if isinstance(pid, str) else pid
    since = began(number) if isinstance(since, str) else since
    written = _killed(tmp_path / "run", number)
    found = json.loads((written.folder / MANIFEST).read_text())
    (written.folder / MANIFEST).write_text(json.dumps(found | {"pid_since": since}))
    assert analysis.load(written.folder).manifest.status == state


def test_of_the_first_process_alone_nobody_knows_whether_it_still_writes(tmp_path: Path) -> None:
    """A container always has one."""
    written = _killed(tmp_path / "run", 1)
    with pytest.raises(RunError, match=r"written by process 1; .* take \"pid\" out of its run\.json"):
        seal(written.folder)
    for path in written.folder.iterdir():
        os.utime(path, (0, 0))
    assert set(seal(written.folder).extra).isdisjoint(WRITER)


def test_on_another_host_a_folder_that_rests_has_no_writer(tmp_path: Path) -> None:
    written = _killed(tmp_path / "run", os.getpid())
    found = json.loads((written.folder / MANIFEST).read_text())
    (written.folder / MANIFEST).write_text(json.dumps(found | {"host": "elsewhere"}))
    with pytest.raises(RunError, match="on elsewhere"):
        seal(written.folder)
    for path in written.folder.iterdir():
        os.utime(path, (0, 0))
    assert seal(written.folder).status == "aborted"


def test_a_foreign_folder_may_lack_columns_and_devices(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("triton/onnx", 50, constant(20))], foreign=True)
    assert not (written.folder / "devices.parquet").exists()
    run = analysis.load(written.folder)
    assert run.requests()["queue_ms"].isna().all()
    assert len(run.devices) == 0
    assert run.joined()["util_pct"].isna().all()
    assert run.steps["p99_ms"].tolist() == [20.0]


def _rewrite(folder: Path, change: Any, table: str = "requests") -> None:
    path = folder / f"{table}.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def _no_texts(rows: int) -> Any:
    """Bytes that are called text all the same, as another program may write them."""
    raw = pa.array([b"200", b"\xff\xfe"], pa.binary())
    return pa.DictionaryArray.from_arrays(pa.array([1] * rows, pa.int32()), raw.view(pa.string()))


def test_extra_columns_are_kept(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", LOADS)
    _rewrite(written.folder, lambda rows: rows.append_column("tokens", pa.array(range(len(rows)))))
    assert analysis.load(written.folder).requests()["tokens"].tolist() == list(range(1000))


def test_other_types_of_the_same_kind_are_taken(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", LOADS[:1])

    def change(rows: Any) -> Any:
        status = pa.array(rows["status"].to_pylist()).cast(pa.int16())
        rows = rows.set_column(rows.column_names.index("status"), "status", status)
        place = rows.column_names.index("seq")
        return rows.set_column(place, "seq", rows["seq"].cast(pa.float64()))

    _rewrite(written.folder, change)
    assert analysis.load(written.folder).requests()["ok"].all()


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("intended_ns", pa.array(["now"] * 1000), "column 'intended_ns' is string, which is not int64"),
        ("queue_ms", pa.array([True] * 1000), "column 'queue_ms' is bool, which is not double"),
        ("seq", pa.array([0.5] * 1000), "column 'seq' is double, which is not int64"),
        ("endpoint", pa.array([1.5] * 1000), "column 'endpoint' is double, which is not string"),
        ("step", pa.array([None] * 1000, pa.int32()), "column 'step' has 1000 empty values"),
        ("step", pa.array(["0"] * 1000), "column 'step' is string, which is not int32"),
        ("status", _no_texts(1000), "column 'status' holds bytes that are no text"),
    ],
)
def test_a_wrong_type_names_file_and_column(tmp_path: Path, column: str, values: Any, said: str) -> None:
    written = make_run(tmp_path / "run", LOADS)
    _rewrite(written.folder, lambda rows: rows.set_column(rows.column_names.index(column), column, values))
    for read in (lambda run: run.requests(), lambda run: run.tallies):
        with pytest.raises(RunError, match=r"requests\.parquet") as caught:
            read(analysis.load(written.folder))
        assert said in str(caught.value)


def test_a_missing_column_and_a_broken_file_are_named(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", LOADS, devices=[Waveform()])
    _rewrite(written.folder, lambda rows: rows.drop_columns(["time_ns"]), "devices")
    with pytest.raises(RunError, match=r"devices\.parquet has no column 'time_ns'"):
        analysis.load(written.folder)
    (written.folder / "devices.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(RunError, match=r"devices\.parquet cannot be read"):
        analysis.load(written.folder)


def test_a_folder_named_like_a_partition_adds_no_column(tmp_path: Path) -> None:
    written = make_run(tmp_path / "gpu=3" / "run", LOADS)
    assert "gpu" not in analysis.load(written.folder).requests().columns


def test_rows_that_vanished_from_a_foreign_parquet_are_missed(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", LOADS)
    append_event(written.folder, "rows", table="requests", file="requests-0000.arrows", rows=1003)
    assert analysis.load(written.folder).missing == {"requests": 3, "devices": 0, "metrics": 0}


def test_a_folder_of_a_manifest_alone_has_no_rows(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", LOADS)
    for path in written.folder.glob("*.parquet"):
        path.unlink()
    run = analysis.load(written.folder)
    assert len(run.requests()) == len(run.devices) == len(run.joined()) == 0
    seal(written.folder)
    assert len(analysis.load(written.folder).requests()) == 0


def test_an_error_text_makes_an_answer_a_failure(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 10, constant(5), device=GPU)])
    texts = pa.array(["", "the answer was cut", *[None] * 98])
    _rewrite(written.folder, lambda rows: rows.set_column(rows.column_names.index("error"), "error", texts))
    assert analysis.load(written.folder).requests()["ok"].tolist() == [True, False, *[True] * 98]


def test_an_answer_without_an_end_is_a_success_from_its_last_token_on_and_seen_at_the_middle_of_that(
    tmp_path: Path,
) -> None:
    written = make_run(tmp_path / "run", [Load("m/a", 50, constant(400))], devices=[Waveform()])
    rows = written.requests
    rows["last_ns"] = rows["done_ns"] - 200_000_000
    rows.loc[rows.index[:100], "done_ns"] = pd.NA
    rewrite(written.folder, rows)
    run = analysis.load(written.folder)
    found = run.joined()
    assert found["ok"].sum() == run.measured[0].summary.ok == 500
    assert (found["latency_ms"] == 200).all()
    middle_s = (rows["sent_ns"] + rows["last_ns"] - 2 * START_NS).astype(float) / 2e9
    assert (found["temp_c"] - middle_s).abs().max() <= 0.05 + 1e-6
    assert found["power_w"].mean() == pytest.approx(run.measured[0].tally.saw("power_w"))
    assert list(found) == [*run.requests(), *STATE, "sample_ns"]
    line = Timeline.of(run)
    assert (from_rows(run.requests(), line)["m/a"].answered == slices(run, line)["m/a"].answered).all()


def test_a_folder_of_the_former_name_is_read_and_its_rows_are_not_counted_twice(tmp_path: Path) -> None:
    """Killed after a table was sealed and before its segments were removed: which it holds, its label says."""
    written = _segments(tmp_path / "run")
    segments = {path.name: path.read_bytes() for path in written.folder.glob("*.arrows")}
    seal(written.folder)
    for table in ("requests", "devices"):
        path = written.folder / f"{table}.parquet"
        rows = pq.read_table(path)
        label = (
            rows.schema.metadata.pop(b"tailrate.segments", None) or pq.read_schema(path).metadata[b"tailrate.segments"]
        )
        pq.write_table(rows.replace_schema_metadata({b"headroom.segments": label}), path)
    for name, content in segments.items():
        (written.folder / name).write_bytes(content)
    _same_rows(analysis.load(written.folder), written)
    seal(written.folder)
    assert not list(written.folder.glob("*.arrows"))
    _same_rows(analysis.load(written.folder), written)


def test_rows_with_long_lists_are_sealed_in_smaller_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"seq": pa.array(range(1000)), "gaps_us": [[number] * 50 for number in range(1000)]})
    path = tmp_path / "rows.parquet"
    for most, groups in ((tables.LIST_BYTES, 1), (50_000, 9)):  # of 400 bytes each, and where it begins
        monkeypatch.setattr(tables, "LIST_BYTES", most)
        with pq.ParquetWriter(path, rows.schema) as writer:
            left = tables.write_groups(writer, rows)
            writer.write_table(left)
        assert pq.read_metadata(path).num_row_groups == groups
        assert pq.read_table(path) == rows
