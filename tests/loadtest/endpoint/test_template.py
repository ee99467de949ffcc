"""Bodies over a scenario's inputs: JSON against a plain reading of it, forms against the standard library's parser."""

import base64
import json
from email.parser import BytesParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrate.loadtest.engine.endpoint.protocols import _template as template
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

IMAGE = bytes(range(256))
INPUTS = {
    "x": np.array([[1.5, 2.0], [3.0, 4.0]], np.float32),
    "text": np.array([["some words"], ["größer"]], dtype=object),
    "image": np.array([[IMAGE]], dtype=object),
}


def filled(text):
    return json.loads(template.as_json(text, INPUTS))


def test_numbers_stay_numbers_and_texts_texts():
    assert filled('{"a": "$x", "b": ["$x.1", "$x.1.0"], "c": "$text.0.0", "d": "$text", "e": 3, "f": null}') == {
        "a": [[1.5, 2.0], [3.0, 4.0]], "b": [[3.0, 4.0], 3.0], "c": "some words",
        "d": [["some words"], ["größer"]], "e": 3, "f": None,
    }  # fmt: skip


def test_a_placeholder_within_a_text_is_a_part_of_it():
    assert filled('"say: ${text.0.0}, ${x.0.0} for $$5 or $10"') == "say: some words, 1.5 for $5 or $10"


def test_bytes_go_as_base64():
    assert base64.b64decode(filled('{"b64": "$image.0.0:base64"}')["b64"]) == IMAGE
    assert np.array_equal(np.frombuffer(base64.b64decode(filled('"$x:base64"')), "<f4"), INPUTS["x"].reshape(-1))
    assert base64.b64decode(filled('"$image:base64"')) == IMAGE


def test_without_a_template_all_inputs_go_by_their_names():
    given = {name: INPUTS[name] for name in ("x", "text")}
    assert json.loads(template.as_json("", given)) == {name: tensor.tolist() for name, tensor in given.items()}


def test_bytes_alone():
    assert template.as_bytes("$image.0.0", INPUTS) == template.as_bytes("", {"image": INPUTS["image"]}) == IMAGE
    assert template.as_bytes("$x", INPUTS) == INPUTS["x"].tobytes()


def test_a_form_has_a_part_for_each_key():
    body, kind = template.as_multipart('{"image": "$image.0.0", "name": "cat ${x.0.0}", "top": 5}', INPUTS)
    whole = BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    parts = {part.get_param("name", header="content-disposition"): part for part in whole.get_payload()}
    assert {name: part.get_payload(decode=True) for name, part in parts.items()} == {
        "image": IMAGE, "name": b"cat 1.5", "top": b"5",
    }  # fmt: skip
    assert parts["image"].get_filename() == "image"
    assert parts["name"].get_filename() is None


@pytest.mark.parametrize(
    ("make", "text", "sentence"),
    [
        (template.as_json, "{no", "is not JSON"),
        (template.as_json, '"$y"', "names \\$y, but the scenario's inputs are x, text, image"),
        (template.as_json, '"$x.7"', r"names \$x.7, but 'x' is \[2, 2\]"),
        (template.as_json, '"$image.0.0"', "bytes that are no text; write .*:base64"),
        (template.as_bytes, "a $x", "not one placeholder"),
        (template.as_multipart, "[1]", "no JSON object"),
    ],
)
def test_what_makes_no_body_is_said(make, text, sentence):
    with pytest.raises(ScenarioError, match=sentence):
        make(text, INPUTS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_characters="$")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(JSON)
def test_what_holds_no_placeholder_stays_as_it_is(value):
    assert json.loads(template.as_json(json.dumps(value), {})) == value
