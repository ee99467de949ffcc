"""Calls against grpcio, another's making, and against servers of HTTP/2 that are odd in one way each."""

import json
import select
import socket
import subprocess
import threading
import time
from collections import Counter
from concurrent import futures
from contextlib import contextmanager

import gevent
import numpy as np
import pytest
from waiting import PATIENCE_S, clock_step_ns

from tailrate.loadtest.engine.endpoint import protocols
from tailrate.loadtest.engine.endpoint.credentials import ANYBODY, Access
from tailrate.loadtest.engine.endpoint.grpc import GrpcClient, GrpcStreamClient
from tailrate.loadtest.engine.endpoint.http2 import frames
from tailrate.loadtest.engine.endpoint.http2.frames import frame
from tailrate.loadtest.engine.endpoint.http2.grpc_message import framed, message_flaw
from tailrate.loadtest.engine.endpoint.http2.hpack import literal
from tailrate.loadtest.engine.endpoint.http2.replay import as_frames
from tailrate.loadtest.engine.endpoint.protocols.oip_grpc_stream import OipGrpcStream
from tailrate.loadtest.engine.endpoint.target import Target
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.workers import selfcheck
from tailrate.serve.body import infer_grpc as messages
from tailrate.serve.body.protobuf import item, text

PATH = f"{messages.SERVICE}ModelInfer"
HEAD = b"".join(literal(*field) for field in ((":status", "200"), ("content-type", "application/grpc")))
GOOD = literal("grpc-status", "0")
OPENED = frame(frames.SETTINGS, 0, 0)
H, D, LAST, WHOLE = frames.HEADERS, frames.DATA, frames.END_STREAM, frames.END_HEADERS
ANSWER = framed(b"hello")
USUAL = [frame(H, WHOLE, 1, HEAD), frame(D, 0, 1, ANSWER), frame(H, WHOLE | LAST, 1, GOOD)]


SO_FAR = object()
"""What comes from now on is heard apart."""


def readable(wire):
    return bool(select.select([wire], [], [], 0)[0])


@contextmanager
def odd(*connections, client=GrpcClient):
    """For each connection the first piece, and once a request has begun the others; numbers wait, b"" hangs up."""
    heard = []

    def serve(listener):
        for pieces in connections:
            wire, _ = listener.accept()
            with wire:
                wire.sendall(pieces[0])
                data = b""
                while len(data) < 200 and pieces[0] and (more := wire.recv(1 << 16)):
                    data += more
                heard.append(data)
                for piece in pieces[1:]:
                    if isinstance(piece, float):
                        time.sleep(piece)
                    elif piece is SO_FAR:
                        time.sleep(0.2)
                        heard[-1] += wire.recv(1 << 20, socket.MSG_DONTWAIT) if readable(wire) else b""
                        heard.append(b"")
                    else:
                        wire.sendall(piece)
                wire.settimeout(PATIENCE_S)
                try:
                    while pieces[-1] != b"" and (more := wire.recv(1 << 16)):
                        heard[-1] += more
                except OSError:
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        to = client(f"http://127.0.0.1:{listener.getsockname()[1]}", 5.0)
        try:
            yield to, heard
        finally:
            to.close()
            gevent.sleep(0)
            thread.join(PATIENCE_S)


def call(client, message=b"x" * 200):
    return client.send("POST", PATH, framed(message), {"x-request-id": "7"})


@pytest.mark.parametrize(
    "pieces",
    [
        [OPENED, *USUAL],
        [OPENED, *(bytes((byte,)) for piece in USUAL for byte in piece)],
        [OPENED, b"".join(USUAL)],
        [OPENED, frame(H, 0, 1, HEAD[:3]), frame(frames.CONTINUATION, 0, 1, HEAD[3:9]),
         frame(frames.CONTINUATION, WHOLE, 1, HEAD[9:]), *USUAL[1:]],
        [OPENED, frame(H, WHOLE | frames.PADDED | frames.WITH_PRIORITY, 1, b"\x03" + b"\0" * 5 + HEAD + b"\0" * 3),
         frame(D, frames.PADDED, 1, b"\x07" + ANSWER + b"\0" * 7), USUAL[2]],
        [OPENED, frame(H, WHOLE, 1, literal(":status", "103")), *USUAL],
        [OPENED, USUAL[0], frame(frames.PING, 0, 0, b"12345678"), frame(frames.PRIORITY, 0, 1, b"\0" * 5),
         frame(77, 3, 1, b"of the future"), frame(D, 0, 1, ANSWER[:4]), frame(D, 0, 1, b""), frame(D, 0, 1, ANSWER[4:]),
         USUAL[2]],
        [OPENED, frame(frames.GOAWAY, 0, 0, frames.number(1) + frames.number(0)), *USUAL],
    ],
    ids=["usual", "byte by byte", "at once", "continued", "padded", "first 103", "others between", "goes away after"],
)  # fmt: skip
def test_an_answer_is_whole_however_it_comes(pieces):
    with odd(pieces) as (client, heard):
        answer = call(client)
    assert (answer.status, answer.error, answer.body) == ("200", None, ANSWER)
    assert answer.headers()["content-type"] == "application/grpc"
    if any(piece[3:4] == b"\x06" for piece in pieces if isinstance(piece, bytes)):
        assert frame(frames.PING, frames.ACK, 0, b"12345678") in heard[0]


def trailers_only(code, message=""):
    more = literal("grpc-status", str(code)) + (literal("grpc-message", message) if message else b"")
    return [OPENED, frame(H, WHOLE | LAST, 1, HEAD + more)]


@pytest.mark.parametrize(
    ("pieces", "status", "error"),
    [
        (trailers_only(3, "caf%C3%A9%0Aau lait"), "400", "INVALID_ARGUMENT: café\nau lait"),
        (trailers_only(4), "timeout", "DEADLINE_EXCEEDED"),
        (trailers_only(5), "404", "NOT_FOUND"),
        (trailers_only(8), "429", "RESOURCE_EXHAUSTED"),
        (trailers_only(12), "501", "UNIMPLEMENTED"),
        (trailers_only(14, "full"), "503", "UNAVAILABLE: full"),
        (trailers_only(16), "401", "UNAUTHENTICATED"),
        (trailers_only(2), "500", "UNKNOWN"),
        (trailers_only(99), "500", "99"),
        ([OPENED, frame(H, WHOLE | LAST, 1, HEAD)], "500", "no grpc-status"),
        ([OPENED, frame(H, WHOLE | LAST, 1, literal(":status", "502"))], "502", "not gRPC"),
        ([OPENED, USUAL[0], frame(frames.RST_STREAM, 0, 1, frames.number(2))], "connect", "reset the stream: internal"),
        ([OPENED, USUAL[0], frame(D, 0, 1, ANSWER), b""], "connect", "closed before"),
        ([OPENED, frame(frames.GOAWAY, 0, 0, frames.number(1) + frames.number(11) + b"too many")], "connect",
         "goes away: enhance your calm too many"),
        ([OPENED, frame(D, 0, 1, ANSWER)], "connect", "body before its header"),
        ([OPENED, frame(H, 0, 1, HEAD), frame(D, 0, 1, b"")], "connect", "in the middle of a header block"),
        ([OPENED, frame(H, WHOLE, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff")], "connect", "not HTTP/2"),
        ([OPENED, frame(frames.CONTINUATION, WHOLE, 1, HEAD)], "connect", "has not begun"),
        ([OPENED, frame(D, frames.PADDED, 1, b"\x09x")], "connect", "a body before|padding"),
        ([OPENED, frames.head(1 << 20, D, 0, 1)], "connect", "at most 16384"),
        ([OPENED, frame(frames.PUSH_PROMISE, WHOLE, 1, b"\0\0\0\2")], "connect", "pushes"),
        ([b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"], "connect", "not HTTP/2"),
        ([b""], "connect", "closed|reset"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_a_row(pieces, status, error):
    with odd(pieces) as (client, _):
        answer = call(client)
    assert answer.status == status
    assert any(part in answer.error for part in error.split("|")), answer.error


@pytest.mark.parametrize(
    ("body", "flaw"),
    [(b"\x01" + ANSWER[1:], "compressed"), (ANSWER + b"x", "5 bytes long, but 6"), (ANSWER[:3], "whole"),
     (b"", "no message"), (ANSWER, None)],
)  # fmt: skip
def test_a_message_is_as_long_as_it_says_and_not_compressed(body, flaw):
    found = message_flaw(body)
    assert found is None if flaw is None else flaw in found


@pytest.mark.parametrize(
    "unseen",
    [frame(frames.GOAWAY, 0, 0, frames.number(0) + frames.number(0)),
     frame(frames.RST_STREAM, 0, 1, frames.number(frames.REFUSED))],
    ids=["goes away", "refused"],
)  # fmt: skip
def test_what_a_server_says_it_did_not_look_at_is_sent_again(unseen):
    """As gRPC's own clients do, else a server that renews its connections would seem to fail."""
    again = [OPENED, *USUAL] if unseen[3] == frames.GOAWAY else None
    second = [piece[:8] + b"\x03" + piece[9:] for piece in USUAL]
    with odd([OPENED, unseen, *([0.1, *second] if again is None else [b""])], *([again] if again else [])) as (it, _):
        assert call(it).body == ANSWER


def test_it_is_sent_again_until_a_stream_of_the_most_at_once_is_free():
    """The server frees one later than we have seen its end."""
    refused = [each for mine in (1, 3, 5, 7)
               for each in (frame(frames.RST_STREAM, 0, mine, frames.number(frames.REFUSED)), 0.1)]  # fmt: skip
    answered = [piece[:8] + b"\x09" + piece[9:] for piece in USUAL]
    with odd([OPENED, *refused, *answered]) as (it, _):
        assert call(it).body == ANSWER


def test_a_deadline_frees_its_stream_and_delays_no_other():
    answered = [piece[:8] + b"\x03" + piece[9:] for piece in USUAL]
    with odd([OPENED, 0.4, *answered]) as (client, heard):
        slow = GrpcClient(client.url, 0.2)
        slow._http2 = client._http2
        first = gevent.spawn(call, slow)
        gevent.sleep(0)
        second = gevent.spawn(call, client)
        gevent.joinall([first, second], timeout=PATIENCE_S)
        assert first.value.status == "timeout"
        assert second.value.body == ANSWER
    assert frame(frames.RST_STREAM, 0, 1, frames.number(frames.CANCEL)) in heard[0]
    assert b"grpc-timeout" in heard[0]
    assert b"200m" in heard[0]


def test_a_body_waits_for_windows_that_the_server_opens():
    more = frame(frames.WINDOW_UPDATE, 0, 0, frames.number(200_000))
    mine = frame(frames.WINDOW_UPDATE, 0, 1, frames.number(200_000))
    with odd([OPENED, 0.1, more, 0.05, mine, 0.1, *USUAL]) as (client, heard):
        assert call(client, b"\xee" * 100_000).body == ANSWER
    assert heard[0].count(b"\xee") == 100_000
    small = frames.settings({frames.INITIAL_WINDOW: 0})
    with odd([small, SO_FAR, mine, 0.1, *USUAL]) as (client, heard):
        assert call(client).body == ANSWER
    assert b"x" * 9 not in heard[0]
    assert framed(b"x" * 200) in heard[1]


# ---- grpcio


def infer(request, context):
    asked = messages.decode_infer(request)
    found = dict(context.invocation_metadata())
    context.set_trailing_metadata((("server-timing", "total;dur=1.5"), ("x-tailrate-batch", "3")))
    if asked.model == "slow":
        time.sleep(1.5)
    if asked.model == "wants":
        import grpc

        if found.get("authorization") != "Bearer sesame":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, f"no token, but {found.get('authorization')}")
    return messages.encode_result(asked.model, asked.version, "", {"y": next(iter(asked.tensors.values())) * 2})


SAID = {
    "recompiles": 0, "drift": 0.25, "frozen": False, "mode": None, "device": "cpu", "empty": "", "torch": "2.10.0",
    "cuda": "12.10", "buckets": "1,2", "likely": "nan", "no number": "NaN",
    "nor this": "-Infinity", "deep": "[" * 10**5,
}  # fmt: skip
METADATA = {"name": "mlp", "versions": ["1", "2"], "parameters": SAID}
METHODS = {
    "ServerMetadata": lambda request, context: messages.encode_server("toy", "1", []),
    "ModelReady": lambda request, context: b"\x08\x01",
    "ModelMetadata": lambda request, context: messages.encode_model(METADATA),
    "ModelInfer": infer,
}


@contextmanager
def toy(credentials=None, **options):
    grpc = pytest.importorskip("grpc")
    server = grpc.server(futures.ThreadPoolExecutor(8), options=list(options.items()))
    handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in METHODS.items()}
    service = messages.SERVICE.strip("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = (
        server.add_secure_port("localhost:0", credentials) if credentials else server.add_insecure_port("127.0.0.1:0")
    )
    server.start()
    try:
        yield f"https://localhost:{port}" if credentials else f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def client(url, timeout_s=20.0, access=ANYBODY):
    found = GrpcClient(url, timeout_s, access)
    try:
        yield found
    finally:
        found.close()
        gevent.sleep(0)


def body(x, model="mlp", raw=True):
    return framed(messages.encode_infer(model, "1", {"x": x}, raw=raw))


def test_grpcio_is_found_and_answers():
    protocol = protocols.PROTOCOLS["oip-grpc"]()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with toy() as url, client(url) as to:
        assert protocol.spoken(to) == "toy 1"
        found = protocol.find(to, Target(url, "mlp"))
        assert [(each.name, each.version, each.path) for each in found] == [
            ("mlp/1", "1", PATH), ("mlp/2", "2", PATH),
        ]  # fmt: skip
        with pytest.raises(ScenarioError, match="hosts no variant 7"):
            protocol.find(to, Target(url, "mlp", version="7"))
        for each in (protocol, *protocol.others()):
            sent, header = each.write(found[0], {"x": x}, ())
            answer = to.send("POST", PATH, sent, header)
            assert answer.status == "200"
            assert each.flaw(answer, answer.headers()) is None
            np.testing.assert_array_equal(each.outputs(answer)["y"], x * 2)
            read = each.read(answer, answer.headers(), {})
            assert (read["server_ms"], read["batch_rows"]) == (1.5, 3)
        answer = to.send("POST", f"{messages.SERVICE}Nothing", framed(b""))
        assert answer.status == "501"


def test_what_an_endpoint_says_of_itself_is_what_it_says_as_json():
    """A run waited for `sampled_waiting` to be nought, and "0" never was."""
    protocol = protocols.PROTOCOLS["oip-grpc"]()
    with toy() as url, client(url) as to:
        found, *_ = protocol.find(to, Target(url, "mlp"))
        assert found.parameters == protocol.parameters(to, found) == json.loads(json.dumps(SAID))
        assert not any(found.parameters[name] for name in ("recompiles", "frozen", "mode", "empty"))


def test_many_streams_and_large_bodies_both_ways_at_once():
    with toy(**{"grpc.max_concurrent_streams": 7}) as url, client(url) as to:
        sizes = [3, 250_000, 17, 40_000] * 15
        calls = [gevent.spawn(to.send, "POST", PATH, body(np.full((1, size), at, np.float32)))
                 for at, size in enumerate(sizes)]  # fmt: skip
        gevent.joinall(calls, timeout=PATIENCE_S)
        for at, (size, one) in enumerate(zip(sizes, calls, strict=True)):
            assert one.value.status == "200", one.value.error
            found = messages.decode_result(memoryview(one.value.body)[5:])["y"]
            assert found.shape == (1, size)
            assert (found == 2 * at).all()


def test_a_deadline_and_a_server_that_is_gone():
    with toy() as url, client(url, 0.5) as to:
        answer = to.send("POST", PATH, body(np.zeros((1, 1), np.float32), "slow"))
        assert answer.status == "timeout"  # before the answer, which comes
        assert answer.done_ns - answer.sent_ns > 0.4e9
        assert to.send("POST", PATH, body(np.zeros((1, 1), np.float32))).status == "200"
    with client(url, 5.0) as to:
        answer = to.send("POST", PATH, b"")
        assert answer.status == "connect"
        assert "refused" in answer.error


def test_a_token_is_shown_and_never_repeated():
    x = body(np.zeros((1, 1), np.float32), "wants")
    with toy() as url:
        for token, status in (("sesame", "200"), ("wrong-token", "401")):
            with client(url, access=Access(token)) as to:
                answer = to.send("POST", PATH, x)
                assert answer.status == status, answer.error
                assert "wrong-token" not in str(answer.error)


def test_tls_proves_who_it_is(tmp_path):
    grpc = pytest.importorskip("grpc")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run(words, check=True, capture_output=True)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    big = body(np.ones((1, 250_000), np.float32))
    with toy(credentials) as url:
        with client(url, access=Access(ca_file=str(certificate))) as to:
            calls = [gevent.spawn(to.send, "POST", PATH, big) for _ in range(5)]
            gevent.joinall(calls, timeout=PATIENCE_S)
            assert [one.value.status for one in calls] == ["200"] * 5
        with client(url) as to:
            answer = to.send("POST", PATH, big)
            assert answer.status == "connect"
            assert "certificate" in answer.error


def test_who_does_not_greet_as_http2_does_speaks_something_else():
    with odd([b"HTTP/1.1 400 Bad Request\r\n\r\n"]) as (to, _):
        assert protocols.PROTOCOLS["oip-grpc"].spoken(to) == ""


def test_the_null_server_plays_an_answer_back():
    result = framed(messages.encode_result("m", "", "", {"y": np.arange(50_000, dtype=np.float32)}))
    fields = b":status: 200\r\ncontent-type: application/grpc\r\nx-a: 1\r\ngrpc-status: 0\r\n"
    with selfcheck.null_server(b"".join(as_frames(fields, [result]))) as url, client(url) as to:
        calls = [gevent.spawn(to.send, "POST", PATH, body(np.zeros((1, size), np.float32)))
                 for size in (1, 100_000, 2) * 5]  # fmt: skip
        gevent.joinall(calls, timeout=PATIENCE_S)
        assert {(one.value.status, one.value.body) for one in calls} == {("200", result)}
        assert calls[0].value.headers()["x-a"] == "1"


# ---- answers in pieces

GAP_S = 0.03
WORDS = ("one", "two", "", "three")
STREAM_PATH = f"{messages.SERVICE}ModelStreamInfer"


def piece(word, wrapped):
    result = messages.encode_result("story", "1", "", {"text_output": np.array([word.encode()], object)})
    return item(2, result) if wrapped else result


def stories(requests, context):
    """By the model's name: as Triton wraps it or as MLServer doesn't, with an error in it, or breaking off."""
    import grpc

    (asked,) = map(messages.decode_infer, requests)
    if "text_input" not in asked.tensors:
        yield text(1, "unexpected inference input")
        return
    own = READ.get(asked.tensors["text_input"].item())
    for number, word in enumerate(WORDS):
        while own is not None and len(own.arrivals) < number:  # on a busy machine several would be read at once
            time.sleep(1e-3)
        time.sleep(GAP_S)
        if number == 2 and asked.model == "fails":
            yield text(1, "out of memory")
        if number == 2 and asked.model == "aborts":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the model went away")
        while number == 2 and asked.model == "hangs" and context.is_active():
            time.sleep(0.01)
        yield piece(word, asked.model != "plain")


@contextmanager
def streaming(timeout_s=20.0):
    grpc = pytest.importorskip("grpc")
    server = grpc.server(futures.ThreadPoolExecutor(32))
    methods = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in METHODS.items()}
    methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(stories)
    service = messages.SERVICE.strip("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    found = GrpcStreamClient(f"http://127.0.0.1:{port}", timeout_s)
    try:
        yield found
    finally:
        found.close()
        gevent.sleep(0)
        server.stop(None).wait()


READ = {}
"""By prompt: a stream as its client reads it."""


def tell(to, model="story", prompt="a b"):
    protocol = OipGrpcStream(inputs='{"text_input": ["$prompt.0"]}')
    (endpoint, *_) = protocol.find(to, Target(to.url, model))
    sent, header = protocol.write(endpoint, {"prompt": np.array([prompt], object)}, ())
    answer = to.send("POST", endpoint.path, sent, header)
    return protocol, answer, protocol.read(answer, answer.headers(), {})


@pytest.mark.parametrize("model", ["story", "plain"])
def test_each_message_has_the_instant_at_which_it_came(monkeypatch, model):
    def noted(self, block, stream, answer):
        if STREAM_PATH.encode() in block:
            READ[messages.decode_infer(stream.body[5:]).tensors["text_input"].item()] = stream
        usual(self, block, stream, answer)

    usual = GrpcStreamClient._call
    monkeypatch.setattr(GrpcStreamClient, "_call", noted)
    prompts = [f"{model} {number}" for number in range(16)]
    with streaming() as to:
        for one in gevent.joinall([gevent.spawn(tell, to, model, each) for each in prompts], timeout=PATIENCE_S):
            protocol, answer, row = one.value
            assert (answer.status, answer.error) == ("200", None)
            assert protocol.flaw(answer, answer.headers()) is None
            assert protocol.outputs(answer)["text"].tolist() == ["onetwothree"]
            assert row["events"] == 3  # an empty one holds nothing
            assert row["first_ns"] - answer.sent_ns > 1e9 * GAP_S - clock_step_ns()
            assert row["gaps_us"][1] > 1.5e6 * GAP_S - clock_step_ns() / 1e3
            assert sum(row["gaps_us"]) == pytest.approx((row["last_ns"] - row["first_ns"]) / 1e3, abs=2)
            assert row["last_ns"] <= answer.done_ns


def test_what_had_come_stays_known_whatever_ends_it():
    with streaming() as to:
        protocol, answer, row = tell(to, "fails")
        assert answer.status == "200"
        assert protocol.flaw(answer, answer.headers()) == "the stream holds an error: out of memory"
        assert row["finish"] == "error"
        protocol, answer, row = tell(to, "aborts")
        assert (answer.status, answer.error) == ("503", "UNAVAILABLE: the model went away")
        assert row["events"] == 2
    with streaming(timeout_s=2.0) as to:
        _, answer, row = tell(to, "hangs")
        assert answer.status == "timeout"
        assert row["events"] == 2


HALF = item(2, messages.encode_result("m", "", "", {"y": np.array([b"word"], object)}))


@pytest.mark.parametrize(
    ("pieces", "status", "events", "flaw"),
    [
        ([frame(D, 0, 1, framed(HALF) * 2), frame(H, WHOLE | LAST, 1, GOOD)], "200", 2, None),
        ([frame(D, 0, 1, (framed(HALF) * 2)[:-3]), frame(frames.RST_STREAM, 0, 1, frames.number(2))], "cut", 1, ""),
        ([frame(D, 0, 1, framed(HALF)), b""], "cut", 1, ""),
        ([frame(D, LAST, 1, framed(HALF))], "500", 1, ""),
        ([frame(D, 0, 1, framed(HALF)[:-3]), frame(H, WHOLE | LAST, 1, GOOD)], "200", 0, "does not come whole"),
        ([frame(D, 0, 1, b"\1" + framed(HALF)[1:]), frame(H, WHOLE | LAST, 1, GOOD)], "200", 0, "compressed"),
        ([frame(D, 0, 1, framed(b"\x12\xff")), frame(H, WHOLE | LAST, 1, GOOD)], "200", 0, "cannot be read"),
        ([frame(H, WHOLE | LAST, 1, GOOD)], "200", 0, "without any content"),
    ],
    ids=["two", "reset", "hung up", "no status", "short", "compressed", "no message", "empty"],
)  # fmt: skip
def test_a_stream_that_is_odd_is_a_row(pieces, status, events, flaw):
    protocol = OipGrpcStream()
    with odd([OPENED, USUAL[0], *pieces], client=GrpcStreamClient) as (to, _):
        answer = call(to)
    assert answer.status == status
    row = protocol.read(answer, answer.headers(), {})
    assert row["events"] == events
    if status == "200":
        found = protocol.flaw(answer, answer.headers())
        assert found is None if flaw is None else flaw in found


def test_a_message_has_come_when_it_is_whole():
    pieces = framed(HALF)[:7], framed(HALF)[7:] + framed(HALF)[:-1], framed(HALF)[-1:]
    first, second, third = (frame(D, 0, 1, piece) for piece in pieces)
    with odd([OPENED, USUAL[0], first, 0.1, second, 0.2, third, USUAL[2]], client=GrpcStreamClient) as (to, _):
        answer = call(to)
    row = OipGrpcStream().read(answer, answer.headers(), Counter())
    (_, begun), (ends_first, most), (ends_second, whole) = answer.arrivals  # at one instant, if we were held up
    assert (begun, most, whole) == (7, 2 * len(framed(HALF)) - 1, 2 * len(framed(HALF)))
    assert (row["events"], row["first_ns"], row["last_ns"]) == (2, ends_first, ends_second)
    assert ends_first - answer.sent_ns > 0.1e9 - clock_step_ns()
    assert ends_second - answer.sent_ns > 0.3e9 - clock_step_ns()


def test_inputs_are_tried_until_the_server_takes_them():
    with streaming() as to:
        protocol = OipGrpcStream()
        (endpoint, *_) = protocol.find(to, Target(to.url, "story"))
        inputs = {"prompt": np.array(["a b"], object), "max_tokens": np.array([7])}
        tried = [protocol, *protocol.others()]
        flaws = []
        for each in tried:
            answer = to.send("POST", endpoint.path, *each.write(endpoint, inputs, ()))
            flaws.append(each.flaw(answer, answer.headers()))
        assert flaws == ["the stream holds an error: unexpected inference input", None, None, None, None]
        asked = messages.decode_infer(tried[1].write(endpoint, inputs, ())[0][5:]).tensors
        assert {name: tensor.tolist() for name, tensor in asked.items()} == {
            "text_input": [b"a b"], "stream": [True], "sampling_parameters": [b'{"max_tokens": 7}'],
        }  # fmt: skip
        with pytest.raises(ScenarioError, match="no JSON object of lists"):
            OipGrpcStream(inputs='{"a": 1}').write(endpoint, inputs, ())


def test_the_null_server_plays_a_stream_back_as_it_came():
    with streaming() as to:
        protocol, answer, row = tell(to)
    with selfcheck.null_server(protocol.replayed(answer), protocol.pace(answer)) as url:
        again = GrpcStreamClient(url, 20.0)
        found = [gevent.spawn(again.send, "POST", STREAM_PATH, framed(b"")) for _ in range(5)]
        gevent.joinall(found, timeout=PATIENCE_S)
        for each in (one.value for one in found):
            assert (each.status, each.body) == ("200", answer.body)
            mine = protocol.read(each, each.headers(), {})
            assert mine["events"] == row["events"]
            assert mine["first_ns"] - each.sent_ns > 1e9 * GAP_S - clock_step_ns()
        again.close()
        gevent.sleep(0)
