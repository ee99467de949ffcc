"""`tailrate serve`: what listens of all processes that it started, what bad clients get there, and how it ends."""

import os
import signal
import socket
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import grpc
import numpy as np
import psutil
import pytest
from misshapen import http
from rawhttp import BROKEN, PATH, POST, X, closed, connected, crowd, good, status_of
from serving import MARK, assert_private_but, started_with
from waiting import PATIENCE_S, until

from tailrate.serve.body.request import encode_infer
from tailrate.serve.deploy.haproxy import LOOPBACK, free_port
from tailrate.serve.edge import auth

pytestmark = pytest.mark.served

ROOT = Path(__file__).parents[2]


class Running(NamedTuple):
    mark: str
    """Of its processes, whoever their parents are."""
    port: int
    said: Path


@contextmanager
def running(home: Path, host: str, way: str) -> Iterator[Running]:
    """`tailrate serve null`, which is ready.

    It is set up by the environment alone, as an image is, and ends with 0 on SIGTERM, as of `docker stop`.
    """
    mark, port = uuid.uuid4().hex, free_port()
    asked = {"VARIANTS": "eager", "MAX_BATCH": "", "INGRESS": way, "HOST": host, "PORT": str(port)}
    environment = os.environ | {"HOME": str(home), "PYTHONPATH": str(ROOT), MARK: mark, auth.TOKEN: "", auth.FILE: ""}
    environment |= {f"TAILRATE_SERVE_{name}": value for name, value in asked.items()}
    command = [sys.executable, "-m", "tailrate", "serve", "null", "--set", "reply_bytes=1000"]
    with (
        (home / "said").open("w") as said,
        subprocess.Popen(command, env=environment, cwd=home, stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            assert any(line.startswith("ready: null/eager") for line in process.stdout), (home / "said").read_text()
            yield Running(mark, port, home / "said")
        finally:
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=PATIENCE_S)
    assert "stopping\n" in out
    assert process.returncode == 0
    assert marked(mark) == {}


def marked(mark: str) -> dict[int, str]:
    """Names by process id."""
    return {process["pid"]: process["name"] for process in started_with(MARK, mark)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("home"), "0.0.0.0", "fast") as found:
        yield found


def test_only_the_port_that_was_asked_for_is_open_beyond_loopback(server: Running) -> None:
    """Where none was, `test_app.py` looks at."""
    assert_it_listens_as_asked(server, "0.0.0.0", "fast")


@pytest.mark.long
@pytest.mark.parametrize(("host", "way"), [(LOOPBACK, "fast"), ("0.0.0.0", "plain")])
def test_so_it_is_on_loopback_and_on_the_plain_way(tmp_path: Path, host: str, way: str) -> None:
    with running(tmp_path, host, way) as found:
        assert_it_listens_as_asked(found, host, way)


def assert_it_listens_as_asked(server: Running, host: str, way: str) -> None:
    ours = marked(server.mark)
    assert {"raylet", "gcs_server"} <= set(ours.values())
    assert ("haproxy" in ours.values()) is (way == "fast")
    assert_private_but(set() if host == LOOPBACK else {server.port}, ours)
    if way == "fast":
        assert_ray_takes_no_orders_from_other_users_of_the_machine(ours)
    said = server.said.read_text()
    assert said.count("tailrate: ") == (host != LOOPBACK)
    assert (f"whoever reaches port {server.port} can use this server" in said) is (host != LOOPBACK)


@pytest.mark.parametrize("option", ["--allow-faults", "--profile"])
def test_who_may_break_things_must_be_known_before_anything_starts(tmp_path: Path, option: str) -> None:
    words = [sys.executable, "-m", "tailrate", "serve", "null", "--variants", "eager", "--host", "0.0.0.0", option]
    environment = os.environ | {"TAILRATE_SERVE_PORT": str(free_port()), auth.TOKEN: ""}
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tailrate: {option} needs a token")


CALLS = (
    "/ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.serve.ASGIService/HandleRequest",
)
"""One of each kind of process that runs what it is told."""


def assert_ray_takes_no_orders_from_other_users_of_the_machine(ours: dict[int, str]) -> None:
    """Who all reach loopback; Serve's own calls would have arguments unpickled."""
    answered: dict[str, set[grpc.StatusCode]] = {}
    for each in psutil.net_connections("tcp"):
        if each.pid in ours and each.status == psutil.CONN_LISTEN:
            with grpc.insecure_channel(f"{LOOPBACK}:{each.laddr.port}") as channel:
                codes = {code_of(channel, method) for method in CALLS}
            answered.setdefault(ours[each.pid], set()).update(codes)
    assert grpc.StatusCode.OK not in set().union(*answered.values()), answered
    wary = {name for name, codes in answered.items() if grpc.StatusCode.UNAUTHENTICATED in codes}
    assert {"gcs_server", "raylet"} <= wary
    assert sum("Replica" in name for name in wary) == 2, answered


def code_of(channel: grpc.Channel, method: str) -> grpc.StatusCode:
    try:
        channel.unary_unary(method)(b"", timeout=5)
    except grpc.RpcError as problem:
        return problem.code()
    return grpc.StatusCode.OK


# ---- bad clients


@pytest.mark.parametrize("name", BROKEN)
def test_broken_http_gets_what_it_deserves(server: Running, name: str) -> None:
    raw, expected = BROKEN[name]
    with connected(server.port) as end:
        end.sendall(raw)
        assert status_of(end) in expected
    assert good(server.port)


def test_requests_one_behind_the_other_are_all_answered(server: Running) -> None:
    raw = http(PATH.decode(), *X)
    with connected(server.port) as end:
        end.sendall(
            raw * 5 + raw.replace(b"POST", b"PUT", 1) + raw.replace(b"host: x", b"host: x\r\nconnection: close")
        )
        said = end.makefile("rb").read()
    assert [int(part[:3]) for part in said.split(b"HTTP/1.1 ")[1:]] == [200] * 5 + [405, 200]


def processes(server: Running) -> dict[int, tuple[str, int]]:
    """(name, open files) of HAProxy and of every replica."""
    found = {}
    for process in started_with(MARK, server.mark):
        name = process["cmdline"][0] if process["cmdline"] else process["name"]
        if "haproxy" in name or "ServeReplica" in name or "Proxy" in name:
            with suppress(psutil.Error):
                found[process["pid"]] = (name, psutil.Process(process["pid"]).num_fds())
    return found


def test_a_crowd_that_misbehaves_is_borne_and_leaves_nothing_behind(server: Running) -> None:
    """More that wait for their bodies than Ray had slots before, more that never read than fit into any buffer."""
    port = server.port
    assert good(port)
    before = processes(server)
    assert any("haproxy" in name for name, _ in before.values())
    large = http(PATH.decode(), *encode_infer({"x": np.zeros((4000, 1), np.uint8)}))
    with ExitStack() as stack:
        idle = crowd(port, 1500, b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n", stack)
        assert all(status_of(end) == 200 for end in idle)
        bodies = crowd(port, 1400, POST + b"content-length: 1000\r\n\r\nhalf", stack)
        assert good(port)
        silent = crowd(port, 300, b"", stack)
        heads = crowd(port, 300, POST[:-9], stack)
        greedy = crowd(port, 30, 3 * large, stack, receives_bytes=4096)
        gone = crowd(port, 100, http(PATH.decode(), *X), stack)
        for end in gone:  # with a reset
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
        for _ in range(50):
            assert good(port)
        # who says nothing or half of a head is sent away by HAProxy, who is slow with a body by the replica
        until(lambda: all(map(closed, silent + heads)))
        assert {status_of(end) for end in bodies} == {408}
        assert not any(map(closed, idle))
        assert good(port)
        assert greedy
    assert processes(server).keys() == before.keys()
    until(lambda: all(files <= before[pid][1] + 40 for pid, (_, files) in processes(server).items()))
    assert good(port)
