"""Bad requests among good ones, over real sockets: each gets its 4xx, and its neighbours are right to the bit."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uvicorn
from waiting import PATIENCE_S

from tailrate.serve import models, wire
from tailrate.serve.asgi import as_app
from tailrate.serve.body.request import encode_infer
from tailrate.serve.body.result import decode_result
from tailrate.serve.deploy.haproxy import free_port
from tailrate.serve.edge.endpoint import Endpoint
from tailrate.serve.models import _weights
from tailrate.serve.options import ServeOptions
from tailrate.serve.spec import ModelSpec

GUILTY = 7.0
"""A value that passes for good until the module meets it."""


@contextmanager
def endpoint(options: ServeOptions) -> Iterator[tuple[Endpoint, int]]:
    """The model's endpoint behind uvicorn in a thread of its own, ready; and its port."""
    port = free_port()
    made: list[Endpoint] = []
    server: list[uvicorn.Server] = []
    up = threading.Event()

    async def live() -> None:
        made.append(Endpoint(options, options.models[0], options.variants[0], "r1"))
        try:
            while made[0].engine.state == "LOADING":
                await asyncio.sleep(0.01)
            assert made[0].engine.state == "READY", made[0].engine.reason
            app = as_app(lambda request: made[0].answer(request, "infer"), options.max_body_bytes)
            config = uvicorn.Config(app, port=port, log_level="error", access_log=False, lifespan="off")
            server.append(uvicorn.Server(config))
            serving = asyncio.create_task(server[0].serve())
            while not server[0].started:
                await asyncio.sleep(0.01)
            up.set()
            await serving
        finally:
            up.set()
            made[0].engine.close()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    try:
        assert up.wait(PATIENCE_S)
        assert server, "it did not start"
        yield made[0], port
    finally:
        for started in server:
            started.should_exit = True
        thread.join(PATIENCE_S)


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def post(self, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        self.connection.request("POST", "/infer", body, headers)
        response = self.connection.getresponse()
        return response.status, {key.lower(): value for key, value in response.getheaders()}, response.read()

    def infer(self, inputs: dict[str, wire.Array]) -> tuple[dict[str, wire.Array], int]:
        """Outputs, and the rows of the batch."""
        status, headers, body = self.post(*encode_infer(inputs))
        assert status == 200, body
        return decode_result(body, int(headers[wire.HEADER_LENGTH])), int(headers[wire.BATCH])


def half_a_body(port: int, body: bytes, headers: dict[str, str]) -> None:
    """A client that hangs up in the middle of its request."""
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"POST /infer HTTP/1.1\r\nhost: x\r\n{head}content-length: {len(body)}\r\n\r\n".encode())
        connection.sendall(body[: len(body) // 2])


def bad(name: str, good: wire.Array) -> list[tuple[bytes, dict[str, str], int]]:
    """Bodies that are wrong each in its own way, and the status that each deserves."""
    body, headers = encode_infer({name: good})
    poisoned = good.copy()
    poisoned.flat[good.size // 2] = np.nan
    endless = good.copy()
    endless.flat[-1] = np.inf
    return [
        (*encode_infer({name: good[:, :-1]}), 400),  # wrong shape
        (*encode_infer({name: good[0]}), 400),  # no rows
        (*encode_infer({name: good.astype(np.float64)}), 400),  # wrong type
        (*encode_infer({"other": good}), 400),  # wrong name
        (*encode_infer({name: poisoned}), 400),
        (*encode_infer({name: endless}), 400),
        (body[:-1], headers, 400),  # a byte is missing
        (body + b"\0", headers, 400),  # there is one too many
        (body[: len(body) // 2], headers, 400),  # half of it, in good order
        (b"{" + body[1:], {}, 400),  # the length of its header is missing
        (body, headers | {wire.HEADER_LENGTH: str(len(body) + 1)}, 400),
    ]


def among(port: int, good: Callable[[Client, int], None], bodies: list[tuple[bytes, dict[str, str], int]]) -> None:
    """Eight clients do what is good as long as others send all that is bad, several times over."""
    stop = threading.Event()

    def keep_on(number: int) -> int:
        client, done = Client(port), 0
        while not stop.is_set() or done < 3:
            good(client, number + 8 * done)
            done += 1
        client.connection.close()
        return done

    def misbehave() -> None:
        client = Client(port)
        for body, headers, status in bodies:
            found, _, answer = client.post(body, headers)
            assert found == status, answer
            assert set(json.loads(answer)) == {"error"}
            half_a_body(port, body, headers)
        client.connection.close()

    with ThreadPoolExecutor(11) as threads:
        neighbours = [threads.submit(keep_on, number) for number in range(8)]
        try:
            for misbehaving in [threads.submit(misbehave) for _ in range(3)]:
                misbehaving.result(120)
        finally:
            stop.set()
        for neighbour in neighbours:
            assert neighbour.result(120) >= 3


def few_layers() -> torch.nn.Module:
    """Of images as large as those of real models, in a hundredth of the time."""
    first = torch.nn.Conv2d(3, 8, 7, stride=4), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4)
    return torch.nn.Sequential(*first, torch.nn.Flatten(), torch.nn.Linear(128, 10))


def test_neighbours_of_bad_images_are_right_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same image in a batch of another size may differ in its last bits, so each size has its own reference."""
    monkeypatch.setattr("tailrate.serve.models.custom_cnn.build", few_layers)
    options = ServeOptions(("custom_cnn",), ("eager",), "cpu", cache_dir=str(tmp_path), threads=1, parity_share=0)
    spec = options.spec("custom_cnn")
    images = spec.example(8, 5)["image"]
    module, _ = _weights.load(spec, "random", 0, tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    expected: dict[int, list[set[bytes]]] = {}
    """By bucket and image: its logits at every place in the batch."""
    with torch.inference_mode():
        for bucket in (1, 2, 4):
            at = [[images[(number + place) % 8] for number in range(bucket)] for place in range(8)]
            found = [module(torch.from_numpy(np.stack(batch))).numpy() for batch in at]
            expected[bucket] = [
                {found[(image - place) % 8][place].tobytes() for place in range(bucket)} for image in range(8)
            ]
    torch.set_num_threads(before)
    batches: set[int] = set()

    def good(client: Client, number: int) -> None:
        image = number % 8
        outputs, rows = client.infer({"image": images[image : image + 1]})
        bucket = next(size for size in expected if size >= rows)
        assert outputs["logits"].tobytes() in expected[bucket][image]
        batches.add(rows)

    with endpoint(options) as (made, port):
        among(port, good, bad("image", images[:1]))
        assert made.engine.counters.snapshot()["inference_stats"]["fail"]["count"] == 3 * 11
    assert max(batches) > 1


class Touchy(torch.nn.Module):
    """Exact in every row, whatever the batch; one value it cannot stand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == GUILTY).any()):
            raise ArithmeticError("the module met what it cannot stand")
        return x * 3 + 0.5


def touchy() -> ModelSpec:
    inputs = (wire.TensorSpec("x", "FP32", (-1, 5)),)
    outputs = (wire.TensorSpec("y", "FP32", (-1, 5)),)

    def prepare(tensors: Any) -> dict[str, wire.Array]:
        wire.check(tensors, inputs)
        if not np.isfinite(tensors["x"]).all():
            raise wire.WireError(400, "input 'x' holds NaN or infinity")
        return dict(tensors)

    return ModelSpec(
        name="touchy",
        inputs=inputs,
        outputs=outputs,
        default_outputs=("y",),
        prepare=prepare,
        example=lambda rows, seed: {"x": np.random.default_rng(seed).random((rows, 5), dtype=np.float32)},
        build=Touchy,
    )


def test_neighbours_of_one_on_which_the_model_fails_are_right_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "load", lambda *given, **more: touchy())
    monkeypatch.setattr(models, "settings", lambda name: {})
    how = ServeOptions(("touchy",), ("eager",), "cpu", cache_dir=str(tmp_path), threads=1, max_batch=8, parity_share=0)
    guilty = np.full((2, 5), 1, np.float32)
    guilty[1, 3] = GUILTY

    def good(client: Client, number: int) -> None:
        rows = 1 + number % 11  # some need two batches
        x = np.random.default_rng(number).random((rows, 5), dtype=np.float32)
        outputs, _ = client.infer({"x": x})
        assert outputs["y"].tobytes() == (x * np.float32(3) + np.float32(0.5)).tobytes()

    with endpoint(replace(how, max_queue=64)) as (made, port):
        bodies = bad("x", np.ones((1, 5), np.float32))
        among(port, good, [*bodies, (*encode_infer({"x": guilty}), 500)] * 3)
        events = made.engine.events
    assert not events


def test_a_client_that_leaves_does_not_hold_the_others_up(tmp_path: Path) -> None:
    options = ServeOptions(("null",), ("eager",), settings={"delay_ms": "20"})
    body, headers = encode_infer({"x": np.zeros((1, 4), np.uint8)})
    with endpoint(options) as (made, port):
        clients = [Client(port) for _ in range(4)]
        for client in clients:
            client.connection.request("POST", "/infer", body, headers)
        for client in clients[::2]:
            client.connection.close()
        for client in clients[1::2]:
            with contextlib.closing(client.connection) as connection:
                assert connection.getresponse().status == 200
        after = Client(port)
        assert after.infer({"x": np.zeros((1, 4), np.uint8)})[0]["y"].shape == (1, 16)
        after.connection.close()
        assert made.engine.waiting == 0
