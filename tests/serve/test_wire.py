import gzip
import json
import zlib

import numpy as np
import pytest

from tailrate.serve import wire
from tailrate.serve.body.request import InferRequest, decode_infer, encode_infer, inflate
from tailrate.serve.body.result import decode_result, encode_result, result_flaw
from tailrate.serve.wire import EndpointInfo, TensorSpec, WireError

TENSORS = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([[1, 255]], np.uint8),
    "INT16": np.array([[-5, 7]], np.int16),
    "INT64": np.array([[-(2**62), 2**62]], np.int64),
    "UINT64": np.array([[2**64 - 1, 0]], np.uint64),
    "FP16": np.array([[0.5, -2.0]], np.float16),
    "FP32": np.array([[0.1, -3e38]], np.float32),
    "FP64": np.array([[0.1, 1e300]], np.float64),
    "BYTES": np.array([[b"a", "größer".encode()]], object),
}


def decode(body: wire.Body, headers: dict[str, str]) -> InferRequest:
    length = headers.get(wire.HEADER_LENGTH)
    return decode_infer(body, None if length is None else int(length))


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", TENSORS)
def test_request_round_trip(datatype: str, binary: bool) -> None:
    tensor = TENSORS[datatype]
    found = decode(*encode_infer({"x": tensor}, binary=binary, request_id="r1", outputs=["y"]))
    assert found.id == "r1"
    assert found.outputs == {"y": binary}
    assert found.rows == 1
    assert wire.datatype_of(found.inputs["x"]) == datatype
    np.testing.assert_array_equal(found.inputs["x"], tensor)


@pytest.mark.parametrize("binary", [True, False])
def test_result_round_trip(binary: bool) -> None:
    outputs = {"y": np.arange(6, dtype=np.float32).reshape(2, 3), "label": np.array([b"one", b"two"], object)}
    info = EndpointInfo("m", "v")
    body, headers = encode_result(info, outputs, binary=dict.fromkeys(outputs, binary), request_id="r1")
    length = headers.get(wire.HEADER_LENGTH)
    assert (length is not None) is binary
    found = decode_result(body, None if length is None else int(length))
    for name, tensor in outputs.items():
        np.testing.assert_array_equal(found[name], tensor)
    head = json.loads(body[: int(length)] if length else body)
    assert (head["id"], head["model_name"], head["model_version"]) == ("r1", "m", "v")


def of_bf16(size: int = 8, **more: object) -> tuple[bytes, str]:
    """An answer as Triton gives it, and how long its JSON is."""
    said = {"name": "y", "datatype": "BF16", "shape": [1, 4], "parameters": {"binary_data_size": size}}
    head = json.dumps({"model_name": "m", "outputs": [said, *([more] if more else [])]}).encode()
    return head + bytes(range(8)), str(len(head))


def test_an_answer_may_hold_numbers_that_numpy_does_not_have() -> None:
    body, length = of_bf16()
    assert result_flaw(body, "application/octet-stream", length) is None
    np.testing.assert_array_equal(decode_result(body, int(length))["y"], [[0x100, 0x302, 0x504, 0x706]])  # their bits
    body, length = of_bf16(name="z", datatype="BYTES", shape=[1], data=["a"])
    assert result_flaw(body, "application/octet-stream", length) is None
    body, length = of_bf16(6)
    assert "needs 8 bytes, not 6" in str(result_flaw(body, "application/octet-stream", length))
    with pytest.raises(WireError, match="datatype 'BF16'; known are"):
        decode_infer(body.replace(b'"outputs"', b'"inputs" '), int(length))


@pytest.mark.parametrize("length", [None, "14"])
def test_an_answer_without_outputs_is_none(length: str | None) -> None:
    assert result_flaw(b'{"outputs":[]}', "application/json", length) == "the answer has no outputs"


def test_decoded_tensors_are_views_into_the_body() -> None:
    body, headers = encode_infer({"x": np.zeros((1, 1000), np.float32), "y": np.ones((1, 2), np.int64)})
    whole = np.frombuffer(body, np.uint8)
    for tensor in decode(body, headers).inputs.values():
        assert np.shares_memory(tensor, whole)


def test_big_endian_tensors_are_sent_little_endian() -> None:
    tensor = np.array([[1.5, 2.5]], ">f4")
    np.testing.assert_array_equal(decode(*encode_infer({"x": tensor})).inputs["x"], tensor)


def request(**change: object) -> bytes:
    head = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]} | change
    return json.dumps({"inputs": [{key: value for key, value in head.items() if value is not None}]}).encode()


MALFORMED = {
    "not JSON": b"{",
    "not UTF-8": b'{"inputs": "\xff"}',
    "not an object": b"[]",
    "NaN": b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}]}',
    "deeply nested": b"[" * 100_000,
    "no inputs": b"{}",
    "empty inputs": b'{"inputs":[]}',
    "inputs not a list": b'{"inputs":{}}',
    "input not an object": b'{"inputs":[1]}',
    "no name": request(name=None),
    "name not text": request(name=3),
    "no shape": request(shape=None),
    "negative shape": request(shape=[-1, 2]),
    "fractional shape": request(shape=[1.0, 2]),
    "huge shape": request(shape=[2**62, 2**62]),
    "unknown datatype": request(datatype="FP31"),
    "datatype not text": request(datatype=[]),
    "no data": request(data=None),
    "data not a list": request(data=3),
    "too few values": request(data=[1]),
    "too many values": request(data=[1, 2, 3]),
    "ragged": request(data=[[1, 2], [3]]),
    "text for numbers": request(data=["1", "2"]),
    "fraction for integers": request(datatype="INT64", data=[1.5, 2]),
    "out of range": request(datatype="UINT8", data=[1, 256]),
    "negative for unsigned": request(datatype="UINT8", data=[1, -1]),
    "number for text": request(datatype="BYTES", data=[1, 2]),
    "no rows": request(shape=[0, 2], data=[]),
    "a scalar": request(shape=[], data=[1]),
    "parameters not an object": request(parameters=3),
    "binary size without bytes": request(data=None, parameters={"binary_data_size": 8}),
    "binary size not a number": request(data=None, parameters={"binary_data_size": "8"}),
    "shared memory": request(data=None, parameters={"shared_memory_region": "a"}),
    "outputs not a list": b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}],"outputs":3}',
    "classification": b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}],'
    b'"outputs":[{"name":"y","parameters":{"classification":3}}]}',
    "twice the same": b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]},'
    b'{"name":"x","shape":[1],"datatype":"INT8","data":[1]}]}',
    "different rows": b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]},'
    b'{"name":"y","shape":[2],"datatype":"INT8","data":[1,2]}]}',
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_is_a_400_in_one_sentence(name: str) -> None:
    with pytest.raises(WireError) as problem:
        decode_infer(MALFORMED[name], None)
    assert problem.value.status == 400
    assert problem.value.sentence
    assert "\n" not in problem.value.sentence


@pytest.mark.parametrize("length", [-1, 10**9])
def test_header_length_outside_the_body(length: int) -> None:
    with pytest.raises(WireError, match="JSON header is said to be"):
        decode_infer(request(), length)


def test_bytes_left_over_and_bytes_missing() -> None:
    body, headers = encode_infer({"x": np.ones((1, 2), np.float32)})
    with pytest.raises(WireError, match="belong to no tensor"):
        decode(body + b"more", headers)
    with pytest.raises(WireError, match="are left in the body"):
        decode(body[:-1], headers)


def test_bytes_tensor_that_ends_inside_an_element() -> None:
    head = {"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 6}}
    text = json.dumps({"inputs": [head]}).encode()
    with pytest.raises(WireError, match="ends inside"):
        decode_infer(text + b"\x09\0\0\0ab", len(text))
    with pytest.raises(WireError, match="ends inside"):
        decode_infer(text + b"\x00\0\0\0ab", len(text))  # the second length itself is cut


def test_check_names_what_is_wrong() -> None:
    specs = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("y", "INT64", (-1,)))
    good = {"x": np.zeros((3, 2), np.float32), "y": np.zeros(3, np.int64)}
    wire.check(good, specs)
    for change, sentence in (
        ({"x": np.zeros((3, 2), np.float64)}, "input 'x' is FP64, but the model takes FP32"),
        ({"x": np.zeros((3, 4), np.float32)}, r"input 'x' has shape \[3, 4\], but the model takes \[-1, 2\]"),
        ({"z": np.zeros(3)}, "unknown input 'z'; the model takes x, y"),
    ):
        with pytest.raises(WireError, match=sentence):
            wire.check(good | change, specs)
    with pytest.raises(WireError, match="missing input y"):
        wire.check({"x": good["x"]}, specs)


def test_inflate() -> None:
    plain = b"x" * 10_000
    assert inflate(gzip.compress(plain), "gzip", 10_000) == plain
    assert inflate(zlib.compress(plain), "deflate", 10_000) == plain
    assert inflate(gzip.compress(b""), "gzip", 10_000) == b""
    for body, encoding, status in (
        (gzip.compress(plain + b"x"), "gzip", 413),
        (gzip.compress(plain)[:-9], "gzip", 400),
        (gzip.compress(plain) + b"more", "gzip", 400),
        (b"not compressed", "gzip", 400),
        (b"", "gzip", 400),
        (plain, "br", 415),
    ):
        with pytest.raises(WireError) as problem:
            inflate(body, encoding, 10_000)
        assert problem.value.status == status


def test_a_nan_cannot_go_as_json_but_as_bytes() -> None:
    outputs = {"y": np.array([[np.nan]], np.float32)}
    with pytest.raises(WireError, match="ask for binary data"):
        encode_result(EndpointInfo("m", "v"), outputs, binary={"y": False})
    body, headers = encode_result(EndpointInfo("m", "v"), outputs, binary={"y": True})
    assert np.isnan(decode_result(body, int(headers[wire.HEADER_LENGTH]))["y"]).all()


def test_timing_and_clock_headers() -> None:
    text = wire.format_timing([1.0, 2.0, 3.0, 4.0, 5.0])
    assert wire.parse_timing(text) == {"queue": 1, "batch": 2, "h2d": 3, "compute": 4, "d2h": 5, "total": 15}
    assert wire.parse_timing('miss, db;dur=53.2;desc="x", app;desc=a, bad;dur=x') == {"db": 53.2}
    assert wire.parse_clock("12,34") == (12, 34)
    assert wire.parse_clock("noon") is None


def test_paths_quote_what_is_not_a_name() -> None:
    assert wire.infer_path("bert", "eager") == "/v2/models/bert/versions/eager/infer"
    assert wire.model_path("a/b") == "/v2/models/a%2Fb"


def test_each_tensor_is_made_of_its_own_bytes() -> None:
    inputs = {"x": np.arange(6, dtype=np.int64).reshape(2, 3), "y": np.array([[1.5], [2.5]], np.float32)}
    found = decode(*encode_infer(inputs)).inputs
    for name, tensor in inputs.items():
        np.testing.assert_array_equal(found[name], tensor)


def test_the_decoding_is_a_stage_and_in_the_total() -> None:
    found = wire.parse_timing(wire.format_timing([1.0, 2.0, 3.0, 4.0, 5.0], 10.0))
    assert (found["decode"], found["d2h"], found["total"]) == (10, 5, 25)
