import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from test_serve_weights import small_net

from serve import variants, warmup, weights
from serve.opening import Opening
from serve.options import ServeOptions
from serve.runner import NullRunner, TorchRunner
from serve.spec import ModelSpec, ServeError, Variant

T = TypeVar("T")


def in_a_thread(work: Callable[[], T]) -> T:
    """As the engine does it: a runner lives in a thread of its own, and inference mode and threads stay there."""
    found: list[T] = []
    problems: list[BaseException] = []

    def live() -> None:
        try:
            found.append(work())
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=live)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return found[0]


def options(cache: Path, **change: Any) -> ServeOptions:
    return ServeOptions(("small_net",), device="cpu", cache_dir=str(cache), threads=2, **change)


def opened(spec: ModelSpec, variant: str | Variant, how: ServeOptions, said: list[str] | None = None) -> TorchRunner:
    made = variants.load(variant) if isinstance(variant, str) else variant
    return Opening(spec, made, how, (said if said is not None else []).append).runner


def test_buckets_are_powers_of_two_and_the_largest_batch() -> None:
    assert [warmup.buckets(most) for most in (1, 2, 4, 6, 16)] == [
        (1,), (1, 2), (1, 2, 4), (1, 2, 4, 6), (1, 2, 4, 8, 16),
    ]  # fmt: skip


@pytest.mark.parametrize("variant", ["eager", "compiled"])
def test_a_padded_batch_of_several_requests_gives_what_the_module_gives(tmp_path: Path, variant: str) -> None:
    spec, said = small_net(), list[str]()
    images = [spec.example(rows, seed)["image"] for rows, seed in ((1, 1), (2, 2))]

    def work() -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
        runner = opened(spec, variant, options(tmp_path), said)
        runner.run([{"image": spec.example(4, 9)["image"] * 1e3}], 4, ["y"])  # what it leaves behind must not show
        ran = runner.run([{"image": image} for image in images], 3, ["y"])
        assert ran.batched_ns <= ran.copied_in_ns <= ran.computed_ns
        assert runner.run([{"image": images[0]}], 1, []).outputs == {}
        return ran.outputs, runner.parameters()

    outputs, parameters = in_a_thread(work)
    module, said_of = weights.load(spec, "random", 0, tmp_path)
    expected = module(torch.from_numpy(np.concatenate(images))).numpy()
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-5)
    assert parameters["weights_digest"] == said_of.digest
    assert parameters["buckets"] == "1,2,4"
    assert parameters["parity_ok"] is True
    assert parameters["recompiles"] == 0
    assert parameters["graph_breaks"] == 0
    assert all(isinstance(value, str | int | float | bool | None) for value in parameters.values())
    assert "warming bucket 3 of 3 (4 rows)" in said


def test_a_second_start_finds_the_compiled_artefacts(tmp_path: Path) -> None:
    starts = [
        in_a_thread(lambda: opened(small_net(), "compiled", options(tmp_path)).parameters()["start"]) for _ in "ab"
    ]
    assert starts == ["cold", "warm"]


def failing_at_first(problem_with: str) -> Variant:
    """Two modes, of which one cannot be called."""

    def build(module: torch.nn.Module, mode: str) -> Callable[..., Any]:
        def call(*inputs: torch.Tensor) -> Any:
            if mode == problem_with:
                raise RuntimeError(f"{mode} does not work")
            return module(*inputs)

        return call

    return replace(variants.load("eager"), modes=lambda module, device: ("fast", "plain"), build=build)


def test_a_mode_that_fails_to_warm_up_is_followed_by_the_next_and_that_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    runner = in_a_thread(lambda: opened(small_net(), failing_at_first("fast"), options(tmp_path), said))
    assert runner.parameters()["compile_mode"] == "plain"
    assert "mode fast fails to warm up, trying the next: RuntimeError: fast does not work" in said


def test_when_the_last_mode_fails_the_start_fails(tmp_path: Path) -> None:
    one_mode = replace(failing_at_first("plain"), modes=lambda module, device: ("plain",))
    with pytest.raises(RuntimeError, match="plain does not work"):
        in_a_thread(lambda: opened(small_net(), one_mode, options(tmp_path)))


def test_kept_artefacts_that_do_not_work_are_made_anew(tmp_path: Path) -> None:
    spec, said, tries = small_net(), list[str](), list[bool]()
    folder: list[Path] = []

    def build(module: torch.nn.Module, mode: str) -> Callable[..., Any]:
        stale = (folder[0] / "stale").exists()
        tries.append(stale)

        def call(*inputs: torch.Tensor) -> Any:
            if stale:
                raise RuntimeError("stale artefact")
            return module(*inputs)

        return call

    variant = replace(variants.load("eager"), build=build, compiles=True)
    folder.append(warmup.Artefacts.of(spec, variant, "cpu", 2, tmp_path).folder)
    folder[0].mkdir(parents=True)
    (folder[0] / "stale").touch()
    (folder[0] / "complete").touch()
    runner = in_a_thread(lambda: opened(spec, variant, options(tmp_path), said))
    assert tries == [True, False]
    assert runner.parameters()["start"] == "cold"
    assert "the kept artefacts do not work and are made anew" in said


def test_a_variant_that_is_another_model_is_not_served_unless_told_to(tmp_path: Path) -> None:
    wrong = replace(variants.load("eager"), name="wrong", build=lambda module, mode: lambda x: module(x) * 1.01)
    with pytest.raises(ServeError, match=r"small_net/wrong is not served: .* relative error 0.01 \(at most 0.001\)"):
        in_a_thread(lambda: opened(small_net(), wrong, options(tmp_path)))
    kept = in_a_thread(lambda: opened(small_net(), wrong, options(tmp_path, keep_on_parity_failure=True)))
    parameters = kept.parameters()
    assert parameters["parity_ok"] is False
    assert parameters["parity_relative_error"] == pytest.approx(0.01, rel=0.01)


def test_a_shape_that_was_not_warmed_counts_as_a_recompile(tmp_path: Path) -> None:
    def work() -> list[int]:
        runner = opened(small_net(), "compiled", options(tmp_path))
        before = runner.parameters()["recompiles"]
        runner.call(torch.zeros(3, 3, 8, 8))
        return [before, runner.parameters()["recompiles"]]

    assert in_a_thread(work) == [0, 1]


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ServeError, match="there is no CUDA device"):
        in_a_thread(lambda: opened(small_net(), "eager", replace(options(tmp_path), device="cuda")))


def test_the_null_runner_takes_its_time() -> None:
    spec = replace(small_net(), build=None, delay_s=0.02, reply=lambda rows: {"y": np.zeros((rows, 1))})
    runner = NullRunner(spec, 8)
    ran = runner.run([{}], 3, ["y"])
    assert ran.outputs["y"].shape == (3, 1)
    assert ran.computed_ns - ran.copied_in_ns >= 20e6
