"""Each protocol against servers as they are: what is found, what is sent, what counts as a success."""

import base64
import json
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from asked import found_at
from gevent.pywsgi import WSGIServer
from waiting import PATIENCE_S

from tailrate.loadtest.engine.endpoint import discovery
from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.credentials import Keys
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.protocol import KNOWN, protocol_of
from tailrate.loadtest.engine.endpoint.protocols.json_http import MISSING, Json, at
from tailrate.loadtest.engine.endpoint.protocols.openai import OpenAi
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve import wire
from tailrate.serve.body.request import decode_infer

X = np.arange(6, dtype=np.float32).reshape(2, 3)
INPUTS = Inputs(({"x": X},), (2,), ("y",))
RESULT = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1.0]}]}


@contextmanager
def server(answers):
    """Answers by (method, path): what is there, or what a function makes of the body and the header; 404 else."""

    def serve(environ, start_response):
        body = environ["wsgi.input"].read()
        found = answers.get((environ["REQUEST_METHOD"], environ["PATH_INFO"]), (404, {"error": "nothing here"}))
        status, said = found(body, environ) if callable(found) else found
        start_response(f"{status} X", [("content-type", "application/json")])
        return [json.dumps(said).encode()]

    running = WSGIServer(("127.0.0.1", 0), serve, log=None)
    running.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.stop()


def oip(model=None, index=None, ready=(200, {}), **more):
    """A server of the Open Inference Protocol that has what it is given, and no more."""
    there = {("GET", "/v2"): (200, {"name": "odd", "version": "3"}), ("GET", "/v2/models/m/ready"): ready}
    there |= {("POST", "/v2/repository/index"): (200, index)} if index is not None else {}
    there |= {("GET", "/v2/models/m"): (200, model)} if model is not None else {}
    return there | {tuple(key.split(" ")): value for key, value in more.items()}


VERSION_2 = {"GET /v2/models/m/versions/2/ready": (200, {}), "GET /v2/models/m/versions/2": (200, {"name": "m"})}

UNLOADED = oip(
    index=[{"name": "m", "version": "1", "state": "UNAVAILABLE"}, {"name": "m", "version": "2", "state": "READY"}],
    **{"GET /v2/models/m/versions/1/ready": (400, {"error": "unloaded"})},
    **VERSION_2,
)


@pytest.mark.live
@pytest.mark.parametrize(
    ("answers", "names"),
    [
        (oip({"name": "m", "versions": []}), ["m"]),  # MLServer
        (oip({"name": "m", "versions": None, "inputs": []}), ["m"]),  # KServe
        (oip({"name": "m"}, ready=(404, {})), ["m"]),  # says nothing of its readiness
        (oip(ready=(200, {}), index=[{"name": "m"}], **{"GET /v2/models/m": (404, {})}), ["m"]),  # no metadata
        (oip({"name": "m", "versions": ["2"]}, **VERSION_2), ["m/2"]),
        (oip(index=[{"name": "m", "version": "2", "state": "READY"}, {"name": "n"}], **VERSION_2), ["m/2"]),
        (oip(index=[{"name": "m", "version": 2}], **VERSION_2), ["m/2"]),
        (UNLOADED, ["m/2"]),
        (oip({"name": "m", "versions": [1, "2"]}, **VERSION_2, **{
            "GET /v2/models/m/versions/1/ready": (200, {}), "GET /v2/models/m/versions/1": (200, {})}), ["m/1", "m/2"]),
    ],
)  # fmt: skip
def test_what_is_found_where_servers_leave_out_what_they_may(answers, names):
    with server(answers) as url:
        assert [found.name for found in found_at(url, "m")] == names


@pytest.mark.live
@pytest.mark.parametrize(
    ("answers", "asked", "sentence"),
    [
        (oip(index=[{"name": "n"}]), {}, "hosts no model 'm'; it hosts n"),
        (oip({"name": "m", "versions": ["2"]}), {"version": "3"}, "hosts no variant 3 of 'm'; it hosts 2"),
        (oip({"name": "m", "versions": []}), {"version": "3"}, "names no version of 'm': leave 3 out"),
        (oip({"name": "m"}, ready=(503, {"error": "loading"})), {}, "m at http.* is not ready: loading"),
        (UNLOADED, {"version": "1"}, "m/1 at http.* is not ready: unloaded"),
        (oip(ready=(404, {})), {}, r"/v2/models/m answered 404: nothing here"),
        ({}, {}, r"answers HTTP \(/v2: 404\), but no protocol that is recognised .*--protocol: .*json"),
        (oip({"name": "m"}), {"protocol": "no"}, "unknown protocol 'no'; known are .*oip"),
    ],
)
def test_what_is_not_there_is_said(answers, asked, sentence):
    with server(answers) as url, pytest.raises(ScenarioError, match=sentence):
        found_at(url, "m", **asked)


def tried(url, inputs=INPUTS, settings=None, **asked):
    servers = Servers(PATIENCE_S, Keys())
    try:
        (found,) = discovery.discover(servers, [Target(url, "m", **asked)], settings or {})
        return discovery.try_out(servers, found, inputs)
    finally:
        servers.close()


@pytest.mark.live
@pytest.mark.parametrize("binary", [True, False])
def test_tensors_go_as_bytes_where_the_server_takes_them_else_as_json(binary):
    seen = []

    def infer(body, environ):
        header = environ.get("HTTP_INFERENCE_HEADER_CONTENT_LENGTH")
        if header and not binary:
            return 422, {"detail": "what is that?"}
        seen.append(decode_infer(body, header and int(header)))
        return 200, RESULT

    with server(oip({"name": "m"}, **{"POST /v2/models/m/infer": infer})) as url:
        found = tried(url)
    assert found.to.endpoint.settings == {"binary": binary}
    assert np.array_equal(seen[-1].inputs["x"], X)
    assert list(seen[-1].outputs) == ["y"]
    assert found.answer.protocol is None
    assert found.to.protocol.outputs(found.answer)["y"].tolist() == [1.0]


@pytest.mark.live
def test_the_server_s_own_words_are_shown_once_before_the_load():
    refused = {"POST /v2/models/m/infer": (400, {"error": "input 'x' must be FP64"})}
    with (
        server(oip({"name": "m"}, **refused)) as url,
        pytest.raises(ScenarioError, match=r"m does not take this scenario's request \(400\): input 'x' must be FP64"),
    ):
        tried(url)


@pytest.mark.live
def test_endpoints_of_one_name_are_told_apart_by_their_hosts():
    with server(oip({"name": "m"})) as one, server(oip({"name": "m"})) as other:
        servers = Servers(PATIENCE_S, Keys())
        found = discovery.discover(servers, [Target(one, "m"), Target(other, "m"), Target(one, "m", "a")], {})
        servers.close()
    assert [each.name for each in found] == ["m", f"m@{other.removeprefix('http://')}", "a"]


def test_a_header_s_facts_survive_being_played_back():
    answer = EndpointAnswer("200", 0, 1, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-a: b\r\n", b"body")
    assert KNOWN["oip"]().replayed(answer) == b"HTTP/1.1 200 OK\r\nx-a: b\r\ncontent-length: 4\r\n\r\nbody"


# ---- json

RFC_6901 = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6, " ": 7, "m~n": 8}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", RFC_6901), ("/foo", ["bar", "baz"]), ("/foo/0", "bar"), ("/", 0), ("/a~1b", 1), ("/c%d", 2), ("/e^f", 3),
        ("/g|h", 4), ("/i\\j", 5), ('/k"l', 6), ("/ ", 7), ("/m~0n", 8), ("/foo/2", MISSING), ("/foo/-", MISSING),
        ("/foo/0/x", MISSING), ("/foo/²", MISSING),
    ],
)  # fmt: skip
def test_pointers_are_those_of_their_rfc(pointer, value):
    assert at(RFC_6901, pointer) == value


def flaw(body, protocol, kind="application/json"):
    return protocol.flaw(EndpointAnswer("200", 0, 0, body=body), {"content-type": kind})


@pytest.mark.parametrize(
    ("success", "body", "said"),
    [
        ("", b"{}", None),
        ("", b"", "the answer is not JSON"),
        ("", b"<html>", "the answer is not JSON"),
        ("/status=ok", b'{"status": "ok"}', None),
        ("/status=ok", b'{"status": "error"}', "/status is error, not ok"),
        ("/code=0,/scores/0", b'{"code": 0, "scores": [1]}', None),
        ("/code=0,/scores/0", b'{"code": 0, "scores": []}', "the answer has no /scores/0"),
        ("/ok=true", b'{"ok": true}', None),
        ("/ok=true", b'{"ok": false}' + b" " * 5000, "/ok is false, not true"),
    ],
)
def test_a_success_is_what_it_was_said_to_be(success, body, said):
    assert flaw(body, Json(success=success)) == said


def test_an_answer_that_is_no_json_by_its_own_word_only_has_to_be_there():
    assert flaw(b"\xff\xd8", Json(), "image/jpeg") is None
    assert flaw(b"", Json(), "image/jpeg") == "the answer is empty"


def test_an_answer_s_figures_get_into_the_row():
    bad: Counter[str] = Counter()
    protocol = Json(figures="server_ms=/timing/ms,batch_rows=/n,replica=/host,queue_ms=/no")
    answer = EndpointAnswer("200", 0, 0, body=b'{"timing": {"ms": 1.5}, "n": 4, "host": "a"}')
    columns = protocol.read(answer, {}, bad)
    assert (columns["server_ms"], columns["batch_rows"], columns["replica"], columns["queue_ms"]) == (1.5, 4, "a", None)
    assert not bad
    protocol.read(EndpointAnswer("200", 0, 0, body=b'{"timing": {"ms": -1}, "n": true}'), {}, bad)
    assert bad == {"server_ms": 1, "batch_rows": 1}


@pytest.mark.parametrize(
    ("body", "rows", "counted"),
    [
        (b'{"took": "12ms", "n": 4}', 4, {"server_ms": 1}),
        (b'{"took": [12], "n": 4}', 4, {"server_ms": 1}),
        (b'{"took": 1' + b"0" * 400 + b', "n": 4}', 4, {"server_ms": 1}),
        (b"<html>", None, {"json": 1}),
    ],
)
def test_a_figure_that_is_none_takes_no_other_with_it(body, rows, counted):
    bad = Counter()
    columns = Json(figures="server_ms=/took,batch_rows=/n").read(
        EndpointAnswer("200", 0, 0, body=body), {wire.REPLICA: "a"}, bad
    )
    assert (columns["server_ms"], columns["batch_rows"], columns["replica"]) == (None, rows, "a")
    assert bad == counted


@pytest.mark.live
def test_an_endpoint_of_json_is_driven_as_it_was_described():
    seen = []

    def take(body, environ):
        seen.append((json.loads(body), environ["HTTP_X_KEY"]))
        return 200, {"status": "ok"}

    settings = {"json": {"path": "/go/{model}", "body": '{"rows": "$x"}', "headers": "x-key: 7", "verb": "PUT"}}
    with server({("PUT", "/below/go/m"): take}) as url:
        found = tried(f"{url}/below", settings=settings, protocol="json")
    assert seen == [({"rows": X.tolist()}, "7")]
    assert found.to.endpoint.path == "/below/go/m"
    assert found.to.protocol.method == "PUT"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"figures": "speed=/a"}, "knows no 'speed'; there are queue_ms, "),
        ({"figures": "server_ms=a"}, "'a' is no JSON pointer"),
        ({"success": "status=ok"}, "'status' is no JSON pointer"),
        ({"headers": "x"}, "'x' is not understood; write 'name: value'"),
        ({"no": 1}, "protocol json has no setting 'no'; it has path, "),
    ],
)
def test_settings_that_nobody_can_mean(settings, sentence):
    with pytest.raises(ScenarioError, match=sentence):
        protocol_of("json", settings)


# ---- torchserve, openai

TEXT = {"text": np.array([["one"], ["two"]], dtype=object)}


@pytest.mark.live
def test_torchserve_is_known_by_its_ping_and_gets_bytes_as_they_are():
    seen = []

    def predict(body, environ):
        seen.append((body, environ["CONTENT_TYPE"]))
        return 200, [0.5]

    there = {("GET", "/ping"): (200, {"status": "Healthy"}), ("POST", "/predictions/m/1.0"): predict}
    image = Inputs(({"image": np.array([[b"\xff\xd8"]], dtype=object)},), (1,))
    with server(there) as url:
        tried(url, image, version="1.0")
        tried(url, INPUTS, version="1.0")
    assert seen == [
        (b"\xff\xd8", "application/octet-stream"),
        (b'{"x":[[0.0,1.0,2.0],[3.0,4.0,5.0]]}', "application/json"),
    ]


@pytest.mark.live
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_come_back_in_the_order_of_the_texts(encoding):
    vectors = np.array([[1, 2], [3, 4.5]], np.float32)
    coded = [base64.b64encode(v.tobytes()).decode() if encoding == "base64" else v.tolist() for v in vectors]
    seen = []

    def embed(body, environ):
        seen.append(json.loads(body))
        return 200, {"data": [{"index": n, "embedding": coded[n]} for n in (1, 0)], "model": "m"}

    there = {("GET", "/v1/models"): (200, {"data": [{"id": "m"}]}), ("POST", "/v1/embeddings"): embed}
    with server(there) as url:
        found = tried(url, Inputs((TEXT,), (2,)), {"openai": {"encoding": encoding}})
    assert seen == [{"model": "m", "input": ["one", "two"], "encoding_format": encoding}]
    assert np.array_equal(found.to.protocol.outputs(found.answer)["embeddings"], vectors)


def test_a_rerank_asks_with_the_first_text_for_the_others():
    protocol, endpoint = OpenAi(task="rerank"), Endpoint("m", "", "openai", "m", "", "/v1/rerank")
    body, _ = protocol.write(endpoint, {"text": np.array([["q"], ["a"], ["b"]], dtype=object)}, ())
    assert json.loads(body) == {"model": "m", "query": "q", "documents": ["a", "b"]}
    answer = b'{"results": [{"index": 1, "relevance_score": 0.25}, {"index": 0, "relevance_score": 0.5}]}'
    assert protocol.outputs(EndpointAnswer("200", 0, 0, body=answer))["scores"].tolist() == [0.5, 0.25]
    assert flaw(answer, protocol) is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"data": []}', "the answer has no data"),
        (b"[]", "the answer has no data"),
        (b"no", "the answer is not JSON"),
        (b'{"object": "list", "data": [' + b"1," * 4000 + b"1]}", None),
        (b'{"object": "list", "data": [' + b"1," * 4000, "the answer is no object with data"),
    ],
)
def test_what_is_no_embedding(body, said):
    assert flaw(body, OpenAi()) == said


def test_openai_takes_no_numbers_that_are_no_tokens():
    with pytest.raises(ScenarioError, match="'x' is float32"):
        OpenAi().write(Endpoint("m", "", "openai", "m", "", ""), {"x": X}, ())
    ids = np.array([[1, 2]], np.int64)
    body, _ = OpenAi().write(Endpoint("m", "", "openai", "m", "", ""), {"ids": ids}, ())
    assert json.loads(body)["input"] == [[1, 2]]


def test_every_protocol_says_what_it_is():
    assert {"oip", "json", "openai", "torchserve", "sagemaker"} <= set(KNOWN)
    assert all(kind.what and kind.name for kind in KNOWN.values())
    assert wire.HEADER_LENGTH  # of the extension that `oip` tries first
