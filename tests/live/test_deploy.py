"""Ray's own tools serve it: `ray start`, `serve deploy`, `serve run`, in the environment that the manifests prepare.

A token in that environment is asked for, as of a pod, on the fast way and where two hops lead to a replica.
"""

import os
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from ray_tools import SERVE, TOKEN, Cluster, asked, successes
from test_profile_command import profile, traced
from waiting import PATIENCE_S, until

from tailrate.serve import models, wire
from tailrate.serve.body.request import encode_infer
from tailrate.serve.deploy.haproxy import free_port
from tailrate.serve.edge import auth

pytestmark = [pytest.mark.served, pytest.mark.long]

ROOT = Path(__file__).parents[2]
ARGS = ["models=null,mlp", "variants=eager", "device=cpu", "profile=true"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="tr-", ignore_cleanup_errors=True) as home:  # short, as sockets are there
        found = Cluster(Path(home))
        try:
            found.wait(found.dashboard, "/api/version")
            yield found
        finally:
            found.process.terminate()
            found.process.communicate(timeout=PATIENCE_S)


def answers(port: int, model: str, path: str) -> bool:
    body, headers = encode_infer(models.load(model).example(1, 0))
    with urllib.request.urlopen(asked(port, path, body, headers), timeout=PATIENCE_S) as answer:
        return bool(answer.status == 200 and answer.headers[wire.BATCH] == "1")


def refused(request: urllib.request.Request) -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    with caught.value:
        return caught.value.code


def changed(config: str) -> str:
    """Another delay for the endpoint, and nothing else."""
    found = yaml.safe_load(config)
    (endpoint,) = (each for each in found["applications"] if each["name"] == "null-eager")
    endpoint["args"]["delay_ms"] = "1"
    return yaml.safe_dump(found)


@contextmanager
def traffic(port: int, model: str) -> Iterator[list[str]]:
    """Requests, one after the other; the replica that answered each."""
    body, headers = encode_infer(models.load(model).example(1, 0))
    over, found = threading.Event(), []

    def send() -> None:
        while not over.is_set():
            request = asked(port, wire.infer_path(model, "eager"), body, headers)
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                found.append(answer.headers[wire.REPLICA])

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield found
        finally:
            over.set()
        sending.result()


def test_serve_deploy_takes_what_tailrate_serve_prints(cluster: Cluster) -> None:
    port = free_port()
    words = ["null", "--variants", "eager", "--replicas", "2", "--config", f"--port={port}"]
    config = cluster.run("tailrate", "serve", *words)
    there = f"http://127.0.0.1:{cluster.dashboard}"

    cluster.deploy(config)
    cluster.wait(port, wire.READY)
    ways = [cluster.get(port, wire.SERVER)["ingress"]]
    assert ways[0]["way"] == "fast"
    until_s = time.monotonic() + PATIENCE_S
    while len(ways) < 2 or ways[-1] != ways[-2]:  # the slow way until HAProxy has seen that all are up
        assert time.monotonic() < until_s
        assert answers(port, "null", wire.infer_path("null", "eager"))
        ways.append(cluster.get(port, wire.SERVER)["ingress"])
    assert refused(asked(port, wire.READY, token="another")) == 401
    status = yaml.safe_load(cluster.run(SERVE, "status", "--address", there))
    assert {each["status"] for each in status["applications"].values()} == {"RUNNING"}
    assert set(status["applications"]) == {"gateway", "null-eager"}

    counted = successes(cluster, port)
    with traffic(port, "null") as replicas:
        first = until(lambda: len(set(replicas)) == 2 and set(replicas))
        cluster.deploy(changed(config))  # rolls over both replicas
        until(lambda: len(set(replicas) - first) == 2 and not first & set(replicas[-100:]))
    until(lambda: cluster.get(port, wire.READY))
    assert successes(cluster, port) - counted == len(replicas)
    cluster.run(SERVE, "shutdown", "--yes", "--address", there)


@pytest.fixture(scope="module")
def port(cluster: Cluster) -> int:
    """Of what `serve run` made."""
    found = free_port()
    cluster.run(SERVE, "start", "--address", cluster.address, "--http-port", str(found))
    cluster.run(SERVE, "run", "--address", cluster.address, "--non-blocking", "tailrate.serve.deploy.app:build", *ARGS)
    cluster.wait(found, wire.READY)
    return found


def test_serve_run_takes_the_application_and_its_arguments(cluster: Cluster, port: int) -> None:
    endpoints = ["null/eager", "mlp/eager"]
    assert cluster.get(port, wire.SERVER)["endpoints"] == endpoints
    for model, variant in (endpoint.split("/") for endpoint in endpoints):
        assert answers(port, model, wire.infer_path(model, variant))
        assert answers(port, model, wire.infer_path(model))
        assert refused(asked(port, wire.infer_path(model, variant), b"{")) == 400
        assert refused(asked(port, wire.infer_path(model, variant), b"{", token="another")) == 401
        (entry,) = cluster.get(port, wire.model_path(model, variant) + "/stats")["model_stats"]
        assert entry["name"] == model
    for path in (wire.READY, wire.model_path("null", "eager"), wire.METRICS, "/no/where"):
        assert refused(asked(port, path, token="another")) == 401


def test_the_next_batches_are_profiled(port: int) -> None:
    words = ("mlp", "--variant", "eager", "--host", f"http://127.0.0.1:{port}", "--calls", "5")
    refused = profile(*words)
    assert refused.returncode == 2
    assert "token" in refused.stderr
    with traffic(port, "mlp"):
        done = profile(*words, environment=os.environ | {auth.TOKEN: TOKEN})
    assert done.returncode == 0, done.stderr
    assert "mlp/eager, the next 5 batches" in done.stdout
    assert "aten::addmm" in traced(done.stdout)
