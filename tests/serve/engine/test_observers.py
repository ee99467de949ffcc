"""What an engine's onlooker sees under load: compilations behind a request, profiles, and sampled parity."""

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probed import torch_knows_its_compiler  # noqa: F401  # a fixture for every test here
from test_endpoint import call
from test_weights import small_net
from waiting import PATIENCE_S, until

from tailrate.serve import variants, wire
from tailrate.serve.asgi import Request, as_app
from tailrate.serve.body.request import encode_infer
from tailrate.serve.edge.endpoint import Endpoint
from tailrate.serve.engine import profiling
from tailrate.serve.engine.engine import Engine
from tailrate.serve.engine.job import Job
from tailrate.serve.engine.observers import Observers
from tailrate.serve.options import ServeOptions
from tailrate.serve.runner.open_runner import open_runner
from tailrate.serve.spec import BuildContext, Variant

pytestmark = pytest.mark.computes


class Moody(torch.nn.Module):
    """Takes another way for images that are dark, which the warm-up does not know."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        if image.mean() < -50:
            return image.flatten(1)[:, :4] * 3
        return image.flatten(1)[:, :4] + 1


MOODY = dataclasses.replace(small_net(), name="moody", build=Moody)
BRIGHT, DARK = np.ones((1, 3, 8, 8), np.float32), np.full((1, 3, 8, 8), -100, np.float32)


@pytest.fixture(autouse=True)
def a_compiler_as_it_was() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch.compiler.set_stance("default")
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()


class Bench:
    """A watched engine that serves `moody`."""

    def __init__(self, cache: Path, variant: str | Variant = "eager", **more: Any) -> None:
        how = ServeOptions(("moody",), device="cpu", cache_dir=str(cache), threads=1, max_batch=1, **more)
        made = variants.load(variant) if isinstance(variant, str) else variant
        self._done = threading.Condition()
        self._delivered: list[Job] = []
        self.engine = Engine(lambda say: open_runner(MOODY, made, how, say, self.watch), self._deliver, max_queue=100)
        self.watch = self.engine.onlooker = Observers(how, MOODY, "moody", self.engine.counters)
        self.engine.start()
        until(lambda: self.engine.state != "LOADING", PATIENCE_S, 0.002)
        assert self.engine.state == "READY", self.engine.reason

    def _deliver(self, jobs: Sequence[Job]) -> None:
        with self._done:
            self._delivered.extend(jobs)
            self._done.notify_all()

    def infer(self, image: Any) -> Job:
        job = Job({"image": image}, len(image), frozenset({"y"}), time.perf_counter_ns())
        self.engine.submit(job)
        with self._done:
            assert self._done.wait_for(lambda: job in self._delivered, 60)
        return job

    def events(self) -> dict[str, int]:
        return {name: count for name, count in self.engine.counters.snapshot()["events"].items() if count}

    def parameters(self) -> dict[str, Any]:
        assert self.engine.runner is not None
        return self.engine.runner.parameters()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*args: Any, **more: Any) -> Bench:
        made.append(Bench(tmp_path, *args, **more))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()


def test_a_request_that_waited_for_the_compiler_says_so_and_is_counted(bench: Callable[..., Bench]) -> None:
    moody = bench("compiled")
    assert not moody.infer(BRIGHT).compiled
    assert moody.infer(DARK).compiled
    assert not moody.infer(DARK).compiled  # it is warm by now
    assert moody.events() == {"first_hits": 1, "recompiled_requests": 1}
    parameters = moody.parameters()
    assert (parameters["first_hits"], parameters["recompiles"], parameters["fallbacks"]) == (1, 0, 0)
    assert "in forward" in parameters["graph_break_places"]
    assert parameters["graph_breaks"] >= 1
    assert all(isinstance(value, str | int | float | bool | None) for value in parameters.values())


def test_what_is_served_is_called_in_inference_mode(bench: Callable[..., Bench]) -> None:
    seen: list[bool] = []

    def noting(making: BuildContext) -> Callable[..., Any]:
        def call(*inputs: torch.Tensor) -> Any:
            seen.append(torch.is_inference_mode_enabled())
            return making.module(*inputs)

        return call

    moody = bench(Variant("noting", noting, ""))
    warm = len(seen)
    moody.infer(BRIGHT)
    assert seen == [True] * (warm + 1)


def test_of_a_request_in_chunks_the_whole_has_waited(bench: Callable[..., Bench]) -> None:
    moody = bench("compiled")
    dark = np.concatenate([DARK] * 3)
    assert moody.infer(dark).compiled  # for the first of three chunks only
    assert not moody.infer(dark).compiled


def test_headers_counts_and_metadata_say_what_the_watch_saw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ServeOptions, "spec", lambda self, model: MOODY)
    how = ServeOptions(("moody",), ("compiled",), device="cpu", cache_dir=str(tmp_path), threads=1, max_batch=1)

    async def live() -> None:
        endpoint = Endpoint(how, "moody", "compiled", "r1")
        app = as_app(lambda request: endpoint.answer(request, request.path.rpartition("/")[2]), 1 << 20)

        async def infer(image: Any) -> Any:
            body, headers = encode_infer({"image": image})
            return await call(app, "POST", "/infer", [body], headers)

        try:
            while endpoint.engine.state == "LOADING":
                await asyncio.sleep(0.01)
            assert wire.COMPILE not in (await infer(BRIGHT))[1]
            assert (await infer(DARK))[1][wire.COMPILE] == "1"
            assert wire.COMPILE not in (await infer(DARK))[1]
            assert (await call(app, "POST", "/infer", [b"{"]))[0] == 400
            status, _, body = await call(app, "POST", "/profile", [b""])
            assert (status, "--profile" in json.loads(body)["error"]) == (403, True)
            assert (await call(app, "GET", "/profile", [b""]))[0] == 405
            (stats,) = json.loads((await call(app, "GET", "/stats", [b""]))[2])["model_stats"]
            assert stats["events"]["recompiled_requests"] == 1
            assert stats["refused"] == dict.fromkeys(stats["refused"], 0) | {"bad_input": 1}
            parameters = endpoint.metadata()["parameters"]
            assert parameters["first_hits"] == 1
            assert parameters["sampled_share"] == how.parity_share
        finally:
            endpoint.engine.close()

    asyncio.run(live())


def test_a_request_that_would_compile_is_refused_where_that_is_not_allowed(bench: Callable[..., Bench]) -> None:
    moody = bench("compiled", fail_on_recompile=True)
    assert moody.infer(BRIGHT).error is None
    refused = moody.infer(DARK)
    assert refused.error is not None
    assert refused.error.status == 500
    assert "stance is 'fail_on_recompile'" in refused.error.sentence or "compile again" in refused.error.sentence
    assert moody.infer(BRIGHT).error is None
    assert moody.events() == {}


def test_a_profile_of_live_traffic(bench: Callable[..., Bench], tmp_path: Path) -> None:
    moody = bench(profile=True)
    request = Request("POST", "/profile", "", {}, b'{"batches": 2}', 0, 0)

    async def ask() -> Any:
        asked = asyncio.create_task(profiling.answer(request, "moody", moody.watch.profiled))
        while not asked.done():
            await asyncio.to_thread(moody.infer, BRIGHT)
        return json.loads((await asked).body)

    found = asyncio.run(ask())
    assert {row["name"]: row["calls"] for row in found["table"]}["batch"] == 2
    assert Path(found["trace"]).is_relative_to(tmp_path)
    assert moody.events()["profiled_batches"] == 2


def wrong_in_the_dark(making: BuildContext) -> Callable[..., Any]:
    def call(image: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = making.module(image)
        return found * (1.5 if image.mean() < -50 else 1)

    return call


def test_responses_are_compared_with_eager_afterwards(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrate.serve.engine.live_parity.QUIET_S", 0.01)
    moody = bench(dataclasses.replace(variants.load("eager"), build=wrong_in_the_dark), parity_share=1.0)
    moody.infer(BRIGHT)
    until(lambda: moody.watch.facts()["sampled_responses"] == 1, PATIENCE_S, 0.002)
    assert moody.watch.facts()["sampled_failures"] == 0
    moody.infer(DARK)
    until(lambda: moody.watch.facts()["sampled_responses"] == 2, PATIENCE_S, 0.002)
    facts = moody.watch.facts()
    assert facts["sampled_failures"] == 1
    assert facts["sampled_relative_error"] == pytest.approx(0.5)
    assert moody.events() == {"parity_samples": 2, "parity_failures": 1}


def test_in_traffic_nothing_is_compared_and_the_engine_sleeps_meanwhile(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrate.serve.engine.live_parity.QUIET_S", 3600.0)
    moody = bench(parity_share=1.0)
    asked: list[float | None] = []
    idle = moody.watch.samples.idle

    def watched() -> float | None:
        asked.append(idle())
        return asked[-1]

    monkeypatch.setattr(moody.watch.samples, "idle", watched)
    for _ in range(20):
        moody.infer(BRIGHT)
    until(lambda: bool(asked), PATIENCE_S, 0.002)
    assert moody.watch.facts()["sampled_responses"] == 0
    assert moody.watch.facts()["sampled_waiting"] == 20
    assert len(asked) <= 60  # once or twice per pause, not in a loop


def test_without_a_share_there_is_no_reference_and_nothing_is_kept(bench: Callable[..., Bench]) -> None:
    moody = bench(parity_share=0.0)
    moody.infer(BRIGHT)
    assert moody.watch.facts()["sampled_waiting"] == 0
