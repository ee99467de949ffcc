import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import waiting
from waiting import PATIENCE_S

from tailrate.serve.engine import batch_regrowth
from tailrate.serve.engine.batch_observer import Seen
from tailrate.serve.engine.engine import Engine, Job, Onlooker
from tailrate.serve.engine.language.writing import Writing
from tailrate.serve.runner.cuda_pipeline import BatchResult
from tailrate.serve.runner.open_runner import Say
from tailrate.serve.spec import ServeError, Tensors
from tailrate.serve.wire import WireError

GUILTY = -1.0


class GatedRunner:
    """Doubles its rows; each batch waits at a gate, so that a test decides what waits meanwhile."""

    device = "cpu"
    depth = 1
    stretched: frozenset[str] = frozenset()

    def __init__(self, max_batch: int = 4) -> None:
        self.max_batch = max_batch
        self.fits = 1000
        """Rows for which there is memory."""
        self.dead: str | None = None
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.batches: list[list[float]] = []
        self.wanted: list[set[str]] = []

    def begin(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> BatchResult:
        begun = time.perf_counter_ns()
        values = np.concatenate([part["x"] for part in parts])
        assert len(values) == rows
        self.batches.append(values.tolist())
        self.wanted.append(set(wanted))
        self.entered.release()
        assert self.gate.acquire(timeout=PATIENCE_S)
        if rows > self.max_batch:
            raise ValueError(f"no bucket holds {rows} rows")
        if GUILTY in values:
            raise ArithmeticError("cannot double that\nsecond line")
        if rows > self.fits:
            raise MemoryError(f"{rows} rows are too many")
        done = time.perf_counter_ns()
        return BatchResult(dict.fromkeys(wanted, values * 2), begun, begun, done)

    def shrink(self, rows: int) -> int:
        self.max_batch = max(1, rows // 2)
        return self.max_batch

    def grow(self, rows: int) -> int:
        self.max_batch = rows
        return self.max_batch

    def lost(self) -> str | None:
        return self.dead

    def parameters(self) -> dict[str, Any]:
        return {}


class Bench:
    """An engine with a gated runner, and what it has delivered."""

    def __init__(
        self, max_batch: int = 4, max_queue: int = 100, max_wait_s: float = 0.0, runner: GatedRunner | None = None
    ) -> None:
        self.runner = runner or GatedRunner(max_batch)
        self.deliveries: list[list[Job]] = []
        self.begun: list[int] = []
        """How many batches were, at each of them."""
        self._delivered = threading.Condition()
        self.engine = Engine(
            lambda say: nullcontext(self.runner), self._deliver, max_queue=max_queue, max_wait_s=max_wait_s
        )
        self.engine.start()
        until(lambda: self.engine.state == "READY")

    def _deliver(self, jobs: Sequence[Job]) -> None:
        with self._delivered:
            self.begun.append(len(self.runner.batches))
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
        assert self.runner.entered.acquire(timeout=PATIENCE_S)
        return job

    def open(self, batches: int = 100) -> None:
        self.runner.gate.release(batches)

    def wait_for(self, *jobs: Job) -> None:
        with self._delivered:
            assert self._delivered.wait_for(
                lambda: all(any(job in batch for batch in self.deliveries) for job in jobs), timeout=PATIENCE_S
            )


def doubled(job: Job) -> list[float]:
    assert job.error is None
    assert job.outputs is not None
    found: list[float] = job.outputs["y"].tolist()
    return found


until = partial(waiting.until, every_s=0.001)


@pytest.fixture
def benches() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**how: Any) -> Bench:
        made.append(Bench(**how))
        return made[-1]

    yield make
    for bench in made:
        bench.open(1000)
        for plane in getattr(bench.runner, "planes", ()):
            plane.landed.set()
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


def test_requests_that_fit_into_a_batch_are_never_split_or_overtaken(benches: Callable[..., Bench]) -> None:
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


def test_a_request_of_more_rows_than_a_batch_goes_in_chunks(benches: Callable[..., Bench]) -> None:
    bench = benches(max_batch=4)
    bench.occupy()
    job = bench.submit(*map(float, range(1, 11)))
    bench.open()
    bench.wait_for(job)
    assert bench.runner.batches == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert doubled(job) == [2.0 * n for n in range(1, 11)]
    assert job.batch_rows == 4
    assert sum(job in batch for batch in bench.deliveries) == 1
    stages_ms = job.stages_ms(job.computed_ns)
    assert min(stages_ms) >= 0
    assert sum(stages_ms) == pytest.approx((job.computed_ns - job.received_ns) / 1e6)


def test_others_have_their_turn_between_the_chunks(benches: Callable[..., Bench]) -> None:
    bench = benches(max_batch=2)
    bench.occupy()
    large = bench.submit(1.0, 2.0, 3.0, 4.0, 5.0)
    small = [bench.submit(n) for n in (6.0, 7.0, 8.0)]
    bench.open()
    bench.wait_for(large, *small)
    # its rest shares a batch with others, as any request would
    assert bench.runner.batches == [[0], [1, 2], [6, 7], [8], [3, 4], [5]]
    bench = benches(max_batch=2)
    bench.occupy()
    two = [bench.submit(1.0, 2.0, 3.0, 4.0), bench.submit(5.0, 6.0, 7.0)]
    bench.open()
    bench.wait_for(*two)
    assert bench.runner.batches == [[0], [1, 2], [5, 6], [3, 4], [7]]
    assert [doubled(job) for job in two] == [[2, 4, 6, 8], [10, 12, 14]]


def test_a_chunk_that_fails_ends_the_whole_request_once(benches: Callable[..., Bench]) -> None:
    bench = benches(max_batch=2)
    bench.occupy()
    bad, good = bench.submit(1.0, GUILTY, 3.0, 4.0, 5.0, 6.0), bench.submit(9.0)
    bench.open()
    bench.wait_for(bad, good)
    assert bad.error is not None
    assert bad.error.status == 500
    assert doubled(good) == [18]
    bench.wait_for(bench.submit(7.0))
    assert bench.runner.batches == [[0], [1, GUILTY], [9], [7]]
    assert sum(bad in batch for batch in bench.deliveries) == 1
    assert bench.engine.waiting == 0


def test_a_request_that_is_partly_run_can_be_given_up(benches: Callable[..., Bench]) -> None:
    bench = benches(max_batch=2)
    bench.occupy()
    large = bench.submit(1.0, 2.0, 3.0, 4.0, 5.0)
    bench.open(1)
    assert bench.runner.entered.acquire(timeout=PATIENCE_S)  # its first chunk
    assert not bench.engine.withdraw(large)
    bench.open()
    bench.wait_for(bench.submit(9.0))
    assert bench.runner.batches == [[0], [1, 2], [9]]
    assert not any(large in batch for batch in bench.deliveries)


def test_a_deadline_that_passes_between_chunks(benches: Callable[..., Bench]) -> None:
    bench = benches(max_batch=2)
    bench.occupy()
    large = bench.submit(1.0, 2.0, 3.0, 4.0, deadline_s=3600.0)
    bench.open(1)
    assert bench.runner.entered.acquire(timeout=PATIENCE_S)
    large.deadline_ns = 0
    bench.open()
    bench.wait_for(large)
    assert large.error is not None
    assert large.error.status == 504
    assert bench.runner.batches == [[0], [1, 2]]


def test_more_rows_than_the_whole_queue_holds_in_batches(benches: Callable[..., Bench]) -> None:
    with pytest.raises(WireError, match="9 rows, but the queue holds at most 8") as problem:
        benches(max_batch=4, max_queue=2).submit(*range(9))
    assert problem.value.status == 413


def test_a_client_that_has_gone_is_not_computed_for(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.occupy()
    gone, stays = bench.submit(1.0), bench.submit(2.0)
    gone.gone, stays.gone = lambda: True, lambda: False
    bench.open()
    bench.wait_for(gone, stays)
    assert gone.error is not None
    assert gone.error.status == 499
    assert doubled(stays) == [4.0]
    assert bench.runner.batches == [[0], [2]]


def test_a_deadline_is_the_first_instant_that_is_too_late() -> None:
    """A coarse clock may say the same one when a request comes and when it is run."""
    for asked in (Job({}, 1, frozenset(), 5, 9), Writing([1], 1, deadline_ns=9)):
        assert asked.pointless(8) is None
        late = asked.pointless(9)
        assert late is not None
        assert late.status == 504


def test_a_deadline_that_passes_in_the_queue(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.occupy()
    late, good = bench.submit(1.0, deadline_s=-1e-9), bench.submit(2.0, deadline_s=3600.0)
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
    closing.join(PATIENCE_S)
    assert not bench.engine.alive
    assert running.error is None
    assert waiting.error is not None
    assert waiting.error.status == 503
    with pytest.raises(WireError, match="unavailable: the replica is shutting down"):
        bench.submit(2.0)


def test_loading_says_what_it_does_and_refuses(benches: Callable[..., Bench]) -> None:
    loaded = threading.Event()

    @contextmanager
    def open_runner(say: Say) -> Iterator[GatedRunner]:
        say("warming bucket 1 of 3")
        assert loaded.wait(PATIENCE_S)
        yield GatedRunner()

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
    def open_runner(say: Say) -> AbstractContextManager[GatedRunner]:
        raise problem

    engine = Engine(open_runner, lambda jobs: None, max_queue=1)
    engine.start()
    until(lambda: engine.state == "UNAVAILABLE")
    assert engine.reason == reason
    engine.close()


# ---- what goes wrong with the device


def test_a_batch_that_does_not_fit_into_memory_is_halved_and_so_are_those_after_it(
    benches: Callable[..., Bench],
) -> None:
    bench = benches(max_batch=8)
    bench.occupy()
    bench.runner.fits = 3
    jobs = [bench.submit(1.0), bench.submit(2.0, 3.0), bench.submit(4.0, 5.0, 6.0, 7.0), bench.submit(8.0)]
    bench.open()
    bench.wait_for(*jobs)
    assert [doubled(job) for job in jobs] == [[2], [4, 6], [8, 10, 12, 14], [16]]
    sizes = [len(batch) for batch in bench.runner.batches]
    assert sizes[:3] == [1, 8, 3]  # 8 do not fit, 4 would hold the first two requests
    assert bench.runner.max_batch == 2
    later = [bench.submit(float(n)) for n in range(5)]
    bench.wait_for(*later)
    assert max(len(batch) for batch in bench.runner.batches[len(sizes) :]) <= 2
    assert [event["what"] for event in bench.engine.events] == [
        "a batch of 8 rows did not fit into memory: from now on a batch has at most 4",
        "a batch of 4 rows did not fit into memory: from now on a batch has at most 2",
    ]
    assert bench.engine.events[0]["time_ns"] <= time.time_ns()
    assert bench.engine.counters.snapshot()["events"]["out_of_memory"] == 2


def test_those_that_were_to_be_run_again_are_so_in_batches_that_are_possible_by_then(
    benches: Callable[..., Bench],
) -> None:
    """Eight rows again in two batches of four, of which the first shows that only two fit."""
    bench = benches(max_batch=8)
    bench.occupy()
    bench.runner.fits = 2
    jobs = [bench.submit(1.0, 2.0, 3.0, 4.0), bench.submit(5.0, 6.0, 7.0, 8.0)]
    bench.open()
    bench.wait_for(*jobs)
    assert [doubled(job) for job in jobs] == [[2, 4, 6, 8], [10, 12, 14, 16]]


def test_a_request_for_which_there_is_no_memory_even_alone(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.occupy()
    bench.runner.fits = 0
    jobs = [bench.submit(1.0), bench.submit(2.0, 3.0)]
    bench.open()
    bench.wait_for(*jobs)
    for job in jobs:
        assert job.error is not None
        assert job.error.status == 503
        assert job.error.sentence == "there is no memory for this request: MemoryError: 1 rows are too many"
    bench.runner.fits = 1
    again = bench.submit(4.0)
    bench.wait_for(again)
    assert doubled(again) == [8]


def test_a_batch_size_that_was_too_large_is_tried_again_after_a_while(
    benches: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What took the memory may have been one request, or another process."""
    monkeypatch.setattr(batch_regrowth, "FIRST_S", 0.0)
    bench = benches(max_batch=8)
    bench.occupy()
    bench.runner.fits = 3
    jobs = [bench.submit(1.0, 2.0, 3.0, 4.0), bench.submit(5.0, 6.0, 7.0, 8.0)]
    bench.open(1000)
    bench.wait_for(*jobs)
    assert bench.engine.events[0]["what"].endswith("from now on a batch has at most 4")
    bench.runner.fits = 1000
    while bench.runner.max_batch < 8:
        job = bench.submit(*range(bench.runner.max_batch))
        bench.wait_for(job)
        assert doubled(job) == [2 * n for n in range(job.rows)]
    assert bench.engine.events[-1]["what"].endswith("from now on a batch has at most 8 rows again")


def test_a_batch_size_that_is_the_least_is_not_said_to_be_halved(benches: Callable[..., Bench]) -> None:
    """Such as a batch of three in the only bucket, of four."""
    bench = benches()
    bench.runner.shrink = lambda rows: 4  # type: ignore[method-assign]
    bench.occupy()
    bench.runner.fits = 1
    jobs = [bench.submit(1.0), bench.submit(2.0), bench.submit(3.0)]
    bench.open()
    bench.wait_for(*jobs)
    assert [doubled(job) for job in jobs] == [[2], [4], [6]]  # each by itself
    assert not bench.engine.events
    assert bench.engine.counters.snapshot()["events"]["out_of_memory"] == 0


def test_a_device_that_is_lost_ends_the_replica_and_nobody_waits_for_ever(benches: Callable[..., Bench]) -> None:
    bench = benches(max_batch=2)
    first = bench.occupy()
    together, waiting = [bench.submit(GUILTY), bench.submit(1.0)], bench.submit(2.0)
    bench.runner.dead = "the device was lost: AssertionError"
    bench.open()
    bench.wait_for(first, *together, waiting)
    assert doubled(first) == [0]
    for job in (*together, waiting):
        assert job.error is not None
        assert (job.error.status, job.error.sentence) == (503, "the device was lost: AssertionError")
    until(lambda: not bench.engine.alive)
    assert bench.engine.trouble(3600.0) == "the device was lost: AssertionError"
    with pytest.raises(WireError, match="unavailable: the device was lost"):
        bench.submit(3.0)


def test_a_batch_that_does_not_end_is_told(benches: Callable[..., Bench]) -> None:
    bench = benches()
    assert bench.engine.stuck_s == 0
    job = bench.occupy()
    assert bench.engine.trouble(3600.0) is None
    until(lambda: bench.engine.stuck_s > 0.01)
    assert bench.engine.trouble(0.01) == "a batch has been running for 0 s"
    bench.engine._opening_s = 3600.0  # what took an hour to compile may have to be compiled again
    assert bench.engine.trouble(0.01) is None
    bench.engine._opening_s = 0.0
    assert bench.engine.trouble(0.01) is not None
    bench.open()
    bench.wait_for(job)
    until(lambda: bench.engine.stuck_s == 0)
    assert bench.engine.trouble(0.01) is None


def test_an_engine_that_breaks_itself_refuses_what_it_has_and_says_so(
    benches: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benches()
    running, waiting = bench.occupy(), bench.submit(1.0)

    def broken(*given: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(bench.engine.counters, "batch", broken)
    bench.open()
    bench.wait_for(running, waiting)
    until(lambda: not bench.engine.alive)
    assert doubled(running) == [0]  # it was done
    assert waiting.error is not None
    assert (waiting.error.status, waiting.error.sentence) == (503, "the engine failed: AssertionError: a bug")
    assert bench.engine.trouble(3600.0) == "the engine failed: AssertionError: a bug"


# ---- who looks on


def test_an_onlooker_is_told_of_batches_and_of_pauses(benches: Callable[..., Bench]) -> None:
    seen: list[str] = []
    threads: set[int | None] = set()

    class Curious(Onlooker):
        def batch(self) -> AbstractContextManager[None]:
            seen.append("batch")
            threads.add(threading.current_thread().ident)
            return super().batch()

        def ran(self, jobs: Sequence[Seen]) -> None:
            assert all(job.outputs is not None for job in jobs)
            seen.append(f"ran {len(jobs)}")

        def idle(self) -> float | None:
            seen.append("idle")
            return 0.0 if seen.count("idle") < 3 else None

    bench = benches()
    bench.engine.onlooker = Curious()
    bench.open()
    bench.wait_for(bench.submit(1.0))
    until(lambda: seen.count("idle") == 3)
    assert seen == ["batch", "ran 1", "idle", "idle", "idle"]
    bench.wait_for(bench.submit(2.0))
    assert threads == {bench.engine._thread.ident}


# ---- several batches in flight


class Plane:
    """A batch that is over when the test says so."""

    def __init__(self, runner: "AsyncRunner", values: list[float]) -> None:
        self.runner = runner
        self.values = values
        self.landed = threading.Event()
        self.begun_ns = time.perf_counter_ns()

    def done(self) -> bool:
        return self.landed.is_set()

    def finish(self) -> BatchResult:
        assert self.landed.wait(PATIENCE_S)
        self.runner.finished.append(self.values)
        if GUILTY in self.values:
            raise ArithmeticError("in flight")
        done = time.perf_counter_ns()
        waited = (done - self.begun_ns) // 4
        outputs = {"y": np.array(self.values) * 2}
        return BatchResult(outputs, self.begun_ns + waited, self.begun_ns + 2 * waited, done, waited)


class AsyncRunner(GatedRunner):
    """As on CUDA: `begin` returns at once, and two batches may be in flight."""

    depth = 2

    def __init__(self, max_batch: int = 2) -> None:
        super().__init__(max_batch)
        self.planes: list[Plane] = []
        self.finished: list[list[float]] = []
        self.refuses: set[float] = set()
        self.launches_ms, self.spent_ns = 0.0, 0
        """Of the thread's own time, where a test plays its clock."""

    def begin(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> Plane:  # type: ignore[override]
        values = np.concatenate([part["x"] for part in parts]).tolist()
        self.batches.append(values)
        self.spent_ns += int(1e6 * self.launches_ms)
        if self.refuses & set(values):
            raise ArithmeticError("cannot begin that")
        self.planes.append(Plane(self, values))
        return self.planes[-1]


def test_a_full_batch_is_begun_behind_another_and_what_is_not_full_waits(benches: Callable[..., Bench]) -> None:
    runner = AsyncRunner()
    bench = benches(runner=runner)
    jobs = [bench.submit(1.0, 2.0)]
    until(lambda: runner.batches == [[1, 2]])
    jobs.append(bench.submit(3.0))
    with pytest.raises(AssertionError, match="in vain"):
        until(lambda: len(runner.batches) > 1, seconds=0.05)
    jobs.append(bench.submit(4.0))
    until(lambda: runner.batches == [[1, 2], [3, 4]])
    jobs += [bench.submit(5.0, 6.0)]
    runner.planes[1].landed.set()  # it cannot be handed out before the first
    with pytest.raises(AssertionError, match="in vain"):
        until(lambda: len(runner.batches) > 2 or bench.deliveries != [], seconds=0.05)
    runner.planes[0].landed.set()
    bench.wait_for(*jobs[:3])
    until(lambda: len(runner.planes) == 3)
    runner.planes[2].landed.set()
    bench.wait_for(*jobs)
    assert runner.finished == [[1, 2], [3, 4], [5, 6]]
    assert bench.deliveries == [jobs[:1], jobs[1:3], jobs[3:]]
    for job in jobs:
        assert [2 * value for value in job.tensors["x"]] == doubled(job)
        stages_ms = job.stages_ms(time.perf_counter_ns())
        assert min(stages_ms) >= 0
        assert job.begun_ns <= job.batched_ns <= job.copied_in_ns <= job.computed_ns


def test_behind_a_batch_that_is_not_full_nothing_is_begun_until_it_is_done(benches: Callable[..., Bench]) -> None:
    runner = AsyncRunner()
    bench = benches(runner=runner)
    first = bench.submit(1.0)
    until(lambda: runner.batches == [[1]])
    until(lambda: bench.engine._flights and bench.engine.stuck_s > 0.01)
    rest = [bench.submit(2.0), bench.submit(3.0)]
    runner.planes[0].landed.set()
    bench.wait_for(first)
    until(lambda: runner.batches == [[1], [2, 3]])
    runner.planes[1].landed.set()
    bench.wait_for(*rest)


@pytest.mark.parametrize(
    ("how", "begun"),
    [
        ({"launches_ms": 0.9}, [2, 2]),
        ({"launches_ms": 1.1}, [1, 2]),  # answers would wait for all the launches
        ({"max_wait_s": 0.05}, [1, 2]),  # it waits alone, for company
        ({"depth": 1}, [1, 2]),  # the next one would be run to its end
    ],
)
def test_what_is_begun_in_no_time_is_so_before_answers_are_given_back(
    benches: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, how: dict[str, float], begun: list[int]
) -> None:
    runner = AsyncRunner()
    monkeypatch.setattr(time, "thread_time_ns", lambda: runner.spent_ns)
    runner.launches_ms, runner.depth = how.get("launches_ms", 0.0), int(how.get("depth", 2))
    bench = benches(runner=runner, max_wait_s=how.get("max_wait_s", 0.0))
    first = bench.submit(1.0)
    until(lambda: len(runner.planes) == 1)
    second = bench.submit(2.0)
    runner.planes[0].landed.set()
    bench.wait_for(first)
    until(lambda: len(runner.planes) == 2)
    runner.planes[1].landed.set()
    bench.wait_for(second)
    assert bench.begun == begun
    assert [doubled(first), doubled(second)] == [[2], [4]]


@pytest.mark.parametrize("where", ["begin", "finish"])
def test_a_failure_in_flight_hits_only_the_guilty(benches: Callable[..., Bench], where: str) -> None:
    runner = AsyncRunner()
    bench = benches(runner=runner)
    runner.refuses = {GUILTY} if where == "begin" else set()
    first = bench.submit(1.0, 2.0)
    until(lambda: len(runner.planes) == 1)
    good, guilty = bench.submit(3.0), bench.submit(GUILTY)
    behind = bench.submit(5.0, 6.0)
    until(lambda: runner.batches[1:] == [[3, GUILTY]])
    landing = threading.Event()

    def land_all() -> None:
        while not landing.wait(0.001):
            for plane in list(runner.planes):
                plane.landed.set()

    lander = threading.Thread(target=land_all)
    lander.start()
    bench.wait_for(first, good, guilty, behind)
    landing.set()
    lander.join()
    assert [doubled(job) for job in (first, good, behind)] == [[2, 4], [6], [10, 12]]
    assert guilty.error is not None
    assert guilty.error.status == 500
    assert sum(len(batch) for batch in bench.deliveries) == 4
    assert runner.finished[0] == [1, 2]


def test_closing_lands_what_is_in_flight(benches: Callable[..., Bench]) -> None:
    runner = AsyncRunner()
    bench = benches(runner=runner)
    jobs = [bench.submit(1.0, 2.0), bench.submit(3.0, 4.0)]
    until(lambda: len(runner.planes) == 2)
    waiting = bench.submit(5.0)
    closing = threading.Thread(target=bench.engine.close)
    closing.start()
    for plane in runner.planes:
        plane.landed.set()
    bench.wait_for(*jobs, waiting)
    closing.join(PATIENCE_S)
    assert [doubled(job) for job in jobs] == [[2, 4], [6, 8]]
    assert waiting.error is not None
    assert waiting.error.status == 503
    assert not bench.engine.alive


def test_company_that_is_there_is_not_waited_for(benches: Callable[..., Bench]) -> None:
    bench = benches(max_wait_s=3600.0)
    bench.open()
    bench.wait_for(bench.submit(1.0), bench.submit(2.0))


class StagedRunner(GatedRunner):
    """Copies in for two milliseconds, and computes for three."""

    def begin(self, parts: Sequence[Tensors], rows: int, wanted: Collection[str]) -> BatchResult:
        outputs = super().begin(parts, rows, wanted).outputs
        time.sleep(0.006)
        now_ns = time.perf_counter_ns()
        return BatchResult(outputs, now_ns - 5_000_000, now_ns - 3_000_000, now_ns)


def test_each_stage_is_counted_as_itself(benches: Callable[..., Bench]) -> None:
    bench = benches(runner=StagedRunner())
    bench.open()
    bench.wait_for(bench.submit(1.0))
    stages = bench.engine.counters.snapshot()["stages"]
    assert (stages["h2d"]["ns"], stages["compute"]["ns"]) == (2_000_000, 3_000_000)
