"""A language model behind HAProxy and Ray Serve: asked by the model's name in the body, and driven."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from packaging.version import parse
from serving import MARK, Served, served, started_with
from text_streams import told
from waiting import PATIENCE_S, clock_step_ns

from tailrate.analysis import load
from tailrate.serve import wire

pytestmark = pytest.mark.served

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SMALL = {"context": "512", "layers": "2", "hidden": "128"}
FORCED = {"temperature": 0, "ignore_eos": True, "max_tokens": 12, "min_tokens": 12}
ROWS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    cache = tmp_path_factory.mktemp("cache")
    with served(
        cache, models=("tiny_llama", "mlp"), variants=("eager", "eager-bf16"), device="cpu", max_batch=ROWS,
        threads=1, settings=SMALL,
    ) as found:  # fmt: skip
        yield found


def ask(server: Served, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.netloc, timeout=PATIENCE_S)
    try:
        given = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, given, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def text_of(found: Any) -> str:
    text: str = found["choices"][0]["text"]
    return text


def test_a_body_s_model_and_an_endpoint_s_own_path_are_the_same(server: Served) -> None:
    asked = {"prompt": "the server is"} | FORCED
    status, found = ask(server, COMPLETIONS, {"model": "tiny_llama/eager"} | asked)
    assert (status, found["usage"]["completion_tokens"], found["model"]) == (200, 12, "tiny_llama/eager")
    status, alone = ask(server, COMPLETIONS, {"model": "tiny_llama"} | asked)  # that is its first variant
    assert (status, text_of(alone)) == (200, text_of(found))
    status, own = ask(server, f"/v2/models/tiny_llama/versions/eager{COMPLETIONS}", {"model": "tiny_llama"} | asked)
    assert (status, text_of(own)) == (200, text_of(found))
    status, other = ask(server, COMPLETIONS, {"model": "tiny_llama/eager-bf16"} | asked)
    assert (status, other["usage"]["completion_tokens"]) == (200, 12)
    assert found["usage"]["tailrate"]["replica"] != other["usage"]["tailrate"]["replica"]


@pytest.mark.parametrize("model", ["nobody", "tiny_llama/nobody", "mlp", "../x", "", None, 3])
def test_a_model_that_is_not_there_has_a_sentence(server: Served, model: Any) -> None:
    status, found = ask(server, COMPLETIONS, {"model": model, "prompt": "x"})
    assert status in (400, 404)
    assert found["error"]["message"]


def test_streams_come_token_by_token_also_where_a_body_is_too_long_for_the_way_in(server: Served) -> None:
    """HAProxy looks for the model in what fits into its buffer; what is longer goes through the gateway."""
    for padding in (0, 100_000):
        asked = {"model": "tiny_llama/eager", "prompt": [5, 6, 7], "user": "x" * padding} | FORCED | {"max_tokens": 240}
        found = asyncio.run(told(server.url, COMPLETIONS, asked))
        assert (found.tokens, found.prompt_tokens) == (240, 3)
        assert len(found.came_s) > 6  # half characters have no event of their own, nor what comes while nobody can send
        assert found.came_s == sorted(found.came_s)
        assert len(set(found.came_s)) > 1  # not all at once, though a coarse clock may tell few apart


def test_models_are_listed_by_all_the_names_that_they_answer_to(server: Served) -> None:
    status, found = ask(server, "/v1/models")
    assert status == 200
    assert {"tiny_llama", "tiny_llama/eager", "tiny_llama/eager-bf16"} <= {one["id"] for one in found["data"]}


def test_it_is_driven_and_the_report_says_where_the_time_went(server: Served, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "tailrate", "run", "chat", f"--host={server.url}", "--rates=4,8",
            "--prompt-tokens=uniform:5:60", "--output-tokens=uniform:5:20", "--step-seconds=4", "--settle-seconds=0.5",
            "--idle-seconds=0", "--self-check=off", "--timeout=60", f"--run-dir={tmp_path}", "--run-id=it",
        ],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S * 6, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stdout + done.stderr
    run = load(tmp_path / "it")
    rows = run.requests()
    assert set(rows["status"]) == {"200"}, rows["error"].dropna().unique()
    assert set(rows["endpoint"]) == {"tiny_llama/eager", "tiny_llama/eager-bf16"}
    stages = rows[["queue_ms", "prefill_ms", "batch_ms", "decode_ms", "text_ms"]]
    assert ((stages.sum(axis=1) - rows["server_ms"]).abs() < 0.01).all()
    assert (rows["server_ms"] < (rows["done_ns"] - rows["sent_ns"] + clock_step_ns()) / 1e6).all()
    assert (stages.min(axis=1) >= 0).all()
    assert rows["decode_ms"].median() > rows["prefill_ms"].median()  # of one request a pause may make it otherwise
    report = json.loads((tmp_path / "it" / "report.json").read_text())
    assert {row["endpoint"] for row in report["breakdown"]} == set(rows["endpoint"])
    assert all(min(row["decode_ms"], row["prefill_ms"]) > 0 for row in report["breakdown"])
    assert report["answers"]["beside_prompts"]
    for variant in ("eager", "eager-bf16"):
        status, stats = ask(server, f"/v2/models/tiny_llama/versions/{variant}/stats")
        (counted,) = stats["model_stats"]
        assert status == 200
        assert counted["tokens"]["prompts"]["whole"] > 0
        assert sum(int(rows) * step["count"] for rows, step in counted["tokens"]["steps"].items()) > 0
        assert max(map(int, counted["tokens"]["steps"])) <= ROWS


def test_it_is_ready_as_any_model_is_and_has_no_tensors(server: Served) -> None:
    assert ask(server, wire.READY)[0] == ask(server, "/health")[0] == 200
    status, found = ask(server, "/v2/models/tiny_llama/versions/eager/infer", {"inputs": []})
    assert status == 400
    assert "v1/chat/completions" in found["error"]


def test_a_replica_leaves_torch_to_its_engine_s_process(server: Served) -> None:
    """Loading it takes two seconds and half a gigabyte, and one object of its own that is unpickled does that."""

    def with_torch(name: str) -> list[bool]:
        found = [one["pid"] for one in started_with(MARK, server.mark) if name in " ".join(one["cmdline"])]
        return [any("libtorch" in part.path for part in psutil.Process(pid).memory_maps()) for pid in found]

    itself = parse(version("transformers")) < parse("5.5")  # which loaded it wherever a tokenizer was
    assert with_torch("ServeReplica:tiny_llama") == [itself, itself]
    assert with_torch("engine.language.process") == [True, True]
