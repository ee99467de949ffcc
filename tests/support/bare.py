"""Gateway and the null endpoint under plain uvicorn, without Ray: the whole of wire 1 in one process.

What a test may change of it: what the endpoint calls its device, how long it takes for each request (`--delay-ms`), the
wall clock (`--ahead-s`, `--drift-ppm`), NVML (by its environment). When it answered is written to `--log`. Prints its
port, and with which instant its clock drifts from, as the first line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from shifted import shift_clock

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def standin(folder: Path) -> dict[str, str]:
    """Compiles the stand-in NVML; the environment in which pynvml loads it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None
    library = folder / "libnvidia-ml.so.1"
    words = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*words, str(Path(__file__).parent / "nvml.c"), "-lm"], check=True)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    return {"LD_LIBRARY_PATH": path}


@contextmanager
def bare(environment: dict[str, str] | None = None, **options: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """(URL, what the server says of its clock)"""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {})
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield f"http://127.0.0.1:{said['port']}", said
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ahead-s", type=float, default=0)
    parser.add_argument("--drift-ppm", type=float, default=0)
    parser.add_argument("--sample-ms", type=int, default=100)
    parser.add_argument("--device-trace", default="")
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    began_ns = shift_clock(given.ahead_s, given.drift_ppm)

    import uvicorn

    from tailrate.serve.asgi import HttpAnswer, Request, as_app
    from tailrate.serve.deploy.haproxy import free_port
    from tailrate.serve.edge.endpoint import Endpoint
    from tailrate.serve.edge.gateway import Gateway
    from tailrate.serve.options import ServeOptions

    port = free_port()
    options = ServeOptions(("null",), ("eager",), port=port, sample_ms=given.sample_ms, device_trace=given.device_trace)
    if given.delay_ms:
        options = replace(options, max_batch=1, max_queue=10_000, settings={"delay_ms": str(given.delay_ms)})
    log = given.log and given.log.open("w", buffering=1)
    endpoint = Endpoint(options, "null", "eager", "only", given.device)

    async def forward(name: Any, request: Request, tail: str) -> HttpAnswer:
        return await endpoint.answer(request, tail)

    gateway = Gateway(options, forward, lambda: {"way": "fast", "fallback": None, "slow_requests": 0})
    prefix = "/v2/models/null/versions/eager"

    async def answer(request: Request) -> HttpAnswer:
        if request.path.startswith(prefix):
            found = await endpoint.answer(request, request.path.removeprefix(prefix).strip("/"))
            if log and request.path.endswith("/infer") and found.status == 200:
                print(time.time_ns(), file=log)
            return found
        return await gateway.answer(request)

    async def reporting() -> None:
        while True:
            gateway.board.put(endpoint.report(), time.monotonic())
            await asyncio.sleep(0.2)

    reporter = asyncio.create_task(reporting())
    while endpoint.engine.state == "LOADING":
        await asyncio.sleep(0.02)
    app = as_app(answer, options.max_body_bytes)
    # an idle connection closed in the moment in which it is used fails a request: behind a stall both are due at once
    kept = {"timeout_keep_alive": 600}
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", access_log=False, lifespan="off", **kept))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.02)
    print(json.dumps({"port": port, "began_ns": began_ns, "pid": os.getpid()}), flush=True)
    await serving
    reporter.cancel()
    gateway.close()


if __name__ == "__main__":
    asyncio.run(main())
