"""A live server in a process of its own, for tests: `with served(models=("null",)) as server: …`.

Run as a program it is that process: it serves until its standard input ends, so that it cannot outlive
the test that started it, whatever becomes of that.
"""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import starts
from waiting import PATIENCE_S

from tailrate.serve.deploy.haproxy import free_port

START_S = 600
MARK = "TAILRATE_TEST_MARK"
"""A variable that names the processes of a server, whoever their parents are."""


@dataclass
class Served:
    url: str
    process: subprocess.Popen[str]
    mark: str
    """In the environment of all its processes."""
    grpc: str = ""
    """Host and port, where it listens for that."""
    lines: list[str] = field(default_factory=list)
    """What the server said while it started, and on standard error."""

    @property
    def netloc(self) -> str:
        return self.url.partition("://")[2]


@contextmanager
def starting(cache: Path, environment: dict[str, str] | None = None, **options: Any) -> Iterator[Served]:
    """A server that is on its way; `wait_until_ready` tells when it has arrived."""
    starts.need("served")
    options = {"port": free_port(), "cache_dir": str(cache)} | options
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, __file__, json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"HOME": str(cache), MARK: mark} | (environment or {}),
    )
    scheme = "https" if "tls_cert" in options else "http"
    grpc = f"127.0.0.1:{options['grpc_port']}" if "grpc_port" in options else ""
    server = Served(f"{scheme}://127.0.0.1:{options['port']}", process, mark, grpc)
    assert process.stdin is not None
    assert process.stdout is not None
    said = process.stdout
    reader = threading.Thread(target=lambda: server.lines.extend(said), daemon=True)
    reader.start()
    try:
        yield server
    finally:
        process.stdin.close()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(PATIENCE_S)
        said.close()


def wait_until_ready(server: Served) -> None:
    until_s = time.monotonic() + START_S
    while f"ready {server.url}\n" not in server.lines:
        if server.process.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError("the server did not start:\n" + "".join(server.lines))
        time.sleep(0.1)


@contextmanager
def served(cache: Path, **options: Any) -> Iterator[Served]:
    """A server that is ready."""
    with starting(cache, **options) as server:
        wait_until_ready(server)
        yield server


def assert_private_but(ports: set[int], ours: Collection[int]) -> None:
    """Of processes by their ids: beyond loopback these ports alone are open, and no folder of a socket is others'."""
    sockets = [each for each in psutil.net_connections("inet") if each.pid in ours]
    listeners = [each for each in sockets if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and each.laddr]
    assert len(listeners) > 5
    assert {each.laddr.port for each in listeners if not _is_loopback(each.laddr.ip)} == ports
    for each in psutil.net_connections("unix"):
        if each.pid in ours and each.laddr:
            assert any(_is_private(folder) for folder in Path(each.laddr).parents), each


def _is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _is_private(folder: Path) -> bool:
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def started_with(name: str, value: str) -> list[dict[str, Any]]:
    """pid, name and command line of each process that has this in its environment, the dying ones aside."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.as_dict(["pid", "name", "cmdline"]))
    return found


def main() -> int:
    from tailrate.serve.deploy.cluster import start
    from tailrate.serve.options import ServeOptions, named
    from tailrate.serve.spec import ServeError

    given = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(sys.argv[1]).items()}
    try:
        server = start(named(ServeOptions(**given)), lambda line: print(line, flush=True))
    except ServeError as problem:
        print(f"error: {problem}", flush=True)
        return 2
    try:
        print(f"ready {server.url}", flush=True)
        sys.stdin.read()
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
