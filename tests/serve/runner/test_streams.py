"""Batches in flight over a played CUDA whose work happens late and in any order: each answer is its own request's."""

from collections import deque
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from streams import POISON, Cuda, Graph
from test_cuda_pipeline import SPEC

from tailrate.serve.runner.buckets import buckets
from tailrate.serve.runner.runner import TorchRunner

SEEDS = range(60)


def drive(seed: int, batches: int = 12) -> int:
    """Of batches of random sizes, begun as the engine does it; how many pieces of work that was on the device."""
    random, cuda = Random(seed), Cuda(seed)
    runner = TorchRunner(SPEC, torch.device("cpu"), buckets((1, 2, 4)), 0, cuda)
    double = Graph(cuda, lambda x: x * 2)
    flights: deque[tuple[Any, np.ndarray[Any, Any]]] = deque()
    kept: list[tuple[Any, np.ndarray[Any, Any]]] = []

    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return double(x), torch.arange(len(x))

    def land() -> None:
        flight, expected = flights.popleft()
        kept.append((flight.finish().outputs["y"], expected))

    runner.call = call
    with cuda.device():
        for number in range(batches):
            while len(flights) == runner.depth or (flights and random.random() < 0.3):
                land()
            rows = random.randint(1, 4)
            given = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3) + 100 * number + 1
            flights.append((runner.begin([{"x": row[None]} for row in given], rows, ["y"]), given * 2))
            if random.random() < 0.5:
                flights[0][0].done()
        while flights:
            land()
        cuda.synchronize()  # what comes late must not reach those who have their answers
    for found, expected in kept:
        assert POISON not in found
        np.testing.assert_array_equal(found, expected)
    return cuda.happened


@pytest.mark.parametrize("seed", SEEDS)
def test_every_answer_is_that_of_its_own_rows(seed: int) -> None:
    assert drive(seed) >= 12 * 8  # five marks, a wait, a call, copies both ways
