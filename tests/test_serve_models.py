import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from serve import models, variants
from serve.models.bert import tokenizer
from serve.spec import ServeError
from serve.vocabulary import sentences, train
from serve.wire import Array, WireError

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
        "from serve import models, variants\n"
        "from serve.options import ServeOptions, check\n"
        "from serve.opening import open_runner\n"
        "options = ServeOptions(('null',), ('eager',))\n"
        "print(open_runner(models.load('null'), variants.load('eager'), options, print).begin([], 2, ['y']).outputs)\n"
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
