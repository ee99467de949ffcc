"""A cluster made by Ray's own commands, and requests to what it serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from waiting import PATIENCE_S

from tailrate.serve import wire
from tailrate.serve.deploy import haproxy
from tailrate.serve.deploy.haproxy import free_port
from tailrate.serve.edge import auth

ROOT = Path(__file__).parents[2]
RAY, SERVE = "ray.scripts.scripts", "ray.serve.scripts"
TOKEN = "let-me-in-if-you-can"


class Cluster:
    """`ray start --head`, as in an image."""

    def __init__(self, home: Path) -> None:
        self.address, self.dashboard = f"127.0.0.1:{free_port()}", free_port()
        self.environment = os.environ | haproxy.ONE_MACHINE | haproxy.environment(home / "h")
        self.environment |= {"HOME": str(home), "RAY_TMPDIR": str(home), "PYTHONPATH": str(ROOT), auth.TOKEN: TOKEN}
        ports = {name: free_port() for name in ("ray-client-server-port", "metrics-export-port")}
        ports |= {"port": int(self.address.split(":")[1]), "dashboard-port": self.dashboard}
        ports |= {"dashboard-agent-listen-port": free_port(), "num-cpus": 2, "object-store-memory": 80 << 20}
        words = [f"--{name}={value}" for name, value in ports.items()]
        words += ["--node-ip-address=127.0.0.1", f"--temp-dir={home}"]
        self.process = self.started(RAY, "start", "--head", "--block", *words)

    def started(self, *words: str) -> subprocess.Popen[str]:
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([sys.executable, "-m", *words], env=self.environment, cwd=ROOT, text=True, **out)

    def run(self, *words: str) -> str:
        process = self.started(*words)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        return said

    def deploy(self, config: str) -> None:
        """`serve deploy`, again where the dashboard gave up a connection, as it does on a machine that is very busy."""
        path = Path(self.environment["HOME"], "deployed.yaml")
        path.write_text(config)
        for left in (2, 1, 0):
            process = self.started(SERVE, "deploy", str(path), "--address", f"http://127.0.0.1:{self.dashboard}")
            said, _ = process.communicate(timeout=PATIENCE_S)
            if not process.returncode:
                return
            assert left, said
            assert "RemoteDisconnected" in said, said

    def get(self, port: int, path: str) -> Any:
        try:
            with urllib.request.urlopen(asked(port, path), timeout=PATIENCE_S) as answer:
                return json.loads(answer.read())
        except (urllib.error.URLError, ConnectionError, ValueError):  # not yet
            return None

    def wait(self, port: int, path: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while self.get(port, path) is None:
            assert self.process.poll() is None, "Ray ended"
            assert time.monotonic() < until_s, f"{path} does not answer"
            time.sleep(0.2)


def asked(
    port: int, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, token: str = TOKEN
) -> urllib.request.Request:
    named = {"Authorization": f"Bearer {token}"} | (headers or {})
    return urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, named)


def successes(cluster: Cluster, port: int) -> int:
    """As the server counts them."""
    (stats,) = cluster.get(port, wire.SERVER + "/models/stats")["model_stats"]
    return int(stats["inference_stats"]["success"]["count"])
