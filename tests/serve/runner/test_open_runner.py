"""How a runner comes to be ready: modes, artefacts, parity, precisions."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probed import torch_knows_its_compiler  # noqa: F401  # a fixture for every test here
from test_compile_cache import state
from test_compile_watch import a_compiler_as_it_was  # noqa: F401  # a fixture for every test here
from test_runner import check_several_lengths, in_a_thread, opened, options, run
from test_weights import small_net

from tailrate.serve import variants
from tailrate.serve.models import _weights
from tailrate.serve.runner.compile_cache import Artefacts
from tailrate.serve.spec import BuildContext, ServeError, Variant

pytestmark = pytest.mark.computes
ROOT = Path(__file__).parents[3]


def failing_at_first(problem_with: str) -> Variant:
    """Two modes, of which one cannot be called."""

    def build(making: BuildContext) -> Callable[..., Any]:
        def call(*inputs: torch.Tensor) -> Any:
            if making.mode == problem_with:
                raise RuntimeError(f"{making.mode} does not work")
            return making.module(*inputs)

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


def test_weights_that_are_said_to_be_frozen_are(tmp_path: Path) -> None:
    """BatchNorm is part of the convolution then; torch leaves it where gradients might be asked for, without a word."""
    torch._dynamo.reset()
    folded = torch._dynamo.utils.counters["inductor"]["binary_folding_conv"]
    runner = in_a_thread(lambda: opened(small_net(), "compiled", options(tmp_path, buckets=(2,))))
    assert runner.parameters()["compile_mode"] == "default+freezing"
    assert torch._dynamo.utils.counters["inductor"]["binary_folding_conv"] > folded


def test_a_mode_of_which_torch_skips_the_cuda_graphs_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skips = [3]  # of what was before

    def build(making: BuildContext) -> Callable[..., Any]:
        def call(*inputs: torch.Tensor) -> Any:
            skips[0] += making.mode == "reduce-overhead"
            return making.module(*inputs)

        return call

    def started(*modes: str) -> dict[str, Any]:
        variant = replace(variants.load("eager"), build=build, modes=lambda module, device: modes)
        return in_a_thread(lambda: opened(small_net(), variant, options(tmp_path), said)).parameters()

    monkeypatch.setattr("tailrate.serve.runner.open_runner.cudagraph_skips", lambda: skips[0])
    said = list[str]()
    assert started("reduce-overhead", "default")["compile_mode"] == "default"
    assert any("torch skipped CUDA graphs 3 times" in line for line in said)
    with pytest.raises(ServeError, match="skipped CUDA graphs 3 times, which are all that this mode adds"):
        started("reduce-overhead")


def test_kept_artefacts_that_do_not_work_are_made_anew(tmp_path: Path) -> None:
    said, tries = list[str](), list[bool]()

    def build(making: BuildContext) -> Callable[..., Any]:
        stale = (making.folder / "stale").exists()
        tries.append(stale)

        def call(*inputs: torch.Tensor) -> Any:
            if stale:
                raise RuntimeError("stale artefact")
            return making.module(*inputs)

        return call

    variant = replace(variants.load("eager"), build=build, keeps=True)
    digest = _weights.load(small_net(), "random", 0, tmp_path)[1].digest
    artefacts = Artefacts.of(small_net(), "eager", digest, "cpu", 2, tmp_path)
    with artefacts.used(print):
        (artefacts.folder / "stale").touch()
        artefacts.keep({"parity": None, "buckets": ""})
    runner = in_a_thread(lambda: opened(small_net(), variant, options(tmp_path), said))
    assert tries == [True, False]
    assert runner.parameters()["start"] == "cold"
    assert any(line.startswith("the kept artefacts do not work and are made anew: ") for line in said)
    again = in_a_thread(lambda: opened(small_net(), variant, options(tmp_path), said))
    assert again.parameters()["start"] == "warm"


START = f"""
import json, sys
sys.path[:] = {sys.path!r}
from test_runner import opened
from test_weights import small_net
from tailrate.serve.options import ServeOptions
how = ServeOptions(("small_net",), device="cpu", threads=2, buckets=(2,))
said = opened(small_net(), "compiled-default", how).parameters()
print(json.dumps([said["start"], said["weights_digest"]]))
"""


def assert_warm_in_a_pod(baked: Path, cache: Path, digest: str) -> None:
    """Another process, as with a volume over the cache: by its environment alone, and `baked` stays as it was."""
    before = state(baked)
    environment = os.environ | {"TAILRATE_CACHE": str(cache), "TAILRATE_BAKED": str(baked)}
    words = [sys.executable, "-c", START]
    done = subprocess.run(words, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == ["warm", digest]
    assert state(baked) == before
    assert [path.name for path in cache.iterdir()] == ["compiled"]  # weights were read where they are


def scaled(making: BuildContext) -> Callable[..., Any]:
    return lambda x: making.module(x) * 1.01


def test_a_variant_that_is_another_model_is_not_served_unless_told_to(tmp_path: Path) -> None:
    wrong = replace(variants.load("eager"), name="wrong", build=scaled)
    with pytest.raises(ServeError, match=r"small_net/wrong is not served: .* relative error 0.01 \(at most 0.001\)"):
        in_a_thread(lambda: opened(small_net(), wrong, options(tmp_path)))
    kept = in_a_thread(lambda: opened(small_net(), wrong, options(tmp_path, keep_on_parity_failure=True)))
    parameters = kept.parameters()
    assert parameters["parity_ok"] is False
    assert parameters["parity_relative_error"] == pytest.approx(0.01, rel=0.01)


def test_parity_that_was_kept_is_not_believed_blindly(tmp_path: Path) -> None:
    """The figures of all buckets are kept with the code; the smallest is compared at every start."""
    right = replace(variants.load("eager"), name="kept", keeps=True)
    in_a_thread(lambda: opened(small_net(), right, options(tmp_path)))
    with pytest.raises(ServeError, match=r"relative error 0\.01"):
        in_a_thread(lambda: opened(small_net(), replace(right, build=scaled), options(tmp_path)))


def test_good_artefacts_stay_where_what_is_made_anew_is_no_better(tmp_path: Path) -> None:
    """It isn't they that fail then; and where they were no better when they were made, nothing is made anew."""
    made = list[Path]()

    def starts(scale: float) -> tuple[str, bool, str]:
        def build(making: BuildContext) -> Callable[..., Any]:
            made.append(making.folder / "made")
            if not made[-1].exists():
                made[-1].write_text(str(len(made)))
            return lambda image: making.module(image) * scale

        variant = replace(variants.load("eager"), name="kept", keeps=True, build=build)
        how = options(tmp_path, keep_on_parity_failure=True)
        found = in_a_thread(lambda: opened(small_net(), variant, how)).parameters()
        return found["start"], found["parity_ok"], made[-1].read_text()

    assert starts(1.0) == ("cold", True, "1")
    assert starts(1.01) == ("warm", False, "1")
    assert len(made) == 3  # as it was kept, then anew
    assert starts(1.0) == ("warm", True, "1")
    shutil.rmtree(tmp_path)
    tmp_path.mkdir(mode=0o700)
    assert starts(1.01) == ("cold", False, "5")
    assert starts(1.01) == ("warm", False, "5")
    assert len(made) == 6


QUICK = ["eager", "compiled", "traced", "scripted", "onnx", "openvino", "int8", "eager-bf16", "eager-fp16", "eager-amp"]
SLOW = ["compiled-default", "compiled-max-autotune-no-cudagraphs", "aot", "compiled-bf16", "traced-bf16", "onnx-fp16"]
"""What others here have compiled as well, in another mode, precision or package."""
CPU = [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in SLOW)]


FORBIDDEN = {"onnx": "torch.onnx.export", "openvino": "openvino.convert_model"}


def already_there(*args: object, **kwargs: object) -> None:
    raise AssertionError("it is there already")


@pytest.mark.parametrize("name", CPU)
def test_every_variant_gives_what_the_module_gives_and_is_not_made_again(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whole and in padded batches of one and of several requests; what was kept is found at the second start."""
    spec, how, said = small_net(), options(tmp_path, buckets=(1, 4)), list[str]()
    variant = variants.load(name)
    batches = [[1], [4], [1, 2]]

    def work() -> tuple[dict[str, Any], list[np.ndarray[Any, Any]]]:
        runner, found = opened(spec, name, how, said), []
        for rows in batches:
            run(runner, [{"image": spec.example(4, 9)["image"] * 1e3}], ["y"])  # what it leaves behind must not show
            found.append(run(runner, [spec.example(count, count) for count in rows], ["y"]).outputs["y"])
        assert run(runner, [spec.example(1, 1)], []).outputs == {}
        return runner.parameters(), found

    parameters, found = in_a_thread(work)
    close = {"fp32": 1e-4, "int8": 0.3, "fp16": 1e-2, "bf16": 5e-2, "amp": 5e-2}[variant.precision]
    assert parameters["precision"] == variant.precision
    assert parameters["parity_ok"] is True
    assert (parameters["artefact_bytes"] > 0) is variant.keeps
    assert parameters["buckets"] == "1,4"
    assert (parameters["recompiles"], parameters["graph_breaks"]) == (0, 0)
    assert all(isinstance(value, str | int | float | bool | None) for value in parameters.values())
    assert "warming bucket 2 of 2 (4 rows)" in said
    if name == "openvino":  # it tells nobody of what it converts
        assert sys.modules["openvino.tools.ovc.convert_impl"].tm.__name__ == "openvino.tools.ovc.telemetry_stub"
    module, weights_said = _weights.load(spec, "random", 0, tmp_path)
    assert parameters["weights_digest"] == weights_said.digest
    for rows, outputs in zip(batches, found, strict=True):
        assert outputs.dtype == np.float32
        images = np.concatenate([spec.example(count, count)["image"] for count in rows])
        expected = module(torch.from_numpy(images)).numpy()
        np.testing.assert_allclose(outputs, expected, atol=close * np.abs(expected).max())
    if variant.keeps:
        monkeypatch.setattr("torch.export.export", already_there)
        if name in FORBIDDEN:
            monkeypatch.setattr(FORBIDDEN[name], already_there)
        again = in_a_thread(lambda: opened(spec, name, how).parameters()["start"])
        assert (parameters["start"], again) == ("cold", "warm")


@pytest.mark.long
def test_a_package_that_was_kept_is_loaded_and_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with the module at both starts."""

    def start() -> dict[str, Any]:
        # the wrapper around the kernels: to optimise it takes g++ most of the time
        with torch._inductor.config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
            return opened(small_net(), "aot", options(tmp_path, buckets=(1,))).parameters()

    starts = [in_a_thread(start)]
    monkeypatch.setattr("torch.export.export", already_there)
    starts.append(in_a_thread(start))
    assert [(each["start"], each["parity_ok"]) for each in starts] == [("cold", True), ("warm", True)]
    assert starts[0]["artefact_bytes"] > 0


def test_a_shape_that_was_not_warmed_counts_as_a_recompile(tmp_path: Path) -> None:
    def work() -> list[tuple[int, ...]]:
        runner, found = opened(small_net(), "compiled", options(tmp_path, buckets=(1,))), []
        for rows in (1, 4):
            runner.call(torch.zeros(rows, 3, 8, 8))
            found.append(tuple(runner.parameters()[name] for name in ("recompiles", "first_hits", "fallbacks")))
        return found

    assert in_a_thread(work) == [(0, 0, 0), (1, 0, 0)]


def test_a_model_of_several_lengths_is_compiled_for_each(tmp_path: Path) -> None:
    check_several_lengths(tmp_path, "compiled", (4,))


def test_what_was_compiled_ahead_is_neither_traced_nor_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = options(tmp_path / "cache", buckets=(2,))
    first = in_a_thread(lambda: opened(small_net(), "compiled-default", how))
    assert_warm_in_a_pod(tmp_path / "cache", tmp_path / "pod", first.parameters()["weights_digest"])
    monkeypatch.setattr("torch.compile", None)
    second = in_a_thread(lambda: opened(small_net(), "compiled-default", how))
    assert (first.parameters()["start"], second.parameters()["start"]) == ("cold", "warm")
    example = small_net().example(2, 5)
    outputs = [in_a_thread(lambda made=made: run(made, [example], ["y"]).outputs["y"]) for made in (first, second)]
    np.testing.assert_array_equal(*outputs)


def test_a_graph_with_breaks_is_compiled_as_it_is_called_and_that_is_said(tmp_path: Path) -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return x.mean((2, 3)).repeat(1, 2)[:, :4]

    spec, said = replace(small_net(), build=Broken), list[str]()
    runner = in_a_thread(lambda: opened(spec, "compiled", options(tmp_path, max_batch=1), said))
    assert any(line.startswith("it cannot be compiled ahead") for line in said)
    assert runner.parameters()["graph_breaks"] > 0
    assert runner.parameters()["parity_ok"] is True


class Loop(torch.nn.Module):
    """A core that is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.core = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.with_core(self.core, x)

    def with_core(self, core: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        y = x.mean((2, 3)) @ torch.eye(3, 4)
        for _ in range(3):
            found = core(y)
            y = y + (found[0] if isinstance(found, tuple) else found)
        return y


@pytest.mark.parametrize("name", ["eager", "compiled", "eager-bf16", "traced"])
def test_a_core_is_what_variants_execute(tmp_path: Path, name: str) -> None:
    spec = replace(small_net(), build=Loop, core="core")
    seen: list[BuildContext] = []
    variant = variants.load(name)

    def build(making: BuildContext) -> Callable[..., Any]:
        seen.append(making)
        return variant.build(making)

    runner = in_a_thread(lambda: opened(spec, replace(variant, build=build), options(tmp_path, max_batch=2)))
    assert runner.parameters()["parity_ok"] is True
    assert [example[0].shape for example in seen[0].examples] == [(1, 4), (2, 4)]
