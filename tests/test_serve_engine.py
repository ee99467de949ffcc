import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from serve.engine import Engine, Job
from serve.opening import Say
from serve.runner import Ran
from serve.spec import ServeError, Tensors
from serve.wire import WireError

GUILTY = -1.0


class GatedRunner:
    """Doubles its rows; each batch waits at a gate, so that a test decides what waits meanwhile."""

    device = "cpu"

    def __init__(self, max_batch: int = 4) -> None:
        self.max_batch = max_batch
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.batches: list[list[float]] = []
        self.wanted: list[set[str]] = []

    def run(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> Ran:
        begun = time.perf_counter_ns()
        values = np.concatenate([part["x"] for part in parts])
        assert len(values) == rows
        self.batches.append(values.tolist())
        self.wanted.append(set(wanted))
        self.entered.release()
        assert self.gate.acquire(timeout=10)
        if GUILTY in values:
            raise ArithmeticError("cannot double that\nsecond line")
        done = time.perf_counter_ns()
        return Ran(dict.fromkeys(wanted, values * 2), begun, begun, done)

    def parameters(self) -> dict[str, Any]:
        return {}


class Bench:
    """An engine with a gated runner, and what it has delivered."""

    def __init__(self, max_batch: int = 4, max_queue: int = 100, max_wait_s: float = 0.0) -> None:
        self.runner = GatedRunner(max_batch)
        self.deliveries: list[list[Job]] = []
        self._delivered = threading.Condition()
        self.engine = Engine(lambda say: self.runner, self._deliver, max_queue=max_queue, max_wait_s=max_wait_s)
        self.engine.start()
        until(lambda: self.engine.state == "READY")

    def _deliver(self, jobs: Sequence[Job]) -> None:
        with self._delivered:
            self.deliveries.append(list(jobs))
            self._delivered.notify_all()

    def submit(self, *values: float, wanted: str = "y", deadline_s: float | None = None) -> Job:
        now_ns = time.perf_counter_ns()
        deadline_ns = None if deadline_s is None else now_ns + int(deadline_s * 1e9)
        job = Job({"x": np.array(values)}, len(values), frozenset({wanted}), now_ns, deadline_ns)
        self.engine.submit(job)
        return job

    def occupy(self) -> Job:
        """A job that is being run: what is submitted now waits."""
        job = self.submit(0.0)
        assert self.runner.entered.acquire(timeout=10)
        return job

    def open(self, batches: int = 100) -> None:
        self.runner.gate.release(batches)

    def wait_for(self, *jobs: Job) -> None:
        with self._delivered:
            assert self._delivered.wait_for(
                lambda: all(any(job in batch for batch in self.deliveries) for job in jobs), timeout=10
            )


def until(happens: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 10
    while not happens():
        assert time.monotonic() < give_up_s, "it never happened"
        time.sleep(0.001)


@pytest.fixture
def benches() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**how: Any) -> Bench:
        made.append(Bench(**how))
        return made[-1]

    yield make
    for bench in made:
        bench.open(1000)
        bench.engine.close()


def test_all_that_waits_goes_into_the_next_batch_up_to_max_in_order(benches: Callable[..., Bench]) -> None:
    bench = benches(max_batch=4)
    first = bench.occupy()
    rest = [bench.submit(float(n)) for n in range(1, 7)]
    assert bench.engine.waiting == 6
    bench.open()
    bench.wait_for(first, *rest)
    assert bench.runner.batches == [[0], [1, 2, 3, 4], [5, 6]]
    assert [job.outputs["y"].tolist() for job in rest if job.outputs] == [[2], [4], [6], [8], [10], [12]]
    assert [job.batch_rows for job in rest] == [4, 4, 4, 4, 2, 2]
    assert len(bench.deliveries) == 3  # once per batch


def test_requests_of_several_rows_are_never_split_or_overtaken(benches: Callable[..., Bench]) -> None:
    bench = benches(max_batch=4)
    bench.occupy()
    jobs = [bench.submit(1.0, 2.0, 3.0), bench.submit(4.0, 5.0), bench.submit(6.0)]
    bench.open()
    bench.wait_for(*jobs)
    assert bench.runner.batches == [[0], [1, 2, 3], [4, 5, 6]]
    assert jobs[1].outputs is not None
    assert jobs[1].outputs["y"].tolist() == [8, 10]


def test_only_outputs_that_somebody_asked_for_are_made_and_each_gets_its_own(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.occupy()
    one, other = bench.submit(1.0, wanted="a"), bench.submit(2.0, wanted="b")
    bench.open()
    bench.wait_for(one, other)
    assert bench.runner.wanted[1] == {"a", "b"}
    assert one.outputs is not None
    assert other.outputs is not None
    assert (list(one.outputs), list(other.outputs)) == (["a"], ["b"])


def test_a_lone_request_waits_for_company_only_when_told_to(benches: Callable[..., Bench]) -> None:
    bench = benches(max_wait_s=5.0)
    bench.open()
    lone = bench.submit(1.0)
    company = bench.submit(2.0)
    bench.wait_for(lone, company)
    assert bench.runner.batches == [[1, 2]]


def test_a_full_batch_does_not_wait_for_company(benches: Callable[..., Bench]) -> None:
    bench = benches(max_batch=2, max_wait_s=3600.0)
    bench.open()
    bench.wait_for(bench.submit(1.0, 2.0))


def test_only_the_guilty_request_fails(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.occupy()
    good, guilty, also_good = bench.submit(1.0), bench.submit(GUILTY), bench.submit(3.0)
    bench.open()
    bench.wait_for(good, guilty, also_good)
    assert good.outputs is not None
    assert also_good.outputs is not None
    assert (good.outputs["y"].tolist(), also_good.outputs["y"].tolist()) == ([2], [6])
    assert good.error is None
    assert guilty.error is not None
    assert guilty.error.status == 500
    assert guilty.error.sentence == "the model failed on this request: ArithmeticError: cannot double that"
    bench.wait_for(bench.submit(4.0))  # and the engine goes on


def test_a_full_queue_refuses_at_once(benches: Callable[..., Bench]) -> None:
    bench = benches(max_queue=2)
    bench.occupy()
    waiting = [bench.submit(1.0), bench.submit(2.0)]
    with pytest.raises(WireError, match="queue is full") as problem:
        bench.submit(3.0)
    assert problem.value.status == 503
    bench.open()
    bench.wait_for(*waiting)
    bench.wait_for(bench.submit(3.0))


def test_more_rows_than_a_batch_holds(benches: Callable[..., Bench]) -> None:
    with pytest.raises(WireError, match="5 rows, but a batch holds at most 4") as problem:
        benches(max_batch=4).submit(*range(5))
    assert problem.value.status == 413


def test_a_deadline_that_passes_in_the_queue(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.occupy()
    late, good = bench.submit(1.0, deadline_s=0.0), bench.submit(2.0, deadline_s=3600.0)
    bench.open()
    bench.wait_for(late, good)
    assert late.error is not None
    assert late.error.status == 504
    assert good.error is None
    assert bench.runner.batches == [[0], [2]]


def test_withdraw_takes_back_only_what_still_waits(benches: Callable[..., Bench]) -> None:
    bench = benches()
    running, waiting, good = bench.occupy(), bench.submit(1.0), bench.submit(2.0)
    assert bench.engine.withdraw(waiting)
    assert not bench.engine.withdraw(waiting)
    assert not bench.engine.withdraw(running)
    bench.open()
    bench.wait_for(good)
    assert bench.runner.batches == [[0], [2]]


def test_stages_are_contiguous(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.occupy()
    job = bench.submit(1.0)
    bench.open()
    bench.wait_for(job)
    done_ns = time.perf_counter_ns()
    stages_ms = job.stages_ms(done_ns)
    assert len(stages_ms) == 5
    assert min(stages_ms) >= 0
    assert sum(stages_ms) == pytest.approx((done_ns - job.received_ns) / 1e6)


def test_batches_are_counted_in_tritons_way(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.occupy()
    jobs = [bench.submit(1.0), bench.submit(2.0, 3.0)]
    bench.open()
    bench.wait_for(*jobs)
    counts = bench.engine.counters.snapshot()
    assert (counts["inference_count"], counts["execution_count"]) == (4, 2)
    assert counts["inference_stats"]["queue"]["count"] == 3
    assert counts["inference_stats"]["compute_infer"]["count"] == 3
    assert {size: spans["compute_infer"]["count"] for size, spans in counts["batch_stats"].items()} == {"1": 1, "3": 1}


def test_closing_refuses_what_waits_and_ends_the_thread(benches: Callable[..., Bench]) -> None:
    bench = benches()
    running, waiting = bench.occupy(), bench.submit(1.0)
    closing = threading.Thread(target=bench.engine.close)
    closing.start()
    bench.open()
    bench.wait_for(running, waiting)
    closing.join(10)
    assert not bench.engine.alive
    assert running.error is None
    assert waiting.error is not None
    assert waiting.error.status == 503
    with pytest.raises(WireError, match="unavailable: the replica is shutting down"):
        bench.submit(2.0)


def test_loading_says_what_it_does_and_refuses(benches: Callable[..., Bench]) -> None:
    loaded = threading.Event()

    def open_runner(say: Say) -> GatedRunner:
        say("warming bucket 1 of 3")
        assert loaded.wait(10)
        return GatedRunner()

    engine = Engine(open_runner, lambda jobs: None, max_queue=1)
    engine.start()
    until(lambda: engine.reason.startswith("warming bucket 1 of 3, "))
    with pytest.raises(WireError, match="the model is loading: warming bucket 1 of 3") as problem:
        engine.submit(Job({}, 1, frozenset(), 0))
    assert problem.value.status == 503
    loaded.set()
    until(lambda: engine.state == "READY")
    assert engine.reason == ""
    engine.close()


@pytest.mark.parametrize(
    ("problem", "reason"),
    [(ServeError("the weights do not fit"), "the weights do not fit"), (ValueError("a\nb"), "ValueError: a")],
)
def test_a_model_that_cannot_load_says_why(problem: Exception, reason: str) -> None:
    def open_runner(say: Say) -> GatedRunner:
        raise problem

    engine = Engine(open_runner, lambda jobs: None, max_queue=1)
    engine.start()
    until(lambda: engine.state == "UNAVAILABLE")
    assert engine.reason == reason
    engine.close()
