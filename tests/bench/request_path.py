"""What a request costs before any model runs: ours on its fast path beside plain Ray Serve and the servers people know.

Every contestant answers the same v2 body with nothing to compute, in processes of its own; wrk visits them in turn, so
that a noisy minute hits all of them. What they may cost: HTTP itself (bare uvicorn), HAProxy and Ray's request context
(the no-op application on the fast path), then protocol, engine, headers (ours). The no-op application, which shares
its cluster with ours, is visited first, before the others are up: three idle clusters beside them cost ours, which
takes more of the CPU, a sixth of its rate. LitServe takes JSON alone, so it gets a text of the same size.

    stock        Ray Serve as it comes: Python proxy, a deployment with `__call__`
    ours, plain  tailrate's null model behind that proxy (`--ingress plain`)
    no-op        a bare ASGI application behind HAProxy, in the same cluster as ours
    ours         tailrate's null model as `tailrate serve null` serves it
    uvicorn, fastapi, litserve: alone, one worker

Prints a table of requests/s and of P50/P99 in ms (medians over rounds, the lowest and the highest), then one JSON line.
Needs wrk (Debian: apt-get install wrk).

    python tests/bench/request_path.py
    python tests/bench/request_path.py --only ours,no-op --connections 1,64 --bodies 1000 --seconds 5 --rounds 5
    python tests/bench/request_path.py --only ours,no-op --connections 64 --bodies 1000 --rounds 5 --idle 3
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line, left_out, over, shown, spreads  # noqa: E402

PATH = "/v2/models/null/versions/eager/infer"
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}

SCRIPT = """
local head = '%s'
wrk.method = "POST"
wrk.body = head .. string.rep("a", %d)
wrk.headers["Inference-Header-Content-Length"] = tostring(#head)
wrk.headers["Content-Type"] = "application/octet-stream"
"""

SCRIPT_JSON = """
wrk.method = "POST"
wrk.body = '{"x":"' .. string.rep("a", %d) .. '"}'
wrk.headers["Content-Type"] = "application/json"
"""


def head(size: int) -> str:
    tensor = {"name": "x", "datatype": "UINT8", "shape": [1, size], "parameters": {"binary_data_size": size}}
    return json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}, separators=(",", ":"))


# ---- contestants: each is this file again, as `request_path.py --contestant NAME PORT`


async def noop(scope, receive, send):  # type: ignore[no-untyped-def]
    """Reads the body, answers a few bytes."""
    if scope["type"] == "lifespan":
        while True:
            await send({"type": f"{(await receive())['type']}.complete"})
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def uvicorn(port: int) -> None:
    import uvicorn as server

    server.run(noop, host="127.0.0.1", port=port, access_log=False, log_level="error", lifespan="off")


def fastapi(port: int) -> None:
    import uvicorn as server
    from fastapi import FastAPI, Request

    app = FastAPI()

    async def infer(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    infer.__annotations__["request"] = Request
    app.post(PATH)(infer)
    server.run(app, host="127.0.0.1", port=port, access_log=False, log_level="error")


LITSERVE = """
import sys
import litserve as ls

class Null(ls.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request): return 0
    def predict(self, x): return x
    def encode_response(self, output): return {"y": output}

if __name__ == "__main__":
    server = ls.LitServer(Null(api_path=sys.argv[2]), accelerator="cpu")
    server.run(port=int(sys.argv[1]), host="127.0.0.1", log_level="error", generate_client_file=False)
"""


def litserve(port: int) -> None:
    script = Path(os.environ["HOME"]) / "lit.py"  # a file of its own, as its workers import it anew
    script.write_text(LITSERVE)
    os.execv(sys.executable, [sys.executable, str(script), str(port), PATH])


def stock(port: int) -> None:
    os.environ["RAY_AUTH_MODE"] = "disabled"  # ours are given one by whoever starts them, and refuse a foreign one
    import ray
    from ray import serve

    @serve.deployment(max_ongoing_requests=1000)
    class Null:
        async def __call__(self, request):  # type: ignore[no-untyped-def]
            await request.body()
            return "ok"

    with tempfile.TemporaryDirectory(prefix="hb-") as scratch:
        ray.init(include_dashboard=False, log_to_driver=False, _temp_dir=scratch, object_store_memory=128 << 20)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(Null.bind(), route_prefix=PATH)
        forever(ray.shutdown)


def ours(port: int, ingress: str = "fast") -> None:
    from tailrate.serve.deploy.cluster import start
    from tailrate.serve.options import ServeOptions

    with tempfile.TemporaryDirectory() as cache:
        server = start(ServeOptions(("null",), ("eager",), port=port, cache_dir=cache, ingress=ingress), print)
        from ray import serve  # only now: it reads its environment when it is imported

        @serve.deployment(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0.1})
        @serve.ingress()
        class Noop:
            def __serve_build_asgi_app__(self):  # type: ignore[no-untyped-def]
                return noop

        serve.run(Noop.bind(), name="noop", route_prefix="/noop", logging_config={"enable_access_log": False})
        forever(server.stop)


def ours_plain(port: int) -> None:
    ours(port, "plain")


CONTESTANTS = {
    "stock": (stock, PATH),
    "ours, plain": (ours_plain, PATH),
    "litserve": (litserve, PATH),
    "fastapi": (fastapi, PATH),
    "uvicorn": (uvicorn, PATH),
    "no-op": (None, "/noop"),  # in the process of ours
    "ours": (ours, PATH),
}


def forever(stop) -> None:  # type: ignore[no-untyped-def]
    print("ready", flush=True)
    sys.stdin.read()
    stop()


@contextmanager
def contestant(name: str, port: int, environment: dict[str, str]) -> Iterator[None]:
    words = [sys.executable, __file__, "--contestant", name, str(port)]
    log = Path(environment["HOME"]) / f"{port}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    try:
        for path in (PATH, "/noop") if name == "ours" else (PATH,):
            answers(f"http://127.0.0.1:{port}{path}", process, log, name == "litserve")
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if name in ("uvicorn", "fastapi", "litserve"):
            os.killpg(process.pid, 15)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)


def answers(url: str, process: subprocess.Popen[bytes], log: Path, as_json: bool) -> None:
    text = head(4)
    how = {"Content-Type": "application/json"} if as_json else {"Inference-Header-Content-Length": str(len(text))}
    request = Request(url, b'{"x":"aaaa"}' if as_json else text.encode() + b"aaaa", how)
    for _ in range(600):
        try:
            with urlopen(request, timeout=5) as found:
                if found.status == 200:
                    return
        except (URLError, OSError):
            pass
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise SystemExit(f"a contestant did not start:\n{log.read_text()[-2000:]}")


# ---- measuring


def visit(url: str, script: Path, connections: int, seconds: float) -> dict[str, float]:
    words = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script), url]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def of(pattern: str) -> float:
        match = re.search(pattern, text)
        assert match is not None, text
        return float(match[1]) * UNITS.get(match[2] if match.lastindex == 2 else "ms", 1.0)

    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    errors = re.search(r"Socket errors: (.*)", text)
    if bad or (errors and not errors[1].endswith("timeout 0")):
        raise SystemExit(f"{url} did not answer all of it:\n{text}")
    return {"rps": of(r"Requests/sec: +([\d.]+)"), "p50": of(r"50% +([\d.]+)(\w+)"), "p99": of(r"99% +([\d.]+)(\w+)")}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--only", default=",".join(CONTESTANTS).replace("ours, plain", "plain"))
    found.add_argument("--connections", default="1,16,64")
    found.add_argument("--bodies", default="1000,150000,600000")
    found.add_argument("--seconds", type=float, default=3)
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--idle", type=int, default=0, help="so many servers of ours that nobody asks, for more rounds")
    found.add_argument("--contestant", nargs=2, help=argparse.SUPPRESS)
    return found


def main() -> None:
    options = parser().parse_args()
    if options.contestant:
        name, port = options.contestant
        CONTESTANTS[name][0](int(port))
        return
    if shutil.which("wrk") is None:
        left_out("request_path", "there is no wrk (Debian: apt-get install wrk)")
        return
    names = ["ours, plain" if name == "plain" else name for name in options.only.split(",")]
    rows = []
    for together in passes(names):
        for idle, found in compare(together, options):
            rows += [row | {"idle": idle} for row in report(together, found, f"beside {idle} idle" if idle else "")]
    last_line("request_path", rows=rows)


def passes(names: list[str]) -> list[list[str]]:
    """Who is up at once: those of one cluster first, then all but the no-op."""
    cluster = [name for name in names if name in ("no-op", "ours")]
    others = [name for name in names if name != "no-op"]
    return [cluster, others] if "no-op" in names and cluster != names else [names]


Found = dict[tuple[str, int, int], list[dict[str, float]]]


def compare(names: list[str], options: argparse.Namespace) -> Iterator[tuple[int, Found]]:
    """All of them up at once, visited in turn for each body and number of connections; then beside idle servers."""
    from tailrate.serve.deploy.haproxy import free_port

    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        environment = os.environ | {"HOME": scratch, "RAY_USAGE_STATS_ENABLED": "0"}
        ports: dict[str, int] = {}
        for name in names:
            home = "ours" if name == "no-op" else name
            if home not in ports:
                ports[home] = free_port()
                stack.enter_context(contestant(home, ports[home], environment))
                print(f"{home}: up", file=sys.stderr)
            ports[name] = ports[home]
        yield 0, visits(names, ports, options, Path(scratch))
        for _ in range(options.idle):
            stack.enter_context(contestant("ours", free_port(), environment))
        if options.idle:
            yield options.idle, visits(names, ports, options, Path(scratch))


def visits(names: list[str], ports: dict[str, int], options: argparse.Namespace, scratch: Path) -> Found:
    found: Found = {}
    for body in (int(word) for word in options.bodies.split(",")):
        script = scratch / f"{body}.lua"
        script.write_text(SCRIPT % (head(body), body))
        script_json = scratch / f"{body}-json.lua"
        script_json.write_text(SCRIPT_JSON % body)
        for connections in (int(word) for word in options.connections.split(",")):
            for _ in range(options.rounds):
                for name in names:
                    url = f"http://127.0.0.1:{ports[name]}{CONTESTANTS[name][1]}"
                    got = visit(url, script_json if name == "litserve" else script, connections, options.seconds)
                    found.setdefault((name, body, connections), []).append(got)
    return found


def report(names: list[str], found: Found, where: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    if where:
        print(where)
    print(f"{'body':>8} {'conns':>5} {'contestant':<12} {'req/s':>22} {'P50 ms':>21} {'P99 ms':>22} {'ours ÷ it':>19}")
    cells = sorted({(body, connections) for _, body, connections in found})
    for body, connections in cells:
        for name in names:
            runs = found[name, body, connections]
            middle = spreads(runs)
            against = found.get(("ours", body, connections))
            ratio = over((run["rps"] for run in against), (run["rps"] for run in runs)) if against else None
            ours_over = {"ours_over": ratio, "beside": [other for other in names if other != name]}
            rows.append({"body": body, "connections": connections, "contestant": name, **middle, **ours_over})
            print(
                f"{body:>8} {connections:>5} {name:<12} {shown(middle['rps'], '.0f', 22)} "
                f"{shown(middle['p50'], '.2f', 21)} {shown(middle['p99'], '.2f', 22)} "
                f"{shown(ratio, '.2f', 19) if ratio else ''}"
            )
    print(flush=True)
    return rows


if __name__ == "__main__":
    main()
