"""Models of the user's own: `file.py:function` and `module:function`; `test_app.py` has one served."""

from pathlib import Path

import pytest

from tailrate.serve import models
from tailrate.serve.deploy.check_options import check
from tailrate.serve.models import _code_digest
from tailrate.serve.options import ServeOptions, as_args, from_args, named
from tailrate.serve.spec import ServeError

MODEL = """
\"\"\"Doubles.\"\"\"
import numpy as np
from own_helper import FACTOR
from tailrate.serve import wire
from tailrate.serve.spec import ModelSpec
from tailrate.serve.wire import TensorSpec

INPUTS = (TensorSpec("x", "FP32", (-1, 3)),)


def spec(*, factor: float = FACTOR, label: str = "twice"):
    def prepare(tensors):
        wire.check(tensors, INPUTS)
        return dict(tensors)

    def build():
        import torch

        class Times(torch.nn.Module):
            def forward(self, x):
                return x * factor

        return Times()

    return ModelSpec(
        name=label,
        inputs=INPUTS,
        outputs=(TensorSpec("y", "FP32", (-1, 3)),),
        default_outputs=("y",),
        prepare=prepare,
        example=lambda rows, seed: {"x": np.random.default_rng(seed).random((rows, 3), dtype=np.float32)},
        build=build,
        settings={"factor": factor},
    )


def fails():
    raise RuntimeError("on purpose")


def wrong():
    return 7


def untyped(*, size):
    return spec()


constant = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path)


def written(folder: Path, text: str = MODEL) -> Path:
    path = folder / "my_model.py"
    path.write_text(text)
    (folder / "own_helper.py").write_text("FACTOR = 2.0\n")
    return path


def test_a_model_is_served_under_the_name_that_it_gives_itself(file: Path) -> None:
    options = named(ServeOptions((f"{file}:spec", "null"), ("eager",), settings={"factor": "3"}))
    assert options.models == ("twice", "null")
    assert options.spec("twice").settings == {"factor": 3.0}
    assert options.endpoints == [("twice", "eager"), ("null", "eager")]
    check(options)
    assert from_args(as_args(options)) == options


def test_files_are_named_by_where_they_are_and_known_by_what_is_in_them(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    assert named(ServeOptions(("my_model.py:spec",))).sources == {"twice": f"{file}:spec"}
    before = models.load(f"{file}:spec").code
    assert before == models.load(f"{file}:spec", {"factor": "9"}).code
    file.write_text(MODEL + "\n# changed\n")
    assert models.load(f"{file}:spec").code != before


@pytest.mark.parametrize(
    ("imports", "helper"),
    [
        ("import layers", "layers.py"),
        ("import layers.deep.net as net", "layers/deep/net.py"),
        ("import layers.deep.net as net", "layers/__init__.py"),
        ("from layers import net", "layers/net.py"),
        ("from layers.net import Net", "layers/net.py"),
        ("def later():\n    from layers import net", "layers/net.py"),
        ("import between", "layers/net.py"),
    ],
)
def test_the_code_of_a_model_is_that_of_its_helpers_too(tmp_path: Path, imports: str, helper: str) -> None:
    (tmp_path / "between.py").write_text("from layers import net")
    for name in ("layers", "layers/deep"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "unasked.py").write_text("x = 1")
    file = tmp_path / "model.py"
    file.write_text(f"import os, torch\n{imports}\n")
    (tmp_path / helper).write_text("x = 1")
    before = _code_digest.digest(file)
    (tmp_path / "unasked.py").write_text("x = 22")
    assert _code_digest.digest(file) == before
    (tmp_path / helper).write_text("x = 22")
    assert _code_digest.digest(file) != before


def test_helpers_of_a_package_are_found_from_anywhere_in_it(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "models").mkdir(parents=True)
    for folder in (own, own / "models"):
        (folder / "__init__.py").touch()
    (tmp_path / "other.py").write_text("x = 1")
    (own / "layers.py").write_text("import other")  # beside the package, and no part of it
    (own / "blocks.py").touch()
    (own / "models" / "net.py").write_text("from ..layers import x\nfrom own.blocks import y\nfrom .... import z")
    seen = [_code_digest.digest(own / "models" / "net.py")]
    for path in (own / "layers.py", own / "blocks.py", own / "__init__.py"):
        path.write_text(path.read_text() + "\n# changed\n")
        seen.append(_code_digest.digest(own / "models" / "net.py"))
    assert len(set(seen)) == 4
    (tmp_path / "other.py").write_text("x = 22")
    assert _code_digest.digest(own / "models" / "net.py") == seen[-1]


def test_a_file_that_is_no_python_has_a_digest_too(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def (:")
    assert len(_code_digest.digest(tmp_path / "model.py")) == 16


@pytest.mark.parametrize(
    ("reference", "settings", "sentence"),
    [
        ("{file}:nothing", {}, "has no function 'nothing' that returns a ModelSpec"),
        ("{file}:constant", {}, "has no function 'constant'"),
        ("{file}:fails", {}, "failed: RuntimeError: on purpose"),
        ("{file}:wrong", {}, "must return a ModelSpec, not int"),
        ("{file}:untyped", {"size": "3"}, "setting size of .* has no default"),
        ("{file}:spec", {"factor": "x"}, "setting factor of .* must be a number, not 'x'"),
        ("{folder}/absent.py:spec", {}, "absent.py cannot be imported: FileNotFoundError: there is no such file"),
        ("no_such_module:spec", {}, "no_such_module cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_no_model_is_one_sentence(file: Path, reference: str, settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ServeError, match=sentence):
        models.load(reference.format(file=file, folder=file.parent), settings)
