import asyncio
import gzip
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import clock_step_ns

from tailrate.serve.asgi import HttpAnswer, Request
from tailrate.serve.engine.profiling import Profiler, answer
from tailrate.serve.runner import cache_folders
from tailrate.serve.wire import WireError


def asked(**body: Any) -> Request:
    return raw(json.dumps(body).encode())


def raw(body: bytes) -> Request:
    return Request("POST", "/v2/models/m/versions/v/profile", "", {}, body, 0, 0)


class Device:
    """The engine's thread, running a batch whenever it is told to."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._thread = ThreadPoolExecutor(1)

    def run(self, batches: int = 1, work: Callable[[], Any] = lambda: torch.ones(64, 64) @ torch.ones(64, 64)) -> None:
        def batch() -> None:
            with self._profiler.batch():
                work()

        for _ in range(batches):
            self._thread.submit(batch).result(60)


async def answered(profiler: Profiler, request: Request) -> HttpAnswer:
    return await answer(request, "m-v", profiler.profiled)


async def profiled(profiler: Profiler, device: Device, batches: int, **body: Any) -> HttpAnswer:
    waiting = asyncio.create_task(answered(profiler, asked(batches=batches, **body)))
    while profiler._order is None and not waiting.done():
        await asyncio.sleep(0)
    await asyncio.to_thread(device.run, batches)
    return await waiting


def test_the_next_batches_become_a_trace_and_a_table(tmp_path: Path) -> None:
    counted: list[str] = []
    profiler = Profiler(tmp_path / "profiles", "m-v", counted.append)
    device = Device(profiler)
    device.run(2)  # before anybody asks
    found = asyncio.run(profiled(profiler, device, 3))
    device.run(2)
    assert counted == ["profiled_batches"] * 3
    told = json.loads(found.body)
    rows = {row["name"]: row for row in told["table"]}
    assert rows["batch"]["calls"] == 3
    assert rows["aten::mm"]["calls"] == 3
    assert rows["aten::mm"]["self_cpu_ms"] > 0 or clock_step_ns() > 1e6
    own = [row["self_cpu_ms"] for row in told["table"]]
    assert own == sorted(own, reverse=True)
    assert len(own) <= 20
    assert cache_folders.NAMES["profiles"].fullmatch(Path(told["trace"]).name)
    trace = json.loads(gzip.decompress(Path(told["trace"]).read_bytes()))
    assert sum(event.get("name") == "aten::mm" for event in trace["traceEvents"]) == 3


def test_the_trace_itself_can_be_the_answer(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, "m-v")
    found = asyncio.run(profiled(profiler, Device(profiler), 1, format="trace"))
    assert found.headers["content-type"] == "application/gzip"
    assert "m-v-" in found.headers["content-disposition"]
    assert json.loads(gzip.decompress(found.body))["traceEvents"]


def test_without_traffic_it_says_so_and_the_next_one_is_whole(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, "m-v")
    device = Device(profiler)

    async def starved() -> None:
        waiting = asyncio.create_task(answered(profiler, asked(batches=5, timeout_s=1.5)))
        while profiler._order is None:
            await asyncio.sleep(0)
        await asyncio.to_thread(device.run, 1)
        await waiting

    with pytest.raises(WireError, match=r"^1 of 5 batches came within 1.5 s; a profile needs traffic") as problem:
        asyncio.run(starved())
    assert problem.value.status == 504
    found = asyncio.run(profiled(profiler, device, 2))
    assert {row["name"]: row["calls"] for row in json.loads(found.body)["table"]}["batch"] == 2
    assert profiler._running is None


def test_one_at_a_time(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, "m-v")
    order = profiler.ask(7)
    with pytest.raises(WireError, match="another profile is being made, with 7 batches to go") as problem:
        asyncio.run(answered(profiler, asked()))
    assert problem.value.status == 409
    profiler.withdraw(order)
    profiler.ask(1)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"[]", "must be a JSON object"),
        (b"{", "must be a JSON object"),
        (b'{"batches": 0}', "batches must be a whole number from 1 to 1000"),
        (b'{"batches": true}', "batches must be"),
        (b'{"batches": "3"}', "batches must be"),
        (b'{"timeout_s": 1e9}', "timeout_s must be"),
        (b'{"timeout_s": NaN}', "timeout_s must be"),
        (b'{"format": "svg"}', "format must be table or trace"),
    ],
)
def test_what_cannot_be_profiled_is_one_sentence(tmp_path: Path, body: bytes, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence) as problem:
        asyncio.run(answered(Profiler(tmp_path, "m-v"), raw(body)))
    assert problem.value.status == 400


def test_a_batch_that_fails_is_still_its_own_failure(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, "m-v")
    order = profiler.ask(1)

    def fail() -> None:
        raise ArithmeticError("the model's own")

    with pytest.raises(ArithmeticError, match="the model's own"):
        Device(profiler).run(1, fail)
    assert order.recorded.result(0) is not None


def test_a_profiler_that_cannot_start_does_not_fail_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no CUPTI")

    monkeypatch.setattr("torch.profiler.profile", broken)
    profiler, ran = Profiler(tmp_path, "m-v"), threading.Event()
    order = profiler.ask(1)
    Device(profiler).run(1, ran.set)
    assert ran.is_set()
    with pytest.raises(WireError, match="the profiler failed: no CUPTI"):
        order.recorded.result(0)
    profiler.ask(1)  # the next may try


def test_nobody_asks() -> None:
    profiler = Profiler(Path(), "m-v")
    assert profiler.batch() is profiler.batch()
