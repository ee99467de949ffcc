"""One exchange at a time over connections that are kept, against a server that says exactly what it is told to."""

import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import gevent
import pytest
from waiting import PATIENCE_S

from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.endpoint.http1.pool import Incoming, Pool, connected

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer-Timing: total;dur=1\r\n\r\nhello"


@contextmanager
def server(*connections, tls=None):
    """Each connection is a list of answers, each answer a list of pieces; requests are kept."""
    seen, threads = [], []

    def serve(listener):
        for answers in connections:
            wire, _ = listener.accept()
            if tls is not None:
                wire = tls.wrap_socket(wire, server_side=True)
            with wire:
                for pieces in answers:
                    request = b""
                    while b"\r\n\r\n" not in request or len(request.partition(b"\r\n\r\n")[2]) < length(request):
                        piece = wire.recv(1 << 20)
                        if not piece:
                            return
                        request += piece
                    seen.append(request)
                    for piece in pieces:
                        if isinstance(piece, float):
                            time.sleep(piece)
                        else:
                            wire.sendall(piece)

    def length(request):
        fields = request.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
        return next((int(field.split(b":")[1]) for field in fields if field.startswith(b"content-length")), 0)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads.append(threading.Thread(target=serve, args=(listener,), daemon=True))
        threads[0].start()
        scheme = "https" if tls else "http"
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", seen
        threads[0].join(PATIENCE_S)


def exchange(pool, body=b"", method="POST"):
    found = Incoming()
    pool.exchange(method, "/x", {"x-request-id": "7"}, body, found)
    return found.status, found.head, b"".join(found.pieces)


@contextmanager
def pool(url):
    found = Pool(urlsplit(url), 5.0)
    try:
        yield found
    finally:
        found.close()


@pytest.mark.parametrize(
    ("pieces", "status", "body"),
    [
        ([OK], 200, b"hello"),
        ([OK[:9], 0.02, OK[9:40], 0.02, OK[40:-2], 0.02, OK[-2:]], 200, b"hello"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", 0.02, OK], 200, b"hello"),
        ([b"HTTP/1.1 503 Full\r\nRetry-After: 1\r\ncontent-length:0\r\n\r\n"], 503, b""),
        ([b"HTTP/1.1 204 None\r\n\r\n"], 204, b""),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", b"lo\r\n6;x=1\r\n world\r\n0\r\n\r\n"], 200,
         b"hello world"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n000000005\r\nhello\r\n000000000\r\n\r\n"], 200,
         b"hello"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"a" * 300_000], 200, b"a" * 300_000),
    ],
)  # fmt: skip
def test_answers_of_every_form_leave_the_connection_to_the_next(pieces, status, body):
    with server([pieces, [OK]]) as (url, seen), pool(url) as found:
        assert exchange(found, b"ab")[0::2] == (status, body)
        assert exchange(found, b"ab")[0::2] == (200, b"hello")
    assert len(seen) == 2


def test_a_request_is_as_it_should_be():
    with server([[OK], [OK], [OK]]) as (url, seen), pool(url) as found:
        exchange(found, b"ab")
        exchange(found, method="GET")
        exchange(found, b"c" * 700_000)
    host = url.removeprefix("http://")
    assert seen[0].decode() == f"POST /x HTTP/1.1\r\nHost: {host}\r\nx-request-id: 7\r\nContent-Length: 2\r\n\r\nab"
    assert seen[1].decode() == f"GET /x HTTP/1.1\r\nHost: {host}\r\nx-request-id: 7\r\n\r\n"
    assert seen[2].endswith(b"\r\n\r\n" + b"c" * 700_000)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"],
        [b"HTTP/1.1 200 OK\r\nConnection: keep-alive, Close\r\nContent-Length: 5\r\n\r\nhello", 0.3],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"],
        [b"HTTP/1.1 200 OK\r\n\r\nhel", 0.02, b"lo"],
    ],
)
def test_a_connection_that_ends_is_not_used_again(pieces):
    with server([pieces], [[OK]]) as (url, seen), pool(url) as found:
        assert exchange(found)[0::2] == (200, b"hello")
        assert exchange(found)[0::2] == (200, b"hello")
    assert len(seen) == 2


def test_a_connection_that_was_closed_meanwhile_costs_nothing():
    with server([[OK]], [[OK]]) as (url, _), pool(url) as found:
        exchange(found)
        time.sleep(0.1)  # the server has closed it
        assert exchange(found)[2] == b"hello"


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([], "closed before the answer was whole"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"], "closed before the answer was whole"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "not HTTP/1.1"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], "no size"),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000], "header does not end"),
    ],
)
def test_what_is_no_answer_is_a_row_and_a_sentence(pieces, said):
    with server([pieces], [[OK]]) as (url, _):
        client = Client(url, 5.0)
        answer = client.send("POST", "/x", b"ab", {})
        assert answer.status == "connect"
        assert said in answer.error
        assert client.send("POST", "/x", b"ab", {}).status == "200"
        client.close()


def test_a_deadline_is_one_for_the_whole_exchange_and_its_connection_is_dropped():
    with server([[OK[:20], 0.3, OK[20:50], 0.3, OK[50:-1], 0.4]], [[OK]]) as (url, _):
        client = Client(url, 0.5)  # longer than each wait for a piece, and then it is closed
        answer = client.send("POST", "/x", b"ab", {})
        assert answer.status == "timeout"
        assert answer.done_ns - answer.sent_ns > 0.4e9
        time.sleep(0.7)
        assert client.send("POST", "/x", b"ab", {}).body == b"hello"
        client.close()


def test_headers_by_their_names():
    """One that comes again, as where a proxy adds its own, goes on with the list."""
    again = OK.replace(b"\r\n\r\n", b"\r\nserver-timing: edge;dur=3\r\nSERVER-TIMING:cdn\r\n\r\n")
    with server([[OK], [again]]) as (url, _):
        client = Client(url, 5.0)
        found = {"content-length": "5", "server-timing": "total;dur=1"}
        assert client.send("GET", "/x").headers() == found
        assert client.send("GET", "/x").headers() == found | {"server-timing": "total;dur=1, edge;dur=3, cdn"}
        client.close()


def test_many_at_once_have_a_connection_each():
    with server(*[[[0.05, OK]]] * 3) as (url, seen), pool(url) as found:
        jobs = [gevent.spawn(exchange, found, b"x") for _ in range(3)]
        gevent.joinall(jobs, raise_error=True)
        assert len(seen) == 3
        assert len(found._idle) == 3


@pytest.mark.parametrize(
    ("kind", "host", "looked_up"),
    [("AF_INET", "127.0.0.1", False), ("AF_INET6", "::1", False), ("AF_INET", "localhost", True)],
)
def test_only_a_name_is_looked_up(kind, host, looked_up, monkeypatch):
    """By threads: a hundred connections at the start of a run waited 30 ms for their turn."""
    asked = []
    usual = gevent.get_hub().resolver.getaddrinfo
    monkeypatch.setattr(
        gevent.get_hub().resolver, "getaddrinfo", lambda *words: asked.append(words[0]) or usual(*words)
    )
    with socket.socket(getattr(socket, kind)) as listener:
        listener.bind(("127.0.0.1" if looked_up else host, 0))
        listener.listen()
        address = (host, listener.getsockname()[1])
        with connected(address, 5.0) as ours:
            assert ours.gettimeout() == 5.0
            assert ours.getpeername()[1] == address[1]
    assert bool(asked) == looked_up
    with pytest.raises(ConnectionRefusedError):
        connected(address, 5.0)


def test_tls(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with server([[OK], [OK]], tls=context) as (url, seen):
        client = Client(url, 5.0)
        assert client.send("POST", "/x", b"ab", {}).body == b"hello"
        assert client.send("POST", "/x", b"ab", {}).body == b"hello"
        client.close()
    assert len(seen) == 2
