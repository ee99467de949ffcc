import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_serve_endpoint import call
from test_serve_watch import BRIGHT, DARK, MOODY

from serve import wire
from serve.asgi import as_app
from serve.endpoint import Endpoint
from serve.options import ServeOptions


def test_headers_counts_and_metadata_say_what_the_watch_saw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ServeOptions, "spec", lambda self, model: MOODY)
    how = ServeOptions(("moody",), ("compiled",), device="cpu", cache_dir=str(tmp_path), threads=1, max_batch=2)

    async def live() -> None:
        endpoint = Endpoint(how, "moody", "compiled", "r1")
        app = as_app(lambda request: endpoint.answer(request, request.path.rpartition("/")[2]), 1 << 20)

        async def infer(image: Any) -> Any:
            body, headers = wire.encode_infer({"image": image})
            return await call(app, "POST", "/infer", [body], headers)

        try:
            while endpoint.engine.state == "LOADING":
                await asyncio.sleep(0.01)
            assert wire.COMPILE not in (await infer(BRIGHT))[1]
            assert (await infer(DARK))[1][wire.COMPILE] == "1"
            assert wire.COMPILE not in (await infer(DARK))[1]
            assert (await call(app, "POST", "/infer", [b"{"]))[0] == 400
            status, _, body = await call(app, "POST", "/profile", [b""])
            assert (status, "--profile" in json.loads(body)["error"]) == (403, True)
            assert (await call(app, "GET", "/profile", [b""]))[0] == 405
            (stats,) = json.loads((await call(app, "GET", "/stats", [b""]))[2])["model_stats"]
            assert stats["events"]["recompiled_requests"] == 1
            assert stats["refused"] == dict.fromkeys(stats["refused"], 0) | {"bad_input": 1}
            parameters = endpoint.metadata()["parameters"]
            assert parameters["first_hits"] == 1
            assert parameters["sampled_share"] == how.parity_share
        finally:
            endpoint.engine.close()
            torch._dynamo.reset()

    asyncio.run(live())
