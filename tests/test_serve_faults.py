"""Faults that a server is asked for: who may, what is refused, and a live server that loses a replica and its proxy."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from serving import Served, served
from test_loadtest_run import assert_ledger_closes, nothing_left_running, read, said, start  # noqa: F401
from waiting import until

import analysis
from analysis.faults import faults
from analysis.records import read_events
from serve import wire
from serve.asgi import Request
from serve.board import Board
from serve.faults import Faults
from serve.wire import WireError

EAGER = ("null", "eager")


def request(**body: Any) -> Request:
    return Request("POST", wire.FAULTS, "", {}, json.dumps(body).encode(), 0, 0)


def asked(faults: Faults, **body: Any) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        answer = await faults.answer(request(**body))
        await asyncio.sleep(0.4 if body.get("fault") == "ingress_restarted" else 0)
        found: dict[str, Any] = json.loads(answer.body)
        return found

    return asyncio.run(ask())


def refused(faults: Faults, **body: Any) -> tuple[int, str]:
    with pytest.raises(WireError) as caught:
        asked(faults, **body)
    return caught.value.status, caught.value.sentence


def board(*replicas: str) -> Board:
    made = Board([EAGER, ("null", "compiled")], 1)
    for replica in replicas:
        report = {"model": "null", "variant": "eager", "replica": replica, "state": "READY", "reason": ""}
        made.put(report, time.monotonic())
    return made


@pytest.fixture
def killed() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def able(killed: list[tuple[str, str]]) -> Iterator[Faults]:
    """May do anything; of two replicas the first is dead already."""

    def kill(what: str) -> Any:
        def one(target: str) -> str:
            if target == "dead":
                raise WireError(409, "Ray knows no such replica any more")
            killed.append((what, target))
            return target

        return one

    made = Faults(True, board("dead", "alive"), {what: kill(what) for what in ("replica", "ingress", "node")})
    yield made
    made.close()


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def test_without_consent_nothing_is_done(killed: list[tuple[str, str]]) -> None:
    closed = Faults(False, board("alive"), {"replica": lambda target: killed.append(("", "")) or ""})
    status, sentence = refused(closed, fault="replica_killed")
    assert status == 403
    assert "--allow-faults" in sentence
    assert not killed


def test_what_cannot_be_understood_or_done_is_a_sentence(able: Faults) -> None:
    assert refused(able, fault="meteor") == (
        400, "unknown fault 'meteor'; known are replica_killed, ingress_restarted, node_killed, cpu_taken, "
        "gpu_memory_taken",
    )  # fmt: skip
    assert refused(able, what=1)[0] == 400
    assert refused(able, fault=["cpu_taken"])[0] == 400
    assert "target must be a number" in refused(able, fault="cpu_taken", target="many", seconds=1)[1]
    assert "seconds must be a number" in refused(able, fault="cpu_taken", seconds="long")[1]
    assert "at most 3600" in refused(able, fault="cpu_taken", seconds=1e6)[1]
    assert (
        "unknown endpoint 'bert/eager'; there are null/eager"
        in refused(able, fault="replica_killed", target="bert/eager")[1]
    )
    assert refused(able, fault="replica_killed", target="null/compiled") == (
        409, "no replica of null/compiled is heard of",
    )  # fmt: skip
    assert refused(Faults(True, board(), {}), fault="node_killed") == (
        409,
        "this server has no node that could be killed",
    )
    with pytest.raises(WireError):
        asyncio.run(able.answer(Request("POST", wire.FAULTS, "", {}, b"{", 0, 0)))


def test_what_is_killed(able: Faults, killed: list[tuple[str, str]]) -> None:
    assert asked(able, fault="replica_killed")["sentence"] == "replica alive of null/eager was killed"
    assert asked(able, fault="node_killed", target="far")["sentence"] == "the raylet of far was killed"
    assert "Ray Serve starts another" in asked(able, fault="ingress_restarted")["sentence"]
    assert killed == [("replica", "alive"), ("node", "far"), ("ingress", "")]


def test_cores_are_taken_for_a_time(able: Faults) -> None:
    answer = asked(able, fault="cpu_taken", target="2", seconds=2)
    assert answer["sentence"].startswith("2 busy processes for 2 s")
    assert len(children()) == 2
    deadline = time.monotonic() + 30
    while children():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_closing_frees_what_was_taken(able: Faults) -> None:
    asked(able, fault="cpu_taken", target="1", seconds=600)
    assert len(children()) == 1
    able.close()
    assert not children()


TORCH = """
class cuda:
    class OutOfMemoryError(RuntimeError): ...
    is_available = staticmethod(lambda: {gib} > 0)
    get_device_name = staticmethod(lambda: "Played GPU")
uint8 = "uint8"
def zeros(count, dtype, device):
    assert (dtype, device) == ("uint8", "cuda")
    if count > {gib} * 2**30:
        raise cuda.OutOfMemoryError("out of memory")
"""


@pytest.mark.parametrize(
    ("gib", "target", "sentence"),
    [
        (0, "1", "no memory was taken: there is no GPU here"),
        (4, "8", "no memory was taken: the device has no 8 GiB to give"),
        (4, "2", "2 GiB of Played GPU are held for 5 s"),
    ],
)
def test_memory_of_a_device(
    able: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: int, target: str, sentence: str
) -> None:
    (tmp_path / "torch.py").write_text(TORCH.format(gib=gib))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if "no memory" in sentence:
        assert refused(able, fault="gpu_memory_taken", target=target, seconds=5) == (409, sentence)
    else:
        assert asked(able, fault="gpu_memory_taken", target=target, seconds=5)["sentence"] == sentence
        assert len(children()) == 1


@pytest.mark.gpu
def test_memory_of_this_gpu(able: Faults) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    free, _ = torch.cuda.mem_get_info()
    assert "1 GiB of" in asked(able, fault="gpu_memory_taken", seconds=20)["sentence"]
    assert torch.cuda.mem_get_info()[0] < free - 2**30


# ---- a live server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options: dict[str, Any] = {"models": ["null"], "variants": ["eager"], "replicas": 2, "allow_faults": True}
    with served(tmp_path_factory.mktemp("cache"), **options) as made:
        yield made


def post(url: str, **body: Any) -> tuple[int, dict[str, Any]]:
    wanted = urllib.request.Request(url + wire.FAULTS, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(wanted, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, json.loads(problem.read())


@pytest.mark.served
def test_a_server_says_what_it_cannot_do(server: Served) -> None:
    assert post(server.url, fault="meteor")[0] == 400
    status, answer = post(server.url, fault="node_killed")
    assert status == 409
    assert "beside the head's" in answer["error"]


def driven(server: Served, folder: Path, plan: str, seconds: float) -> tuple[Any, list[dict[str, Any]], list[Any]]:
    """A run with this plan of faults: its manifest, its rows, and what users saw."""
    (folder / "plan.csv").write_text(f"at_s,fault,target,seconds\n{plan}")
    words = ["--headless", "--host", server.url, "--rates", "100", f"--step-seconds={seconds}", "--timeout=5"]
    process = start(folder, *words, "--faults", str(folder / "plan.csv"))
    assert process.wait(timeout=seconds + 120) in (0, 1), said(folder)
    manifest, rows = read(folder / "it")
    assert manifest.status == "complete"
    assert_ledger_closes(manifest, rows)
    assert manifest.totals["scheduled"] == len(rows)
    return manifest, rows, faults(analysis.load(folder / "it"))


@pytest.mark.served
def test_users_of_a_server_that_loses_a_replica_and_cores_are_told_of(server: Served, tmp_path: Path) -> None:
    _, rows, effects = driven(server, tmp_path, "5,replica_killed,null/eager,\n14,cpu_taken,1,4\n", 24)
    replica, cpu = effects
    assert replica.injected
    assert replica.said.startswith("replica ")
    gone = replica.said.split()[1]
    assert gone in {row["replica"] for row in rows}
    assert replica.closes
    assert replica.errors < max(1, replica.n)  # the other replica goes on; perhaps nothing was under way
    killed_ns = next(e["end_ns"] for e in read_events(tmp_path / "it") if e["event"] == "fault" and e["phase"] == "end")
    # the signal is on its way when the server says so
    assert not [row for row in rows if row["replica"] == gone and row["sent_ns"] > killed_ns + 1e9]
    assert (cpu.injected, cpu.closes, cpu.errors) == (True, True, 0)
    assert cpu.seconds is not None
    assert cpu.seconds >= 4


@pytest.mark.served
def test_the_way_in_is_lost_and_comes_back(server: Served, tmp_path: Path) -> None:
    """Serve's controller takes half a minute to see that its proxy is gone, which need not be waited for under load."""
    _, _, (effect,) = driven(server, tmp_path, "4,ingress_restarted,,\n", 8)
    assert effect.injected
    assert effect.closes
    assert effect.statuses.get("connect", 0) > 0
    until(lambda: up(server.url))


def up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + wire.READY, timeout=5) as answer:
            return bool(json.loads(answer.read())["ready"])
    except (OSError, ValueError):
        return False
