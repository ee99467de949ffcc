"""Servers that nobody here wrote, each in its own environment (`make peers`), with one small model behind them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from starts import need
from waiting import PATIENCE_S, until

from tailrate.serve.deploy.haproxy import free_port

ROOT = Path(__file__).parents[2]
SERVERS = ROOT / "tests" / "peers" / "servers"
READY_AT = {"triton": ["/v2/models/mlp/ready", "/v2/models/story/ready"], "torchserve": ["/ping"]}
JSON = {
    "path": "/classify",
    "body": '{"instances": "$x"}',
    "success": "/status=ok,/scores/0/9",
    "figures": "server_ms=/timing/ms",
}


class MissingError(Exception):
    """What is not installed here, in a sentence."""


@dataclass(frozen=True)
class Peer:
    name: str
    http: int
    grpc: int
    count_at: str
    count_of: str
    """A pattern whose group is its own count of answered requests."""

    def count(self) -> int:
        with urllib.request.urlopen(self.count_at, timeout=PATIENCE_S) as page:
            found = re.findall(self.count_of, page.read().decode())
        return sum(int(float(count)) for count in found)  # MLServer counts HTTP and gRPC apart


@contextmanager
def started(name: str, folder: Path) -> Iterator[Peer]:
    need("peer")
    ports = [free_port() for _ in range(3)]
    words, count_at, count_of = {
        "mlserver": (
            [*map(str, ports), str(folder)],
            f"http://127.0.0.1:{ports[2]}/metrics",
            r'model_infer_request_success_total\{model="mlp".*\} (\S+)',
        ),
        "kserve": (
            list(map(str, ports[:2])),
            f"http://127.0.0.1:{ports[0]}/metrics",
            r'request_predict_seconds_count\{model_name="mlp"\} (\S+)',
        ),
        "triton": (
            [*map(str, ports), str(folder)],
            f"http://127.0.0.1:{ports[2]}/metrics",
            r'nv_inference_request_success\{model="mlp",version="1"\} (\S+)',
        ),
        "torchserve": (
            [*map(str, ports), str(folder)],
            f"http://127.0.0.1:{ports[2]}/metrics",
            r'ts_inference_requests_total\{model_name="mlp".*\} (\S+)',
        ),
        "fastapi": ([str(ports[0])], f"http://127.0.0.1:{ports[0]}/count", r'"count":(\d+)'),
    }[name]
    python = ROOT / ".peers" / name / "bin" / "python"
    if not python.exists():
        raise MissingError(f"{python} is not there: make peers says why")
    environment = dict(os.environ)
    if name == "torchserve":
        if shutil.which("java") is None:
            raise MissingError("TorchServe takes Java (Debian: apt-get install default-jre-headless)")
        torch = find_spec("torch")
        assert torch is not None
        assert torch.origin is not None
        environment["PYTHONPATH"] = str(Path(torch.origin).parents[1])  # of three gigabytes one is enough
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [python, SERVERS / f"of_{name}.py", *words], stdout=log, stderr=log, cwd=folder, env=environment,
            start_new_session=True,
        )  # fmt: skip
    peer = Peer(name, ports[0], ports[1], count_at, count_of)

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            for path in READY_AT.get(name, ()):
                urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}{path}", timeout=PATIENCE_S).close()
            urllib.request.urlopen(count_at, timeout=PATIENCE_S).close()
        except OSError as problem:
            if isinstance(problem, urllib.error.HTTPError):
                problem.close()
            return False
        return True

    try:
        until(answers)
        yield peer
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # asked to end, KServe takes its time; Triton is a child of its own
        process.wait()


def asked(peer: Peer, scheme: str) -> tuple[str, dict[str, dict[str, str]], list[str]]:
    """The endpoint, its protocol's settings, and both as options."""
    if scheme == "grpc":
        return f"it=http://127.0.0.1:{peer.grpc}", {}, []  # found to be gRPC by itself
    if peer.name == "fastapi":
        url = f"it=json+http://127.0.0.1:{peer.http}"
        return url, {"json": JSON}, [f"--json-{name}={value}" for name, value in JSON.items()]
    return f"it=http://127.0.0.1:{peer.http}", {}, []
