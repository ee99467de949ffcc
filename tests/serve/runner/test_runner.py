import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from test_weights import small_net
from waiting import clock_step_ns

from tailrate.serve import variants
from tailrate.serve.models import _weights
from tailrate.serve.options import ServeOptions
from tailrate.serve.runner.buckets import Bucket, buckets
from tailrate.serve.runner.cuda_pipeline import BatchResult
from tailrate.serve.runner.open_runner import Opening
from tailrate.serve.runner.runner import NullRunner, TorchRunner, nvml_name, out_of_memory
from tailrate.serve.spec import BuildContext, ModelSpec, ServeError, Tensors, Variant
from tailrate.serve.wire import TensorSpec

T = TypeVar("T")


def in_a_thread(work: Callable[[], T]) -> T:
    """As the engine does it: a runner lives in a thread of its own, in inference mode."""
    found: list[T] = []
    problems: list[BaseException] = []

    def live() -> None:
        try:
            with torch.inference_mode():
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


def run(runner: TorchRunner, parts: list[Tensors], wanted: Collection[str]) -> BatchResult:
    rows = sum(len(next(iter(part.values()))) for part in parts)
    return runner.begin(parts, rows, wanted).finish()


def test_a_padded_batch_of_several_requests_gives_what_the_module_gives(tmp_path: Path) -> None:
    """In other variants: tests of opening."""
    spec, said = small_net(), list[str]()
    images = [spec.example(rows, seed)["image"] for rows, seed in ((1, 1), (2, 2))]

    def work() -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
        runner = opened(spec, "eager", options(tmp_path), said)
        run(runner, [{"image": spec.example(4, 9)["image"] * 1e3}], ["y"])  # what it leaves behind must not show
        ran = run(runner, [{"image": image} for image in images], ["y"])
        assert ran.batched_ns <= ran.copied_in_ns <= ran.computed_ns
        assert run(runner, [{"image": images[0]}], []).outputs == {}
        return ran.outputs, runner.parameters()

    outputs, parameters = in_a_thread(work)
    module, said_of = _weights.load(spec, "random", 0, tmp_path)
    expected = module(torch.from_numpy(np.concatenate(images))).numpy()
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-5)
    assert parameters["weights_digest"] == said_of.digest
    assert parameters["buckets"] == "1,2,4"
    assert parameters["parity_ok"] is True
    assert parameters["recompiles"] == 0
    assert parameters["graph_breaks"] == 0
    assert all(isinstance(value, str | int | float | bool | None) for value in parameters.values())
    assert "warming bucket 3 of 3 (4 rows)" in said


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ServeError, match="there is no CUDA device"):
        in_a_thread(lambda: opened(small_net(), "eager", replace(options(tmp_path), device="cuda")))


def test_the_null_runner_takes_its_time() -> None:
    spec = replace(small_net(), build=None, delay_s=0.02, reply=lambda rows: {"y": np.zeros((rows, 1))})
    runner = NullRunner(spec, 8)
    ran = runner.begin([{}], 3, ["y"]).finish()
    assert ran.outputs["y"].shape == (3, 1)
    assert ran.computed_ns - ran.copied_in_ns >= 20e6 - clock_step_ns()


# ---- lengths


def padded_sum(lengths: tuple[int, ...] = (4, 8)) -> ModelSpec:
    """Adds 1 to every token, and adds the tokens up: the module sees how wide it was padded."""
    return ModelSpec(
        name="padded_sum",
        inputs=(TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("mask", "INT64", (-1, -1))),
        outputs=(TensorSpec("each", "INT64", (-1, -1)), TensorSpec("shape", "INT64", (-1, 2))),
        default_outputs=("each",),
        prepare=dict,
        example=lambda rows, seed: {
            "ids": np.random.default_rng(seed).integers(1, 9, (rows, max(lengths))),
            "mask": np.ones((rows, max(lengths)), np.int64),
        },
        lengths=lengths,
    )


def sum_runner(spec: ModelSpec, rows: tuple[int, ...] = (1, 2, 4)) -> TorchRunner:
    runner = TorchRunner(spec, torch.device("cpu"), buckets(rows, spec.lengths), 0)
    runner.call = lambda ids, mask: (ids + mask, torch.tensor([list(ids.shape)] * len(ids)))
    return runner


def ids(rows: int, length: int, value: int) -> Tensors:
    return {"ids": np.full((rows, length), value), "mask": np.ones((rows, length), np.int64)}


def test_a_batch_runs_at_the_smallest_length_that_holds_its_longest_request() -> None:
    runner = sum_runner(padded_sum())
    assert runner.stretched == {"each"}
    run(runner, [ids(4, 8, 99)], ["each"])  # what it leaves behind must not show
    for parts, shape in (
        ([ids(1, 3, 5)], [1, 4]),
        ([ids(1, 4, 5), ids(1, 2, 7)], [2, 4]),
        ([ids(1, 2, 5), ids(2, 5, 7)], [4, 8]),
        ([ids(3, 8, 5)], [4, 8]),
    ):
        found = run(runner, parts, ["each", "shape"]).outputs
        assert found["shape"].tolist() == [shape] * len(found["shape"])
        at = 0
        for part in parts:
            rows, length = part["ids"].shape
            assert (found["each"][at : at + rows, :length] == part["ids"] + 1).all()
            assert not found["each"][at : at + rows, length:].any()  # padded with zeros, mask and all
            at += rows
    assert runner.parameters()["buckets"] == "1x4,1x8,2x4,2x8,4x4,4x8"
    with pytest.raises(ValueError, match="no bucket holds 1 rows of length 9"):
        run(runner, [ids(1, 9, 1)], ["each"])


class Widths(torch.nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        each = ids.sin() * mask
        return each, each.sum(1, keepdim=True)


def widths() -> ModelSpec:
    """Of which one output is as long as the request."""
    outputs = (TensorSpec("each", "FP32", (-1, -1)), TensorSpec("sum", "FP32", (-1, 1)))
    return replace(padded_sum(), build=Widths, outputs=outputs)


@pytest.mark.parametrize("variant", ["eager", "traced"])
def test_a_model_of_several_lengths_is_warmed_compared_and_served_at_each(tmp_path: Path, variant: str) -> None:
    check_several_lengths(tmp_path, variant, (1, 2, 4))


def check_several_lengths(cache: Path, variant: str, rows: tuple[int, ...]) -> None:
    """The last of `rows` holds three."""

    spec, said = widths(), list[str]()

    def work() -> dict[str, Any]:
        runner = opened(spec, variant, options(cache, buckets=rows), said)
        found = run(runner, [ids(1, 3, 2), ids(2, 7, 5)], ["each", "sum"]).outputs
        assert found["each"].shape == (3, 8)
        np.testing.assert_allclose(found["sum"][:, 0], [3 * np.sin(2), *[7 * np.sin(5)] * 2], rtol=1e-5)
        return runner.parameters()

    parameters = in_a_thread(work)
    assert parameters["parity_ok"] is True
    assert parameters["recompiles"] == 0
    assert parameters["buckets"] == ",".join(f"{count}x{length}" for count in rows for length in (4, 8))
    assert f"warming bucket {2 * len(rows)} of {2 * len(rows)} ({rows[-1]}x8 rows)" in said


def test_an_example_fills_its_bucket() -> None:
    runner = sum_runner(padded_sum())
    for bucket in runner.buckets:
        example = runner.example(bucket, 1)
        assert all(tensor.shape == (bucket.rows, bucket.length) for tensor in example.values())
        assert runner.execute(bucket, [example])[1][0].tolist() == [bucket.rows, bucket.length]


def test_outputs_that_are_inputs_do_not_change_under_their_reader() -> None:
    runner = sum_runner(padded_sum())
    runner.call = lambda ids, mask: (ids, mask)
    first = run(runner, [ids(1, 4, 5)], ["each"]).outputs["each"]
    run(runner, [ids(1, 4, 6)], ["each"])
    assert first.tolist() == [[5] * 4]


# ---- memory


def test_a_bucket_that_does_not_fit_is_dropped_with_those_above_it() -> None:
    runner = sum_runner(padded_sum(), (1, 2, 4, 6, 8))
    assert runner.drop_buckets_above(7) == 6
    assert runner.shrink(5) == 2  # 5 rows ran in the bucket of 6, of which 3 is the half
    assert runner.max_batch == 2
    assert runner.buckets == (Bucket(1, 4), Bucket(1, 8), Bucket(2, 4), Bucket(2, 8))
    assert runner.shrink(1) == 1
    assert runner.shrink(1) == 1  # the smallest stays
    assert [runner.grow(rows) for rows in (2, 6, 8)] == [2, 6, 6]  # what was dropped before it served was never warm
    assert runner.buckets[-1] == Bucket(6, 8)


@pytest.mark.parametrize(
    ("room", "left"), [(4 * 8, "1x4,1x8,2x4,2x8,4x4,4x8"), (4 * 8 - 1, "1x4,1x8,2x4,2x8"), (7, None)]
)
def test_of_several_lengths_the_rows_that_do_not_fit_at_the_longest_are_not_made(
    tmp_path: Path, room: int, left: str | None
) -> None:
    """A batch of so many rows may have the longest of them in it."""

    def build(making: BuildContext) -> Callable[..., Any]:
        def call(given: torch.Tensor, mask: torch.Tensor) -> Any:
            if given.numel() > room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return making.module(given, mask)

        return call

    spec, variant, said = widths(), Variant("small", build, ""), list[str]()

    def work() -> str:
        return str(opened(spec, variant, options(tmp_path, buckets=(1, 2, 4)), said).parameters()["buckets"])

    if left is None:
        with pytest.raises(torch.OutOfMemoryError):
            in_a_thread(work)
    else:
        assert in_a_thread(work) == left
        assert any("do not fit into memory" in line for line in said) is (room < 32)


def test_a_device_has_the_name_that_nvml_gives_it() -> None:
    uuid = "5c1a5c26-0000-4000-8000-000000000001"
    whole = SimpleNamespace(name="NVIDIA H100 80GB HBM3", uuid=uuid)
    assert nvml_name(whole) == f"GPU-{uuid}"
    assert nvml_name(SimpleNamespace(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", uuid=uuid)) == f"MIG-{uuid}"


@pytest.mark.parametrize(
    ("problem", "meant"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_want_of_memory_looks_like(problem: Exception, meant: bool) -> None:
    assert out_of_memory(problem) is meant


def test_torch_itself_says_so_on_the_cpu() -> None:
    with pytest.raises((RuntimeError, MemoryError)) as problem:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert out_of_memory(problem.value)
