"""Clients that are slow, greedy, broken or gone: what they get, and that nobody else notices."""

import asyncio
import gc
import gzip
import json
import select
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import uvicorn
from misshapen import column, http
from PIL import Image
from rawhttp import X, connected, crowd, status_of
from test_bad_input import Client, endpoint
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from waiting import PATIENCE_S, until

from tailrate.serve import asgi, models, wire
from tailrate.serve.asgi import HttpAnswer, Message, Request, as_app, as_json
from tailrate.serve.body.request import MOST_JSON_BYTES, decode_infer, encode_infer
from tailrate.serve.body.result import MOST_JSON_VALUES, encode_result
from tailrate.serve.deploy import app
from tailrate.serve.edge import fault_api
from tailrate.serve.engine import profiling
from tailrate.serve.engine.job import Job, Split
from tailrate.serve.models import _jpeg
from tailrate.serve.options import ServeOptions
from tailrate.serve.spec import ModelSpec
from tailrate.serve.telemetry import sampler
from tailrate.serve.wire import WireError

pytestmark = pytest.mark.live

NULL = ServeOptions(("null",), ("eager",))
LATE = {"x-request-timeout-seconds": "0.01"}


# ---- what a body may hold


def one(**change: Any) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [1]} | change]}).encode()


def binary(datatype: str, shape: list[int], tail: bytes) -> tuple[bytes, int]:
    text = one(datatype=datatype, shape=shape, data=None, parameters={"binary_data_size": len(tail)})
    return text + tail, len(text)


def deep(name: str, depth: int) -> bytes:
    return one(**{name: "here"}).replace(b'"here"', b"[" * depth + b"1" + b"]" * depth)


TOO_MUCH: dict[str, tuple[bytes, int | None, int, str]] = {
    "half a character": (one(datatype="BYTES", data=["\ud800"]), None, 400, "does not hold BYTES values"),
    "65 dimensions": (*binary("INT8", [1] * 65, b"a"), 400, "no valid shape"),
    "nothing of a huge shape": (*binary("INT8", [1, 0, 2**62, 2**62], b""), 400, "no valid shape"),
    "dimensions of 300 digits": (one(shape=[10**300] * 5000), None, 400, "no valid shape"),
    "more than infinity": (one(datatype="FP64", data=[2]).replace(b"[2]", b"[1e400]"), None, 400, "does not hold FP64"),
    "more than fp32 holds": (one(datatype="FP32", data=[1e39]), None, 400, "does not hold FP32"),
    # numpy would make room for a thousand times the longest of them
    "texts for numbers": (one(datatype="FP32", shape=[1000], data=["a" * 10**6] + [""] * 999), None, 400, "values are"),
    "many strings": (*binary("BYTES", [70_000], bytes(280_000)), 413, "70000 strings"),
    "more strings than said": (*binary("BYTES", [1], bytes(4_000_000)), 400, "does not have as many elements"),
    "a long name": (one(name="n" * 10**6), None, 400, "no name of 1 to 256"),
    "a name that is no text": (one(name="a\nb"), None, 400, "no name of 1 to 256"),
    "a deep datatype": (deep("datatype", 900), None, 400, "has no datatype"),
    "a deep size": (
        deep("parameters", 3).replace(b"[[[1]]]", b'{"binary_data_size":[[1]]}'),
        None,
        400,
        "no number of",
    ),
    "deep data": (deep("data", 900).replace(b"INT8", b"BYTES"), None, 400, "values are not"),
    "an id that is no text": (b'{"id":[1],' + one()[1:], None, 400, "'id' must be"),
    "a long id": (b'{"id":"%s",' % (b"i" * 300) + one()[1:], None, 400, "'id' must be"),
    "a key twice": (b'{"inputs":[],' + one()[1:], None, 400, "key twice"),
    "an output twice": (b'{"outputs":[{"name":"y"},{"name":"y"}],' + one()[1:], None, 400, "asked for twice"),
    "many inputs": (json.dumps({"inputs": [{"name": "x"}] * 300}).encode(), None, 400, "at most 256"),
    "an integer of 5000 digits": (
        one(data=[2]).replace(b"[2]", b"[" + b"9" * 5000 + b"]"),
        None,
        400,
        "not valid JSON",
    ),
    "a lot of JSON": (one() + b" " * MOST_JSON_BYTES, None, 413, "send tensors as bytes"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_bodies_that_would_break_or_block_are_refused(name: str) -> None:
    body, length, status, sentence = TOO_MUCH[name]
    with pytest.raises(WireError) as problem:
        decode_infer(body, length)
    assert problem.value.status == status
    assert sentence in problem.value.sentence
    assert len(problem.value.sentence) < 1000


def test_nested_data_is_taken_and_ragged_data_not() -> None:
    body = one(shape=[2, 2, 1], data=[[[1], [2]], [[3], [4]]])
    assert decode_infer(body, None).inputs["x"].tolist() == [[[1], [2]], [[3], [4]]]
    for values in ([[1, 2, 3], [4]], [[1], 2], [[], [1, 2]], ["ab"], [[None]], [[True]]):
        with pytest.raises(WireError):
            decode_infer(one(shape=[2, 2], data=values), None)


def test_answers_that_are_too_large_for_json() -> None:
    outputs = {"y": np.zeros((1, MOST_JSON_VALUES + 1), np.uint8)}
    with pytest.raises(WireError, match="too many for JSON; ask for binary data"):
        encode_result(wire.EndpointInfo("m", "v"), outputs, binary={"y": False})
    encode_result(wire.EndpointInfo("m", "v"), outputs, binary={"y": True})
    with pytest.raises(WireError, match="bytes that are no text"):
        encode_result(wire.EndpointInfo("m", "v"), {"t": column([b"\xff"])}, binary={"t": False})


@pytest.mark.parametrize("read", [fault_api._asked, profiling._asked])
def test_orders_that_are_too_deep(read: Callable[[bytes], object]) -> None:
    with pytest.raises(WireError, match="the body must be"):
        read(b"[" * 100_000)


def test_a_cursor_of_5000_digits() -> None:
    with pytest.raises(WireError, match="is malformed"):
        sampler._cursor("epoch:" + "9" * 5000)


# ---- files and texts


def a_jpeg(width: int, height: int, **more: Any) -> bytes:
    written = BytesIO()
    Image.new("L", (width, height), 90).save(written, "JPEG", **more)
    return written.getvalue()


def test_the_whole_of_a_long_strip_is_never_made() -> None:
    """One pixel high and 65500 wide, enlarged to 256 in height, would have been four billion pixels."""
    for size in ((65_500, 1), (1, 65_500)):
        raw = a_jpeg(*size)
        _jpeg.check([raw])
        assert _jpeg.decoded(raw, 0, 224).shape == (3, 224, 224)


def test_scans_of_pixels_are_counted_over_all_files() -> None:
    """A scan of 75 bytes has the decoder go over 49 million pixels."""
    file = a_jpeg(7000, 7000, progressive=True)
    scan = file[file.rindex(_jpeg.SCAN) : -2]
    _jpeg.check([file] * 5)
    with pytest.raises(WireError, match="too much to decode") as problem:
        _jpeg.check([file[:-2] + 100 * scan + file[-2:]])
    assert problem.value.status == 413
    with pytest.raises(WireError, match="row 13, with 6 scans of its pixels"):
        _jpeg.check([file] * 50)


def test_a_header_that_never_comes_to_the_point_is_left() -> None:
    for filling in (b"\xff", b"\xff\xe0\0\2"):
        assert _jpeg.size(b"\xff\xd8" + filling * 10**6 + a_jpeg(9, 9)[2:]) is None


@pytest.mark.parametrize("marker", [b"\xff\x00", b"\xff\x01", b"\xff\xd0", b"\xff\xd8", b"\xff\xd9"])
def test_a_frame_behind_a_marker_without_a_length_is_not_hidden_by_another(marker: bytes) -> None:
    """Who reads a length there passes over the frame that the decoder finds: 49 million pixels that claim to be 81."""
    raw = bytearray(b"\xff\xd8" + marker)
    for length in (60_000, 20_000):
        raw += b"\xff\xfe" + length.to_bytes(2, "big") + bytes(length - 2)
    at = 4 + 0xFFFE
    raw[at : at + 9] = b"\xff\xc0\x00\x0b\x08\x00\x09\x00\x09"
    with pytest.raises(WireError, match="row 0, is not a JPEG file"):
        _jpeg.check([bytes(raw) + a_jpeg(7000, 7000)[2:]])


def test_a_second_frame_is_none_and_two_readers_must_see_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = a_jpeg(64, 48)
    frame = raw.index(b"\xff\xc0")
    end = frame + 2 + int.from_bytes(raw[frame + 2 : frame + 4], "big")
    assert _jpeg.size(raw) == (48, 64)
    assert _jpeg.size(raw[:end] + raw[frame:]) is None
    monkeypatch.setattr(_jpeg, "size", lambda raw: (9, 9))
    _jpeg.check([raw])
    with pytest.raises(WireError, match="its header says two sizes"):
        _jpeg.decoded(raw, 0, 224)


@pytest.mark.parametrize(
    "more", [{"progressive": True}, {"quality": 100, "optimize": True}, {"exif": b"Exif" + b"\xff\xda" * 99}]
)
def test_files_of_an_encoder_have_the_size_that_it_was_told(more: dict[str, Any]) -> None:
    for width, height in ((1, 1), (17, 300), (640, 480)):
        raw = a_jpeg(width, height, **more)
        assert _jpeg.size(raw) == (height, width)
        assert _jpeg.decoded(raw, 0, 224).shape == (3, 224, 224)


def test_texts_that_cannot_fit_are_not_counted() -> None:
    prepare = models.load("bert", {"sequence": "16"}).prepare
    with pytest.raises(WireError, match="text 1 has more than 512 bytes, too many for 16 tokens"):
        prepare({"text": column([b"a", b"a" * 513])})
    assert prepare({"text": column([b"a" * 512])})["input_ids"].shape == (1, 16)


# ---- what an endpoint does for a request before it is refused


class Prepared:
    """A model that says in which threads it was asked to prepare."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def spec(self) -> ModelSpec:
        def prepare(tensors: Any) -> dict[str, wire.Array]:
            self.threads.append(threading.current_thread().name)
            return {"x": np.zeros((len(tensors["x"]), 1), np.uint8)}

        inputs = (wire.TensorSpec("x", "BYTES", (-1, 1)),)
        outputs = (wire.TensorSpec("y", "UINT8", (-1, 1)),)
        return ModelSpec(
            "prepared", inputs, outputs, ("y",), prepare, lambda rows, seed: {"x": np.zeros((rows, 1), np.uint8)},
            reply=lambda rows: {"y": np.zeros((rows, 1), np.uint8)}, max_batch=(4, 4),
        )  # fmt: skip


def test_what_is_refused_is_not_prepared_and_large_texts_are_not_in_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Prepared()
    monkeypatch.setattr(models, "load", lambda *given, **more: model.spec())
    monkeypatch.setattr(models, "settings", lambda name: {})
    with endpoint(ServeOptions(("prepared",), ("eager",), "cpu", max_rows=10)) as (_, port):
        client = Client(port)

        def post(*items: bytes, **more: Any) -> tuple[int, str]:
            status, _, answer = client.post(*encode_infer({"x": column(list(items))}, **more))
            return status, answer.decode("latin-1")

        assert post(b"a")[0] == 200
        assert post(b"a" * 5000)[0] == 200
        assert [name.partition("_")[0] == "decode" for name in model.threads] == [False, True]
        assert post(*[b"a"] * 11) == (413, '{"error":"the request has 11 rows, but at most 10 are taken"}')
        assert post(b"a", outputs=["z"])[0] == 400
        client.connection.close()
    assert len(model.threads) == 2


def test_headers_that_are_numbers_to_nobody() -> None:
    with endpoint(NULL) as (_, port):
        client = Client(port)
        for name, value, expected in (
            (wire.HEADER_LENGTH, "9" * 5000, 400),
            ("x-request-timeout-seconds", "1e308", 200),
            ("x-request-timeout-seconds", "1e-308", 504),
            ("x-request-timeout-seconds", "-1", 200),
            ("x-request-timeout-seconds", "nan", 400),
            ("x-request-timeout-seconds", "inf", 400),
            ("content-encoding", "identity", 200),
            ("content-encoding", "gzip, gzip", 415),
        ):
            assert client.post(X[0], X[1] | {name: value})[0] == expected, (name, value)
        client.connection.close()


def test_bombs() -> None:
    with endpoint(NULL) as (_, port):
        client = Client(port)
        small = gzip.compress(gzip.compress(bytes(1 << 20)))
        for body, encoding, expected in (
            (gzip.compress(bytes(NULL.max_body_bytes + 1)), "gzip", 413),
            (zlib.compress(bytes(NULL.max_body_bytes + 1)), "deflate", 413),
            (small, "gzip", 400),
            (gzip.compress(X[0]), "gzip", 200),
        ):
            assert client.post(body, X[1] | {"content-encoding": encoding})[0] == expected
        client.connection.close()


# ---- slow and greedy, at the edge


def test_who_is_slow_with_a_body_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "PATIENCE_S", 0.5)
    raw = http("/infer", *X)
    with endpoint(NULL) as (_, port):
        with connected(port) as slow:
            slow.sendall(raw[:-3])
            said = slow.makefile("rb").read()
        assert said.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in said
        assert b"bytes of the body came in" in said
        with connected(port) as silent:
            silent.sendall(raw[: raw.index(b"\r\n\r\n") + 4])
            assert silent.makefile("rb").read().startswith(b"HTTP/1.1 408 ")


def test_who_keeps_sending_earns_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten pieces a tenth of a second apart, each of which earns a second."""
    monkeypatch.setattr(asgi, "PATIENCE_S", 0.5)
    monkeypatch.setattr(asgi, "SLOWEST_BPS", 1000)
    body, headers = encode_infer({"x": np.zeros((1, 10_000), np.uint8)})
    raw = http("/infer", body, headers)
    with endpoint(NULL) as (_, port), connected(port) as steady:
        for at in range(0, len(raw), 1000):
            steady.sendall(raw[at : at + 1000])
            time.sleep(0.1)
        assert status_of(steady) == 200


def test_bodies_that_take_up_all_the_room_are_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "ROOM", 2)
    body, headers = encode_infer({"x": np.zeros((1, 700), np.uint8)})
    raw = http("/infer", body, headers)
    with endpoint(ServeOptions(("null",), ("eager",), max_body_bytes=1000)) as (_, port):
        with ExitStack() as stack:
            halves = crowd(port, 5, raw[:-10], stack)
            until(lambda: len(select.select(halves, [], [], 0)[0]) == 3)  # two have room
            assert [status_of(half) for half in select.select(halves, [], [], 0)[0]] == [503] * 3
            (full,) = crowd(port, 1, raw, stack)
            assert status_of(full) == 503

        def served_again() -> bool:
            with connected(port) as after:
                after.sendall(raw)
                return status_of(after) == 200

        until(served_again)


# ---- what is held of those that are gone


def alive(kind: type) -> int:
    return sum(type(thing) is kind for thing in gc.get_objects())


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(("rows", "more", "status"), [(1, {}, 200), (1000, {}, 200), (1000, LATE, 504)])
def test_nothing_is_held_of_a_request_that_was_answered(
    rows: int, more: dict[str, str], status: int, no_collections: None
) -> None:
    body, headers = encode_infer({"x": np.zeros((rows, 4), np.uint8)})
    options = ServeOptions(("null",), ("eager",), settings={"delay_ms": "5"}, max_batch=100)
    with endpoint(options) as (_, port):
        for _ in range(3):
            with connected(port) as end:
                end.sendall(http("/infer", body, headers | more))
                assert status_of(end) == status
        until(lambda: not alive(Job) and not alive(Split), PATIENCE_S)


def test_nothing_is_held_of_a_connection_that_was_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "Config", partial(uvicorn.Config, timeout_keep_alive=600))
    app.forget_lost_connections()
    before = alive(HttpToolsProtocol)
    with endpoint(NULL) as (_, port):
        for _ in range(3):
            with connected(port) as end:
                end.sendall(http("/infer", *X))
                assert status_of(end) == 200
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        def nothing() -> bool:
            gc.collect()
            return alive(HttpToolsProtocol) == before

        until(nothing, PATIENCE_S)


async def exchanged(app: asgi.App, scope: dict[str, Any], *messages: Message) -> list[Message]:
    waiting, sent = list(messages), []

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def test_large_answers_go_piece_by_piece() -> None:
    body = np.random.default_rng(1).bytes(3 * asgi.PIECE_BYTES + 5)

    async def answer(request: Request) -> HttpAnswer:
        return HttpAnswer(200, body)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    head, *pieces = asyncio.run(exchanged(as_app(answer, 10), scope, {"type": "http.request"}))
    assert (b"content-length", b"%d" % len(body)) in head["headers"]
    assert b"".join(piece["body"] for piece in pieces) == body
    assert [piece.get("more_body", False) for piece in pieces] == [True, True, True, False]


def test_a_websocket_is_refused() -> None:
    async def answer(request: Request) -> HttpAnswer:
        return as_json({})

    assert asyncio.run(exchanged(as_app(answer, 10), {"type": "websocket"})) == [{"type": "websocket.close"}]
