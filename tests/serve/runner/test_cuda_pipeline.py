"""The pipeline over a device that is played: its streams and events are ours, its memory is the CPU's."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from recorded_gpu import marks
from streams import Current

from tailrate.serve.runner.buckets import Bucket, buckets
from tailrate.serve.runner.cuda_pipeline import DEPTH, BatchResult
from tailrate.serve.runner.runner import TorchRunner
from tailrate.serve.spec import ModelSpec
from tailrate.serve.wire import TensorSpec


class Event:
    """A mark in a stream; its instants in ms are those that the test has laid out."""

    def __init__(self, cuda: "Cuda", blocking: bool) -> None:
        self.cuda = cuda
        self.blocking = blocking
        self.ms = 0.0

    def record(self, stream: str) -> None:
        self.ms = self.cuda.instants.pop(0) if self.cuda.instants else 0.0
        self.cuda.log.append(f"mark on {stream}")

    def query(self) -> bool:
        return self.cuda.is_done

    def synchronize(self) -> None:
        assert self.blocking  # another kind would keep a core busy
        if self.cuda.breaks:
            raise RuntimeError("CUDA error: device-side assert triggered")

    def elapsed_time(self, other: "Event") -> float:
        return other.ms - self.ms


class Stream(str):
    """`wait_event` is all that anybody asks of one."""

    log: list[str]

    def wait_event(self, event: Event) -> None:
        self.log.append(f"{self} waits")


class Cuda(Current):
    """As much of `torch.cuda` as the pipeline uses."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.instants: list[float] = []
        self.is_done = True
        self.breaks = False
        self.syncs = 0
        self.emptied = 0
        super().__init__(self._stream("computing"))

    def _stream(self, name: str) -> Stream:
        made = Stream(name)
        made.log = self.log
        return made

    def Event(self, enable_timing: bool, blocking: bool) -> Event:  # noqa: N802
        assert enable_timing
        return Event(self, blocking)

    def Stream(self) -> Stream:  # noqa: N802
        return self._stream("copying")

    def synchronize(self) -> None:
        self.syncs += 1
        if self.breaks:
            raise RuntimeError("CUDA error: device-side assert triggered\nmore")

    def empty_cache(self) -> None:
        self.emptied += 1


SPEC = ModelSpec(
    name="doubling",
    inputs=(TensorSpec("x", "FP32", (-1, 3)),),
    outputs=(TensorSpec("y", "FP32", (-1, 3)), TensorSpec("rows", "INT64", (-1,))),
    default_outputs=("y",),
    prepare=dict,
    example=lambda rows, seed: {"x": np.full((rows, 3), seed, np.float32)},
)


class Bench:
    def __init__(self) -> None:
        self.cuda = Cuda()
        self.runner = TorchRunner(SPEC, torch.device("cpu"), buckets((1, 2, 4)), 0, self.cuda)
        self.given: list[torch.Tensor] = []
        self.runner.call = self.call

    def call(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.cuda.current_stream() == "computing"
        self.cuda.log.append("call")
        self.given.append(x)
        return x * 2, torch.arange(len(x))

    def begin(self, *values: float, wanted: tuple[str, ...] = ("y",)) -> Any:
        parts = [{"x": np.full((1, 3), value, np.float32)} for value in values]
        return self.runner.begin(parts, len(values), wanted)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_batch_is_copied_in_on_one_stream_and_computed_on_another_behind_it(bench: Bench) -> None:
    ran = bench.begin(1, 2, 3).finish()
    assert bench.cuda.log == [
        "mark on copying", "mark on copying", "computing waits", "mark on computing", "call",
        "mark on computing", "mark on computing",
    ]  # fmt: skip
    assert ran.outputs["y"].tolist() == [[2] * 3, [4] * 3, [6] * 3]
    assert bench.given[0][:, 0].tolist() == [1, 2, 3, 0]
    assert bench.cuda.syncs == 0  # the host waited for the end alone


def test_only_what_is_wanted_is_copied_out(bench: Bench) -> None:
    assert list(bench.begin(1, wanted=("rows",)).finish().outputs) == ["rows"]
    assert bench.begin(1, wanted=()).finish().outputs == {}


def test_batches_in_flight_have_inputs_of_their_own_and_results_outlive_them(bench: Bench) -> None:
    assert bench.runner.depth == DEPTH
    flights = [bench.begin(1, 2), bench.begin(3, 4)]
    assert [x[:, 0].tolist() for x in bench.given] == [[1, 2], [3, 4]]
    found = [flight.finish().outputs["y"] for flight in flights]
    for value in range(5, 9):
        bench.begin(value, value).finish()
    assert [y[:, 0].tolist() for y in found] == [[2, 4], [6, 8]]
    assert len({x.data_ptr() for x in bench.given}) == DEPTH  # always the same few places


def test_stages_come_from_the_devices_marks_and_waiting_for_it_is_none_of_them(bench: Bench) -> None:
    bench.cuda.instants = [100.0, 102.0, 105.0, 109.0, 110.0]
    before_ns = time.perf_counter_ns()
    flight = bench.begin(1)
    begun_ns = time.perf_counter_ns()
    time.sleep(0.02)  # longer than all of it on the device
    ran = flight.finish()
    assert ran.waited_ns == 3e6
    assert before_ns <= ran.batched_ns - ran.waited_ns <= begun_ns
    assert ran.copied_in_ns - ran.batched_ns == 2e6
    assert ran.computed_ns - ran.copied_in_ns == 4e6
    assert ran.computed_ns <= time.perf_counter_ns() - 1e6


def test_instants_stay_in_order_where_the_clocks_disagree(bench: Bench) -> None:
    bench.cuda.instants = [0.0, 5000.0, 4000.0, 9000.0, 9001.0]  # longer than it took the host
    ran = bench.begin(1).finish()
    assert ran.batched_ns <= ran.copied_in_ns <= ran.computed_ns <= time.perf_counter_ns()
    assert ran.waited_ns == 0


def test_a_flight_is_done_when_its_last_mark_is(bench: Bench) -> None:
    flight = bench.begin(1)
    bench.cuda.is_done = False
    assert not flight.done()
    bench.cuda.is_done = True
    assert flight.done()
    assert isinstance(flight.finish(), BatchResult)


def test_a_batch_that_cannot_be_begun_leaves_its_place_once_the_device_is_quiet(bench: Bench) -> None:
    in_flight = bench.begin(1)

    def fails(x: torch.Tensor) -> None:
        raise ArithmeticError("no")

    bench.runner.call = fails
    for _ in range(3):
        with pytest.raises(ArithmeticError):
            bench.begin(7)
    assert bench.cuda.syncs == 3
    bench.runner.call = bench.call
    other = bench.begin(2)
    assert in_flight.finish().outputs["y"].tolist() == [[2] * 3]
    assert other.finish().outputs["y"].tolist() == [[4] * 3]


def test_a_batch_that_fails_on_the_device_leaves_its_place_and_the_device_is_lost(bench: Bench) -> None:
    flights = [bench.begin(1), bench.begin(2)]
    assert bench.runner.lost() is None
    bench.cuda.breaks = True
    for flight in flights:
        with pytest.raises(RuntimeError, match="device-side assert"):
            flight.finish()
    assert bench.runner.lost() == "the device was lost: RuntimeError: CUDA error: device-side assert triggered"
    bench.cuda.breaks = False
    assert [bench.begin(n).finish().outputs["y"][0, 0] for n in (1, 2, 3)] == [2, 4, 6]


def test_smaller_batches_give_memory_back(bench: Bench) -> None:
    assert bench.runner.shrink(3) == 2
    assert bench.cuda.emptied == 1
    assert bench.runner.buckets == (Bucket(1), Bucket(2))


def test_what_is_rehearsed_has_been_in_every_place(bench: Bench) -> None:
    bench.runner.rehearse(Bucket(4), [bench.runner.example(Bucket(4), 5)])
    assert len({x.data_ptr() for x in bench.given}) == DEPTH
    assert bench.cuda.syncs == 0


def test_warming_up_uses_the_very_tensors_that_serve(bench: Bench) -> None:
    example = bench.runner.example(Bucket(4), 5)
    y, rows = bench.runner.execute(Bucket(4), [example])
    assert y.tolist() == [[10] * 3] * 4
    assert rows.tolist() == [0, 1, 2, 3]
    again, _ = bench.runner.execute(Bucket(4))  # with what was there
    assert again.tolist() == y.tolist()
    bench.begin(1, 2, 3, 4).finish()
    assert bench.given[0].data_ptr() == bench.given[-1].data_ptr()


@pytest.mark.parametrize("variant", sorted(marks()))
def test_marks_of_a_real_gpu_become_stages_that_follow_each_other(bench: Bench, variant: str) -> None:
    """Two batches were in flight: what one waited for the other is queueing, and moves all of its stages."""
    took = marks()[variant]
    for copied, waited, computed, out in took:
        bench.cuda.instants = np.cumsum([0, copied, waited, computed, out]).tolist()
        began_ns = time.perf_counter_ns()
        flight = bench.begin(1, 2)
        flight._batched_ns = began_ns - round((copied + waited + computed + out) * 1e6)  # it began that long ago
        ran = flight.finish()
        assert ran.waited_ns == pytest.approx(waited * 1e6, abs=100)
        assert ran.batched_ns <= ran.copied_in_ns <= ran.computed_ns <= time.perf_counter_ns()
        assert ran.computed_ns - ran.copied_in_ns == pytest.approx(computed * 1e6, abs=1000)
        assert ran.copied_in_ns - ran.batched_ns == pytest.approx(copied * 1e6, abs=1000)
    # two in flight: half of the batches found the device busy, and computing is most of what they take
    assert 20 < sum(waited > 0.1 for _, waited, _, _ in took) <= len(took)
