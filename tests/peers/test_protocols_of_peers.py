"""Servers that nobody here wrote, each in an environment of its own (`make peers`).

Found by themselves, driven at three rates, every arrival accounted for, outputs those of a direct call, their own count
of requests equal to ours.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from peer_servers import MissingError, Peer, asked, started
from servers.arithmetic import GAP_S, answer
from waiting import PATIENCE_S, clock_step_ns, until

from tailrate.analysis import load
from tailrate.analysis.records.manifest import endpoint_name
from tailrate.loadtest.engine.endpoint import discovery, protocols  # noqa: F401  # which makes them known
from tailrate.loadtest.engine.endpoint.credentials import Keys
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.endpoint.target import parse
from tailrate.loadtest.engine.workers.input.lengths import Lengths
from tailrate.loadtest.engine.workers.input.prompts import Prompts

pytestmark = [pytest.mark.peer, pytest.mark.live]

ROOT = Path(__file__).parents[2]
LONG = pytest.mark.long
SPOKEN = [
    ("mlserver", "http"), ("triton", "grpc"), ("fastapi", "http"), ("torchserve", "http"),
    *(pytest.param(*one, marks=LONG) for one in [("mlserver", "grpc"), ("triton", "http")]),
    *(pytest.param("kserve", scheme, marks=LONG) for scheme in ("http", "grpc")),
]  # fmt: skip
STREAMS = [
    ("mlserver", "oip-stream"), ("triton", "oip-grpc-stream"),
    *(pytest.param(*one, marks=LONG) for one in [("triton", "triton-generate"), ("mlserver", "oip-grpc-stream")]),
]  # fmt: skip
PROTOCOLS = {"fastapi": "json", "torchserve": "torchserve"}
"""What is spoken where it isn't the Open Inference Protocol."""
RATES = ("20", "40", "60")
X = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(started(request.param, tmp_path_factory.mktemp(request.param)))
        except MissingError as why:
            pytest.skip(str(why))
        yield found


@pytest.mark.parametrize(("peer", "scheme"), SPOKEN, indirect=["peer"], scope="module")
def test_its_outputs_are_those_of_a_direct_call(peer: Peer, scheme: str) -> None:
    text, settings, _ = asked(peer, scheme)
    before = peer.count()
    servers = Servers(PATIENCE_S, Keys())
    (endpoint,) = discovery.discover(servers, parse(text, "mlp"), settings)
    found = discovery.try_out(servers, endpoint, Inputs(({"x": X},), (len(X),)))
    servers.close()
    until(lambda: peer.count() == before + 1)  # Triton counts an answer once it has been sent
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
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stdout + done.stderr
    run = load(tmp_path / "it")
    rows = run.requests()
    assert set(rows["status"]) == {"200"}
    assert run.manifest.totals["scheduled"] == run.manifest.totals["ok"] == len(rows) > 50
    prompts = Prompts(1, Lengths.parse("uniform:2:20", "x"), Lengths.parse("128", "x"))
    step_ns = clock_step_ns()
    least_ns = 1e9 * GAP_S - step_ns  # a sleep of the server ends early by what its clock lags
    for row in rows.itertuples():
        words = str(prompts.inputs([row.data_row])["prompt"][0]).split()
        assert row.events == len(words)
        assert row.first_ns - row.sent_ns > least_ns
        assert row.last_ns - row.sent_ns > least_ns * len(words)
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
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
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
