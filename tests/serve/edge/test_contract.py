"""The OpenAPI document against the server at hand: each path in it is there and no other, each answer has its shape."""

import json
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from test_endpoint import Bench, X, in_json, run

from tailrate.serve import wire
from tailrate.serve.body.request import encode_infer
from tailrate.serve.edge.contract import JSON, OPERATIONS, SCHEMAS, WHY, Operation, contract
from tailrate.serve.options import ServeOptions

PLACES = {"{model}": "null", "{version}": "eager"}
METHODS = ("GET", "POST", "PUT", "DELETE")


def path_of(operation: Operation) -> str:
    path = operation.path
    for place, word in PLACES.items():
        path = path.replace(place, word)
    return path


def shape(schema: Any) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": {"schemas": SCHEMAS}})


def described_of(operation: Operation) -> Any:
    return contract()["paths"][operation.path][operation.method.lower()]


def answer_of(operation: Operation, status: int) -> Draft202012Validator:
    """What the document says that it is."""
    return shape(described_of(operation)["responses"][str(status)]["content"][JSON]["schema"])


def test_the_document_is_one_of_its_kind() -> None:
    assert not list(OpenAPIV31SpecValidator(contract()).iter_errors())
    one = contract(ServeOptions(models=("bert", "null"), variants=("eager", "compiled")))
    assert not list(OpenAPIV31SpecValidator(one).iter_errors())
    named = one["paths"]["/v2/models/{model}/versions/{version}/infer"]["post"]["parameters"]
    assert [part["schema"].get("enum") for part in named[:2]] == [["bert", "null"], ["eager", "compiled"]]


def test_every_shape_is_somebodys() -> None:
    text = json.dumps(contract())
    assert [name for name in SCHEMAS if f'"#/components/schemas/{name}"' not in text] == []
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


def test_the_server_says_its_own() -> None:
    async def work(bench: Bench) -> None:
        status, _, found = await bench.call("GET", wire.CONTRACT)
        assert status == 200
        assert found == json.loads(json.dumps(contract(ServeOptions(models=("null",), variants=("eager",)))))

    run(work)


def test_what_the_gateway_answers_is_described_and_no_more() -> None:
    async def work(bench: Bench) -> None:
        of_gateway = {(method, path) for path, (method, _) in bench.gateway._paths.items()}
        described = {(one.method, one.path) for one in OPERATIONS if "{" not in one.path}
        assert described == of_gateway | {("GET", "/v2/models/stats")}

    run(work)


def test_a_path_has_the_methods_that_it_is_described_with() -> None:
    async def work(bench: Bench) -> None:
        bench.report()  # else the gateway knows of no replica yet
        for path in {one.path: None for one in OPERATIONS}:
            described = {one.method: one for one in OPERATIONS if one.path == path}
            for method in METHODS:
                status, headers, _ = await bench.call(method, path_of(next(iter(described.values()))), b"{}")
                if method in described:
                    assert status == 200 or status in described[method].refused, (method, path)
                    assert status != 405, (method, path)
                elif status == 404:  # `null` takes no texts, so it has no such path at all
                    assert "{version}/v1/" in path, (method, path)
                else:
                    assert status == 405, (method, path)
                    assert set(described) <= set(headers["allow"].split(", ")), (method, path)

    run(work)


def test_an_answer_has_the_shape_that_the_document_says() -> None:
    good = {"InferRequest": in_json(X), "ProfileRequest": b'{"timeout_s": 0.05}'}

    async def work(bench: Bench) -> None:
        bench.report()
        for one in OPERATIONS:
            status, headers, answer = await bench.call(one.method, path_of(one), good.get(one.asks, b""))
            if isinstance(one.answer, str) and status == 200:
                assert headers["content-type"].startswith(one.answer)
                continue
            errors = [error.message for error in answer_of(one, status).iter_errors(answer)]
            assert not errors, (one.path, status, errors)
            if one.asks == "InferRequest":
                assert status == 200
                told = {name for name in headers if name.startswith("x-tailrate") or name == wire.TIMING}
                assert told <= set(described_of(one)["responses"]["200"]["headers"])

    run(work, profile=True)


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ("InferRequest", json.loads(in_json(X))),
        ("InferRequest", json.loads(in_json({"t": np.array([[b"word"]], object)}, outputs=["y"]))),
        ("FaultRequest", {"fault": "cpu_taken", "target": "2", "seconds": 30}),
        ("ProfileRequest", {"batches": 20, "timeout_s": 60, "format": "table"}),
        ("EmbeddingsRequest", {"model": "bert", "input": ["a", "b"], "encoding_format": "base64"}),
        ("ChatRequest", {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 4}),
        ("CompletionsRequest", {"model": "m", "prompt": [1, 2, 3], "logprobs": 2, "stop": ["."]}),
    ],
)
def test_a_good_request_has_the_shape_that_the_document_says(schema: str, body: Any) -> None:
    shape(SCHEMAS[schema]).validate(body)


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ("InferRequest", {}),
        ("InferRequest", {"inputs": [{"name": "x", "shape": [1], "datatype": "FP8"}]}),
        ("InferRequest", {"inputs": [{"name": "", "shape": [1], "datatype": "FP32"}]}),
        ("FaultRequest", {"fault": "none"}),
        ("EmbeddingsRequest", {"model": "bert"}),
        ("ChatRequest", {"model": "m", "messages": []}),
        ("CompletionsRequest", {"model": "m", "prompt": "x", "top_p": 2}),
    ],
)
def test_a_bad_one_has_not(schema: str, body: Any) -> None:
    assert not shape(SCHEMAS[schema]).is_valid(body)


def test_what_it_says_of_bodies_in_bytes() -> None:
    async def work(bench: Bench) -> None:
        (infer,) = (one for one in OPERATIONS if one.path.endswith("{version}/infer"))
        body, headers = encode_infer(X)
        status, found, raw = await bench.call("POST", path_of(infer), body, headers)
        assert status == 200
        assert found["content-type"] in infer.also
        assert set(found) >= {wire.HEADER_LENGTH, wire.TIMING, wire.CLOCK_HEADER, wire.BATCH, wire.REPLICA, wire.DEVICE}
        answer_of(infer, 200).validate(json.loads(raw[: int(found[wire.HEADER_LENGTH])]))

    run(work)


def test_every_refusal_has_a_reason_and_a_sentence() -> None:
    assert set(WHY) == {status for status in wire.REASONS if status != 499} | {401}
    used = {status for one in OPERATIONS for status in one.refused}
    assert used == set(WHY) - {401}
