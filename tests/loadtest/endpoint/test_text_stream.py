"""OpenAI's chat and completions: what is asked, what servers leave out or refuse, and how an answer is played back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from metronome import HEAD, TOKEN, tail

from tailrate.loadtest.engine.endpoint import discovery
from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.client import StreamClient
from tailrate.loadtest.engine.endpoint.credentials import Keys
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.protocol import BROKE_OFF
from tailrate.loadtest.engine.endpoint.protocols import PROTOCOLS
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.workers import selfcheck

PROMPT = {"prompt": np.array(["hello"], object), "max_tokens": np.array([3])}
AT = Endpoint("it", "http://x", "openai-chat", "m", "", "/v1/chat/completions")


def body(protocol: str, inputs: dict[str, Any] = PROMPT, **settings: str) -> dict[str, Any]:
    raw, fields = PROTOCOLS[protocol](**settings).write(AT, inputs, ())
    assert fields["content-type"] == "application/json"
    found: dict[str, Any] = json.loads(raw)
    return found


def test_what_a_request_asks() -> None:
    common = {"model": "m", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    forced = {"max_tokens": 3, "ignore_eos": True, "min_tokens": 3}
    asked = {"messages": [{"role": "user", "content": "hello"}]}
    assert body("openai-chat") == common | asked | forced
    assert body("openai-completions") == common | {"prompt": "hello"} | forced
    assert body("openai-chat", force="no") == common | asked | {"max_tokens": 3}
    assert body("openai-chat", force="no", limit="max_completion_tokens") == common | asked | {
        "max_completion_tokens": 3
    }
    assert body("openai-chat", extra='{"temperature": 1, "top_p": 0.5}')["temperature"] == 1
    assert "max_tokens" not in body("openai-chat", {"prompt": PROMPT["prompt"]})
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert body("openai-chat", {"prompt": np.array([json.dumps(turns)], object)})["messages"] == turns
    with pytest.raises(ScenarioError, match="takes an input 'prompt'"):
        body("openai-chat", {"x": np.zeros(3)})


@contextmanager
def server(answers: Callable[[dict[str, Any]], tuple[int, bytes]], models: list[str] | None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            said = {"data": [{"id": name} for name in models]} if models is not None else {"error": "no such path"}
            self.reply(404 if models is None else 200, json.dumps(said).encode())

        def do_POST(self) -> None:
            status, said = answers(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            if status == 200:
                self.wfile.write(said)
            else:
                self.reply(status, said)

        def reply(self, status: int, said: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        found.daemon_threads = True
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_address[1]}"
        found.shutdown()


def tried(url: str, model: str = "") -> discovery.Tried:
    servers = Servers(5.0, Keys())
    try:
        (endpoint,) = discovery.discover(servers, [Target(url, model, protocol="openai-chat")], {})
        return discovery.try_out(servers, endpoint, Inputs((PROMPT,), (1,)))
    finally:
        servers.close()


def streamed(_: dict[str, Any]) -> tuple[int, bytes]:
    return 200, HEAD + 3 * TOKEN + tail(3)


def test_the_only_model_is_found_by_asking() -> None:
    with server(streamed, ["lone"]) as url:
        found = tried(url)
    assert (found.to.endpoint.name, found.to.endpoint.model) == ("lone", "lone")
    assert found.to.protocol.read(found.answer, {}, {})["tokens_out"] == 3  # type: ignore[arg-type]
    assert found.to.protocol.outputs(found.answer)["text"].tolist() == [" tok tok tok"]


@pytest.mark.parametrize(
    ("models", "model", "sentence"),
    [
        (["a", "b"], "", "lists several models: name one .*; it lists a, b"),
        (["a", "b"], "c", "lists no model 'c'; it lists a, b"),
    ],
)
def test_which_model_is_meant_has_to_be_said(models: list[str], model: str, sentence: str) -> None:
    with server(streamed, models) as url, pytest.raises(ScenarioError, match=sentence):
        tried(url, model)


@pytest.mark.parametrize(
    ("models", "model", "names"),
    [
        (["m", "m/eager", "m/compiled"], "", ["m/eager", "m/compiled"]),
        (["m", "m/eager", "m/compiled"], "m", ["m/eager", "m/compiled"]),
        (["m", "m/eager", "m/compiled", "other"], "m/eager", ["m/eager"]),
        (["org/m"], "", ["org/m"]),
        (["org/m", "org/m/tuned"], "", ["org/m/tuned"]),
    ],
)
def test_a_model_with_versions_is_driven_in_each(models: list[str], model: str, names: list[str]) -> None:
    servers = Servers(5.0, Keys())
    with server(streamed, models) as url:
        found = discovery.discover(servers, [Target(url, model, protocol="openai-chat")], {})
        servers.close()
    assert [endpoint.name for endpoint in found] == names
    assert {json.dumps(dict(endpoint.parameters)) for endpoint in found} == {"{}"}  # it is none of ours


def test_a_server_that_lists_nothing_is_asked_for_what_was_named() -> None:
    with server(streamed, None) as url:
        assert tried(url, "m/tuned").to.endpoint.model == "m/tuned"


@pytest.mark.parametrize(
    ("refused", "settings"),
    [
        ("max_tokens", {"limit": "max_completion_tokens", "force": "yes"}),
        ("ignore_eos", {"limit": "max_tokens", "force": "no"}),
        ("min_tokens", {"limit": "max_tokens", "force": "no"}),
    ],
)
def test_a_field_that_the_server_refuses_is_left_out(refused: str, settings: dict[str, str]) -> None:
    def answers(asked: dict[str, Any]) -> tuple[int, bytes]:
        return (400, json.dumps({"error": f"unknown {refused}"}).encode()) if refused in asked else streamed(asked)

    with server(answers, ["m"]) as url:
        found = tried(url).to.endpoint.settings
    assert {name: found[name] for name in settings} == settings


def test_an_answer_that_is_no_stream_is_said_to_be_none() -> None:
    whole = b'{"choices": [{"message": {"content": "all at once"}}]}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole)
    with server(lambda _: (200, head + whole), ["m"]) as url, pytest.raises(ScenarioError, match="no stream of events"):
        tried(url)


def said(finish: str | None = None, text: str = "a") -> bytes:
    choice = {"delta": {"content": text}, "text": text, "finish_reason": finish}
    return b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode()


@pytest.mark.parametrize("name", ["openai-chat", "openai-completions"])
@pytest.mark.parametrize(
    ("body", "flaw"),
    [
        (said() + said("stop"), None),
        (said() + b"data: [DONE]\n\n", None),
        (said() + said(), f"{BROKE_OFF}: neither a finish_reason nor [DONE] came"),
        (said() + said()[:-9], f'{BROKE_OFF} in an event: {{"choices": [{{"delta"'),
        (said() + said("abort", ""), "the stream's finish_reason is abort"),
        (said("stop", ""), "the stream ended without any content"),
        (b"", "the stream ended without any content"),
    ],
)
def test_a_stream_without_a_sign_of_its_end_broke_off(name: str, body: bytes, flaw: str | None) -> None:
    answer = EndpointAnswer("200", 0, 2, body=body, arrivals=[(1, len(body))])
    found = PROTOCOLS[name]().flaw(answer, {"content-type": "Text/Event-Stream; charset=utf-8"})
    assert found is None if flaw is None else str(found).startswith(flaw)


@pytest.mark.live
def test_an_answer_is_played_back_at_its_own_pace() -> None:
    pieces = [b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', b"data: [DONE]\n\n"]
    fields = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    sizes = [len(pieces[0]), len(pieces[0]) + len(pieces[1])]
    answer = EndpointAnswer(
        "200", 0, 90_000_000, fields, b"".join(pieces), arrivals=[(30_000_000, sizes[0]), (90_000_000, sizes[1])]
    )
    protocol = PROTOCOLS["openai-chat"]()
    with selfcheck.null_server(protocol.replayed(answer), protocol.pace(answer)) as url:
        client = StreamClient(url, 5.0)
        for _ in range(3):
            found = client.send("POST", "/x", b"{}", {})
            assert (found.status, found.body, len(found.arrivals)) == ("200", answer.body, 2)
            at_ms = [(at_ns - found.sent_ns) / 1e6 for at_ns, _ in found.arrivals]
            assert at_ms[0] >= 29
            assert at_ms[1] >= 89
        client.close()
