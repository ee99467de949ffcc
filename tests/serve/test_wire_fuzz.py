"""What no client means to send, by the thousand: a `WireError` of one sentence or a valid result, and nothing else.

The same examples each time; `tests/bench/fuzz.py` goes on from here, against a live server.
"""

import gzip
import json
import math
import re
import tempfile
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any, TypeVar

import hypothesis
import misshapen
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tailrate.serve import models, wire
from tailrate.serve.asgi import Request
from tailrate.serve.body.request import InferRequest, decode_infer, encode_infer, inflate
from tailrate.serve.body.result import decode_result, encode_result
from tailrate.serve.edge import endpoint
from tailrate.serve.spec import ModelSpec
from tailrate.serve.wire import Array, EndpointInfo, WireError

pytestmark = pytest.mark.computes

T = TypeVar("T")

hypothesis.configuration.set_hypothesis_home_dir(tempfile.gettempdir())
often = settings(max_examples=400, derandomize=True, database=None)
seldom = settings(often, max_examples=100)

LENGTHS = st.one_of(st.none(), st.integers(0, 200), st.integers(0, 10**18))
NUMBERS = st.one_of(
    st.integers(-3, 300), st.integers(), st.floats(), st.sampled_from([1e308, 2**31, 2**53, 2**63, 2**64, 10**4000])
)
LETTERS = st.one_of(st.characters(codec="utf-8"), st.sampled_from("\0\n\ud800\udfff"))
NAMES = st.one_of(st.sampled_from(["x", "y", "text", "image", "input_ids", ""]), st.text(LETTERS, max_size=300))
DATATYPES = ["BOOL", "UINT8", "INT8", "INT64", "UINT64", "FP16", "FP32", "FP64", "BYTES"]


DEEP = st.integers(1, 2000).map("<{}>".format)
"""A 1 in as many lists; written out by `dumped`, as neither json nor Hypothesis could."""
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, NAMES, DEEP),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)
SHAPES = st.one_of(
    st.lists(st.integers(-1, 4), max_size=4),
    st.lists(st.sampled_from([0, 1, 2**31, 2**62, 2**64, 10**4000]), max_size=70),
    st.integers(1, 70).map(lambda dimensions: [1] * dimensions),
)


@st.composite
def inputs(draw: st.DrawFn, after: bytearray) -> dict[str, Any]:
    """A tensor that is right, its bytes put after the head where it is binary, but for what is then changed."""
    datatype = draw(st.sampled_from(DATATYPES))
    shape = draw(st.one_of(st.just([1]), st.just([1, 2]), st.lists(st.integers(1, 3), min_size=1, max_size=3), SHAPES))
    count = math.prod(shape)
    count = count if 0 <= count < 100 else 1
    kinds = {"BOOL": st.booleans(), "BYTES": st.text(LETTERS, max_size=3)}
    numbers = NUMBERS if datatype.startswith("FP") else st.integers(0, 127)
    made = {"name": f"x{len(after)}", "datatype": datatype, "shape": shape}
    if draw(st.booleans()):
        values = draw(st.lists(kinds.get(datatype, numbers), min_size=count, max_size=count))
        made["data"] = draw(st.sampled_from([values, values, values, [values], ["<70>"], ["<900>"], ["<980>"]]))
    else:
        size = draw(st.integers(4, 9)) * count if datatype == "BYTES" else wire.DTYPES[datatype].itemsize * count
        made["parameters"] = {"binary_data_size": size}
        after += draw(st.binary(min_size=size, max_size=size))
    some = ["name", "datatype", "shape", "data", "parameters", "size"]
    for key in draw(st.one_of(st.just([]), st.lists(st.sampled_from(some), max_size=2))):
        if key == "size":
            made["parameters"] = {"binary_data_size": draw(JUNK)}
        else:
            made[key] = draw(SHAPES if key == "shape" and draw(st.booleans()) else JUNK)
    return made


@st.composite
def heads(draw: st.DrawFn) -> tuple[Any, bytes]:
    after = bytearray()
    head = {"inputs": [draw(inputs(after)) for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]}
    more = {
        "id": st.one_of(NAMES, JUNK),
        "outputs": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from("yz")}, optional={"parameters": st.dictionaries(NAMES, JUNK)}
            ),
            max_size=3,
        ),
        "parameters": st.one_of(st.just({"binary_data_output": True}), JUNK),
    }
    for key in draw(st.one_of(st.just([]), st.lists(st.sampled_from(sorted(more)), max_size=2))):
        head[key] = draw(st.one_of(more[key], more[key], JUNK))
    return head, bytes(after)


def dumped(value: Any) -> bytes:
    """As clients may write it: NaN and lone surrogates, too."""
    text = json.dumps(value, ensure_ascii=True)
    return re.sub(r'"<(\d+)>"', lambda found: "[" * int(found[1]) + "1" + "]" * int(found[1]), text).encode()


def what(call: Callable[..., T], *given: Any) -> T | None:
    """What it gives, or None where it refuses as it should."""
    try:
        return call(*given)
    except WireError as problem:
        refused = problem
    assert refused.status in (400, 413, 415)
    assert 0 < len(refused.sentence) < 5000
    assert "\n" not in refused.sentence
    return None


def decoded(body: bytes, length: int | None) -> InferRequest | None:
    found = what(decode_infer, body, length)
    if found is None:
        return None
    assert found.rows >= 1
    assert all(tensor.shape[0] == found.rows for tensor in found.inputs.values())
    assert len(found.id) <= wire.MOST_CHARACTERS
    return found


@often
@given(st.binary(max_size=200), LENGTHS)
def test_bytes(body: bytes, length: int | None) -> None:
    decoded(body, length)


@often
@given(JUNK)
def test_any_json(value: Any) -> None:
    decoded(dumped(value), None)


@often
@given(heads(), st.integers(-2, 2), st.booleans())
def test_heads_that_are_nearly_right(made: tuple[Any, bytes], wrong: int, exact: bool) -> None:
    head, after = made
    text = dumped(head)
    decoded(text + after, max(0, len(text) + (0 if exact else wrong)))


@often
@given(
    st.sampled_from(DATATYPES),
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_what_was_encoded_is_decoded_whatever_it_holds(datatype: str, shape: Any, drawn: Any, binary: bool) -> None:
    count = int(np.prod(shape))
    if datatype == "BYTES":
        tensor: Array = np.empty(count, object)
        tensor[:] = [drawn.choice(["", "a", "größer", "\0"]).encode() for _ in range(count)]
    elif datatype.startswith("FP"):
        tensor = np.array([drawn.uniform(-9, 9) for _ in range(count)]).astype(wire.DTYPES[datatype])
    else:
        tensor = np.array([drawn.randrange(2) for _ in range(count)]).astype(wire.DTYPES[datatype])
    tensor = tensor.reshape(shape)
    body, headers = encode_infer({"x": tensor}, binary=binary)
    length = headers.get(wire.HEADER_LENGTH)
    found = decoded(body, None if length is None else int(length))
    if shape[0] == 0:
        assert found is None
    else:
        assert found is not None
        np.testing.assert_array_equal(found.inputs["x"], tensor)


# ---- what models make of tensors that came through

TEXTS = st.one_of(st.binary(max_size=40), st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))


@st.composite
def tensors(draw: st.DrawFn, spec: ModelSpec) -> dict[str, Array]:
    """Of the model's names, mostly, with few of them just right."""
    found: dict[str, Array] = {}
    rows = draw(st.integers(1, 3))
    for wanted in spec.inputs:
        name = draw(st.sampled_from([wanted.name, wanted.name, wanted.name, "text", "z"]))
        good = [rows, *(length if length >= 0 else draw(st.integers(0, 40)) for length in wanted.shape[1:])]
        shape = draw(st.sampled_from([good, good, good, good[:1], [*good, 1], [rows, 1]]))
        kind = draw(st.sampled_from([wanted.datatype] * 3 + ["BYTES", "FP64", "UINT8"]))
        count = int(np.prod(shape))
        if kind == "BYTES":
            some = draw(st.lists(TEXTS, min_size=1, max_size=3))
            tensor: Array = np.empty(count, object)
            tensor[:] = [some[place % len(some)] for place in range(count)]
        else:
            some = np.frombuffer(draw(st.binary(min_size=64, max_size=64)), wire.DTYPES[kind])
            tensor = np.resize(some if draw(st.booleans()) else np.arange(9).astype(some.dtype), count)
        found[name] = tensor.reshape(shape)
    return found


SMALL = {
    "null": {},
    "mlp": {},
    "bert": {"sequence": "16"},
    "custom_cnn": {"input": "uint8"},
    "resnet50": {},
    "stable_diffusion": {},
}


@pytest.mark.parametrize("name", SMALL)
def test_models_refuse_or_prepare(name: str) -> None:
    spec = models.load(name, SMALL[name])

    @seldom
    @given(tensors(spec))
    def check(given: dict[str, Array]) -> None:
        prepared(spec, given)

    check()


def prepared(spec: ModelSpec, given: dict[str, Array]) -> None:
    found = what(spec.prepare, given)
    if found is None:
        return
    example = spec.example(1, 0)
    rows = next(iter(given.values())).shape[0]
    assert list(found) == list(example)
    for key, tensor in found.items():
        assert tensor.dtype == example[key].dtype
        assert tensor.shape[0] == rows
        assert len(tensor.shape) == len(example[key].shape)


def files() -> list[bytes]:
    drawn, found = np.random.default_rng(1), []
    for more in (
        {},
        {"progressive": True},
        {"quality": 5, "subsampling": 0, "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0"},
    ):
        written = BytesIO()
        picture = Image.fromarray(drawn.integers(0, 256, (23, 57, 3), dtype=np.uint8))
        picture.save(written, "JPEG", **more)  # type: ignore[arg-type]
        found.append(written.getvalue())
    return found


FILES = files()


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    raw = bytearray(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        how = draw(st.sampled_from(["flip", "cut", "insert", "drop", "head"]))
        if how == "flip" and raw:
            raw[at] = draw(st.integers(0, 255))
        elif how == "head" and raw:
            raw[at % 700 % len(raw)] = draw(st.integers(0, 255))
        elif how == "cut":
            del raw[at:]
        elif how == "insert":
            raw[at:at] = draw(st.one_of(st.binary(max_size=9), st.just(b"\xff\xda"), st.just(b"\xff" * 50)))
        else:
            del raw[at : at + draw(st.integers(1, 99))]
    return bytes(raw)


@pytest.mark.filterwarnings("ignore:.*EXIF")
def test_broken_files() -> None:
    spec = models.load("custom_cnn", {"input": "jpeg"})

    @often
    @given(broken())
    def check(raw: bytes) -> None:
        column = np.empty((1, 1), object)
        column[0, 0] = raw
        prepared(spec, {"image": column})

    check()


# ---- the rest of what comes from outside


@often
@given(st.binary(max_size=60), st.sampled_from(["gzip", "deflate", "br"]), st.integers(0, 90), st.booleans())
def test_compressed_bodies(plain: bytes, encoding: str, at: int, spoilt: bool) -> None:
    body = gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain)
    if spoilt:
        body = body[:at] + b"\x55" + body[at + 1 :]
    found = what(inflate, body, encoding, 50)
    assert spoilt or found == (plain if len(plain) <= 50 and encoding != "br" else None)


@often
@given(
    st.one_of(
        st.lists(st.integers(32, 255), max_size=30).map(bytes),
        st.text("0123456789.-+einfa_ ", max_size=400).map(str.encode),
    )
)
def test_headers_that_hold_numbers(value: bytes) -> None:
    headers = {endpoint.HEADER_LENGTH: value, endpoint.TIMEOUT_HEADERS[1]: value}
    request = Request("POST", "/", "", headers, b"", 0, 0)
    for read in (endpoint._header_length, endpoint.deadline_ns):
        found = what(read, request)
        assert found is None or 0 <= found < 10**18
    wire.parse_clock(value.decode("latin-1"))
    wire.parse_timing(value.decode("latin-1"))


@often
@given(st.lists(st.floats(width=32), min_size=1, max_size=4), st.lists(TEXTS, min_size=1, max_size=3), st.booleans())
def test_results_are_whole_or_refused(numbers: list[float], texts: list[bytes], binary: bool) -> None:
    column = np.empty(len(texts), object)
    column[:] = texts
    outputs = {"y": np.array(numbers, np.float32), "t": column}
    encoded = what(lambda: encode_result(EndpointInfo("m", "v"), outputs, binary=dict.fromkeys(outputs, binary)))
    if encoded is None:
        assert not binary
        return
    body, headers = encoded
    length = headers.get(wire.HEADER_LENGTH)
    found = decode_result(body, None if length is None else int(length))
    np.testing.assert_array_equal(found["y"], outputs["y"])
    assert found["t"].tolist() == texts


def test_a_bad_request_follows_from_seed_and_number_whatever_was_made_before() -> None:
    before = repr((misshapen.NUMBERS, misshapen.DATATYPES))
    made = [misshapen.bad(1, number) for number in range(2000)]
    assert repr((misshapen.NUMBERS, misshapen.DATATYPES)) == before
    assert [misshapen.bad(1, number) for number in (1952, 1999)] == [made[1952], made[1999]]
