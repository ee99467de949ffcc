from dataclasses import replace
from pathlib import Path

import pytest

from tailrate.serve import models, variants
from tailrate.serve.deploy import listing
from tailrate.serve.spec import ServeError, Variant, install


def test_names_are_files_with_hyphens() -> None:
    assert {"eager", "compiled", "compiled-max-autotune-no-cudagraphs", "aot"} <= set(variants.names())
    assert not any(name.startswith("_") for name in variants.names())


@pytest.mark.parametrize("name", variants.names())
def test_every_file_says_its_own_name(name: str) -> None:
    variant = variants.load(name)
    assert variant.name == name
    assert variant.precision == variant.precisions[0]
    assert variant.what
    assert bool(variant.packages) == bool(variant.extra)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("compiled-bf16", "bf16"),
        ("compiled-max-autotune-no-cudagraphs-fp16", "fp16"),
        ("compiled-max-autotune-amp", "amp"),
        ("int8", "int8"),
        ("compiled-default", "fp32"),
    ],
)
def test_a_precision_follows_the_name(name: str, precision: str) -> None:
    found = variants.load(name)
    assert (found.name, found.precision) == (name, precision)


def test_what_there_is_not_is_said() -> None:
    with pytest.raises(ServeError, match=r"unknown variant 'compild' \(did you mean compiled\?\)"):
        variants.load("compild")
    with pytest.raises(ServeError, match="onnx has no bf16; it can be had in fp32, fp16"):
        variants.load("onnx-bf16")
    with pytest.raises(ServeError, match="compiled has no fp8"):
        variants.load("compiled-fp8")


def refusal(variant: Variant | str, model: str = "custom_cnn", device: str = "cpu") -> str | None:
    made = variants.load(variant) if isinstance(variant, str) else variant
    return variants.refusal(made, models.load(model), device)


def test_refusals_are_one_sentence_before_anything_is_loaded() -> None:
    assert refusal("eager", "null") is None
    assert refusal("compiled", "null") == "null has no module to execute in another way; serve it with --variants eager"
    assert refusal("cudagraph") == "cudagraph needs cuda, and this is cpu"
    assert refusal("cudagraph", device="auto") is None
    assert refusal("openvino", device="cuda") == "openvino needs cpu, and this is cuda"
    assert refusal("eager-tf32") == "eager-tf32 needs cuda: a CPU has no tf32"
    assert str(refusal("scripted", "bert")).startswith("bert cannot be scripted")
    absent = replace(variants.load("onnx"), packages=("no_such_package",))
    assert refusal(absent) == f"onnx needs no_such_package: {install('onnx')}"


def test_the_list_says_what_can_be_had_here_and_why_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(listing, "has_cuda", lambda: False)
    text = listing.text()
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert set(variants.names()) | set(models.names()) <= set(lines)
    assert "needs a CUDA device" in lines["cudagraph"]
    assert " yes " in lines["compiled"]
    assert "tf32" not in text
    assert "sequence=128" in lines["bert"]
    monkeypatch.setattr(listing, "has_cuda", lambda: True)
    assert "tf32" in listing.text()
    monkeypatch.setattr(listing, "find_spec", lambda name: None)
    assert f"needs torch: {install('serve')}" in listing.text()
