"""Servers that nobody here wrote, each in an environment of its own (`make peers`).

Found by themselves, driven at three rates, every arrival accounted for, outputs those of a direct call, their own count
of requests equal to ours.
"""

from __future__ import annotations

import json
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
from pathlib import Path

import numpy as np
import pytest
import torch
from asked import PATIENCE_S
from servers.arithmetic import GAP_S, answer
from starts import need
from waiting import clock_step_ns, until

from tailrate.analysis import load
from tailrate.analysis.records.manifest import endpoint_name
from tailrate.loadtest.engine.endpoint import discovery
from tailrate.loadtest.engine.endpoint.credentials import Keys
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.endpoint.target import parse
from tailrate.loadtest.engine.workers.input.lengths import Lengths
from tailrate.loadtest.engine.workers.input.prompts import Prompts
from tailrate.serve.deploy.haproxy import free_port

pytestmark = [pytest.mark.peer, pytest.mark.live]

ROOT = Path(__file__).parents[2]
SERVERS = Path(__file__).parent / "servers"
SPOKEN = [("mlserver", "http"), ("mlserver", "grpc"), ("kserve", "http"), ("kserve", "grpc"), ("fastapi", "http"),
          ("triton", "http"), ("triton", "grpc"), ("torchserve", "http")]  # fmt: skip
STREAMS = [("mlserver", "oip-stream"), ("triton", "triton-generate"), ("mlserver", "oip-grpc-stream"),
           ("triton", "oip-grpc-stream")]  # fmt: skip
PROTOCOLS = {"fastapi": "json", "torchserve": "torchserve"}
"""What is spoken where it isn't the Open Inference Protocol."""
READY_AT = {"triton": ["/v2/models/mlp/ready", "/v2/models/story/ready"], "torchserve": ["/ping"]}
RATES = ("20", "40", "60")
X = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
JSON = {
    "path": "/classify",
    "body": '{"instances": "$x"}',
    "success": "/status=ok,/scores/0/9",
    "figures": "server_ms=/timing/ms",
}


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
        pytest.skip(f"{python} is not there: make peers says why")
    environment = dict(os.environ)
    if name == "torchserve":
        if shutil.which("java") is None:
            pytest.skip("TorchServe takes Java (Debian: apt-get install default-jre-headless)")
        environment["PYTHONPATH"] = str(Path(torch.__file__).parents[1])  # of three gigabytes one is enough
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


@pytest.fixture(scope="module")
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with started(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def asked(peer: Peer, scheme: str) -> tuple[str, dict[str, dict[str, str]], list[str]]:
    """The endpoint, its protocol's settings, and both as options."""
    if scheme == "grpc":
        return f"it=http://127.0.0.1:{peer.grpc}", {}, []  # found to be gRPC by itself
    if peer.name == "fastapi":
        url = f"it=json+http://127.0.0.1:{peer.http}"
        return url, {"json": JSON}, [f"--json-{name}={value}" for name, value in JSON.items()]
    return f"it=http://127.0.0.1:{peer.http}", {}, []


@pytest.mark.parametrize(("peer", "scheme"), SPOKEN, indirect=["peer"], scope="module")
def test_its_outputs_are_those_of_a_direct_call(peer: Peer, scheme: str) -> None:
    text, settings, _ = asked(peer, scheme)
    servers = Servers(PATIENCE_S, Keys())
    (endpoint,) = discovery.discover(servers, parse(text, "mlp"), settings)
    found = discovery.try_out(servers, endpoint, Inputs(({"x": X},), (len(X),)))
    servers.close()
    outputs = found.to.protocol.outputs(found.answer)
    got = outputs["scores"] if peer.name == "fastapi" else outputs["y"]
    assert np.allclose(got, answer(X), rtol=1e-5, atol=1e-6)
    protocol = "oip-grpc" if scheme == "grpc" else PROTOCOLS.get(peer.name, "oip")
    assert found.to.endpoint.protocol == protocol
    assert found.to.endpoint.settings.get("binary") in (None, peer.name in ("kserve", "triton"))


@pytest.mark.parametrize(("peer", "protocol"), STREAMS, indirect=["peer"], scope="module")
def test_what_it_streams_is_told_word_by_word(peer: Peer, protocol: str, tmp_path: Path) -> None:
    text = f"it={protocol}+http://127.0.0.1:{peer.grpc if 'grpc' in protocol else peer.http}#story"
    done = subprocess.run(
        [
            ROOT / ".venv" / "bin" / "tailrate", "run", "completion", f"--endpoints={text}", "--rates=5,10,20",
            "--prompt-tokens=uniform:2:20", "--step-seconds=2", "--settle-seconds=0.5", "--idle-seconds=0",
            "--self-check=off", "--timeout=60", f"--run-dir={tmp_path}", "--run-id=it",
        ],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S * 30,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stdout + done.stderr
    run = load(tmp_path / "it")
    rows = run.requests()
    assert set(rows["status"]) == {"200"}
    assert run.manifest.totals["scheduled"] == run.manifest.totals["ok"] == len(rows) > 50
    prompts = Prompts(1, Lengths.parse("uniform:2:20", "x"), Lengths.parse("128", "x"))
    step_ns = clock_step_ns()
    for row in rows.itertuples():
        words = str(prompts.inputs([row.data_row])["prompt"][0]).split()
        assert row.events == len(words)
        assert row.first_ns - row.sent_ns > 1e9 * GAP_S - step_ns
        assert row.last_ns - row.sent_ns > 1e9 * GAP_S * len(words) - step_ns
    # a busy machine holds a word up, so that the next is near; most have the server's own pace
    assert np.median([gap for gaps in rows["gaps_us"] for gap in gaps]) > 0.8e6 * GAP_S - step_ns / 1e3


@pytest.mark.parametrize(("peer", "scheme"), SPOKEN, indirect=["peer"], scope="module")
def test_three_rates_are_driven_and_its_own_count_is_ours(peer: Peer, scheme: str, tmp_path: Path) -> None:
    text, _, options = asked(peer, scheme)
    before = peer.count()
    done = subprocess.run(
        [
            ROOT / ".venv" / "bin" / "tailrate", "run", "mlp", f"--endpoints={text}", f"--rates={','.join(RATES)}",
            "--step-seconds=2", "--settle-seconds=0.5", "--idle-seconds=0", "--self-check=off", *options,
            "--timeout=60", f"--run-dir={tmp_path}", "--run-id=it",
        ],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S * 30,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stdout + done.stderr
    run = load(tmp_path / "it")
    rows = run.requests()
    assert [endpoint_name(entry) for entry in run.manifest.endpoints] == ["it"]
    assert set(rows["endpoint"]) == {"it"}
    assert set(rows["status"]) == {"200"}
    assert run.manifest.totals["scheduled"] == run.manifest.totals["ok"] == len(rows) > 100
    assert peer.count() - before == len(rows) + 1  # what it was tried with before the load
    if peer.name == "fastapi":
        assert set(rows["server_ms"]) == {0.25}
    assert len(json.loads((tmp_path / "it" / "report.json").read_text())["steps"]) == len(RATES)
