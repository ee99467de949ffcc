import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tailrate.serve import models, variants
from tailrate.serve.models._bert_vocabulary import sentences, train
from tailrate.serve.models._image import DEVIATION, MEAN
from tailrate.serve.models.bert import tokenizer
from tailrate.serve.models.stable_diffusion import UNET
from tailrate.serve.spec import ServeError
from tailrate.serve.wire import Array, WireError

SMALL = {"layers": "1", "hidden": "64", "sequence": "16"}


def refused(prepare: Any, tensors: dict[str, Array]) -> str:
    with pytest.raises(WireError) as problem:
        prepare(tensors)
    assert problem.value.status == 400
    return problem.value.sentence


def test_models_and_variants_are_the_files_of_their_folders() -> None:
    assert {"null", "custom_cnn", "resnet50", "bert"} <= set(models.names())
    assert {"eager", "compiled"} <= set(variants.names())
    for name in models.names():
        assert models.load(name).name == name
    for name in variants.names():
        assert variants.load(name).name == name


def test_unknown_names_are_answered_with_the_known_and_the_closest() -> None:
    with pytest.raises(ServeError, match=r"unknown model 'resnet' \(did you mean resnet50\?\); known are bert, "):
        models.load("resnet")
    with pytest.raises(ServeError, match=r"unknown variant 'compile' \(did you mean compiled\?\); known are "):
        variants.load("compile")
    with pytest.raises(ServeError, match=r"unknown setting of bert 'sequnce' \(did you mean sequence\?\)"):
        models.load("bert", {"sequnce": "3"})
    with pytest.raises(ServeError, match="setting sequence of bert must be a whole number, not 'long'"):
        models.load("bert", {"sequence": "long"})
    with pytest.raises(ServeError, match="sequence from 2 to 512"):
        models.load("bert", {"sequence": "513"})


def test_null_and_all_checks_need_no_torch() -> None:
    program = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'ray', 'transformers', 'tokenizers'])\n"
        "from tailrate.serve import models, variants\n"
        "from tailrate.serve.deploy.check_options import check\n"
        "from tailrate.serve.options import ServeOptions\n"
        "from tailrate.serve.runner.open_runner import open_runner\n"
        "options = ServeOptions(('null',), ('eager',))\n"
        "with open_runner(models.load('null'), variants.load('eager'), options, print) as runner:\n"
        "    print(runner.begin([], 2, ['y']).outputs)\n"
        "[models.load(name) for name in models.names()]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_null_replies_as_large_as_told_whatever_it_is_sent() -> None:
    spec = models.load("null", {"reply_bytes": "300", "delay_ms": "2.5"})
    assert spec.delay_s == 0.0025
    assert spec.reply is not None
    assert spec.reply(3)["y"].shape == (3, 300)
    assert spec.prepare({"x": np.zeros((2, 77), np.uint8)})["x"].shape == (2, 77)
    assert "UINT8" in refused(spec.prepare, {"x": np.zeros((2, 77), np.float32)})


@pytest.mark.parametrize("name", ["custom_cnn", "resnet50"])
def test_images_are_checked(name: str) -> None:
    spec = models.load(name)
    (image,) = spec.example(2, 0).values()
    assert spec.prepare({"image": image})["image"] is image
    assert "shape" in refused(spec.prepare, {"image": image[:, :, :100]})
    assert "FP64" in refused(spec.prepare, {"image": image.astype(np.float64)})
    spoilt = image.copy()
    spoilt[1, 2, 3, 4] = np.nan
    assert "NaN" in refused(spec.prepare, {"image": spoilt})
    assert "unknown input 'x'" in refused(spec.prepare, {"x": image})


def test_bert_pads_ids_and_makes_the_mask_that_is_missing() -> None:
    prepare = models.load("bert", SMALL).prepare
    found = prepare({"input_ids": np.array([[5, 6, 0]])})
    assert found["input_ids"].tolist() == [[5, 6] + [0] * 14]
    assert found["attention_mask"].tolist() == [[1, 1] + [0] * 14]
    masked = prepare({"input_ids": np.array([[5, 6, 0]]), "attention_mask": np.array([[1, 0, 1]])})
    assert list(masked) == list(found)  # in the module's order, whatever was sent
    assert masked["attention_mask"].tolist() == [[1, 0, 1] + [0] * 13]


def test_bert_reads_text() -> None:
    prepare = models.load("bert", SMALL).prepare
    texts = [b"the model answers", "größer".encode()]
    column = prepare({"text": np.array(texts, object).reshape(2, 1)})
    row = prepare({"text": np.array(texts, object)})
    ids = tokenizer().encode("the model answers").ids
    assert column["input_ids"][0].tolist() == ids + [0] * (16 - len(ids))
    assert column["attention_mask"][0].sum() == len(ids)
    for name in column:
        np.testing.assert_array_equal(column[name], row[name])


def test_bert_refuses_what_would_break_its_batch() -> None:
    prepare = models.load("bert", SMALL).prepare
    ids = np.array([[5, 6]])
    text = np.array([b"hello"], object)
    assert "from 0 to 30521" in refused(prepare, {"input_ids": np.array([[30522]])})
    assert "from 0 to 30521" in refused(prepare, {"input_ids": np.array([[-1]])})
    assert "at least one" in refused(prepare, {"input_ids": np.zeros((1, 0), np.int64)})
    assert "17 tokens long, but the model takes at most 16" in refused(prepare, {"input_ids": np.ones((1, 17), int)})
    assert "tokens long" in refused(prepare, {"text": np.array([b"word " * 40], object)})
    assert "not both" in refused(prepare, {"input_ids": ids, "text": text})
    assert "0 or 1" in refused(prepare, {"input_ids": ids, "attention_mask": np.array([[1, 2]])})
    assert "in the shape of" in refused(prepare, {"input_ids": ids, "attention_mask": np.array([[1]])})
    assert "UTF-8" in refused(prepare, {"text": np.array([b"\xff"], object)})
    assert "BYTES" in refused(prepare, {"text": ids})
    assert "BYTES of shape" in refused(prepare, {"text": np.array([[b"a", b"b"]], object)})
    assert "missing input input_ids" in refused(prepare, {"attention_mask": ids})
    assert "unknown input 'token_type_ids'" in refused(prepare, {"input_ids": ids, "token_type_ids": ids})


def test_our_vocabulary_knows_real_words() -> None:
    ours = tokenizer()
    assert [ours.token_to_id(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [0, 1, 2, 3, 4]
    assert ours.get_vocab_size() > 5000
    found = ours.encode("How much does compiling buy under real traffic? The server answers every request slowly.")
    assert found.tokens[0] == "[CLS]"
    assert found.tokens[-1] == "[SEP]"
    assert "[UNK]" not in found.tokens
    assert {"the", "server", "answers", "request", "under"} <= set(found.tokens)
    assert "[UNK]" not in ours.encode("Zyxwvut 42 @#! naïve").tokens


def test_training_learns_the_words_of_seeded_sentences() -> None:
    texts = list(sentences(500, seed=3))
    assert texts == list(sentences(500, seed=3)) != list(sentences(500, seed=4))
    words = train(texts, size=700)
    assert words[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(words)) == len(words) <= 700
    assert {"the", "every"} <= set(words)


def test_mlp_is_as_wide_and_deep_as_told() -> None:
    spec = models.load("mlp", {"width": "8", "depth": "3"})
    assert spec.build is not None
    module = spec.build()
    assert sum(isinstance(layer, torch.nn.Linear) for layer in module.modules()) == 4
    assert module(torch.from_numpy(spec.example(5, 0)["x"])).shape == (5, 10)
    assert "shape" in refused(spec.prepare, {"x": np.zeros((1, 9), np.float32)})
    with pytest.raises(ServeError, match="mlp takes width from 1"):
        models.load("mlp", {"width": "0"})


def test_a_sum_that_overflows_is_not_taken_for_infinity() -> None:
    prepare = models.load("custom_cnn").prepare
    large = np.full((1, 3, 224, 224), 3e38, np.float32)
    assert prepare({"image": large})["image"] is large
    large[0, 0, 0, 0] = np.inf
    assert "infinity" in refused(prepare, {"image": large})
    both = np.zeros_like(large)
    both[0, 0, 0, :2] = np.inf, -np.inf
    assert "infinity" in refused(prepare, {"image": both})


def test_bytes_are_normalised_by_the_module_which_has_the_weights_of_the_other(tmp_path: Path) -> None:
    plain, as_bytes = models.load("custom_cnn"), models.load("custom_cnn", {"input": "uint8"})
    assert as_bytes.inputs[0].datatype == "UINT8"
    assert plain.build is not None
    assert as_bytes.build is not None
    torch.manual_seed(1)
    inner, outer = plain.build().eval(), as_bytes.build().eval()
    outer.load_state_dict(inner.state_dict())
    assert list(outer.state_dict()) == list(inner.state_dict())
    image = as_bytes.example(2, 3)["image"]
    assert image.dtype == np.uint8
    mean, deviation = (np.array(values, np.float32).reshape(3, 1, 1) for values in (MEAN, DEVIATION))
    by_client = ((image / np.float32(255)) - mean) / deviation
    torch.testing.assert_close(outer(torch.from_numpy(image)), inner(torch.from_numpy(by_client)), rtol=1e-4, atol=1e-4)
    assert as_bytes.prepare({"image": image})["image"] is image
    with pytest.raises(ServeError, match="custom_cnn takes its input as fp32, uint8, jpeg, not 'png'"):
        models.load("custom_cnn", {"input": "png"})


def a_jpeg(height: int, width: int, mode: str = "RGB") -> bytes:
    """A ramp from black on the left to white on the right."""
    ramp = np.tile(np.linspace(0, 255, width).astype(np.uint8), (height, 1))
    written = BytesIO()
    Image.fromarray(ramp).convert(mode).save(written, "JPEG", quality=95)
    return written.getvalue()


def one_file(*raw: bytes) -> dict[str, Array]:
    column = np.empty((len(raw), 1), dtype=object)
    column[:, 0] = raw
    return {"image": column}


def test_jpegs_are_decoded_and_their_middle_is_cut_out() -> None:
    spec = models.load("resnet50", {"input": "jpeg"})
    assert spec.slow_prepare
    found = spec.prepare(one_file(a_jpeg(300, 400), a_jpeg(500, 256, "L")))["image"]
    assert (found.dtype, found.shape) == (np.uint8, (2, 3, 224, 224))
    assert spec.prepare(one_file(a_jpeg(300, 400, "CMYK")))["image"].shape == (1, 3, 224, 224)
    # a ramp from 0 to 255 over the width: the middle of the first is 224 of 341 columns, of the second 224 of 256
    for picture, first, last in (
        (found[0], 255 * 58 / 341, 255 * 282 / 341),
        (found[1], 255 * 16 / 256, 255 * 240 / 256),
    ):
        assert picture[:, 100, 0].astype(int) == pytest.approx([first] * 3, abs=4)
        assert picture[:, 100, -1].astype(int) == pytest.approx([last] * 3, abs=4)


def test_files_that_are_no_such_images_are_named_by_their_row() -> None:
    prepare = models.load("resnet50", {"input": "jpeg"}).prepare
    good = a_jpeg(64, 64)
    frame = good.index(b"\xff\xc0")
    bomb = good[: frame + 5] + b"\xff\xff\xff\xff" + good[frame + 9 :]
    assert "row 1, is not a JPEG file" in refused(prepare, one_file(good, b"\x89PNG"))
    assert "65535 × 65535 pixels" in refused(prepare, one_file(bomb))
    assert "row 0, is not a JPEG file" in refused(prepare, one_file(good[: len(good) // 3]))  # no scan
    assert "row 0, cannot be decoded" in refused(prepare, one_file(good[: good.index(b"\xff\xda") + 14]))
    assert "not a JPEG" in refused(prepare, one_file(b""))
    assert "not a JPEG" in refused(prepare, one_file(good[:10]))


def test_bert_of_several_lengths_leaves_padding_to_the_batch() -> None:
    spec = models.load("bert", SMALL | {"sequences": "32,8,16"})
    assert spec.lengths == (8, 16, 32)
    assert spec.outputs[1].shape == (-1, -1, 64)
    found = spec.prepare({"input_ids": np.array([[5, 6, 0]])})
    assert found["input_ids"].tolist() == [[5, 6, 0]]
    assert found["attention_mask"].tolist() == [[1, 1, 0]]
    texts = spec.prepare({"text": np.array([b"the", b"the model answers"], object)})
    assert texts["input_ids"].shape == (2, texts["attention_mask"].sum(1).max())
    assert "33 tokens long, but the model takes at most 32" in refused(
        spec.prepare, {"input_ids": np.ones((1, 33), int)}
    )
    with pytest.raises(ServeError, match="sequences are lengths such as 32,128,512, not 'a'"):
        models.load("bert", {"sequences": "a"})


def test_a_generation_follows_from_its_seed_whatever_its_batch() -> None:
    spec = models.load("stable_diffusion", {"steps": "2"})
    assert spec.build is not None
    torch.manual_seed(0)
    module = spec.build().eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other by spinning where other tests run
    embeds = np.random.default_rng(1).standard_normal((3, 77, 64), dtype=np.float32)
    seeds = np.array([[7], [8], [9]])

    def images(rows: slice) -> Array:
        prepared = spec.prepare({"prompt_embeds": embeds[rows], "seed": seeds[rows]})
        with torch.inference_mode():
            found: Array = module(*map(torch.from_numpy, prepared.values())).numpy()
        return found

    together, alone = images(slice(0, 3)), images(slice(1, 2))
    torch.set_num_threads(threads)
    assert (together.dtype, together.shape) == (np.uint8, (3, 3, 128, 128))
    assert np.abs(together[1].astype(int) - alone[0].astype(int)).max() <= 1
    assert together[1].std() > 1
    assert np.abs(together[0].astype(int) - together[1].astype(int)).max() > 10
    assert "must not be negative" in refused(spec.prepare, {"prompt_embeds": embeds, "seed": -seeds})
    with pytest.raises(ServeError, match="stable_diffusion takes size tiny or sd15"):
        models.load("stable_diffusion", {"size": "huge"})


def test_the_published_unet_has_its_published_size() -> None:
    """859,520,964 parameters, as the checkpoint has."""
    from diffusers import UNet2DConditionModel

    with torch.device("meta"):
        unet = UNet2DConditionModel(**UNET["sd15"])
    assert sum(parameter.numel() for parameter in unet.parameters()) == 859_520_964
