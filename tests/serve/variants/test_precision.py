"""What is multiplied with how many bits, and that the parity gate knows what that may do to a model."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf32
import torch
from test_runner import in_a_thread, options
from test_weights import small_net

from tailrate.serve import models, variants
from tailrate.serve.runner.open_runner import Opening
from tailrate.serve.runner.parity import TOLERANCE
from tailrate.serve.spec import BuildContext, ModelSpec, Variant
from tailrate.serve.variants._precision import NO_TF32, TF32

pytestmark = pytest.mark.computes


def switches() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU heeds none of the switches, so no variant that turns them is served there."""
    monkeypatch.setattr(variants, "refusal", lambda *_: None)
    before = switches()
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("precision", ["fp32", "tf32", "tf32conv", "bf16"])
def test_a_variant_multiplies_as_it_says_and_what_it_is_compared_with_in_fp32(tmp_path: Path, precision: str) -> None:
    of_variant, of_reference = set[Any](), set[Any]()

    def first_four(seen: set[Any]) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(image: torch.Tensor) -> torch.Tensor:
            seen.add(switches())
            return image.flatten(1)[:, :4] + 1

        return call

    class Net(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return first_four(of_reference)(image)

    variant = Variant("noting", lambda making: first_four(of_variant), "", precision)

    def work() -> None:
        opening = Opening(replace(small_net(), build=Net), variant, options(tmp_path, parity_share=0.5), print)
        assert opening.reference is not None
        assert of_reference  # before it serves
        of_reference.clear()
        opening.reference([np.zeros((1, 3, 8, 8), np.float32)])  # while it serves

    expected = {"tf32": (True, True), "tf32conv": (False, True)}.get(precision, (False, False))
    in_a_thread(work)
    assert (of_variant, of_reference, switches()) == ({expected}, {(False, False)}, expected)


def as_a_gpu(precision: str, nearest: bool) -> Callable[[BuildContext], Callable[..., Any]]:
    def build(making: BuildContext) -> Callable[..., Any]:
        def call(*inputs: torch.Tensor) -> Any:
            with tf32.Shortened(*TF32.get(precision, NO_TF32), nearest) as products:
                found = making.module(*inputs)
            assert products.count
            return found

        return call

    return build


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds calibrated weights, which take longer to make than to compare."""
    return tmp_path_factory.mktemp("cache")


def compared(spec: ModelSpec, variant: Variant, cache: Path) -> dict[str, Any]:
    how = options(cache, buckets=(1,), keep_on_parity_failure=True)
    return in_a_thread(lambda: Opening(spec, variant, how, print).runner.parameters())


MODELS = {"custom_cnn": {}, "mlp": {}, "bert": {"layers": "4", "hidden": "256", "sequence": "32"}}


@pytest.mark.parametrize("nearest", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_models_multiplied_in_tf32_are_within_its_tolerance(cache: Path, model: str, nearest: bool) -> None:
    variant = Variant("gpu", as_a_gpu("tf32", nearest), "", "tf32")
    assert compared(models.load(model, MODELS[model]), variant, cache)["parity_ok"]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["tf32", "tf32conv"])
def test_the_tolerance_of_tf32_is_of_what_fifty_convolutions_make_of_lost_bits(cache: Path, precision: str) -> None:
    """And that of fp32 is not: convolutions in tf32 are another precision, whatever torch's default is."""
    spec, (most, cosine) = models.load("resnet50"), TOLERANCE[precision]
    as_fp32 = compared(spec, Variant("gpu", as_a_gpu(precision, nearest=True), ""), cache)
    assert not as_fp32["parity_ok"]
    found = compared(spec, Variant("gpu", as_a_gpu(precision, nearest=False), "", precision), cache)
    assert found["parity_ok"]
    assert most / 4 < found["parity_relative_error"] < most / 1.5
    assert (1 - cosine) / 4 < 1 - found["parity_cosine"] < (1 - cosine) / 1.5


@pytest.mark.long
def test_the_tolerance_of_fp16_is_of_what_it_makes_of_fifty_convolutions(cache: Path) -> None:
    found = compared(models.load("resnet50"), variants.load("eager-fp16"), cache)
    most, cosine = TOLERANCE["fp16"]
    assert found["parity_ok"]
    assert most / 5 < found["parity_relative_error"] < most / 1.5
    assert (1 - cosine) / 10 < 1 - found["parity_cosine"] < (1 - cosine) / 1.5
