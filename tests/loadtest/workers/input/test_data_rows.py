"""Files of each kind against what pandas, json and the file system say of them; what is wrong in one sentence."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.workers.input import rows as data_rows
from tailrate.loadtest.engine.workers.input.rows import read

FRAME = pd.DataFrame(
    {
        "pixels": [[float(row), row + 0.5] for row in range(5)],
        "size": range(5),
        "kind": ["01", "02", "01", "NA", "02"],
        "text": ["plain", 'with "quotes", and a comma', "two\nlines", "ü – 漢", "x"],
    }
)
JPEG = b"\xff\xd8\xff\xe0" + b"picture" * 10 + b"\xff\xd9"
PNG = b"\x89PNG\r\n\x1a\n" + b"picture" * 10 + b"IEND\xaeB`\x82"


def wrong(path, *columns, texts=()):
    with pytest.raises(ScenarioError) as found:
        [read(path, texts).value(name) for name in columns or (None,)]
    sentence = str(found.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


def written(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_a_table_is_what_pandas_wrote(tmp_path, kind):
    path = tmp_path / f"rows.{kind}"
    frame = FRAME.drop(columns="pixels") if kind == "csv" else FRAME
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    found = read(path, ("kind",))
    assert (found.count, list(found.columns)) == (5, list(frame.columns))
    for name in frame.columns:
        values = [found.value(name)(row) for row in range(5)]
        np.testing.assert_array_equal(values, frame[name].tolist())
    assert found.words("kind") == FRAME["kind"].tolist()


def test_a_file_of_texts_has_one_a_line(tmp_path):
    found = read(written(tmp_path / "texts.txt", "\ufeffone\r\n\n  two  \nü\n"))
    assert [found.value("text")(row) for row in range(found.count)] == ["one", "  two  ", "ü"]


def test_parquet_in_several_row_groups_and_with_odd_lists(tmp_path):
    nested = [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 9], [9, 9]]]
    table = pa.table(
        {"grid": nested, "fixed": pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2)), "raw": [b"\0", b"b", b""]}
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=1)
    found = read(tmp_path / "rows.parquet")
    for row in range(3):
        np.testing.assert_array_equal(found.value("grid")(row), nested[row])
        np.testing.assert_array_equal(found.value("fixed")(row), [1, 2])
        assert found.value("raw")(row) == [b"\0", b"b", b""][row]


def test_images_lie_in_the_order_of_their_names_with_the_folders_that_they_are_in(tmp_path):
    for name, raw in (("b/2.jpg", JPEG + b"note"), ("a/1.png", PNG), ("0.jpeg", JPEG), ("a/notes.md", b"no image")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    found = read(tmp_path)
    assert [found.value("image")(row) for row in range(found.count)] == [JPEG, PNG, JPEG + b"note"]
    assert found.words("folder") == [None, "a", "b"]
    assert found.nbytes == 2 * len(JPEG) + 4 + len(PNG)
    assert found.words("name") == ["0.jpeg", "a/1.png", "b/2.jpg"]


def test_what_is_no_file_of_rows_is_refused(tmp_path):
    assert "there is no such file" in wrong(tmp_path / "rows.csv")
    assert "there is no such file" in wrong(tmp_path / "rows")
    assert "none of .csv" in wrong(written(tmp_path / "rows.xls", "x"))
    for suffix in (".csv", ".jsonl", ".txt"):
        assert "it has no rows" in wrong(written(tmp_path / f"empty{suffix}", ""))
    assert "it has no rows" in wrong(written(tmp_path / "heads.csv", "a,b\n"))
    (tmp_path / "none").mkdir()
    assert "there is no image in it" in wrong(tmp_path / "none")
    wrong(written(tmp_path / "rows.parquet", "PAR1 is what it is not"))


def test_ragged_rows_and_broken_json_are_named(tmp_path):
    ragged = written(tmp_path / "rows.csv", "a,b\n1,2\n3,4\n5\n")
    assert "row 2 has 1 values, where the first line names 2 columns" in wrong(ragged)
    assert "line 2 is no JSON" in wrong(written(tmp_path / "a.jsonl", '{"x": 1}\n{"x": \n{"x": 2}\n'))
    assert "line 2 is list" in wrong(written(tmp_path / "b.jsonl", '{"x": 1}\n[1]\n'))
    assert "row 1 has no value in column 'x'" in wrong(written(tmp_path / "c.jsonl", '{"x": 1}\n{"y": 1}\n'), "x")
    assert "row 1 has no value in column 'a'" in wrong(written(tmp_path / "d.csv", "a,b\n1,2\n,4\n"), "a")
    lists = written(tmp_path / "e.jsonl", '{"x": [1, 2]}\n{"x": []}\n{"x": [1, null]}\n')
    assert "row 1 has an empty list in column 'x'" in wrong(lists, "x")
    lists = written(tmp_path / "f.jsonl", '{"x": [1, 2]}\n{"x": [1, null]}\n')
    assert "row 1 has an empty value in the list of column 'x'" in wrong(lists, "x")


def test_a_column_that_is_not_there_is_named_with_the_nearest(tmp_path):
    path = written(tmp_path / "rows.csv", "pixels,kind\n1,a\n")
    assert "there is no column 'pixel'; did you mean 'pixels'?" in wrong(path, "pixel")
    assert "there is no column 'zzz'; it has pixels, kind" in wrong(path, "zzz")


def test_a_column_that_no_input_can_be_is_refused(tmp_path):
    path = written(tmp_path / "rows.csv", "when,x\n2026-01-01,1\n")
    assert "column 'when' is date32" in wrong(path, "when")
    assert read(path).value("x")(0) == 1


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt"])
def test_text_that_is_no_utf8_is_named_with_its_line(tmp_path, suffix, monkeypatch):
    lines = [b"text", *(json.dumps(f"line {number} ü", ensure_ascii=False).encode() for number in range(2, 40))]
    lines[30] = "Größe".encode("latin-1")
    path = written(tmp_path / f"rows{suffix}", b"\n".join(lines))
    assert "line 31 is no UTF-8 text" in wrong(path)
    monkeypatch.setattr(data_rows, "_PIECE", 50)
    (tmp_path / "again").mkdir()
    assert "line 31 is no UTF-8 text" in wrong(written(tmp_path / f"again/rows{suffix}", b"\n".join(lines)))


def test_an_image_that_is_none_is_named(tmp_path):
    bad = written(tmp_path / "cat.jpg", PNG)
    with pytest.raises(ScenarioError, match=r"cat\.jpg is no JPG image: it begins with"):
        read(tmp_path)
    bad.unlink()
    written(tmp_path / "dog.png", PNG[:-12])
    with pytest.raises(ScenarioError, match=r"dog\.png is cut off"):
        read(tmp_path)


def test_a_file_that_is_too_large_to_be_held_is_refused_with_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(data_rows, "MOST_BYTES", 10_000)
    text = written(tmp_path / "rows.txt", "x" * 20_000)
    assert "it holds 19.5 KiB, and each load process would hold all of it, 9.77 KiB at most" in wrong(text)
    # what takes little room on the disk
    pq.write_table(pa.table({"x": [7] * 100_000}), tmp_path / "rows.parquet")
    assert (tmp_path / "rows.parquet").stat().st_size < 10_000
    assert "KiB, and each load process" in wrong(tmp_path / "rows.parquet")


def test_a_file_that_was_changed_is_read_anew(tmp_path):
    path = written(tmp_path / "rows.txt", "one\n")
    assert read(path).count == 1
    assert read(path) is read(path)
    written(path, "one\ntwo\n")
    assert read(path).count == 2
