from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tailrate.serve.engine import live_parity
from tailrate.serve.engine.job import Job
from tailrate.serve.engine.live_parity import QUIET_S, Samples
from tailrate.serve.runner.parity import Parity
from tailrate.serve.wire import Array


def doubled(inputs: Sequence[Array]) -> list[torch.Tensor]:
    """The eager module."""
    x = torch.from_numpy(inputs[0])
    return [x * 2, x + 1]


def beyond_a_percent(found: Parity) -> str | None:
    return None if found.relative_error <= 0.01 else f"relative error {found.relative_error:.2g}"


class Bench:
    """Samples with a clock of their own, and what they counted."""

    def __init__(self, share: float = 1.0, seed: int = 0, reference: Callable[..., Any] = doubled) -> None:
        self.now_s = 100.0
        self.events: list[str] = []
        self.samples = Samples(share, seed, ("twice", "next"), self.events.append, lambda: self.now_s)
        self.samples.compare_with(reference, beyond_a_percent)

    def answered(self, *values: float, wrong: float = 1.0, outputs: Sequence[str] = ("twice",)) -> Job:
        x = np.array([values], dtype=np.float32)
        job = Job({"x": x}, 1, frozenset(outputs), 0)
        made = {"twice": x * 2 * wrong, "next": x + 1}
        job.outputs = {name: made[name] for name in outputs}
        return job

    def rest(self) -> None:
        """A long pause, in which the engine has nothing else to do."""
        self.now_s += QUIET_S
        while self.samples.idle() == 0.0:
            pass


def test_what_is_right_is_compared_and_passes() -> None:
    bench = Bench()
    bench.samples.batch([bench.answered(1, 2), bench.answered(3, 4, outputs=("next", "twice"))])
    bench.rest()
    facts = bench.samples.facts()
    assert (facts["sampled_responses"], facts["sampled_failures"], facts["sampled_waiting"]) == (2, 0, 0)
    assert facts["sampled_relative_error"] == 0
    assert facts["sampled_cosine"] == pytest.approx(1)
    assert bench.events == ["parity_samples"] * 2


def test_what_is_wrong_is_found_with_the_worst_of_it() -> None:
    bench = Bench()
    bench.samples.batch([bench.answered(1, 2), bench.answered(1, 2, wrong=1.05), bench.answered(1, 2, wrong=1.5)])
    bench.rest()
    facts = bench.samples.facts()
    assert (facts["sampled_responses"], facts["sampled_failures"]) == (3, 2)
    assert facts["sampled_relative_error"] == pytest.approx(0.5)
    assert facts["sampled_why"] == "relative error 0.05"  # the first
    assert sorted(bench.events) == ["parity_failures"] * 2 + ["parity_samples"] * 3


def test_an_answer_of_nan_is_a_failure_but_an_input_of_nan_is_not() -> None:
    bench = Bench()
    bench.samples.batch([bench.answered(float("nan"), 2)])
    bench.rest()
    assert (bench.samples.facts()["sampled_responses"], bench.samples.facts()["sampled_left_out"]) == (0, 1)
    bench.samples.batch([bench.answered(1, 2, wrong=float("nan"))])
    bench.rest()
    facts = bench.samples.facts()
    assert (facts["sampled_responses"], facts["sampled_failures"]) == (1, 1)
    assert facts["sampled_relative_error"] is None
    assert facts["sampled_cosine"] == -1


def test_nothing_is_compared_while_there_is_traffic() -> None:
    bench = Bench()
    assert bench.samples.idle() is None
    bench.samples.batch([bench.answered(1)])
    bench.now_s += 0.75 * QUIET_S
    assert bench.samples.idle() == pytest.approx(0.25 * QUIET_S)
    bench.samples.batch([bench.answered(1)])
    assert bench.samples.idle() == pytest.approx(QUIET_S)
    assert bench.samples.facts()["sampled_responses"] == 0
    bench.now_s += QUIET_S
    assert bench.samples.idle() == 0.0  # one at a time, so that a request that comes now waits for one
    assert bench.samples.facts()["sampled_responses"] == 1
    assert bench.samples.idle() is None


def test_what_is_being_compared_still_waits() -> None:
    waiting: list[int] = []

    def watched(inputs: Sequence[Array]) -> list[torch.Tensor]:
        waiting.append(bench.samples.facts()["sampled_waiting"])
        return doubled(inputs)

    bench = Bench(reference=watched)
    bench.samples.batch([bench.answered(1), bench.answered(2)])
    bench.rest()
    assert waiting == [2, 1]


def test_later_batches_do_not_reach_into_what_is_kept() -> None:
    bench = Bench()
    job = bench.answered(1, 2)
    bench.samples.batch([job])
    assert job.outputs is not None
    job.outputs["twice"][:] = 99
    job.tensors["x"][:] = -99
    bench.rest()
    assert bench.samples.facts()["sampled_failures"] == 0


@pytest.mark.parametrize("sizes", [[1] * 6000, [3, 7, 64, 1] * 80])
def test_the_share_is_kept_and_the_seed_decides_which(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_parity, "MOST_KEPT", 10**6)

    def kept(seed: int) -> list[float]:
        bench, number = Bench(0.05, seed), 0
        for size in sizes:
            bench.samples.batch([bench.answered(number + k) for k in range(size)])
            number += size
        return [float(sample.inputs[0][0, 0]) for sample in bench.samples._kept]

    of = sum(sizes)
    assert 0.04 * of < len(kept(1)) < 0.06 * of
    assert kept(1) == kept(1) != kept(2)
    assert sorted(set(kept(1))) == kept(1)


def test_which_are_kept_does_not_depend_on_how_they_were_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_parity, "MOST_KEPT", 10**6)

    def kept(size: int) -> list[float]:
        bench = Bench(0.03, 7)
        for first in range(0, 960, size):
            bench.samples.batch([bench.answered(first + k) for k in range(size)])
        return [float(sample.inputs[0][0, 0]) for sample in bench.samples._kept]

    assert kept(1) == kept(8) == kept(64) != []


def test_nothing_is_kept_before_there_is_a_reference() -> None:
    bench = Bench()
    samples = Samples(1.0, 0, ("twice", "next"), bench.events.append)
    samples.batch([bench.answered(1)])
    assert samples.idle() is None
    assert samples.facts()["sampled_share"] == 0


def test_no_share_keeps_nothing() -> None:
    bench = Bench(share=0)
    bench.samples.batch([bench.answered(1)] * 1000)
    assert bench.samples.idle() is None


def test_what_is_kept_is_bounded_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.samples.batch([bench.answered(1)] * (live_parity.MOST_KEPT + 5))
    assert bench.samples.facts()["sampled_waiting"] == live_parity.MOST_KEPT
    assert bench.samples.facts()["sampled_left_out"] == 5
    bench.rest()
    monkeypatch.setattr(live_parity, "MOST_BYTES", 20)  # 4 in, 4 out each
    bench.samples.batch([bench.answered(1)] * 5)
    assert bench.samples.facts()["sampled_waiting"] == 2
    bench.rest()
    bench.samples.batch([bench.answered(1)])
    assert bench.samples.facts()["sampled_waiting"] == 1


def test_requests_that_failed_are_not_kept() -> None:
    bench = Bench()
    job = bench.answered(1)
    job.outputs = None
    bench.samples.batch([job])
    assert bench.samples.idle() is None


def test_a_reference_that_fails_ends_the_sampling_and_nothing_else() -> None:
    def broken(inputs: Sequence[Array]) -> list[torch.Tensor]:
        raise MemoryError("no memory for the eager module\nsecond line")

    bench = Bench(reference=broken)
    bench.samples.batch([bench.answered(1)] * 3)
    bench.rest()
    assert bench.samples.idle() is None
    bench.samples.batch([bench.answered(1)])
    facts = bench.samples.facts()
    assert (facts["sampled_share"], facts["sampled_responses"], facts["sampled_waiting"]) == (0, 0, 0)
    assert facts["sampled_why"] == "the comparison failed: MemoryError: no memory for the eager module"
