"""What an agent answers, over real sockets and to clients of another make; and what it makes of what is no question."""

import asyncio
import http.client
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rawhttp import BROKEN, status_of
from waiting import PATIENCE_S

from tailrate.serve import wire
from tailrate.serve.asgi import as_app
from tailrate.serve.edge import auth
from tailrate.serve.spec import ServeError
from tailrate.serve.telemetry.agent import http_server
from tailrate.serve.telemetry.agent.agent import Agent, AgentOptions, check
from tailrate.serve.telemetry.agent.holders import devices_of
from tailrate.serve.telemetry.agent.http_server import HttpServer

TRACE = "time_ns,device,index,power_w,util_pct\n" + "".join(f"{n * 1_000_000},GPU-x,0,{n},90\n" for n in range(200))


@contextmanager
def serving(app, tls=None):
    """(its port) in a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = HttpServer(app)
    try:
        yield asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", 0, tls), loop).result(PATIENCE_S)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    trace = tmp_path_factory.mktemp("trace") / "trace.csv"
    trace.write_text(TRACE)
    agent = Agent(AgentOptions(sample_ms=10, device_trace=str(trace)))
    agent.sampler.start()
    with serving(as_app(agent.answer, http_server.MOST_BODY_BYTES)) as found:
        yield found
    agent.sampler.stop()


def ask(port, path, method="GET", body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), raw


def test_samples_clock_and_metrics_are_those_of_a_server_of_models(port):
    status, _, raw = ask(port, wire.DEVICES)
    found = json.loads(raw)
    assert status == 200
    assert found["columns"] == list(wire.SAMPLE_FIELDS)
    time.sleep(0.05)
    more = json.loads(ask(port, f"{wire.DEVICES}?after={found['cursor']}")[2])
    first, then = ([row[wire.SAMPLE_FIELDS.index("time_ns")] for row in each["rows"]] for each in (found, more))
    assert first
    assert then
    assert max(first) < min(then)  # each sample once
    before_ns = time.time_ns()
    clock = json.loads(ask(port, wire.CLOCK)[2])
    assert before_ns <= clock["recv_ns"] <= clock["send_ns"] <= time.time_ns()
    families = {one.name: one for one in text_string_to_metric_families(ask(port, wire.METRICS)[2].decode())}
    assert families["tailrate_device_util_pct"].samples[0].value == 90
    assert ask(port, f"{wire.DEVICES}?after=nonsense")[0] == 400


def test_it_says_that_it_is_an_agent_and_has_no_models(port):
    status, _, raw = ask(port, wire.SERVER)
    assert (status, json.loads(raw)["name"]) == (200, "tailrate-agent")
    assert ask(port, wire.READY)[0] == ask(port, wire.LIVE)[0] == 200
    status, _, raw = ask(port, "/v2/models/bert/infer", "POST", b"{}")
    assert (status, "--devices" in json.loads(raw)["error"]) == (404, True)
    status, headers, _ = ask(port, wire.DEVICES, "POST", b"{}")
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    assert ask(port, f"{wire.HOLDERS}?port=many")[0] == 400
    assert json.loads(ask(port, f"{wire.HOLDERS}?port=8080")[2])["devices"] == []


def test_a_connection_is_kept_and_questions_sent_at_once_are_answered_in_order(port):
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as end:
        end.sendall(
            b"GET /v2 HTTP/1.1\r\n\r\n" * 2 + b"HEAD /v2 HTTP/1.1\r\n\r\nGET /x HTTP/1.1\r\nconnection: close\r\n\r\n"
        )
        raw = b""
        while piece := end.recv(65536):
            raw += piece
    statuses = [int(part[:3]) for part in raw.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 200, 200, 404]
    assert raw.count(b'"name":"tailrate-agent"') == 2  # HEAD has no body


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in ("good",)])
def test_what_is_no_question_gets_an_error_and_harms_nobody(port, name):
    raw, _ = BROKEN[name]
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as end:
        end.sendall(raw)
        end.shutdown(socket.SHUT_WR)
        assert status_of(end) in (0, 400, 404, 405, 413)
    assert ask(port, wire.SERVER)[0] == 200


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /v2 HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc", 400),
        (b"GET /v2 HTTP/1.1\r\ncontent-length: +2\r\n\r\nab", 400),
        (b"GET /v2 HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nx y: z\r\n\r\n", 400),
        (b"GET http://elsewhere/v2 HTTP/1.1\r\n\r\n", 400),
        (b"GET /v2 HTTP/2.0\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\ncontent-length: 70000\r\n\r\n", 413),
        (b"GET /v2 HTTP/1.0\r\n\r\n", 200),
        (b"GET /v2 HTTP/1.1\r\ncontent-length: 2\r\n\r\nab", 200),
    ],
)
def test_a_head_that_could_be_read_in_two_ways_is_refused(port, raw, status):
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as end:
        end.sendall(raw)
        assert status_of(end) == status
        closed = b"HTTP/1.0" in raw or status != 200
        if closed:
            assert end.recv(1) == b""


def test_many_connections_and_slow_ones_hold_nobody_up(port, monkeypatch):
    monkeypatch.setattr(http_server, "PATIENCE_S", 0.2)
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as slow:
        slow.sendall(b"GET /v2 HT")  # and no more
        assert slow.recv(1) == b""  # it is not waited for
    held = [socket.create_connection(("127.0.0.1", port), PATIENCE_S) for _ in range(http_server.MOST_CONNECTIONS)]
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as one_more, suppress(ConnectionResetError):
            assert one_more.recv(1) == b""
    finally:
        for end in held:
            end.close()
    for _ in range(100):  # until those are seen to be closed
        try:
            assert ask(port, wire.SERVER)[0] == 200
            return
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
    pytest.fail("nobody is let in any more")


def test_a_token_is_wanted_for_every_path_and_tls_proves_who_answers(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([*words, "-keyout", key, "-out", certificate, *subject], check=True, capture_output=True)
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    agent = Agent(AgentOptions(device_trace=str(trace)))
    app = auth.guarded(as_app(agent.answer, http_server.MOST_BODY_BYTES), ("a-token-of-sixteen",))
    from tailrate.serve.edge.listener import check_tls

    with serving(app, check_tls(str(certificate), str(key))) as port:
        trusted = ssl.create_default_context(cafile=str(certificate))
        for token, status in (("", 401), ("another-of-sixteen", 401), ("a-token-of-sixteen", 200)):
            for path in (wire.SERVER, wire.DEVICES, wire.CLOCK, wire.METRICS, wire.LIVE):
                connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusted, timeout=PATIENCE_S)
                connection.request("GET", path, headers={"authorization": f"Bearer {token}"} if token else {})
                assert connection.getresponse().status == status, path
                connection.close()
        with pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(
                socket.create_connection(("127.0.0.1", port), PATIENCE_S), server_hostname="localhost"
            )


def test_what_cannot_be_meant_is_refused_and_what_is_open_is_said(monkeypatch):
    monkeypatch.delenv(auth.TOKEN, raising=False)
    monkeypatch.delenv(auth.FILE, raising=False)
    assert check(AgentOptions(port=0)) is None
    assert "whoever reaches port 0" in str(check(AgentOptions(host="0.0.0.0", port=0)))
    monkeypatch.setenv(auth.TOKEN, "a-token-of-sixteen")
    assert "samples cross the network in the clear" in str(check(AgentOptions(host="0.0.0.0", port=0)))
    for wrong in (AgentOptions(sample_ms=1), AgentOptions(port=0, tls_cert="x"), AgentOptions(host="no.such.host.")):
        with pytest.raises((ServeError, OSError)):
            check(wrong)


# ---- whose GPU is it


CHILD = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"


def test_a_gpu_is_the_servers_whose_worker_holds_it():
    """A worker of a worker has memory on the GPU, and its server listens: by the kernel's own tables."""
    program = "import socket, subprocess, sys\n"
    program += 'listening = socket.create_server(("127.0.0.1", 0))\nprint(listening.getsockname()[1], flush=True)\n'
    program += f"subprocess.run([sys.executable, '-c', {CHILD!r}])\n"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        port, worker = int(server.stdout.readline()), int(server.stdout.readline())
        held = {"GPU-0": [worker], "GPU-1": [1], "GPU-2": [], "GPU-3": [10**8]}
        assert devices_of(port, held) == ["GPU-0"]
        assert devices_of(port, {"GPU-9": [server.pid]}) == ["GPU-9"]
        assert devices_of(port + 1 if port < 65535 else 1, {"GPU-0": [worker]}) == []
        server.stdin.close()
    assert devices_of(port, held) == []


def test_a_port_of_another_network_is_not_taken_for_it(tmp_path: Path):
    """As a pod has it: the same number in two networks, of processes that the kernel shows in files of their own."""
    row = "   0: 00000000:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0 0 {inode} 1 0\n"
    for pid, inode, state in ((10, 77, "0A"), (20, 88, "0A"), (30, 99, "01")):
        (tmp_path / str(pid) / "net").mkdir(parents=True)
        (tmp_path / str(pid) / "fd").mkdir()
        (tmp_path / str(pid) / "status").write_text("Name:\tx\nPPid:\t1\n")
        lines = "header\n" + row.format(state=state, inode=77 if pid != 30 else 99)
        (tmp_path / str(pid) / "net" / "tcp").write_text(lines)
        (tmp_path / str(pid) / "fd" / "3").symlink_to(f"socket:[{inode}]")
    assert devices_of(8080, {"mine": [10], "another's": [20], "connected": [30]}, tmp_path) == ["mine"]
