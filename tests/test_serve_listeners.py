"""What listens while `headroom serve` runs, of all processes that it started: beyond loopback, what was asked for."""

import ipaddress
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from serving import started_with

from serve import guard
from serve.ingress import LOOPBACK, free_port

pytestmark = pytest.mark.served

ROOT = Path(__file__).parents[1]
MARK = "HEADROOM_TEST_MARK"


@contextmanager
def running(home: Path, host: str, way: str) -> Iterator[tuple[str, int]]:
    """`headroom serve null`, which is ready: what marks its processes, whoever their parents are, and its port.

    It is set up by the environment alone, as an image is, and ends with 0 on SIGTERM, as of `docker stop`.
    """
    mark, port = uuid.uuid4().hex, free_port()
    asked = {"VARIANTS": "eager", "MAX_BATCH": "", "INGRESS": way, "HOST": host, "PORT": str(port)}
    environment = os.environ | {"HOME": str(home), "PYTHONPATH": str(ROOT), MARK: mark, guard.TOKEN: "", guard.FILE: ""}
    environment |= {f"HEADROOM_SERVE_{name}": value for name, value in asked.items()}
    command = [sys.executable, "-m", "headroom", "serve", "null"]
    with (
        (home / "said").open("w") as said,
        subprocess.Popen(command, env=environment, cwd=home, stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            assert any(line.startswith("ready: null/eager") for line in process.stdout), (home / "said").read_text()
            yield mark, port
        finally:
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
    assert "stopping\n" in out
    assert process.returncode == 0
    assert marked(mark) == {}


def marked(mark: str) -> dict[int, str]:
    """Names by process id."""
    return {process["pid"]: process["name"] for process in started_with(MARK, mark)}


def is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


@pytest.mark.parametrize(
    ("host", "way"), [(LOOPBACK, "fast"), ("0.0.0.0", "fast"), pytest.param("0.0.0.0", "plain", marks=pytest.mark.long)]
)
def test_only_the_port_that_was_asked_for_is_open_beyond_loopback(tmp_path: Path, host: str, way: str) -> None:
    with running(tmp_path, host, way) as (mark, port):
        ours = marked(mark)
        assert {"raylet", "gcs_server"} <= set(ours.values())
        assert ("haproxy" in ours.values()) is (way == "fast")
        sockets = [each for each in psutil.net_connections("inet") if each.pid in ours]
        listeners = [each for each in sockets if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and each.laddr]
        assert len(listeners) > 5
        beyond = {each.laddr.port for each in listeners if not is_loopback(each.laddr.ip)}
        assert beyond == (set() if host == LOOPBACK else {port})
        for each in psutil.net_connections("unix"):
            if each.pid in ours and each.laddr:
                assert any(is_private(folder) for folder in Path(each.laddr).parents), each
        if (host, way) == (LOOPBACK, "fast"):
            assert_ray_takes_no_orders_from_other_users_of_the_machine(ours)
    said = (tmp_path / "said").read_text()
    assert said.count("headroom: ") == (host != LOOPBACK)
    assert (f"whoever reaches port {port} can use this server" in said) is (host != LOOPBACK)


def is_private(folder: Path) -> bool:
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


@pytest.mark.parametrize("option", ["--allow-faults", "--profile"])
def test_who_may_break_things_must_be_known_before_anything_starts(tmp_path: Path, option: str) -> None:
    words = [sys.executable, "-m", "headroom", "serve", "null", "--variants", "eager", "--host", "0.0.0.0", option]
    environment = os.environ | {"HEADROOM_SERVE_PORT": str(free_port()), guard.TOKEN: ""}
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"headroom: {option} needs a token")


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
