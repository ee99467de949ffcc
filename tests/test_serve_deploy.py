"""Ray's own tools serve it: `ray start`, `serve deploy`, `serve run`, in the environment that the manifests prepare.

And `headroom serve` ends as whoever stops a container expects.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve import ingress, models, wire
from serve.ingress import free_port

pytestmark = pytest.mark.served

ROOT = Path(__file__).parents[1]
RAY, SERVE = "ray.scripts.scripts", "ray.serve.scripts"
ARGS = ["model=mlp", "variants=eager,compiled", "max_batch=1", "device=cpu"]


class Cluster:
    """`ray start --head`, as in an image."""

    def __init__(self, home: Path) -> None:
        self.address, self.dashboard = f"127.0.0.1:{free_port()}", free_port()
        self.environment = os.environ | ingress.ONE_MACHINE | ingress.environment(home / "h")
        self.environment |= {"HOME": str(home), "RAY_TMPDIR": str(home), "PYTHONPATH": str(ROOT)}
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
        said, _ = process.communicate(timeout=180)
        assert process.returncode == 0, said
        return said

    def get(self, port: int, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return json.loads(answer.read())
        except (urllib.error.URLError, ConnectionError, ValueError):  # not yet
            return None

    def wait(self, port: int, path: str) -> None:
        until_s = time.monotonic() + 120
        while self.get(port, path) is None:
            assert self.process.poll() is None, "Ray ended"
            assert time.monotonic() < until_s, f"{path} does not answer"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="hr-", ignore_cleanup_errors=True) as home:  # short, as sockets are there
        found = Cluster(Path(home))
        try:
            found.wait(found.dashboard, "/api/version")
            yield found
        finally:
            found.process.terminate()
            found.process.communicate(timeout=60)


def answers(port: int, model: str, variant: str) -> bool:
    body, headers = wire.encode_infer(models.load(model).example(1, 0))
    url = f"http://127.0.0.1:{port}{wire.infer_path(model, variant)}"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
        return bool(answer.status == 200)


def test_serve_deploy_takes_what_headroom_serve_prints(cluster: Cluster, tmp_path: Path) -> None:
    port = free_port()
    config = cluster.run("headroom", "serve", "null", "--variants", "eager", "--config", f"--port={port}")
    (tmp_path / "null.yaml").write_text(config)
    there = f"http://127.0.0.1:{cluster.dashboard}"
    cluster.run(SERVE, "deploy", str(tmp_path / "null.yaml"), "--address", there)
    cluster.wait(port, wire.READY)
    assert answers(port, "null", "eager")
    assert cluster.get(port, wire.SERVER)["ingress"]["way"] == "fast"
    status = yaml.safe_load(cluster.run(SERVE, "status", "--address", there))
    assert {each["status"] for each in status["applications"].values()} == {"RUNNING"}
    assert set(status["applications"]) == {"gateway", "null-eager"}
    cluster.run(SERVE, "shutdown", "--yes", "--address", there)


def test_serve_run_takes_the_application_and_its_arguments(cluster: Cluster) -> None:
    port = free_port()
    cluster.run(SERVE, "start", "--address", cluster.address, "--http-port", str(port))
    cluster.run(SERVE, "run", "--address", cluster.address, "--non-blocking", "serve.app:build", *ARGS)
    cluster.wait(port, wire.READY)
    assert answers(port, "mlp", "eager")
    assert answers(port, "mlp", "compiled")
    assert cluster.get(port, wire.SERVER)["endpoints"] == ["mlp/eager", "mlp/compiled"]


def test_headroom_serve_ends_well_when_it_is_told_to(tmp_path: Path) -> None:
    """With 0 on SIGTERM, as of `docker stop`, and set up by the environment alone, as an image is."""
    environment = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "HEADROOM_SERVE_PORT": str(free_port())}
    words = [sys.executable, "-m", "headroom", "serve", "null"]
    environment |= {"HEADROOM_SERVE_VARIANTS": "eager", "HEADROOM_SERVE_MAX_BATCH": ""}
    with subprocess.Popen(words, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("ready: null/eager") for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        assert "stopping\n" in process.stdout
        assert process.wait(60) == 0
