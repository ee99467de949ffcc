"""Answers written together, against each alone by transformers' own `generate`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from waiting import until

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tailrate.serve import variants  # noqa: E402
from tailrate.serve.engine import live_parity  # noqa: E402
from tailrate.serve.engine.batch_observer import Onlooker  # noqa: E402
from tailrate.serve.engine.language.generator import Generator, Piece  # noqa: E402
from tailrate.serve.engine.language.open_language import LanguageOpening, plainly  # noqa: E402
from tailrate.serve.engine.language.sampling import Sampling  # noqa: E402
from tailrate.serve.engine.language.writing import Writing  # noqa: E402
from tailrate.serve.engine.live_parity import Samples  # noqa: E402
from tailrate.serve.models._weights import load  # noqa: E402
from tailrate.serve.options import ServeOptions  # noqa: E402
from tailrate.serve.telemetry.token_counts import KEY  # noqa: E402
from tailrate.serve.wire import WireError  # noqa: E402

NEAR = 1e-4
"""Scores that are nearer than that may be in either order."""


class Held:
    """One opened model for all tests: its runner, and the module as it is."""

    def __init__(self, tmp: Any) -> None:
        self.options = ServeOptions(
            models=("tiny_llama",), device="cpu", max_batch=4, threads=1, parity_share=1, cache_dir=str(tmp),
            settings={"context": "300", "prefill_chunk": "32", "layers": "2", "hidden": "128"},
        )  # fmt: skip
        self.spec = self.options.spec("tiny_llama")
        with torch.inference_mode():
            opening = LanguageOpening(self.spec, variants.load("eager"), self.options, lambda _: None)
        self.runner = opening.runner
        self.parity, self.reference = opening.parity, opening.reference
        self.module, _ = load(self.spec, "random", 0, tmp)
        self.tokens = self.spec.language.tokens()  # type: ignore[union-attr]

    def best(self, prompt: list[int], most: int) -> list[int]:
        ids = torch.tensor([prompt])
        found = self.module.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        return found[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    return Held(tmp_path_factory.mktemp("cache"))


@contextmanager
def generating(held: Held, max_queue: int = 200) -> Iterator[tuple[Generator, list[list[Piece]]]]:
    steps: list[list[Piece]] = []

    @contextmanager
    def opened(_: Any) -> Iterator[Any]:
        with torch.inference_mode():
            yield held.runner

    held.runner.slots = held.runner.most_slots
    found = Generator(opened, lambda pieces: steps.append([*pieces]), max_queue=max_queue)
    found.start()
    until(lambda: found.state == "READY", every_s=0.01)
    try:
        yield found, steps
    finally:
        found.close()


def written(held: Held, rng: random.Random, most: int = 24, **more: Any) -> Writing:
    size = rng.choice([1, 2, 5, 20, 31, 32, 33, 64, 65, 100, 200])
    return Writing([rng.randrange(2, held.tokens.known) for _ in range(size)], most=rng.randrange(1, most), **more)


def over(ones: Sequence[Writing]) -> None:
    until(lambda: all(one.done_ns for one in ones), every_s=0.01)


def test_it_is_the_model_without_a_cache(held: Held) -> None:
    assert held.parity.failure("fp32") is None
    assert held.parity.relative_error < 1e-5


@pytest.mark.computes
def test_a_hundred_answers_at_any_instants_are_each_what_the_model_writes_alone(held: Held) -> None:
    """Also where what a row held before was anything else: freed rows are filled with large numbers."""
    rng = random.Random(3)
    ones = [written(held, rng) for _ in range(100)]
    leave = Generator._leave

    def poisoned(self: Generator, runner: Any, row: int) -> None:
        last = len(self._rows) - 1
        leave(self, runner, row)
        for tensors in runner.steps[0].held():
            for tensor in tensors:
                tensor[last] = 1e4
        for tensors in runner.steps[1].held() if self._reading is None else ():
            for tensor in tensors:
                tensor.fill_(-1e4)

    with pytest.MonkeyPatch.context() as patch, generating(held) as (under_test, steps):
        patch.setattr(Generator, "_leave", poisoned)
        for one in ones:
            under_test.submit(one)
            time.sleep(rng.choice([0, 0, 0, 0.002, 0.02]))
        over(ones)
    assert max(len(step) for step in steps) == 4  # they were written together
    near = 0
    for one in ones:
        assert (one.error, one.finish, len(one.tokens)) == (None, "length", one.most)
        alone = held.best(one.prompt, one.most)
        if one.tokens != alone:
            near += 1
            at = next(k for k, pair in enumerate(zip(one.tokens, alone, strict=True)) if pair[0] != pair[1])
            with torch.inference_mode():
                scores = held.module(input_ids=torch.tensor([one.prompt + alone[:at]])).logits[0, -1]
            best = scores.topk(2).values
            assert float(best[0] - best[1]) < NEAR
    assert near <= 1


def test_a_draw_is_the_same_alone_and_among_others(held: Held) -> None:
    rng = random.Random(4)
    how = [Sampling(0.8, 0.9, seed) for seed in range(12)]
    first = [written(held, rng, sampling=one) for one in how]
    with generating(held) as (under_test, _):
        for one in first:
            under_test.submit(one)
        over(first)
        for one in first:
            again = Writing(one.prompt, one.most, sampling=one.sampling)
            under_test.submit(again)
            over([again])
            assert again.tokens == one.tokens
    assert len({tuple(one.tokens) for one in first}) > 8


@pytest.mark.computes
def test_who_leaves_makes_room_at_once_and_nobody_else_notices(held: Held) -> None:
    rng = random.Random(5)
    ones = [written(held, rng, most=60) for _ in range(60)]
    gone: set[int] = set()
    for number, one in enumerate(ones):
        one.gone = lambda number=number: number in gone  # type: ignore[misc]
    with generating(held) as (under_test, _):
        for number, one in enumerate(ones):
            under_test.submit(one)
            if number % 2:
                gone.add(rng.randrange(number + 1))
        until(lambda: all(one.done_ns for one in ones), every_s=0.01)
        until(lambda: under_test.written == under_test.waiting == 0)
    for number, one in enumerate(ones):
        if one.error is None:
            assert one.tokens == held.best(one.prompt, one.most)
        else:
            assert number in gone
            assert one.error.status == 499


def test_ends_least_and_tokens_that_show_nothing(held: Held) -> None:
    prompt = held.tokens.of("the server")
    best = held.best(prompt, 20)
    ends = frozenset([best[3]])
    first = best.index(best[3])
    with generating(held) as (under_test, _):
        stops = Writing(prompt, 20, ends=ends)
        later = Writing(prompt, 20, least=12, ends=ends)
        banned = Writing(prompt, 6, least=6, silent=tuple(best[:1]))
        for one in (stops, later, banned):
            under_test.submit(one)
        over([stops, later, banned])
    assert (stops.tokens, stops.finish) == (best[: first + 1], "stop")
    assert later.tokens[:12] == best[:12]
    assert len(later.tokens) >= 12
    assert best[0] not in banned.tokens


def test_what_cannot_be_written_is_refused_at_once(held: Held) -> None:
    with generating(held, max_queue=2) as (under_test, _):
        with pytest.raises(WireError, match="the prompt has 300 tokens, and the model reads and writes 300"):
            under_test.submit(Writing([2] * 300, 1))
        with pytest.raises(WireError, match="the prompt is empty"):
            under_test.submit(Writing([], 1))
        long = Writing([2] * 290, 500)
        under_test.submit(long)
        over([long])
        assert (len(long.tokens), long.finish) == (10, "length")
        entered, go_on = threading.Event(), threading.Event()
        under_test.onlooker.idle = lambda: (entered.set(), go_on.wait(), None)[2]  # type: ignore[func-returns-value, method-assign]
        nudge = Writing([2], 1)
        under_test.submit(nudge)
        over([nudge])
        entered.wait()
        some = [Writing([2, 3], 1) for _ in range(2)]
        for one in some:
            under_test.submit(one)
        with pytest.raises(WireError, match="the queue is full: 2 requests wait already"):
            under_test.submit(Writing([2], 1))
        go_on.set()
        over(some)
    with pytest.raises(WireError) as refused:
        under_test.submit(Writing([2], 1))
    assert refused.value.status == 503


@pytest.mark.parametrize("ahead", [False, True])
def test_who_is_told_of_a_token_holds_up_no_step_of_a_device_that_works_by_itself(
    held: Held, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """It has its next step before anybody is told; where steps are computed by who calls them, tokens don't wait."""
    runner = type(held.runner)
    monkeypatch.setattr(runner, "ahead", ahead)
    ones, untold = [Writing([5] * 10, 8), Writing([7] * 100, 3)], {"read": list[int](), "write": list[int]()}

    def noted(name: str) -> Any:
        call = getattr(runner, name)

        def begins(*given: Any) -> Any:
            untold[name].append(sum(len(one.tokens) for one in ones) - sum(len(step) for step in steps))
            found = call(*given)
            if name == "write" and ones[1].begun_ns == 0 and len(ones[0].tokens) == 2:
                under_test.submit(ones[1])
            return found

        return begins

    with generating(held) as (under_test, steps):
        for name in untold:
            monkeypatch.setattr(runner, name, noted(name))
        under_test.submit(ones[0])
        over(ones)
        until(lambda: sum(len(step) for step in steps) == 11, every_s=0.01)
    assert set(untold["read"]) == {0}
    assert len(untold["read"]) == 1 + 4  # pieces of the two prompts
    assert (max(untold["write"]) > 0) is ahead
    # alone, behind a piece of the other's prompt, with the other's first token, and both
    assert untold["write"] == ([1, 1, 0, 0, 0, 1, 2] if ahead else [0] * 7)


def test_a_deadline_ends_it_where_it_is(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    write, late = type(held.runner).write, Writing([5] * 10, 250)

    def ends(self: Any, tokens: Sequence[int], places: Sequence[int], shape: Any = None) -> Any:
        if len(late.tokens) == 5:
            late.deadline_ns = time.perf_counter_ns()
        return write(self, tokens, places, shape)

    monkeypatch.setattr(type(held.runner), "write", ends)
    with generating(held) as (under_test, _):
        under_test.submit(late)
        over([late])
    assert late.error is not None
    assert late.error.status == 504
    assert len(late.tokens) == 6


# of four rows two begin anew: another's prompt was read last
@pytest.mark.parametrize(("fit", "slots"), [(1, 1), (3, 2)])
def test_where_memory_runs_out_fewer_are_written_and_all_are_right(
    held: Held, monkeypatch: pytest.MonkeyPatch, fit: int, slots: int
) -> None:
    rng = random.Random(6)
    ones = [written(held, rng, most=40) for _ in range(20)]
    write = type(held.runner).write

    def scarce(self: Any, tokens: Sequence[int], places: Sequence[int], shape: Any = None) -> Any:
        if len(tokens) > fit:
            raise RuntimeError("CUDA out of memory")
        return write(self, tokens, places, shape)

    monkeypatch.setattr(type(held.runner), "write", scarce)
    with generating(held) as (under_test, _):
        for one in ones:
            under_test.submit(one)
        over(ones)
        assert held.runner.slots == slots
        assert "from now on at most" in under_test.events[0]["what"]
        assert under_test.counters.snapshot()["events"]["out_of_memory"] >= 1
    for one in ones:
        assert (one.error, one.tokens) == (None, held.best(one.prompt, one.most))


def test_a_step_that_fails_fails_those_in_it_and_the_next_ones_are_served(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = type(held.runner).write, [1]

    def broken(self: Any, *given: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("a kernel has gone wrong")
        return write(self, *given)

    monkeypatch.setattr(type(held.runner), "write", broken)
    with generating(held) as (under_test, _):
        first, second = Writing([2, 3, 4], 8), Writing([2, 3, 4], 8)
        under_test.submit(first)
        over([first])
        assert first.error is not None
        assert (first.error.status, first.error.sentence) == (
            500, "the model failed on this request: RuntimeError: a kernel has gone wrong",
        )  # fmt: skip
        under_test.submit(second)
        over([second])
        assert second.tokens == held.best([2, 3, 4], 8)


def test_its_own_attention_is_transformers(held: Held) -> None:
    ids = torch.randint(2, 500, (3, 40), generator=torch.Generator().manual_seed(1))
    inner = held.runner.steps[0].model
    with torch.inference_mode(), plainly(inner):
        theirs = inner(input_ids=ids).logits
    assert inner.config._attn_implementation == "tailrate"
    assert torch.allclose(theirs, held.module(input_ids=ids).logits, atol=1e-5)


class Comparing(Onlooker):
    """What `Observers` does with samples."""

    def __init__(self, held: Held) -> None:
        self.events: list[str] = []
        self.samples = Samples(1.0, 0, ("text",), self.events.append)
        self.samples.compare_with(held.reference, lambda found: found.failure("fp32"))

    def ran(self, jobs: Sequence[Any]) -> None:
        self.samples.batch(jobs)

    def compare(self) -> dict[str, Any]:
        while self.samples.idle() is not None:
            pass
        return self.samples.facts()


def answers_compared(held: Held, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(live_parity, "QUIET_S", 0.0)
    rng = random.Random(8)
    ones = [written(held, rng, least=rng.choice([0, 100]), silent=(0, 1)) for _ in range(20)]
    with generating(held) as (under_test, _):
        under_test.onlooker = seen = Comparing(held)
        for one in ones:
            under_test.submit(one)
        over(ones)
    with torch.inference_mode():
        return seen.compare()


def test_a_sampled_answer_is_compared_by_the_scores_of_its_last_token(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answers_compared(held, monkeypatch)
    assert (found["sampled_responses"], found["sampled_failures"], found["sampled_left_out"]) == (20, 0, 0)
    assert 0 < found["sampled_relative_error"] < 1e-5


def test_answers_over_a_cache_that_is_not_theirs_are_found(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(held.runner), "move", lambda self, source, target, length: None)
    found = answers_compared(held, monkeypatch)
    assert found["sampled_failures"] > 0
    assert "relative error" in found["sampled_why"]


def test_steps_and_prompts_are_counted_by_what_they_wrote_and_read(held: Held) -> None:
    rng = random.Random(9)
    ones = [written(held, rng) for _ in range(20)]
    with generating(held) as (under_test, _):
        for one in ones:
            under_test.submit(one)
        over(ones)
        found = under_test.counters.snapshot()[KEY]
    assert found["prompts"]["tokens"] == sum(len(one.prompt) for one in ones)
    assert found["prompts"]["whole"] == 20
    assert found["prompts"]["count"] == sum(-(-len(one.prompt) // 32) for one in ones)
    assert sum(int(rows) * step["count"] for rows, step in found["steps"].items()) + 20 == sum(one.most for one in ones)
    assert found["prompts"]["ns"] == sum(one.prefill_ns for one in ones)
    assert sum(int(rows) * step["ns"] for rows, step in found["steps"].items()) == sum(one.decode_ns for one in ones)
