"""A compiled model of texts on a live server: not ready until it is warm; asked by text, by its ids, as embeddings."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from serving import Served, starting, wait_until_ready
from test_app import client, direct, get, post, tensor
from tritonclient.utils import InferenceServerException

from tailrate.serve import models, wire

pytestmark = pytest.mark.served

SMALL = {"layers": "2", "hidden": "128"}
"""Two narrow layers in place of twelve, so that compiling takes seconds."""
TEXT = "The server answers every request, and nobody waits."


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def states() -> list[int]:
    """What readiness answered while `texts` warmed up."""
    return []


@pytest.fixture(scope="module")
def texts(cache: Path, states: list[int]) -> Iterator[Served]:
    """bert, compiled; its readiness is watched from the first moment on."""
    with starting(cache, models=["bert"], variants=["compiled"], max_batch=2, settings=SMALL) as server:
        waiting = threading.Thread(target=lambda: wait_until_ready(server))
        waiting.start()
        while waiting.is_alive():
            with suppress(OSError, ValueError):  # nothing listens yet, or Ray itself answers, in text
                states.append(get(server, wire.READY)[0])
            time.sleep(0.2)
        wait_until_ready(server)
        yield server


def test_readiness_is_503_until_every_bucket_is_warm(texts: Served, states: list[int]) -> None:
    assert set(states) == {503, 200} or set(states) == {503}
    assert states == sorted(states, reverse=True)
    # which is looked at four times a second, and compiling for the first bucket takes longer than that
    first = re.compile("bert/compiled: (building|warming) bucket 1 of 2")
    assert any(first.match(line) for line in texts.lines), texts.lines


@pytest.mark.parametrize("binary", [True, False])
def test_bert_gives_what_the_module_gives(texts: Served, cache: Path, binary: bool) -> None:
    ids = np.random.default_rng(3).integers(1000, 30000, (2, 128))
    ids[1, 100:] = 0
    mask = (ids != 0).astype(np.int64)
    names = ["pooler_output", "last_hidden_state"]
    with client(texts) as server:
        found = server.infer(
            "bert",
            [tensor("input_ids", ids, binary), tensor("attention_mask", mask, binary)],
            model_version="compiled",
            outputs=[triton.InferRequestedOutput(name, binary_data=binary) for name in names],
        )
    for name, expected in zip(names, direct("bert", cache, ids, mask, settings=SMALL), strict=True):
        np.testing.assert_allclose(found.as_numpy(name), expected, rtol=1e-3, atol=1e-3)


def test_text_is_the_same_as_its_ids(texts: Served) -> None:
    spec = models.load("bert")
    tensors = spec.prepare({"text": np.array([TEXT.encode()], object)})
    with client(texts) as server:
        by_text = server.infer("bert", [tensor("text", np.array([[TEXT.encode()]], object))])
        by_ids = server.infer("bert", [tensor(name, value) for name, value in tensors.items()])
        short = tensors["input_ids"][:, : int(tensors["attention_mask"].sum())]
        without_mask = server.infer("bert", [tensor("input_ids", short)])
    assert by_text.get_response()["outputs"][0]["name"] == "pooler_output"
    assert len(by_text.get_response()["outputs"]) == 1
    for other in (by_ids, without_mask):
        np.testing.assert_array_equal(by_text.as_numpy("pooler_output"), other.as_numpy("pooler_output"))


def test_bert_refuses_ids_out_of_its_vocabulary(texts: Served) -> None:
    with client(texts) as server, pytest.raises(InferenceServerException, match="from 0 to 30521"):
        server.infer("bert", [tensor("input_ids", np.array([[30522]]))])


def test_compiled_parameters(texts: Served) -> None:
    parameters = get(texts, wire.model_path("bert", "compiled"))[1]["parameters"]
    assert (parameters["start"], parameters["graph_breaks"], parameters["recompiles"]) == ("cold", 0, 0)
    assert parameters["buckets"] == "1,2"
    assert parameters["parity_cosine"] > 0.9999


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2/models/bert/versions/compiled/v1/embeddings"])
def test_its_embeddings_are_what_the_model_gives_of_the_text(texts: Served, path: str) -> None:
    body = json.dumps({"model": "bert", "input": [TEXT, "Hello"]}).encode()
    status, said, raw = post(texts, path, body, {"content-type": "application/json"})
    assert status == 200
    with client(texts) as server:
        wanted = np.array([[TEXT.encode()], [b"Hello"]], object)
        found = server.infer("bert", [tensor("text", wanted)]).as_numpy("pooler_output")
        ids = {"input_ids": np.array([[5, 6, 7], [8, 0, 0]]), "attention_mask": np.array([[1, 1, 1], [1, 0, 0]])}
        of_ids = server.infer("bert", [tensor(*each) for each in ids.items()]).as_numpy("pooler_output")
    np.testing.assert_allclose([row["embedding"] for row in json.loads(raw)["data"]], found, atol=1e-5)
    body = json.dumps({"model": "bert", "input": [[5, 6, 7], [8]]}).encode()
    _, _, raw = post(texts, path, body, {"content-type": "application/json"})
    np.testing.assert_allclose([row["embedding"] for row in json.loads(raw)["data"]], of_ids, atol=1e-5)
    assert wire.parse_timing(said[wire.TIMING])["total"] > 0
