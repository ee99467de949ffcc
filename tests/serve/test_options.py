import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrate.serve.deploy.check_options import check
from tailrate.serve.options import ServeOptions, from_args
from tailrate.serve.spec import ServeError

NULL = ServeOptions(("null",), ("eager",), port=0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"models": ()}, "name at least one model"),
        ({"models": ("nul",)}, r"unknown model 'nul' \(did you mean null\?\)"),
        ({"models": ("null", "null")}, "named twice"),
        ({"variants": ("quick",)}, "unknown variant 'quick'"),
        ({"variants": ("eager", "compiled")}, "null has no module to execute"),
        ({"settings": {"delay": "3"}}, r"unknown setting of null 'delay' \(did you mean delay_ms\?\)"),
        ({"settings": {"delay_ms": "x"}}, "must be a number"),
        ({"device": "tpu"}, "unknown device 'tpu'; known are auto, cpu, cuda"),
        ({"replicas": 0}, "replicas must be at least 1"),
        ({"max_batch": 0}, "max_batch must be at least 1"),
        ({"max_rows": 0}, "max_rows must be at least 1"),
        ({"max_body_bytes": 0}, "max_body_bytes must be at least 1"),
        ({"buckets": (1, 0)}, "buckets must be different numbers of rows, each at least 1"),
        ({"buckets": (4, 4)}, "buckets must be different numbers of rows"),
        ({"buckets": (1, 4), "max_batch": 8}, "name buckets or max_batch, not both"),
        ({"parity_share": 1.5}, "parity_share must be between 0 and 1"),
        ({"sample_ms": 1}, "sample_ms must be at least 10"),
        ({"port": 99_999}, "cannot listen on"),
        ({"host": "203.0.113.1"}, "cannot listen on"),
        ({"models": ("custom_cnn",), "weights": "pretrained"}, "custom_cnn has no pretrained weights"),
        ({"models": ("custom_cnn",), "weights": "/nowhere.pt"}, "neither random, pretrained nor"),
        ({"models": ("causal_lm",)}, "causal_lm is whatever lies in a folder: name one with --weights"),
        ({"models": ("causal_lm",), "weights": "pretrained"}, "name one with --weights"),
    ],
)
def test_what_cannot_work_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ServeError, match=sentence):
        check(replace(NULL, **change))


def test_what_can_work_passes() -> None:
    check(NULL)
    check(replace(NULL, models=("bert", "null"), settings={"delay_ms": "3", "layers": "2"}))


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServeError, match="choose another --port"):
            check(replace(NULL, port=taken.getsockname()[1]))


def test_a_setting_goes_to_the_models_that_know_it() -> None:
    options = replace(NULL, models=("bert", "null"), settings={"delay_ms": "3", "layers": "2"})
    assert options.spec("null").settings["delay_ms"] == 3
    assert options.spec("bert").settings["layers"] == 2


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TAILRATE_CACHE", str(tmp_path / "env"))
    assert NULL.cache_folder == tmp_path / "env"
    assert replace(NULL, cache_dir=str(tmp_path / "given")).cache_folder == tmp_path / "given"
    monkeypatch.delenv("TAILRATE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert NULL.cache_folder == tmp_path / ".cache" / "tailrate"
    assert replace(NULL, cache_dir="x").baked_folder is None
    monkeypatch.setenv("TAILRATE_BAKED", "")
    assert NULL.baked_folder is None
    monkeypatch.setenv("TAILRATE_BAKED", str(tmp_path))
    assert NULL.baked_folder == tmp_path


def test_options_from_the_text_of_serve_run() -> None:
    given = {"model": "bert,null", "variants": "eager", "max_batch": "8", "max_wait_ms": "1.5", "layers": "2"}
    options = from_args(given | {"keep_on_parity_failure": "true"})
    assert options.models == ("bert", "null")
    assert options.variants == ("eager",)
    assert (options.max_batch, options.max_wait_ms, options.keep_on_parity_failure) == (8, 1.5, True)
    assert options.settings == {"layers": "2"}
    assert options.largest_batch == 8
    options = from_args({"model": "bert", "buckets": "1,16,4"})
    assert (options.buckets, options.largest_batch, options.max_batch) == ((1, 16, 4), 16, None)
    options = from_args({"models": "bert, null,", "variants": "eager, compiled", "buckets": "1,4,"})
    assert (options.models, options.variants, options.buckets) == (("bert", "null"), ("eager", "compiled"), (1, 4))
    with pytest.raises(ServeError, match="name a model"):
        from_args({"models": " "})
    with pytest.raises(ServeError, match="buckets must be a number, not '1,x'"):
        from_args({"model": "bert", "buckets": "1,x"})
    with pytest.raises(ServeError, match="port must be a number, not 'x'"):
        from_args({"model": "null", "port": "x"})
    with pytest.raises(ServeError, match="name a model"):
        from_args({"variants": "eager"})
