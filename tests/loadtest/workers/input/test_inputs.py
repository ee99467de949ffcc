"""What a row becomes: columns as the inputs of their names or as they are told, and what scenarios make of rows."""

import numpy as np
import pytest

from tailrate.loadtest.engine.scenario.scenario import DataPlan, ScenarioError
from tailrate.loadtest.engine.workers.input.inputs import MOST_LABELS, open_data


def opened(path, text, columns=(), label="", declared=(), from_row=None):
    path.write_text(text)
    return open_data(DataPlan(path, columns=tuple(columns), label=label), dict(declared), from_row)


def inputs(data, *rows):
    return {name: (value.dtype, value.tolist()) for name, value in data.inputs(rows).items()}


F4, I8, U1, O = (np.dtype(kind) for kind in ("f4", "i8", "u1", "O"))  # noqa: E741


def test_each_column_but_the_label_is_the_input_of_its_name(tmp_path):
    data = opened(tmp_path / "a.csv", "x,n,words,kind\n0.5,3,hello,a\n1.5,4,hi,\n", label="kind")
    assert inputs(data, 0) == {"x": (F4, [[0.5]]), "n": (I8, [[3]]), "words": (O, [["hello"]])}
    assert list(data.labels) == ["a", None]


def test_numbered_columns_and_lists_are_tensors(tmp_path):
    data = opened(tmp_path / "a.csv", "x0,x2,x1,y1,y2\n1,3,2,8,9\n4,6,5,8,9\n")
    assert inputs(data, 1) == {"x": (I8, [[4, 5, 6]]), "y1": (I8, [[8]]), "y2": (I8, [[9]])}
    data = opened(tmp_path / "a.jsonl", '{"x": [1.5, 2], "g": [[1, 2], [3, 4]]}\n')
    assert inputs(data, 0) == {"x": (F4, [[1.5, 2.0]]), "g": (I8, [[[1, 2], [3, 4]]])}


def test_columns_are_mapped_to_inputs_and_types(tmp_path):
    text = "pixels,p1,p2,p3,id\n7,1,2,3,0012\n"
    data = opened(tmp_path / "a.csv", text, [("x", "pixels:uint8"), ("y", "p1..p3:float32"), ("name", "id:text")])
    assert inputs(data, 0) == {"x": (U1, [[7]]), "y": (F4, [[1.0, 2.0, 3.0]]), "name": (O, [["0012"]])}


def test_a_scenario_that_says_its_inputs_takes_these_alone(tmp_path):
    text = "x0,x1,id,when\n1,2,77,2026-01-01\n"
    assert inputs(opened(tmp_path / "a.csv", text, declared={"x": "float32"}), 0) == {"x": (F4, [[1.0, 2.0]])}
    with pytest.raises(ScenarioError, match="there is no column 'ids'; did you mean 'id'"):
        opened(tmp_path / "b.csv", text, declared={"ids": "int64"})


def test_rows_of_one_request_lie_behind_each_other(tmp_path):
    data = opened(tmp_path / "a.jsonl", '{"x": [1, 2]}\n{"x": [3, 4]}\n{"x": [5]}\n')
    assert inputs(data, 1, 0) == {"x": (I8, [[3, 4], [1, 2]])}
    with pytest.raises(ScenarioError, match=r"rows 1 to 2 differ in shape .* say --rows 1"):
        data.inputs((1, 2))


def test_a_scenario_makes_of_a_row_what_it_wants(tmp_path):
    text = '{"a": [1, 2], "b": "x"}\n{"a": [3, 4]}\n'
    data = opened(tmp_path / "a.jsonl", text, from_row=lambda row: {"sum": np.array([[row["a"].sum()]])})
    assert inputs(data, 1) == {"sum": (I8, [[7]])}  # that b is empty is nobody's business
    needs = opened(tmp_path / "b.jsonl", text, from_row=lambda row: {"b": np.array([[row["b"]]], dtype=object)})
    with pytest.raises(ScenarioError, match="row 1 has no value in column 'b'"):
        needs.inputs((1,))
    lacks = opened(tmp_path / "c.jsonl", '{"texts": "x"}\n', from_row=lambda row: {"t": row["text"]})
    with pytest.raises(ScenarioError, match="there is no column 'text'; did you mean 'texts'"):
        lacks.inputs((0,))
    fails = opened(tmp_path / "d.jsonl", '{"a": 1}\n', from_row=lambda row: {"a": row["a"] / "x"})
    with pytest.raises(ScenarioError, match="row 0 cannot be made into inputs: "):
        fails.inputs((0,))


def test_what_cannot_be_meant_is_said(tmp_path):
    with pytest.raises(ScenarioError, match="'float' is none of text, bool, "):
        opened(tmp_path / "a.csv", "x\n1\n", [("x", "x:float")])
    with pytest.raises(ScenarioError, match="input 'x' is to be float32, and its column holds texts: 'one'"):
        opened(tmp_path / "b.csv", "x\none\n", [("x", "x:float32")]).inputs((0,))
    many = "x,id\n" + "".join(f"1,{number}\n" for number in range(MOST_LABELS + 1))
    with pytest.raises(ScenarioError, match="column 'id' has 51 different values, and 50 slices at most"):
        opened(tmp_path / "c.csv", many, label="id")
    with pytest.raises(ScenarioError, match="there is no column 'kin'; did you mean 'kind'"):
        opened(tmp_path / "d.csv", "x,kind\n1,a\n", label="kin")
