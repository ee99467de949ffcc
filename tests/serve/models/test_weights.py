import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tailrate.serve import models
from tailrate.serve.models import _weights
from tailrate.serve.spec import ModelSpec, ServeError
from tailrate.serve.wire import TensorSpec


def small_net(channels: int = 4) -> ModelSpec:
    """An image model with BatchNorm, small enough for a test."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    return ModelSpec(
        name="small_net",
        inputs=(TensorSpec("image", "FP32", (-1, 3, 8, 8)),),
        outputs=(TensorSpec("y", "FP32", (-1, channels)),),
        default_outputs=("y",),
        prepare=dict,
        example=lambda rows, seed: {
            "image": np.random.default_rng(seed).standard_normal((rows, 3, 8, 8), dtype=np.float32)
        },
        build=build,
    )


def test_random_weights_are_the_same_for_all_who_ask(tmp_path: Path) -> None:
    spec = small_net()
    first, said = _weights.load(spec, "random", 7, tmp_path)
    second, again = _weights.load(spec, "random", 7, tmp_path)
    assert said == again
    assert said.origin == "random, seed 7"
    assert not first.training
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    assert _weights.load(spec, "random", 8, tmp_path)[1].digest != said.digest


def test_loading_leaves_torchs_own_seed_alone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    _weights.load(small_net(), "random", 7, tmp_path)
    assert torch.equal(torch.rand(1), expected)


def test_batch_norm_is_calibrated_so_that_outputs_are_of_unit_size(tmp_path: Path) -> None:
    spec = small_net()
    module, _ = _weights.load(spec, "random", 0, tmp_path)
    norm = module[1]  # type: ignore[index]
    assert norm.momentum == 0.1
    with torch.no_grad():
        normed = norm(module[0](torch.from_numpy(spec.example(64, 99)["image"])))  # type: ignore[index]
    assert normed.mean().abs() < 0.1
    assert abs(normed.std() - 1) < 0.1


def test_kept_numbers_are_of_one_code_torch_and_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(small_net(), code="1")
    paths = [_weights.kept_path(spec, 7, tmp_path), _weights.kept_path(replace(spec, code="2"), 7, tmp_path)]
    for package in ("torch", "torchvision"):
        monkeypatch.setattr(_weights, "installed", {"torch": "2.11", "torchvision": "0.26", package: "newer"}.get)
        paths.append(_weights.kept_path(spec, 7, tmp_path))
    assert len(set(paths)) == 4
    monkeypatch.undo()
    assert _weights.kept_path(replace(spec), 7, tmp_path) == paths[0]


def test_a_model_whose_code_changed_gets_the_numbers_of_its_new_code(tmp_path: Path) -> None:
    """Of the same name, settings and seed; numbers that were kept for other code stay where they are."""

    def build() -> nn.Module:
        module = small_net().build()  # type: ignore[misc]
        with torch.no_grad():
            module[0].weight.mul_(2)  # type: ignore[index, union-attr, operator]
        return module

    first, again = replace(small_net(), code="1"), replace(small_net(), code="2", build=build)
    _, one = _weights.load(first, "random", 7, tmp_path)
    _, other = _weights.load(again, "random", 7, tmp_path)
    _, fresh = _weights.load(again, "random", 7, tmp_path / "elsewhere")
    assert other.digest == fresh.digest != one.digest
    assert _weights.load(first, "random", 7, tmp_path)[1].digest == one.digest


@pytest.mark.parametrize("spoil", ["cut", "overwritten", "empty", "other numbers", "other shapes"])
def test_a_broken_kept_file_is_made_anew(tmp_path: Path, spoil: str) -> None:
    spec = small_net()
    _, said = _weights.load(spec, "random", 7, tmp_path)
    path = _weights.kept_path(spec, 7, tmp_path)
    whole = path.read_bytes()
    if spoil == "cut":
        path.write_bytes(whole[:-10])
    elif spoil == "overwritten":
        path.write_bytes(b"not safetensors")
    elif spoil == "empty":
        path.write_bytes(b"")
    elif spoil == "other numbers":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    else:
        save_file({"x": torch.zeros(1)}, path)
    assert _weights.load(spec, "random", 7, tmp_path)[1] == said
    assert path.read_bytes() == whole


def test_weights_that_are_baked_come_first_and_broken_ones_do_not_count(tmp_path: Path) -> None:
    """Compiled code that is baked is of these numbers, whatever a volume has kept of other machines' rounding."""
    spec, cache, baked = small_net(), tmp_path / "cache", tmp_path / "baked"
    module, plain = _weights.load(spec, "random", 7, cache)
    other = {name: tensor + 1 for name, tensor in module.state_dict().items()}
    path = _weights.kept_path(spec, 7, baked)
    path.parent.mkdir(parents=True)
    save_file(other, path, metadata={"digest": _weights.digest(other)})
    assert _weights.load(spec, "random", 7, cache, baked)[1].digest == _weights.digest(other)
    assert _weights.load(spec, "random", 8, cache, baked)[1] == _weights.load(spec, "random", 8, cache)[1]
    path.write_bytes(whole := path.read_bytes()[:-1])
    assert _weights.load(spec, "random", 7, cache, baked)[1] == plain
    assert path.read_bytes() == whole
    assert list(baked.rglob("*")) == [path.parent, path]


def test_where_nothing_can_be_kept_it_works_still(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("a file where the folder should be")
    assert _weights.load(small_net(), "random", 7, tmp_path)[1].origin == "random, seed 7"


@pytest.mark.parametrize("kind", ["safetensors", "checkpoint", "checkpoint with state_dict"])
def test_weights_from_a_file(tmp_path: Path, kind: str) -> None:
    spec = small_net()
    module, said = _weights.load(spec, "random", 3, tmp_path)
    if kind == "safetensors":
        path = tmp_path / "w.safetensors"
        save_file(module.state_dict(), path)
    else:
        path = tmp_path / "w.pt"
        torch.save({"state_dict": module.state_dict()} if "state_dict" in kind else module.state_dict(), path)
    _, loaded = _weights.load(spec, str(path), 0, tmp_path)
    assert loaded.digest == said.digest
    assert loaded.origin == str(path)


def test_files_that_do_not_fit_or_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    state = small_net()
    module, _ = _weights.load(state, "random", 3, tmp_path)
    full = module.state_dict()
    path = tmp_path / "w.safetensors"

    def refused(what: str) -> str:
        with pytest.raises(ServeError) as problem:
            _weights.load(small_net(), what, 0, tmp_path)
        assert "\n" not in str(problem.value)
        return str(problem.value)

    save_file({**full, "0.weight": torch.zeros(5, 3, 3, 3)}, path)
    assert "0.weight is [5, 3, 3, 3], but the model has [4, 3, 3, 3]" in refused(str(path))
    save_file({name: tensor for name, tensor in full.items() if name != "0.bias"}, path)
    assert "1 tensors are missing, such as 0.bias" in refused(str(path))
    save_file({**full, "more": torch.zeros(1)}, path)
    assert "1 tensors are unknown, such as more" in refused(str(path))
    path.write_bytes(b"garbage")
    assert "cannot be read" in refused(str(path))
    evil = tmp_path / "evil.pt"
    torch.save(Path("x"), evil)  # a pickle that would run code of its own
    assert "cannot be read" in refused(str(evil))
    torch.save([1, 2], evil)
    assert "no state dict" in refused(str(evil))
    assert "neither random, pretrained nor" in refused("nowhere")
    assert "small_net has no pretrained weights" in refused("pretrained")
    assert "use random" in refused(str(tmp_path))


def test_bert_from_a_hugging_face_folder_takes_its_sizes_and_tokenizer(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path / "bert"
    config = BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64)
    BertModel(config).save_pretrained(folder)
    words = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"])}
    BertTokenizerFast(vocab=words, do_lower_case=True).save_pretrained(folder)
    spec = models.load("bert", {"sequence": "8"}, str(folder))
    assert spec.outputs[0].shape == (-1, 64)
    assert spec.prepare({"text": np.array([b"Hello"], object)})["input_ids"].tolist() == [[2, 5, 3, 0, 0, 0, 0, 0]]
    module, said = _weights.load(spec, str(folder), 0, tmp_path)
    assert said.origin == str(folder)
    pooled, hidden = module(*(torch.from_numpy(tensor) for tensor in spec.example(2, 0).values()))
    assert (pooled.shape, hidden.shape) == ((2, 64), (2, 8, 64))
    with pytest.raises(ServeError, match=r"config\.json"):
        models.load("bert", {}, str(tmp_path))


def test_both_variants_of_a_real_model_hold_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_weights, "CALIBRATION_ROWS", 1)
    spec = models.load("custom_cnn")
    first = _weights.load(spec, "random", 0, tmp_path)[1]
    kept = load_file(_weights.kept_path(spec, 0, tmp_path))
    assert _weights.digest(kept) == first.digest == _weights.load(spec, "random", 0, tmp_path)[1].digest


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("[].append(1)",)


def test_downloaded_weights_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailrate.serve.models import resnet50

    file = tmp_path / "hub" / "checkpoints" / "resnet50-11ad3fa6.pth"  # where torchvision has put it
    file.parent.mkdir(parents=True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    found = resnet50.build().state_dict()
    torch.save(found, file)
    assert torch.equal(resnet50.pretrained("pretrained").state_dict()["fc.weight"], found["fc.weight"])
    torch.save(found | {"fc.bias": Evil()}, file)
    with pytest.raises(pickle.UnpicklingError, match="eval"):
        resnet50.pretrained("pretrained")
