"""What a server answers over HTTP, as an OpenAPI document: `GET /openapi.json`, and a page of the site.

Paths, words and columns are those of the code; the shapes of bodies stand here, and a test holds answers to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailrate.serve import wire
from tailrate.serve.edge import openai
from tailrate.serve.edge.openai.embeddings import ENCODINGS
from tailrate.serve.edge.openai.text_api import MOST_LIKELY, MOST_STOPS
from tailrate.serve.faults import server_faults
from tailrate.serve.models._code_digest import installed
from tailrate.serve.options import ServeOptions

JSON, TEXT, BYTES, EVENTS = "application/json", "text/plain", "application/octet-stream", "text/event-stream"
MODEL = "/v2/models/{model}"
VERSION = MODEL + "/versions/{version}"

Schema = dict[str, Any]

ANYTHING: Schema = {}
WORD: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}


def _from(least: float, most: float | None = None, kind: str = "integer") -> Schema:
    return {"type": kind, "minimum": least} | ({} if most is None else {"maximum": most})


def _one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def _any(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _map(of: Schema, what: str = "") -> Schema:
    return {"type": "object", "additionalProperties": of} | ({"description": what} if what else {})


def _object(required: str = "", **properties: Schema) -> Schema:
    """Where only those named in `required` are always there."""
    return {"type": "object", "required": required.split(), "properties": properties}


def _whole(**properties: Schema) -> Schema:
    """Where each of these is always there."""
    return _object(" ".join(properties), **properties)


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


# fmt: off
_SPANS = _map(_whole(count=WHOLE, ns=WHOLE))
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": wire.MOST_CHARACTERS}
_TENSOR = _object(
    "name datatype shape", name=_NAME, datatype=_one_of(*wire.DTYPES), shape=_list(_from(0)), parameters=_map(ANYTHING),
    data={"type": "array", "description": "absent where the values are bytes behind the JSON"},
)
_OF_CONFIGURATION = _list(_whole(name=WORD, data_type=WORD, dims=_list(WHOLE)))
_MESSAGE = _whole(role=WORD, content=_any(WORD, _list(_object("type", type=WORD, text=WORD))))
_WRITING = {
    "model": WORD, "stream": FLAG, "stream_options": _object(include_usage=FLAG), "max_tokens": _from(1),
    "min_tokens": _from(0), "temperature": _from(0, 100, "number"), "top_p": _from(0, 1, "number"), "seed": WHOLE,
    "stop": _any(WORD, _list(WORD) | {"maxItems": MOST_STOPS}), "ignore_eos": FLAG,
}
_WRITTEN = {
    "id": WORD, "created": WHOLE, "model": WORD,
    "usage": _whole(
        prompt_tokens=WHOLE, completion_tokens=WHOLE, total_tokens=WHOLE,
        prompt_tokens_details=_whole(cached_tokens=WHOLE), completion_tokens_details=_whole(reasoning_tokens=WHOLE),
        tailrate=_map(ANYTHING, "where the time went, in ms: " + ", ".join(wire.TEXT_STAGES)),
    ),
}
_ENDING = {"index": WHOLE, "logprobs": ANYTHING, "finish_reason": _one_of("stop", "length")}

SCHEMAS: dict[str, Schema] = {
    "Error": _whole(error={"type": "string", "description": "one sentence"}),
    "OpenAIError": _whole(error=_whole(message=WORD, type=WORD, param=ANYTHING, code=WHOLE)),
    "TensorSpec": _whole(name=WORD, datatype=_one_of(*wire.DTYPES), shape=_list(_from(-1))),
    "Server": _whole(
        name=WORD, version=WORD, extensions=_list(WORD), host=WORD, endpoints=_list(WORD), ingress=_map(ANYTHING),
        versions=_map(WORD),
    ),
    "Metadata": _whole(
        name=WORD, versions=_list(WORD), platform=WORD, inputs=_list(_named("TensorSpec")),
        outputs=_list(_named("TensorSpec")), parameters=_map(ANYTHING, "what is known of the version"),
    ),
    "InferRequest": _object(
        "inputs", id=WORD, inputs=_list(_TENSOR), parameters=_map(ANYTHING),
        outputs=_list(_object("name", name=_NAME, parameters=_map(ANYTHING))),
    ),
    "InferResponse": _object(
        "model_name model_version outputs", model_name=WORD, model_version=WORD, id=WORD, outputs=_list(_TENSOR),
    ),
    "ModelReady": _whole(name=WORD, version=WORD, ready=FLAG),
    "Configuration": _object(
        "name max_batch_size input output", name=WORD, platform=WORD, backend=WORD, max_batch_size=WHOLE,
        input=_OF_CONFIGURATION, output=_OF_CONFIGURATION, dynamic_batching=_map(WHOLE),
    ),
    "Statistics": _object(
        "model_stats", refused=_map(WHOLE, "requests for no endpoint that there is, by reason"),
        model_stats=_list(_object(
            "name version inference_count execution_count inference_stats batch_stats stages refused events",
            name=WORD, version=WORD, since={**WHOLE, "description": "when counting began, ms since 1970"},
            last_inference=WHOLE, inference_count=WHOLE, execution_count=WHOLE, inference_stats=_SPANS, stages=_SPANS,
            batch_stats=_list(_object("batch_size", batch_size=WHOLE)), refused=_map(WHOLE), events=_map(WHOLE),
        )),
    ),
    "Index": _list(_whole(
        name=WORD, version=WORD, state=_one_of("READY", "LOADING", "UNAVAILABLE"), reason=WORD, replicas=_list(WORD),
    )),
    "DeviceSamples": _whole(
        cursor={**WORD, "description": "`after` of the next request"}, overwritten=WHOLE, period_ms=NUMBER, host=WORD,
        hosts=_list(WORD), columns={"const": list(wire.SAMPLE_FIELDS)}, events=_list(_map(ANYTHING)),
        rows=_list({"type": "array", "minItems": len(wire.SAMPLE_FIELDS), "maxItems": len(wire.SAMPLE_FIELDS)}),
    ),
    "Clock": _whole(recv_ns=WHOLE, send_ns=WHOLE, host=WORD),
    "FaultRequest": _object("fault", fault=_one_of(*server_faults()), target=WORD, seconds=_from(0, kind="number")),
    "Fault": _whole(fault=WORD, target=WORD, seconds=NUMBER, sentence=WORD),
    "ProfileRequest": _object(batches=_from(1), timeout_s=NUMBER, format=_one_of("table", "trace")),
    "Profile": _whole(name=WORD, batches=WHOLE, trace=WORD, table=_list(_map(ANYTHING))),
    "Models": _whole(
        object={"const": "list"}, data=_list(_whole(id=WORD, object={"const": "model"}, created=WHOLE, owned_by=WORD)),
    ),
    "EmbeddingsRequest": _object(
        "model input", model=WORD, encoding_format=_one_of(*ENCODINGS),
        input=_any(WORD, _list(WORD), _list(WHOLE), _list(_list(WHOLE))),
    ),
    "Embeddings": _whole(
        object={"const": "list"}, model=WORD, usage=_whole(prompt_tokens=WHOLE, total_tokens=WHOLE),
        data=_list(_whole(object={"const": "embedding"}, index=WHOLE, embedding=_any(_list(NUMBER), WORD))),
    ),
    "ChatRequest": _object(
        "model messages", **_WRITING, messages=_list(_MESSAGE) | {"minItems": 1}, max_completion_tokens=_from(1),
        logprobs=FLAG, top_logprobs=_from(0, MOST_LIKELY),
    ),
    "Chat": _whole(**_WRITTEN, object={"const": "chat.completion"}, choices=_list(_whole(message=_MESSAGE, **_ENDING))),
    "CompletionsRequest": _object(
        "model prompt", **_WRITING, prompt=_any(WORD, _list(WORD), _list(WHOLE), _list(_list(WHOLE))),
        logprobs=_from(0, MOST_LIKELY),
    ),
    "Completions": _whole(**_WRITTEN, object={"const": "text_completion"}, choices=_list(_whole(text=WORD, **_ENDING))),
}


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    what: str
    answer: Schema | str
    """The shape of JSON, or another media type."""
    refused: tuple[int, ...] = ()
    asks: str = ""
    """The schema of the request's body."""
    also: tuple[str, ...] = ()
    """Other media types of the answer."""
    query: Mapping[str, str] = field(default_factory=dict)


INFERRING = (400, 404, 405, 408, 413, 415, 500, 503, 504)


def _of_models() -> Iterator[Operation]:
    for path, which, absent in ((VERSION, "a version", (404,)), (MODEL, "a model's first version", (404, 503))):
        yield Operation("GET", path, f"Tensors, settings and start of {which}", _named("Metadata"), absent)
        yield Operation("GET", f"{path}/ready", f"Whether {which} is warm", _named("ModelReady"), (404, 503))
        yield Operation("GET", f"{path}/config", "The same as Triton says it", _named("Configuration"), absent)
        yield Operation("GET", f"{path}/stats", f"What {which} has counted", _named("Statistics"), (404,))
        yield Operation("POST", f"{path}/infer", f"Runs {which}; tensors as JSON, or as bytes behind it",
            _named("InferResponse"), INFERRING, "InferRequest", (BYTES,))
        yield Operation("POST", f"{path}/profile", "Profiles the next batches, with --profile", _named("Profile"),
            (400, 403, 404, 405, 409, 503, 504), "ProfileRequest", ("application/gzip",))
    for base in ("", VERSION):
        for tail, what, name, also in (
            (openai.EMBEDDINGS, "Vectors of texts", "Embeddings", ()),
            (openai.CHAT, "A chat's next message", "Chat", (EVENTS,)),
            (openai.COMPLETIONS, "How a text goes on", "Completions", (EVENTS,)),
        ):
            yield Operation("POST", f"{base}/{tail}", what, _named(name), INFERRING, f"{name}Request", also)
    yield Operation("GET", openai.MODELS, "Models that take texts, as OpenAI lists them", _named("Models"))
    yield Operation("GET", f"{VERSION}{openai.MODELS}", "A language model's version alone", _named("Models"), (404,))


OPERATIONS = (
    Operation("GET", wire.LIVE, "Whether the server answers at all", _whole(live=FLAG)),
    Operation("GET", wire.READY, "Whether every endpoint is warm", _whole(ready=FLAG), (503,)),
    Operation("GET", wire.SERVING, "Whether any endpoint is, for a balancer", _whole(serving=FLAG), (503,)),
    Operation("GET", openai.HEALTH, "Whether every endpoint is warm", _whole(ready=FLAG), (503,)),
    Operation("GET", wire.SERVER, "What the server is", _named("Server")),
    Operation("POST", wire.INDEX, "All endpoints with their state and replicas", _named("Index")),
    Operation("GET", f"{wire.SERVER}/models/stats", "What all endpoints have counted", _named("Statistics")),
    *_of_models(),
    Operation("GET", wire.DEVICES, "Samples of all hosts' devices", _named("DeviceSamples"), (400,),
        query={"after": "the cursor of the answer before; without it all that is kept"}),
    Operation("GET", wire.CLOCK, "A host's clock when it was asked and when it answered", _named("Clock"), (404, 503),
        query={"host": "another one of the cluster"}),
    Operation("GET", wire.METRICS, "Counters, histograms and devices, for Prometheus", TEXT),
    Operation("GET", wire.RAY_METRICS, "What Ray exports", TEXT, (404,)),
    Operation("POST", wire.FAULTS, "Breaks it, with --allow-faults", _named("Fault"), (400, 403, 409), "FaultRequest"),
    Operation("POST", wire.STOP, "Takes nothing new from now on; asked until nothing is under way",
        _whole(under_way=WHOLE), (400, 403), query={"seconds": "that what is under way has"}),
    Operation("GET", wire.CONTRACT, "This document", _map(ANYTHING)),
)
WHY = {
    400: "malformed",
    401: "no token that the server knows",
    403: "not allowed on this server",
    404: "no such path, model, version or host",
    405: "another method is possible, as `allow` says",
    408: "the body did not come in time",
    409: "cannot be done here and now",
    413: "more bytes, rows or numbers than are taken",
    415: "neither gzip nor deflate",
    500: "the model or its preparation failed",
    503: "not now; `retry-after` says when again",
    504: "the deadline passed",
}
_BEHIND = {wire.HEADER_LENGTH: "bytes of the JSON, where tensors follow it as bytes"}
TOLD = _BEHIND | {
    wire.TIMING: f"where the time in the replica went, in ms: {', '.join(wire.STAGES)}, total",
    wire.CLOCK_HEADER: "when it was received and answered, ns on the server's clock",
    wire.BATCH: "rows of the batch that it ran in",
    wire.REPLICA: "which one answered",
    wire.DEVICE: "as in the samples",
    wire.COMPILE: "1: it waited for torch.compile",
}
"""Headers of an answer to `infer`."""
ASKED = {"x-request-timeout-seconds": "the deadline", wire.REQUEST_ID: "comes back in the answer"}
"""Headers of a request for inference."""
# fmt: on


def contract(options: ServeOptions | None = None) -> dict[str, Any]:
    """Of a server that is started so, or of any."""
    paths: dict[str, Any] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _described(one, options)
    about = {"title": "tailrate serve", "version": installed("tailrate") or "0"}
    token = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": about | {"summary": "Inference by the Open Inference Protocol, and what a load test asks beside"},
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": token},
    }


def _described(one: Operation, options: ServeOptions | None) -> dict[str, Any]:
    words = one.path.replace("{", "").replace("}", "").replace(".", "/").split("/")
    found: dict[str, Any] = {
        "summary": one.what,
        "operationId": "_".join((one.method.lower(), *filter(None, words))),
        "parameters": list(_parameters(one, options)),
        "responses": _responses(one),
    }
    if one.asks:
        content = {JSON: {"schema": _named(one.asks)}} | ({BYTES: ANYTHING} if BYTES in one.also else {})
        found["requestBody"] = {"content": content, "required": one.refused == INFERRING}
    return found


def _parameters(one: Operation, options: ServeOptions | None) -> Iterator[dict[str, Any]]:
    for name, known in (("model", options and options.models), ("version", options and options.variants)):
        if f"{{{name}}}" in one.path:
            yield {"name": name, "in": "path", "required": True, "schema": _one_of(*known) if known else WORD}
    for name, what in one.query.items():
        yield {"name": name, "in": "query", "description": what, "schema": WORD}
    if one.refused == INFERRING:
        for name, what in (ASKED | (_BEHIND if BYTES in one.also else {})).items():
            yield {"name": name, "in": "header", "description": what, "schema": WORD}


def _responses(one: Operation) -> dict[str, Any]:
    content = {one.answer: ANYTHING} if isinstance(one.answer, str) else {JSON: {"schema": one.answer}}
    found: dict[str, Any] = {"description": one.what, "content": content | dict.fromkeys(one.also, ANYTHING)}
    if one.asks == "InferRequest":
        found["headers"] = {name: {"description": what, "schema": WORD} for name, what in TOLD.items()}
    as_openai = _named("OpenAIError" if one.path.endswith(openai.TAILS) else "Error")
    refused = {
        str(status): {"description": WHY[status], "content": {JSON: {"schema": as_openai}}} for status in one.refused
    }
    nobody = {"description": WHY[401], "content": {JSON: {"schema": _named("Error")}}}
    return {"200": found, "401": nobody, **refused}
