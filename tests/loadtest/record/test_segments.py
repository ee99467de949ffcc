import json
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
from waiting import PATIENCE_S

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS, DeviceSample
from tailrate.analysis.records.folder import parts, read_events, segment_number, segment_path, segments
from tailrate.analysis.records.rows import REQUEST_COLUMNS, RequestRecord
from tailrate.loadtest.engine.record import segments as segment_files
from tailrate.loadtest.engine.record.segments import Batcher, Segment, pack, schema_of, unpack
from tailrate.serve import wire


def row(seq, **more):
    return RequestRecord(worker=0, seq=seq, step=1, endpoint="m/v", intended_ns=10**18 + seq, **more)


def test_rows_come_back_as_they_went_in(tmp_path):
    segment = Segment(tmp_path, "requests", REQUEST_COLUMNS)
    batcher = Batcher(REQUEST_COLUMNS, segment.write)
    rows = [
        row(0, sent_ns=5, done_ns=9, status="200", queue_ms=0.25, batch_rows=4),
        row(1, status="dropped", error="full"),
    ]
    for one in rows:
        batcher.append(one)
    batcher.flush()
    batcher.flush()  # nothing new: nothing written
    batcher.append(row(2))
    batcher.flush()
    segment.close()
    table = pa.ipc.open_stream(segment_path(tmp_path, "requests", 0).read_bytes()).read_all()
    assert table.schema == schema_of(REQUEST_COLUMNS)
    assert [tuple(found.values()) for found in table.to_pylist()] == [*rows, row(2)]
    counts = [event["rows"] for event in read_events(tmp_path)]
    assert counts == [2, 3]


def test_what_was_flushed_survives_without_a_close(tmp_path):
    segment = Segment(tmp_path, "requests", REQUEST_COLUMNS)
    batcher = Batcher(REQUEST_COLUMNS, segment.write)
    for seq in range(100):
        batcher.append(row(seq))
        if seq % 10 == 9:
            batcher.flush()
    raw = segment_path(tmp_path, "requests", 0).read_bytes()  # as a kill −9 would leave it
    stream = pa.ipc.open_stream(raw)
    seqs = np.concatenate([np.asarray(stream.read_next_batch().column("seq")) for _ in range(10)])
    assert seqs.tolist() == list(range(100))
    segment.close()


def test_a_batch_travels_from_worker_to_master():
    kept = []
    batcher = Batcher(REQUEST_COLUMNS, kept.append)
    batcher.append(row(7, status="200"))
    batcher.flush()
    assert unpack(pack(kept[0])) == kept


def test_the_words_agree_with_the_columns():
    assert RequestRecord._fields == tuple(REQUEST_COLUMNS)
    assert tuple(DeviceSample.__dataclass_fields__) == tuple(DEVICE_COLUMNS)
    assert tuple(DEVICE_COLUMNS) == wire.SAMPLE_FIELDS
    assert json.dumps(list(wire.STAGES)) == json.dumps(
        [c.removesuffix("_ms") for c in REQUEST_COLUMNS if c.endswith("_ms")][:5]
    )


def test_a_value_that_fits_no_column_is_empty_and_counted_and_its_row_stays():
    batches = []
    batcher = Batcher(REQUEST_COLUMNS, batches.append)
    rows = [row(0, batch_rows=4), row(1, batch_rows=3_000_000_000), row(2, replica="\ud800"), row(3, device=7)]
    for one in rows:
        batcher.append(one)
    batcher.flush()
    found = batches[0].to_pylist()
    assert [one["seq"] for one in found] == [0, 1, 2, 3]
    assert [one["batch_rows"] for one in found] == [4, None, None, None]
    assert {one["replica"] for one in found} == {one["device"] for one in found} == {None}
    assert batcher.bad == {"batch_rows": 1, "replica": 1, "device": 1}


def test_chunks_that_are_alike_and_chunks_that_are_not_come_out_as_they_went_in(monkeypatch):
    monkeypatch.setattr(segment_files, "CHUNK_ROWS", 3)
    kept, drawn, two, one = [], random.Random(5), np.array([1, 2], np.uint32), np.array([3], np.uint32)
    pools = {"int64": [None, 1, 2, "no number", two], "string": [None, "a", "b", 7], "list<uint32>": [None, two, one]}
    batcher = Batcher({kind: kind for kind in pools}, kept.append)
    rows = []
    for _ in range(400):
        columns = [drawn.choices(pool, k=3) if drawn.random() < 0.5 else [pool[0]] * 3 for pool in pools.values()]
        rows += [*zip(*columns, strict=True)] * drawn.choice([1, 2])
    for each in rows:
        batcher.append(each)
        if drawn.random() < 0.03:  # the last chunk of a flush is mostly shorter than those before it
            batcher.flush()
    batcher.flush()
    found = pa.concat_batches(kept)
    as_it_is = {
        "int64": lambda x: isinstance(x, int),
        "string": lambda x: isinstance(x, str),
        "list<uint32>": lambda x: True,
    }
    for (kind, fits), column in zip(as_it_is.items(), zip(*rows, strict=True), strict=True):
        wanted = [x if x is None or fits(x) else None for x in column]
        assert found.column(kind).to_pylist() == [x.tolist() if isinstance(x, np.ndarray) else x for x in wanted]
        assert batcher.bad[kind] == sum(x is not y for x, y in zip(column, wanted, strict=True))
        assert (batcher.bad[kind] > 100) == (kind != "list<uint32>")


def test_segments_have_no_last_number(tmp_path):
    for number in (9_998, 10_000, 123_456, 9_999):
        Segment(tmp_path, "requests", REQUEST_COLUMNS, number).close()
    (tmp_path / "requests-x.arrows").touch()
    (tmp_path / "requests.parquet").touch()
    found = segments(tmp_path, "requests")
    assert [segment_number(path) for path in found] == [9_998, 9_999, 10_000, 123_456]
    assert not parts(tmp_path, "requests")


def test_what_takes_time_only_once_is_over_before_processes_are_forked():
    said = "import sys, tailrate.loadtest.engine.workers.driver; assert 'pandas' in sys.modules"
    subprocess.run([sys.executable, "-c", said], check=True, timeout=PATIENCE_S)


def test_a_batcher_has_done_all_of_it_once_and_keeps_no_row_of_that(monkeypatch):
    kept, packed = [], []
    monkeypatch.setattr(segment_files, "pack", lambda batch: packed.append(batch.num_rows))
    batcher = Batcher(REQUEST_COLUMNS, kept.append)
    batcher.flush()
    assert packed == [1]
    assert not kept
    assert not batcher.bad


def test_rows_are_due_after_half_a_second_or_when_there_are_many(monkeypatch):
    now, kept = [100.0], []
    monkeypatch.setattr("tailrate.loadtest.engine.record.segments.time.monotonic", lambda: now[0])
    batcher = Batcher({"x": "int64"}, kept.append)
    for number in range(8 * 128 - 1):
        batcher.append((number,))
    now[0] += 0.4
    assert not batcher.is_due()
    batcher.append((1023,))
    assert batcher.is_due()
    batcher.flush()
    assert not batcher.is_due()
    batcher.append((1024,))
    now[0] += 0.4
    assert not batcher.is_due()
    now[0] += 0.1
    assert batcher.is_due()
    batcher.flush()
    assert [value for batch in kept for value in batch.column("x").to_pylist()] == [*range(1025)]


def test_rows_that_come_while_others_are_handed_over_come_next():
    kept, pauses = [], []
    batcher = Batcher({"x": "int64"}, kept.append, lambda: (pauses.append(1), batcher.append((1000 + len(pauses),))))
    for number in range(300):
        batcher.append((number,))
    batcher.flush()
    assert len(pauses) == 4  # three chunks, and the whole
    batcher.flush()
    assert [batch.column("x").to_pylist() for batch in kept] == [[*range(300)], [1001, 1002, 1003, 1004]]
