"""Whole runs on a device with so much memory: what fits is served, what doesn't is told, and nothing stays behind."""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from room import Room
from test_runner import in_a_thread, opened, options
from test_weights import small_net
from waiting import PATIENCE_S, until

from tailrate.serve import variants
from tailrate.serve.engine import batch_regrowth
from tailrate.serve.engine.engine import Engine
from tailrate.serve.engine.job import Job
from tailrate.serve.models import _weights
from tailrate.serve.runner.buckets import smallest
from tailrate.serve.runner.open_runner import open_runner
from tailrate.serve.runner.runner import TorchRunner
from tailrate.serve.spec import ModelSpec

ROWS = 8


class Inside(torch.nn.Module):
    """A module whose tensors take of the room."""

    def __init__(self, module: torch.nn.Module, room: Room) -> None:
        super().__init__()
        self.module, self._room = module, room

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        # random weights are fitted to what they are to give before they come to the device, outside inference mode
        with self._room if torch.is_inference_mode_enabled() else nullcontext():
            found: torch.Tensor = self.module(image)
            return found


def net_in(room: Room) -> ModelSpec:
    spec = small_net()
    made = spec.build
    assert made is not None
    return replace(spec, build=lambda: Inside(made(), room), max_batch=(ROWS, ROWS))


def needed(rows: int, folder: Path) -> int:
    """By a batch of so many rows."""
    room = Room()
    runner = in_a_thread(lambda: opened(net_in(room), "eager", options(folder)))
    room.peak = 0
    bucket = next(bucket for bucket in runner.buckets if bucket.rows == rows)
    in_a_thread(lambda: runner.execute(bucket, [runner.example(bucket, 0)]))
    return room.peak


@pytest.fixture(scope="module")
def row_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    folder = tmp_path_factory.mktemp("cache")
    one = needed(1, folder)
    assert needed(ROWS, folder) == ROWS * one > 0
    return one


def room_for(rows: int, row_bytes: int) -> float:
    """And for a few outputs, which a CPU doesn't copy away when they are compared."""
    return (rows + 0.5) * row_bytes if rows else 0


@pytest.mark.parametrize(("fit", "most"), [(1, 1), (3, 2), (4, 4), (7, 4), (8, 8)])
def test_batches_are_as_large_as_fits(
    tmp_path: Path, row_bytes: int, fit: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compared with is run in turn, and takes no more than the variant does."""
    room, said, held = Room(room_for(fit, row_bytes)), list[str](), list[int]()
    drop = TorchRunner.drop_buckets_above

    def dropped(runner: TorchRunner, rows: int) -> int:
        held.append(room.used)
        return drop(runner, rows)

    monkeypatch.setattr(TorchRunner, "drop_buckets_above", dropped)
    runner = in_a_thread(lambda: opened(net_in(room), "eager", options(tmp_path), said))
    assert runner.max_batch == most
    assert room.refused == (most < ROWS)
    assert held == [0] * (most < ROWS)  # nothing of the batch that failed is left when memory is given back
    assert any("do not fit into memory" in line for line in said) == (most < ROWS)


def test_where_not_one_row_fits_it_is_not_served(tmp_path: Path, row_bytes: int) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        in_a_thread(lambda: opened(net_in(Room(row_bytes - 1)), "eager", options(tmp_path)))


class Served:
    """An engine over the net, whose jobs are told apart by what they ask."""

    def __init__(self, room: Room, folder: Path) -> None:
        self._done = threading.Semaphore(0)
        self.engine = Engine(
            lambda say: open_runner(net_in(room), variants.load("eager"), options(folder), say),
            self._deliver,
            max_queue=1000,
        )
        self.engine.start()
        until(lambda: self.engine.state != "LOADING")
        assert self.engine.state == "READY", self.engine.reason

    def _deliver(self, jobs: Sequence[Job]) -> None:
        self._done.release(len(jobs))

    def all(self, sizes: Sequence[int], seed: int) -> list[Job]:
        """So many rows in each, handed in at once."""
        drawn = np.random.default_rng(seed)
        images = [drawn.standard_normal((rows, 3, 8, 8), dtype=np.float32) for rows in sizes]
        jobs = [Job({"image": image}, len(image), frozenset({"y"}), 0, None) for image in images]
        for job in jobs:
            self.engine.submit(job)
        for _ in jobs:
            assert self._done.acquire(timeout=PATIENCE_S)
        return jobs


def test_others_take_memory_and_give_it_back(tmp_path: Path, row_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever fits alone gets an answer, the right one; and in the end all is as it was."""
    monkeypatch.setattr(batch_regrowth, "FIRST_S", 0.0)
    room, random = Room(room_for(ROWS, row_bytes)), Random(3)
    served = Served(room, tmp_path)
    runner = served.engine.runner
    assert runner is not None
    module, _ = _weights.load(small_net(), "random", 0, tmp_path)

    def check(job: Job, fit: int) -> None:
        if job.error is not None:
            assert (job.error.status, job.error.reason) == (503, "no_memory")
            assert smallest(runner._known, job.rows, None).rows > fit
            return
        assert job.outputs is not None
        with torch.inference_mode():
            right = module(torch.from_numpy(job.tensors["image"])).numpy()
        np.testing.assert_allclose(job.outputs["y"], right, rtol=1e-4, atol=1e-5)

    seen = set[int]()
    for turn in range(60):
        fit = random.choice((0, 1, 2, 3, 5, 8))
        room.most = room_for(fit, row_bytes)
        for job in served.all([random.randint(1, runner.max_batch) for _ in range(6)], turn):
            check(job, fit)
        del job
        seen.add(runner.max_batch)
        until(lambda: room.used == 0)  # what failed holds nothing, nor does what was answered
    assert seen >= {1, ROWS}  # it shrank as far as that goes, and grew again
    room.most = room_for(ROWS, row_bytes)
    while runner.max_batch < ROWS:
        served.all([runner.max_batch], 0)
    assert all(job.error is None for job in served.all([ROWS] * 6, 1))
    served.engine.close()
