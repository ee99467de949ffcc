import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
from waiting import PATIENCE_S

from tailrate.serve.deploy import cluster, haproxy, worker
from tailrate.serve.options import ServeOptions

ROOT = Path(__file__).parents[3]
CONFIG = """global
    log 127.0.0.1:514 local0 info
    stats socket /somewhere/admin mode 666 level admin expose-fd listeners
    maxconn 4096
defaults
    log global
    option httplog
    errorfile 502 /somewhere/500.http
    errorfile 503 /somewhere/500.http
    errorfile 504 /somewhere/500.http
frontend prometheus
    bind :9101
    http-request use-service prometheus-exporter if { path /metrics }
frontend http_frontend
    bind 127.0.0.1:8123
    acl healthcheck path -i /-/healthz
backend http-a
    server one 127.0.0.1:30000 check
listen stats
  bind *:8404
  stats enable
"""


def started(tmp_path: Path, host: str = haproxy.LOOPBACK, times: int = 1) -> str:
    """What of this configuration HAProxy would get to see; `echo` stands in for it."""
    environment = haproxy.environment(tmp_path / "home", host)
    program = Path(environment["RAY_SERVE_HAPROXY_BINARY_PATH"])
    program.write_text(program.read_text().replace(str(haproxy.binary()), shutil.which("echo") or "echo"))
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    for _ in range(times):
        words = [program, "-db", "-f", config, "-sf", "77"]
        said = subprocess.run(words, check=True, capture_output=True, text=True)
        assert said.stdout == f"-db -f {config} -sf 77\n"
        assert said.stderr == ""
    return config.read_text()


def test_as_haproxys_program_it_may_be_all_there_is_of_us(tmp_path: Path) -> None:
    alone = shutil.copy(ROOT / "serve" / "deploy" / "haproxy.py", tmp_path)
    done = subprocess.run([sys.executable, "-I", "-S", alone], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "usage: python -m tailrate.serve.deploy.haproxy FOLDER\n")


def test_a_port_is_given_to_one_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody listens there yet. Which ports they may take is drawn, as another suite may try the same."""
    first = random.randrange(9960)
    monkeypatch.setattr("random.sample", lambda ports, count: list(ports)[first : first + 40])
    here = f"import random; random.sample = lambda ports, count: list(ports)[{first} : {first} + 40]"
    ask = "print([free_port() for _ in range(8)], flush=True)\ninput()"
    program = f"{here}\nfrom tailrate.serve.deploy.haproxy import free_port\n{ask}"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as other:
        assert other.stdout is not None
        theirs = json.loads(other.stdout.readline())
        mine = [haproxy.free_port() for _ in range(8)]
        assert len({*theirs, *mine}) == 16
        other.communicate("\n")
    assert other.returncode == 0


def test_haproxy_gets_no_port_but_the_one_that_was_asked_for(tmp_path: Path) -> None:
    text = started(tmp_path)
    assert [line.strip() for line in text.splitlines() if line.strip().startswith("bind")] == ["bind 127.0.0.1:8123"]
    assert "    server one 127.0.0.1:30000 check" in text
    assert "acl healthcheck" in text
    assert "local0" not in text
    assert "httplog" not in text
    assert f"errorfile 503 {tmp_path}/lost.http" in text
    assert f"http-request set-header {haproxy.TIMEOUT_HEADER}" in text


@pytest.mark.parametrize(("host", "bind"), [("0.0.0.0", "bind 0.0.0.0:8123"), ("::", "bind [::]:8123")])
def test_a_host_that_was_asked_for_is_where_it_listens(tmp_path: Path, host: str, bind: str) -> None:
    text = started(tmp_path, host)
    assert bind in text
    assert text.index(bind) < text.index("set-header") < text.index("acl healthcheck")
    assert "server one 127.0.0.1:30000" in text


def test_a_host_that_ray_was_told_stays_and_has_the_same_rules(tmp_path: Path) -> None:
    """A cluster over several machines, whose replicas cannot be on loopback either."""
    text = haproxy.edited(CONFIG.replace("bind 127.0.0.1:8123", "bind *:8123"), haproxy.LOOPBACK, tmp_path)
    assert "bind *:8123" in text
    assert text.index("bind *:8123") < text.index("set-header") < text.index("acl healthcheck")


def test_starting_again_with_the_same_file_changes_nothing(tmp_path: Path) -> None:
    assert started(tmp_path) == started(tmp_path, times=2)


RENAMED = {
    "frontend prometheus": "frontend metrics",
    "listen stats": "listen statistics",
    "    log 127.0.0.1:514 local0 info": "    log 127.0.0.1:514 local7 info",
    "frontend http_frontend": "frontend http",
    " mode 666 level": " level",
    "defaults\n": "defaults all\n",
    "errorfile 504": "http-error 504",
    "backend http-a": "frontend grpc\n    bind :9000\nbackend http-a",
    "    bind 127.0.0.1:8123": "    bind 127.0.0.1:8123\n    bind :8124",
}


@pytest.mark.parametrize(("known", "other"), RENAMED.items(), ids=[*RENAMED])
def test_a_configuration_that_is_not_as_it_is_known_is_refused(tmp_path: Path, known: str, other: str) -> None:
    assert known in CONFIG
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG.replace(known, other))
    program = haproxy.environment(tmp_path / "home")["RAY_SERVE_HAPROXY_BINARY_PATH"]
    done = subprocess.run([program, "-db", "-f", config], capture_output=True, text=True)
    assert done.returncode == 1  # and HAProxy was not started
    assert f"Ray {version('ray')} writes HAProxy's configuration in another way than it is known here" in done.stderr
    assert "--ingress plain" in done.stderr
    assert "Traceback" not in done.stderr


# in a process of its own, as Ray reads its environment once
STARTS = """
import sys
from pathlib import Path
import ray
import ray.serve._private.haproxy as haproxy
from tailrate.serve.deploy import cluster
from tailrate.serve.options import ServeOptions
known, other, folder = sys.argv[1:]
if known:
    assert known in haproxy.HAPROXY_CONFIG_TEMPLATE
    haproxy.HAPROXY_CONFIG_TEMPLATE = haproxy.HAPROXY_CONFIG_TEMPLATE.replace(known, other)
def stop(*_):
    raise SystemExit("would start")
cluster._start_cluster = stop
cluster._prepare_environment = lambda options, scratch, say: bool(cluster.haproxy._make_private(scratch / "h") or True)
cluster.start(ServeOptions(("null",), ("eager",), port=0), print)
"""


@pytest.mark.parametrize(
    ("known", "other", "said"),
    [
        ("", "", "would start"),
        (
            "frontend http_frontend",
            "frontend http_in",
            "its rules was found 0 times, where 1 was expected",
        ),
    ],
)
def test_a_ray_that_writes_another_is_refused_before_anything_starts(
    tmp_path: Path, known: str, other: str, said: str
) -> None:
    """Its next version, or this one with a section renamed."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", STARTS, known, other, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 1
    assert said in done.stderr
    assert ("Traceback" in done.stderr) is bool(known)
    assert list(tmp_path.glob("tr*")) == []


def test_ray_is_capped_at_what_was_tried() -> None:
    (asked,) = re.findall(r'"ray\[serve\]>=2\.(\d+),<2\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    least, next_to_try = map(int, asked)
    here = int(version("ray").split(".")[1])
    assert least <= here < next_to_try, f"Ray 2.{here} is not among those that were tried"
    assert f"Ray 2.{next_to_try} is the next to try" in (ROOT / "docs/testing.md").read_text()


@pytest.mark.live
def test_haproxy_ends_with_whoever_started_it(tmp_path: Path) -> None:
    program = Path(haproxy.environment(tmp_path / "home")["RAY_SERVE_HAPROXY_BINARY_PATH"])
    program.write_text(program.read_text().replace(str(haproxy.binary()), shutil.which("sleep") or "sleep"))
    (tmp_path / "60").write_text(CONFIG)
    script = f"import subprocess; print(subprocess.Popen([{str(program)!r}, '-f', '60']).pid, flush=True); input()"
    # sleep takes neither -f nor a second word, so it gets a copy of itself that passes both over
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep $2\n")
    sleeper.chmod(0o755)
    program.write_text(program.read_text().replace(shutil.which("sleep") or "sleep", str(sleeper)))
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True, cwd=tmp_path)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    while "sleep" not in child.name():
        time.sleep(0.01)
    parent.kill()
    parent.communicate()
    assert psutil.wait_procs([child], timeout=PATIENCE_S)[1] == []


def test_haproxy_itself_takes_the_edited_configuration(tmp_path: Path) -> None:
    text = started(tmp_path).replace("defaults\n", "defaults\n    mode http\n    timeout connect 1s\n")
    config = tmp_path / "checked.cfg"
    config.write_text(text)
    found = subprocess.run([str(haproxy.binary()), "-c", "-f", config], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_the_reply_for_a_lost_request_is_whole() -> None:
    head, _, body = haproxy.LOST_HTTP.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"content-length: %d" % len(body) in head
    assert set(json.loads(body)) == {"error"}


def test_each_cluster_has_files_and_ports_of_its_own(tmp_path: Path) -> None:
    one, two = haproxy.environment(tmp_path / "1"), haproxy.environment(tmp_path / "2")
    own = {key for key in one if key not in haproxy.COMMON and key not in haproxy.FAST} - {"RAY_SERVE_HAPROXY_NBTHREAD"}
    assert len(own) == 7
    assert all(one[key] != two[key] for key in own)
    assert haproxy.environment(None) == haproxy.COMMON


def test_the_open_files_suffice_for_the_connections_that_are_asked_for() -> None:
    constants = (Path(str(find_spec("ray").origin)).parent / "serve/_private/constants.py").read_text()
    assert '"RAY_SERVE_HAPROXY_MAXCONN"' in constants
    # HAProxy wants 50,025 for 20,000 connections
    assert int(haproxy.FAST["RAY_SERVE_HAPROXY_MAXCONN"]) * 2.5 + 25 <= haproxy.FILES


def ray_is(monkeypatch: pytest.MonkeyPatch, init: Callable[..., None], **served: Any) -> SimpleNamespace:
    """In place of Ray; the module in which its cluster's parameters are."""
    ray, serve, parameters = ModuleType("ray"), ModuleType("ray.serve"), SimpleNamespace(RayParams=dict)
    serve.__dict__.update(served)
    ray.__dict__.update(init=init, serve=serve)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray._private", SimpleNamespace(parameter=parameters))
    monkeypatch.setitem(sys.modules, "ray.job_config", SimpleNamespace(JobConfig=SimpleNamespace))
    monkeypatch.setattr(cluster, "applications", lambda options: [])
    return parameters


def test_a_proxy_that_takes_longer_than_ray_waits_for_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[set[str]] = []

    def start(**how: Any) -> None:
        starts.append(set(how))
        if len(starts) == 1:
            raise TimeoutError("HTTP proxies not available after 60s.")

    ray_is(monkeypatch, lambda **_: None, start=start, run_many=lambda targets, **_: starts.append({"targets"}))
    cluster._start_cluster(ServeOptions(("null",), ("eager",)), "", {"port": 1})
    # the second finds the one that is there, which has had its options
    assert starts == [{"http_options", "logging_config"}, set(), {"targets"}]


def test_a_node_that_starts_too_slowly_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []

    def init(**how: Any) -> None:
        children.append(subprocess.Popen(["sleep", "600"]))
        less = {"include_log_monitor": False, "no_monitor": True, "worker_path": worker.__file__}
        assert parameters.RayParams(num_cpus=1) == {"num_cpus": 1} | less
        if len(children) == 1:
            raise Exception("The current node timed out during startup.")  # Ray has no type for it

    parameters = ray_is(monkeypatch, init, start=lambda **_: None, run_many=lambda targets, **_: None)
    before = subprocess.Popen(["sleep", "600"])
    try:
        cluster._start_cluster(ServeOptions(("null",), ("eager",)), "", {"port": 1})
        slow, second = children
        assert slow.wait(PATIENCE_S) == -signal.SIGKILL
        assert second.poll() is before.poll() is None
        assert parameters.RayParams is dict  # others' clusters have what they had
    finally:
        for process in (before, *children):
            process.kill()
            process.wait()


def test_what_stands_in_the_way_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert haproxy.obstacle() is None
    broken = tmp_path / "haproxy"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(haproxy, "binary", lambda: broken)
    assert "does not run here" in str(haproxy.obstacle())
    monkeypatch.setattr(haproxy, "binary", lambda: None)
    assert "there is no HAProxy" in str(haproxy.obstacle())
    monkeypatch.setattr("sys.platform", "darwin")
    assert "Linux only" in str(haproxy.obstacle())


def test_too_few_files_for_haproxy_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that allows 1024, where it would end at once and Ray Serve with it."""
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    assert haproxy.obstacle() == "HAProxy may open 1024 files here, and needs 12000: raise the hard limit (nofile)"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, resource.RLIM_INFINITY))
    assert haproxy.obstacle() is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # who may raise the limit
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    assert haproxy.obstacle() is None


STATISTICS = """# pxname,svname,qcur,stot,status,
http-a,SERVE_REPLICA_a-1,0,5000,UP,
http-a,SERVE_PROXY_ACTOR-fallback-77,0,3,UP,
http-b,SERVE_REPLICA_b-1,0,0,DOWN 1/2,
http-b,SERVE_PROXY_ACTOR-fallback-77,0,,UP,
http-b,BACKEND,0,5003,UP,

"""


def test_requests_that_took_the_slow_way_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_SOCKET_PATH", str(tmp_path / "a"))
    assert haproxy.slow_requests("node") is None
    (tmp_path / "node").mkdir()
    asked: list[bytes] = []
    assert haproxy.replicas_up("node") == 0
    with socket.socket(socket.AF_UNIX) as admin:
        admin.bind(str(tmp_path / "node" / "a"))
        admin.listen()

        def answer() -> None:
            for _ in range(2):
                connection, _ = admin.accept()
                with connection:
                    asked.append(connection.recv(100))
                    connection.sendall(STATISTICS.encode())

        thread = threading.Thread(target=answer)
        thread.start()
        assert haproxy.slow_requests("node") == 3
        assert haproxy.replicas_up("node") == 1
        thread.join()
    assert asked == [b"show stat\n"] * 2
    monkeypatch.delenv("RAY_SERVE_HAPROXY_SOCKET_PATH")
    assert haproxy.slow_requests("node") is None


def test_the_module_prints_what_a_shell_needs(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tailrate.serve.deploy.haproxy", str(tmp_path / "with space")]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    script = found.stdout + 'echo "$RAY_SERVE_ENABLE_HA_PROXY $RAY_SERVE_HAPROXY_BINARY_PATH"'
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert said.stdout == f"1 {tmp_path}/with space/haproxy\n"
    assert subprocess.run(words[:3], capture_output=True, text=True).returncode == 2
