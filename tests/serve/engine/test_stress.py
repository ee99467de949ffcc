"""Tens of thousands of requests that are cancelled, late, in chunks, guilty or too many: none lost, doubled or wrong.

Each carries a number of its own that its answer must bring back, and what became of each is counted outside.
"""

import asyncio
import random
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from test_endpoint import INFER, Bench, call, run
from waiting import PATIENCE_S

from tailrate.serve import wire
from tailrate.serve.body.request import encode_infer
from tailrate.serve.body.result import decode_result
from tailrate.serve.engine import batch_regrowth
from tailrate.serve.runner.cuda_pipeline import BatchResult

GUILTY = 255
MEANING = {"the model failed": "failed", "the queue is full": "queue_full", "the deadline": "deadline"}
MAX_BATCH, MAX_QUEUE = 8, 44
AT_ONCE = 64
"""More than a batch and the queue hold."""
HELD_S = 1.0


class Echo:
    """Sends each row's number back in place of the null model's output; fails of the guilty and at random; halts."""

    def __init__(self, bench: Bench, seed: int, seen: Counter[str]) -> None:
        self._seen = seen
        self._runner: Any = bench.endpoint.engine.runner
        self._whole, self._random = self._runner.begin, random.Random(seed)
        self._runner.begin = self
        self.rows_run = 0

    def __call__(self, parts: Any, rows: int, wanted: Any) -> BatchResult:
        values = np.concatenate([part["x"] for part in parts])
        assert len(values) == rows <= self._runner.max_batch
        first = not self.rows_run
        if self._random.random() < 0.005 or first:  # until the queue was too full, however slowly requests come here
            refused, until = self._seen["queue_full"], time.monotonic() + (PATIENCE_S if first else HELD_S)
            while self._seen["queue_full"] < refused + AT_ONCE - MAX_BATCH - MAX_QUEUE and time.monotonic() < until:
                time.sleep(0.001)
        if rows > 1 and self._random.random() < 0.02:
            raise MemoryError("for a moment")
        if (values[:, 3] == GUILTY).any():
            raise ArithmeticError("one of these is guilty")
        found = self._whole(parts, rows, wanted)
        self.rows_run += rows
        outputs = {name: np.zeros((rows, 16), np.uint8) for name in wanted}
        outputs["y"][:, : values.shape[1]] = values
        return BatchResult(outputs, found.batched_ns, found.copied_in_ns, found.computed_ns)


class Crowd:
    """What became of each request, as its client saw it."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self._bench, self._random = bench, random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.rows = self.chunked = 0

    async def one(self, number: int) -> None:
        rows = self._random.choice((1, 1, 1, 1, 2, 3, 8, 20))
        x = np.empty((rows, 5), np.uint8)
        x[:, :3] = [number & 255, number >> 8 & 255, number >> 16]
        x[:, 3] = GUILTY if self._random.random() < 0.01 else 0
        x[:, 4] = np.arange(rows)
        body, headers = encode_infer({"x": x})
        if self._random.random() < 0.1:
            headers["x-request-timeout-seconds"] = f"{self._random.random() * 0.02:.6f}"
        task = asyncio.create_task(call(self._bench.app, "POST", INFER, [body], headers))
        if self._random.random() < 0.1:
            asyncio.get_running_loop().call_later(self._random.random() * 0.01, task.cancel)
        try:
            status, found, answer = await asyncio.wait_for(task, PATIENCE_S)
        except asyncio.CancelledError:
            self.seen["cancelled"] += 1
            return
        if status == 200:
            outputs = decode_result(answer, int(found[wire.HEADER_LENGTH]))
            assert (outputs["y"][:, :5] == x).all(), f"request {number} has got another's answer"
            self.rows, self.chunked = self.rows + rows, self.chunked + (rows > MAX_BATCH)
            self.seen["ok"] += 1
        else:
            (reason,) = (reason for said, reason in MEANING.items() if said in str(answer))
            assert status == {"failed": 500, "queue_full": 503, "deadline": 504}[reason]
            assert (reason != "failed") or x[0, 3] == GUILTY, f"request {number} failed for another's guilt"
            self.seen[reason] += 1
            if reason == "queue_full":
                await asyncio.sleep(0.02)

    async def all(self, count: int) -> None:
        numbers = iter(range(count))

        async def client() -> None:
            for number in numbers:
                await self.one(number)

        async with asyncio.TaskGroup() as clients:
            for _ in range(AT_ONCE):
                clients.create_task(client())


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.computes
def test_of_very_many_none_is_lost_doubled_or_wrong_and_each_is_counted(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_regrowth, "FIRST_S", 0.02)  # batches shrink and grow all the time

    async def work(bench: Bench) -> None:
        crowd = Crowd(bench, seed=2)
        echo = Echo(bench, 1, crowd.seen)
        await crowd.all(count)
        counts = bench.endpoint.report()["counts"]
        seen = crowd.seen
        assert seen.total() == count
        assert all(seen[word] > count / 1000 for word in ("ok", "cancelled", "deadline", "failed", "queue_full")), seen
        assert counts["inference_stats"]["success"]["count"] == seen["ok"]
        assert {why: n for why, n in counts["refused"].items() if n} == dict(seen - Counter(ok=seen["ok"]))
        assert counts["inference_stats"]["fail"]["count"] == count - seen["ok"]
        assert counts["inference_count"] == echo.rows_run >= crowd.rows
        # a request that ran for nobody is in the stages, too; one in chunks is there once
        once = {span["count"] for span in counts["stages"].values()}
        assert len(once) == 1
        assert seen["ok"] <= once.pop() <= count - seen["queue_full"]
        assert crowd.chunked > count / 20
        assert bench.endpoint.engine.waiting == 0

    run(work, max_batch=MAX_BATCH, max_queue=MAX_QUEUE, settings={"delay_ms": "0.1"})
