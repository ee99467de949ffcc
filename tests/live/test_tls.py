"""Over https: who is spoken to is proven, with a CA of one's own too, and kept connections are no less honest."""

import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from asked import found_at
from endpoint import endpoint
from test_http import OK, server
from waiting import PATIENCE_S

from tailrate import analysis
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.endpoint.credentials import Access
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """A CA, and two certificates of it: `right` for 127.0.0.1, `other` for another host."""
    folder = tmp_path_factory.mktemp("pki")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    for name, extension in (
        ("ca", "keyUsage=critical,keyCertSign"),
        ("right", "subjectAltName=IP:127.0.0.1"),
        ("other", "subjectAltName=DNS:elsewhere.example"),
    ):
        by = [] if name == "ca" else ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=CA:FALSE"]
        words = [
            *made,
            "-subj",
            f"/CN={name}",
            "-addext",
            extension,
            *by,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
        ]
        subprocess.run(words, check=True, capture_output=True, cwd=folder)
    return folder


def certified(pki, name="right"):
    return {"cert": pki / f"{name}.pem", "key": pki / f"{name}.key"}


@contextmanager
def client(url, pki=None):
    found = Client(url, 5.0, Access(ca_file=str(pki / "ca.pem") if pki else ""))
    try:
        yield found
    finally:
        found.close()


@pytest.mark.live
def test_a_run_from_its_first_question_to_its_report(pki, tmp_path):
    words = ["--run-dir", tmp_path, "--run-id", "it", "--rates", "40", "--step-seconds", "2", "--settle-seconds", "0.5"]
    words += ["--timeout", "60"]
    with endpoint(**certified(pki)) as url:
        done = subprocess.run(
            [sys.executable, "-m", "tailrate", "run", "null", "--host", url, "--ca-file", pki / "ca.pem", *words],
            cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert done.returncode in (0, 1, 3), done.stderr
    run = analysis.load(tmp_path / "it")
    assert set(run.requests(columns=["status"])["status"]) == {"200"}
    assert len(run.devices)
    assert run.manifest.clock[0]["error_ns"] >= 0
    assert any(host.get("url") == url for host in run.manifest.hosts)


@pytest.mark.live
def test_the_systems_own_cas_may_be_told_of_it_as_well(pki, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(pki / "ca.pem"))
    with endpoint(**certified(pki)) as url:
        assert [found.version for found in found_at(url, "null")] == ["eager", "compiled"]


@pytest.mark.live
@pytest.mark.parametrize(
    ("certificate", "trusted", "sentence"),
    [
        ("right", False, r"is not to be trusted: its certificate proves nothing \(.*\); name its CA with --ca-file"),
        ("other", True, r"proves nothing \(IP address mismatch, .* '127.0.0.1'\); use the name in it"),
        (None, True, r"nothing answers at https.*: TLS failed \(.*\); is the endpoint up\?"),
    ],
)
def test_who_cannot_prove_who_it_is_gets_nothing_but_a_sentence(pki, certificate, trusted, sentence):
    served = certified(pki, certificate) if certificate else {}
    access = Access(ca_file=str(pki / "ca.pem") if trusted else "")
    with endpoint(**served) as url:
        with pytest.raises(ScenarioError, match=sentence) as raised:
            found_at(url.replace("http:", "https:"), "null", access)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("content", "why"), [(None, "No such file or directory"), ("none", "it holds no certificate")])
def test_a_file_that_vouches_for_nobody(tmp_path, content, why):
    if content:
        (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(ScenarioError, match=f"--ca-file .*ca.pem cannot be used: {why}"), client("https://h", tmp_path):
        pass


@pytest.mark.parametrize("politely", [True, False])
def test_a_connection_that_was_closed_meanwhile_costs_nothing(pki, politely):
    """With TLS's own word for it, or without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certified(pki).values())
    seen = []

    def serve(listener):
        for _ in range(2):
            raw, _ = listener.accept()
            with context.wrap_socket(raw, server_side=True, suppress_ragged_eofs=True) as wire:
                seen.append(wire.recv(1 << 16))
                wire.sendall(OK)
                if politely:
                    wire.settimeout(0.2)
                    with suppress(OSError):  # nobody answers it
                        wire.unwrap()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        with client(f"https://127.0.0.1:{listener.getsockname()[1]}", pki) as found:
            assert found.send("POST", "/x", b"1").body == b"hello"
            time.sleep(0.5)
            assert found.send("POST", "/x", b"2").body == b"hello"
        thread.join(PATIENCE_S)
    assert [request[-1:] for request in seen] == [b"1", b"2"]


def test_a_request_that_was_not_answered_is_a_failure_and_not_sent_again(pki):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certified(pki).values())
    with server([[OK], []], [[OK]], tls=context) as (url, seen), client(url, pki) as found:
        assert [found.send("POST", "/x", body).status for body in (b"1", b"2", b"3")] == ["200", "connect", "200"]
    assert [request[-1:] for request in seen] == [b"1", b"2", b"3"]
