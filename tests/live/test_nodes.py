"""Several raylets on this machine: every node's devices in one stream, and nodes that die, by themselves or asked."""

import itertools
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from serving import free_port
from test_fault_api import post
from test_own_models import MODEL
from waiting import PATIENCE_S, clock_step_ns, until

from tailrate.serve import wire
from tailrate.serve.body.request import encode_infer
from tailrate.serve.edge import auth

pytestmark = pytest.mark.served

ROOT = Path(__file__).parents[2]
TOKEN = "nobody-else-knows-it"
PROGRAM = """
import sys
from tailrate.serve.deploy.haproxy import COMMON, ONE_MACHINE
import os
patience = {name: value for name, value in COMMON.items() if "TIMEOUT" in name}  # else Ray kills what is slow to start
os.environ.update(ONE_MACHINE | patience)
import ray
from ray.cluster_utils import Cluster
from ray import serve
from tailrate.serve.deploy.app import build

port, models, before, after = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
small = {"num_cpus": 1, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**small, "_system_config": {"health_check_period_ms": 500,
    "health_check_failure_threshold": 3}})
ray.init(address=cluster.address, namespace="tailrate", log_to_driver=False)
early = [cluster.add_node(**small) for _ in range(before)]
cluster.wait_for_nodes()
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(build({"models": models, "variants": "eager", "allow_faults": "true"}), name="it", route_prefix="/")
others = [cluster.add_node(**small) for _ in range(after)]
cluster.wait_for_nodes()
print("ready", flush=True)
for line in sys.stdin:
    cluster.remove_node(others[0], allow_graceful=False)
ray.shutdown()
cluster.shutdown()
"""


def get(url):
    with urlopen(Request(url, headers={"Authorization": f"Bearer {TOKEN}"}), timeout=PATIENCE_S) as answer:
        return json.load(answer)


def status(url, path, body=None, headers=None):
    asked = Request(url + path, body, (headers or {}) | {"Authorization": f"Bearer {TOKEN}"})
    try:
        with urlopen(asked, timeout=PATIENCE_S) as answer:
            return answer.status
    except HTTPError as problem:
        with problem:
            return problem.code


@contextmanager
def running(log, models="null", before=0, after=2):
    """A cluster of a head and of nodes that join before it serves these models, or afterwards; and its process."""
    import tempfile

    port = free_port()
    with tempfile.TemporaryDirectory(prefix="hn") as scratch:
        Path(scratch, "ray").mkdir()  # Ray notes its address there, and fails where no Ray has made it before
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), "RAY_TMPDIR": scratch}
        environment[auth.TOKEN] = TOKEN  # in a cluster of others nobody breaks things without
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(port), models, str(before), str(after)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=ROOT,
        )  # fmt: skip
        try:
            lines = iter(process.stdout.readline, "")
            assert any(line.startswith("ready") for line in lines), log.seek(0) or log.read()
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.stdin.close()
            process.wait(PATIENCE_S)
            process.stdout.close()


@pytest.fixture
def log(tmp_path):
    with (tmp_path / "err").open("w+") as file:
        yield file


@pytest.mark.long
def test_one_endpoint_that_loads_again_leaves_the_other_in_service(log, tmp_path):
    """Of two nodes: what probes ask for when a node starts is not there then, what they ask afterwards is."""
    flag = str(tmp_path / "slow")
    once = f"if os.path.exists({flag!r}):\n            os.remove({flag!r})\n            time.sleep(20)"
    slow = MODEL.replace("import torch", f"import os\n        import time\n\n        import torch\n\n        {once}")
    (tmp_path / "my_model.py").write_text(slow)
    (tmp_path / "own_helper.py").write_text("FACTOR = 2.0\n")
    with running(log, f"null,{tmp_path}/my_model.py:spec", before=1, after=0) as (url, _):
        until(lambda: status(url, wire.READY) == 200)
        Path(flag).touch()  # the next load takes longer than a replica that is silent counts as there
        nodes = set(get(f"{url}/telemetry/devices")["hosts"])
        assert len(nodes) == 2
        body, headers = encode_infer({"x": np.zeros((1, 1), np.uint8)})
        assert post(url, TOKEN, fault="replica_killed", target="twice/eager")[0] == 200
        answers, ready, serving = [], [], []

        def is_back():
            answers.append(status(url, wire.infer_path("null", "eager"), body, headers))
            ready.append(status(url, wire.READY))
            serving.append(status(url, wire.SERVING))
            return 503 in ready and ready[-1] == 200

        until(is_back)
        assert set(answers) == set(serving) == {200}
        assert ready.count(503) > 3


@pytest.mark.long
def test_every_node_is_sampled_and_one_that_dies_is_an_event(log):
    with running(log) as (url, process):
        every_node_is_sampled_and_one_that_dies_is_an_event(url, process)


def every_node_is_sampled_and_one_that_dies_is_an_event(url, process):
    seen = {}
    cursor = ""

    def read():
        nonlocal cursor
        found = get(f"{url}/telemetry/devices?after={cursor}")
        cursor = found["cursor"]
        assert found["period_ms"] == 100
        place = {name: number for number, name in enumerate(found["columns"])}
        for row in found["rows"]:
            seen.setdefault(row[place["host"]], []).append((row[place["time_ns"]], row[place["device"]]))
        return found

    until(lambda: read() and len(seen) == 3)
    head, *others = get(f"{url}/telemetry/devices?after={cursor}")["hosts"]
    assert {name for _, name in seen[head]} >= {"cpu"}
    for host in others:
        assert {name for _, name in seen[host]} >= {f"cpu:{host}"}
        clock = get(f"{url}/telemetry/clock?host={host}")
        assert clock["host"] == host
        assert abs(clock["recv_ns"] - time.time_ns()) < 5e9
    process.stdin.write("go\n")
    process.stdin.flush()

    def left():
        return [event for event in read()["events"] if event["event"] == "the host left the cluster"]

    (event,) = until(left)
    gone = event["host"]
    assert gone in others
    before = {host: len(rows) for host, rows in seen.items()}
    until(lambda: read() and all(len(seen[host]) > before[host] + 10 for host in seen if host != gone))
    assert len(seen[gone]) == before[gone]
    for rows in seen.values():  # each sample once, in order; a busy machine takes some late, and none too many
        times = [at for at, _ in rows]
        assert times == sorted(times)
        assert len(set(times)) == len(times) or clock_step_ns() > 1e6  # a step of a coarse clock may hold two
        assert min(b - a for a, b in itertools.pairwise(times)) < 500e6
        assert len(times) <= (times[-1] - times[0]) / 100e6 + 2

    # the other one is killed by a fault, which never hits the head
    (last,) = set(others) - {gone}
    assert post(url, TOKEN, fault="node_killed", target=head)[0] == 409
    status, answer = post(url, TOKEN, fault="node_killed", target=last)
    assert (status, answer["sentence"]) == (200, f"the raylet of {last} was killed")
    until(lambda: set(get(f"{url}/telemetry/devices")["hosts"]) == {head})
