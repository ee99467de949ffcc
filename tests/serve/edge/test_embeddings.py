"""OpenAI's embeddings before a model of texts, without Ray and without a module."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_contract import shape
from test_endpoint import Bench, run

from tailrate.serve import models
from tailrate.serve.edge.contract import SCHEMAS
from tailrate.serve.edge.openai.embeddings import read

MODEL = """
import numpy as np
from tailrate.serve.spec import ModelSpec
from tailrate.serve.wire import TensorSpec, WireError

def spec():
    def prepare(tensors):
        if list(tensors) != ["text"]:
            raise WireError(400, "send 'text'")
        lengths = np.array([len(text) for text in tensors["text"][:, 0]])
        return {"ids": lengths[:, None], "attention_mask": np.arange(lengths.max()) < lengths[:, None]}
    return ModelSpec(
        name="null", inputs=(TensorSpec("ids", "INT64", (-1, -1)),),
        outputs=(TensorSpec("pooled", "FP32", (-1, 3)), TensorSpec("rest", "FP32", (-1, 2))),
        default_outputs=("pooled", "rest"), prepare=prepare, text="text",
        example=lambda rows, seed: {"ids": np.ones((rows, 1), np.int64)},
        reply=lambda rows: {"pooled": np.arange(3 * rows, dtype=np.float32).reshape(rows, 3) / 7,
                            "rest": np.zeros((rows, 2), np.float32)},
    )
"""
PATH, DIRECT = "/v1/embeddings", "/v2/models/null/versions/eager/v1/embeddings"
Ask = Callable[..., Awaitable[tuple[int, Any]]]


def over(folder: Path, work: Callable[[Bench, Ask], Awaitable[None]], model: str = MODEL) -> None:
    (folder / "texts.py").write_text(model)

    async def inner(bench: Bench) -> None:
        async def ask(path: str = PATH, method: str = "POST", **body: Any) -> tuple[int, Any]:
            status, _, found = await bench.call(method, path, json.dumps(body, separators=(",", ":")).encode())
            return status, found

        bench.report()  # else the gateway knows of no replica yet
        await work(bench, ask)

    run(inner, sources={"null": models.located(f"{folder / 'texts.py'}:spec")})


@pytest.mark.parametrize("path", [PATH, DIRECT])
def test_texts_become_vectors_in_either_form(tmp_path: Path, path: str) -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        status, found = await ask(path, model="null", input=["four", "seventy"])
        assert (status, found["object"], found["model"]) == (200, "list", "null/eager")
        shape(SCHEMAS["Embeddings"]).validate(found)
        assert [(row["object"], row["index"]) for row in found["data"]] == [("embedding", 0), ("embedding", 1)]
        expected = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
        np.testing.assert_array_equal(np.array([row["embedding"] for row in found["data"]], np.float32), expected)
        assert found["usage"] == {"prompt_tokens": 11, "total_tokens": 11}
        status, found = await ask(path, model="null/eager", input="four", encoding_format="base64")
        vector = np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), "<f4")
        np.testing.assert_array_equal(vector, expected[0])
        counts = bench.endpoint.report()["counts"]
        assert counts["inference_stats"]["success"]["count"] == 2
        assert counts["inference_count"] == 3

    over(tmp_path, work)


def test_what_is_no_number_goes_as_base64_alone(tmp_path: Path) -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        status, said = await ask(model="null", input="four")
        assert (status, "ask for base64" in said["error"]["message"]) == (400, True)
        status, found = await ask(model="null", input="four", encoding_format="base64")
        assert np.isnan(np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), "<f4")).all()

    over(tmp_path, work, MODEL.replace("/ 7", "* np.nan"))


def test_token_ids_of_several_lengths_are_padded_and_the_padding_is_masked() -> None:
    asked, _ = read(models.load("bert"), ["bert"], json.dumps({"model": "bert", "input": [[5, 6, 7], [8]]}).encode())
    assert {name: tensor.tolist() for name, tensor in asked.inputs.items()} == {
        "input_ids": [[5, 6, 7], [8, 0, 0]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
    }


def test_the_list_has_each_model_that_takes_texts_with_its_variants(tmp_path: Path) -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        status, found = await ask("/v1/models", "GET")
        assert (status, [model["id"] for model in found["data"]]) == (200, ["null", "null/eager"])

    over(tmp_path, work)


@pytest.mark.parametrize("path", [PATH, DIRECT])
@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"input": "a"}, 400, "'model' must name a model"),
        ({"model": "other", "input": "a"}, 404, "unknown model 'other'"),
        ({"model": "null", "input": []}, 400, "'input' must be a text"),
        ({"model": "null", "input": [1, "a"]}, 400, "'input' must be a text"),
        ({"model": "null", "input": [[1], []]}, 400, "'input' must be a text"),
        ({"model": "null", "input": [1, True]}, 400, "'input' must be a text"),
        ({"model": "null", "input": [1 << 70]}, 400, "no token ids"),
        ({"model": "null", "input": [[1] * 1600, *[[1]] * 1500]}, 413, "padded to one length"),
        ({"model": "null", "input": "a", "encoding_format": "int8"}, 400, "'encoding_format'"),
        ({"model": "null", "input": "a", "dimensions": 2}, 400, "'dimensions'"),
    ],
)
def test_what_cannot_be_is_said_and_counted(
    tmp_path: Path, path: str, body: dict[str, Any], status: int, why: str
) -> None:
    async def work(bench: Bench, ask: Ask) -> None:
        found, said = await ask(path, **body)
        assert (found, why in said["error"]["message"]) == (status, True)
        refused = bench.endpoint.report()["counts"]["refused"]
        nobody = (await bench.call("GET", "/v2/models/stats"))[2]["refused"]
        assert sum(refused.values()) + sum(nobody.values()) == 1

    over(tmp_path, work)


def test_a_model_without_texts_says_so() -> None:
    async def work(bench: Bench) -> None:
        bench.report()
        status, _, said = await bench.call("POST", PATH, json.dumps({"model": "null", "input": "a"}).encode())
        assert (status, "takes no texts" in said["error"]["message"]) == (404, True)
        assert (await bench.call("GET", "/v1/models"))[2]["data"] == []

    run(work)
