"""Faults that a server is asked for: who may, and what is refused; `test_watch.py` has a live server struck."""

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
from waiting import PATIENCE_S, until

from tailrate.serve import wire
from tailrate.serve.asgi import Request
from tailrate.serve.edge.fault_api import FaultApi
from tailrate.serve.edge.replica_board import ReplicaBoard
from tailrate.serve.wire import WireError

EAGER = ("null", "eager")


def request(**body: Any) -> Request:
    return Request("POST", wire.FAULTS, "", {}, json.dumps(body).encode(), 0, 0)


def asked(faults: FaultApi, **body: Any) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        answer = await faults.answer(request(**body))
        await asyncio.sleep(0.4 if body.get("fault") == "ingress_restarted" else 0)
        found: dict[str, Any] = json.loads(answer.body)
        return found

    return asyncio.run(ask())


def refused(faults: FaultApi, **body: Any) -> tuple[int, str]:
    with pytest.raises(WireError) as caught:
        asked(faults, **body)
    return caught.value.status, caught.value.sentence


def board(*replicas: str) -> ReplicaBoard:
    made = ReplicaBoard([EAGER, ("null", "compiled")], 1)
    for replica in replicas:
        report = {"model": "null", "variant": "eager", "replica": replica, "state": "READY", "reason": ""}
        made.put(report | {"ended": False}, time.monotonic())
    return made


@pytest.fixture
def killed() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def able(killed: list[tuple[str, str]]) -> Iterator[FaultApi]:
    """May do anything; of two replicas the first is dead already."""

    def kill(what: str) -> Any:
        def one(target: str) -> str:
            if target == "dead":
                raise WireError(409, "Ray knows no such replica any more")
            killed.append((what, target))
            return target

        return one

    made = FaultApi(True, board("dead", "alive"), {what: kill(what) for what in ("replica", "ingress", "node")})
    yield made
    made.close()


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def test_without_consent_nothing_is_done(killed: list[tuple[str, str]]) -> None:
    closed = FaultApi(False, board("alive"), {"replica": lambda target: killed.append(("", "")) or ""})
    status, sentence = refused(closed, fault="replica_killed")
    assert status == 403
    assert "--allow-faults" in sentence
    assert not killed


def test_what_cannot_be_understood_or_done_is_a_sentence(able: FaultApi) -> None:
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
    for fault, what in {"node_killed": "node", "ingress_restarted": "ingress"}.items():
        said = f"this server has no {what} that could be killed"
        assert refused(FaultApi(True, board(), {}), fault=fault) == (409, said)
    with pytest.raises(WireError):
        asyncio.run(able.answer(Request("POST", wire.FAULTS, "", {}, b"{", 0, 0)))


def test_what_is_killed(able: FaultApi, killed: list[tuple[str, str]]) -> None:
    assert asked(able, fault="replica_killed")["sentence"] == "replica alive of null/eager was killed"
    assert asked(able, fault="node_killed", target="far")["sentence"] == "the raylet of far was killed"
    assert "Ray Serve starts another" in asked(able, fault="ingress_restarted")["sentence"]
    assert killed == [("replica", "alive"), ("node", "far"), ("ingress", "")]


@pytest.mark.live
def test_cores_are_taken_for_a_time(able: FaultApi) -> None:
    answer = asked(able, fault="cpu_taken", target="2", seconds=2)
    assert answer["sentence"].startswith("2 busy processes for 2 s")
    assert len(children()) == 2
    until(lambda: not children())


def test_closing_frees_what_was_taken(able: FaultApi) -> None:
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
    able: FaultApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: int, target: str, sentence: str
) -> None:
    (tmp_path / "torch.py").write_text(TORCH.format(gib=gib))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if "no memory" in sentence:
        assert refused(able, fault="gpu_memory_taken", target=target, seconds=5) == (409, sentence)
    else:
        assert asked(able, fault="gpu_memory_taken", target=target, seconds=5)["sentence"] == sentence
        assert len(children()) == 1


@pytest.mark.gpu
def test_memory_of_this_gpu(able: FaultApi) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    free, _ = torch.cuda.mem_get_info()
    assert "1 GiB of" in asked(able, fault="gpu_memory_taken", seconds=20)["sentence"]
    assert torch.cuda.mem_get_info()[0] < free - 2**30


def post(url: str, token: str = "", **body: Any) -> tuple[int, dict[str, Any]]:
    """What a live server says to such a wish."""
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    wanted = urllib.request.Request(url + wire.FAULTS, json.dumps(body).encode(), shown)
    try:
        with urllib.request.urlopen(wanted, timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, json.loads(problem.read())
