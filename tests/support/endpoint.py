"""A stand-in v2 endpoint of a hundred lines, so that the load side is tested without Ray or torch.

Runs as a program of its own; prints its port as the first line. Every answer takes `--delay-ms`, with
`--slots` of them at once (0: no limit), so its capacity is known. Faults: `--fail-every`, `--hang-every`. With
`--token` it answers nobody else, and repeats what it was sent in each error; with `--cert` and `--key` it speaks TLS.
Its `/metrics` counts as Triton's does, what it answered and what waits for a slot, by variant.
`--keep FILE` gets a line for each request that was inferred: its id, and its body in hexadecimal.
`--plain 1`: none of our headers, as servers of others answer; `--brand headroom`: they are those of a server of before
the project had its own name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import ssl
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import starts

VARIANTS = ("eager", "compiled")


class Endpoint:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.infers = 0
        self.slots = asyncio.Semaphore(options.slots) if options.slots else None
        self.started = time.time_ns()
        self.counts: Counter[tuple[str, str]] = Counter()
        """By metric and variant."""

    def clock_ns(self) -> int:
        return time.time_ns() + int(self.options.clock_ahead_s * 1e9)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                headers = {}
                while (field := await reader.readline()).strip():
                    name, _, value = field.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                status, answer, more = await self.answer(method, path.partition("?")[0], headers, body)
                raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                fields = {"content-type": "application/json", "content-length": str(len(raw))} | more
                head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
                writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + raw)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, object, dict]:
        if self.options.token and headers.get("authorization") != f"Bearer {self.options.token}":
            return 401, {"error": "not in with " + headers.get("authorization", "nothing")}, {}
        if path == "/v2":
            server = {"name": "stand-in", "version": "1", "host": "stand-in-host"}
            if self.options.fallback:
                server["ingress"] = {"way": "plain", "fallback": self.options.fallback, "slow_requests": None}
            return 200, server, {}
        if path == "/v2/repository/index" and method == "POST":
            return 200, [{"name": self.options.model, "version": name, "state": "READY"} for name in VARIANTS], {}
        if path == "/telemetry/clock" and self.options.telemetry:
            now = self.clock_ns()
            return 200, {"recv_ns": now, "send_ns": self.clock_ns(), "host": "stand-in-host"}, {}
        if path == "/telemetry/devices" and self.options.telemetry:
            columns = ["time_ns", "host", "device", "index", "util_pct"]
            rows = [[self.clock_ns(), "stand-in-host", "cpu", 0, 12.5]]
            found = {"cursor": "1:1", "overwritten": 0, "host": "stand-in-host", "columns": columns, "rows": rows}
            return 200, found, {}
        if path == "/metrics":
            return 200, self.metrics(), {"content-type": "text/plain; version=0.0.4"}
        prefix = f"/v2/models/{self.options.model}/versions/"
        variant, _, rest = path.removeprefix(prefix).partition("/")
        if not path.startswith(prefix) or variant not in VARIANTS:
            return 404, {"error": f"nothing at {path}"}, {}
        if rest == "ready":
            return 200, {}, {}
        if rest == "":
            inputs = [{"name": "x", "datatype": "UINT8", "shape": [-1, -1]}]
            said = {"recompiles": self.recompiles} if self.options.recompile_every else {}
            return (
                200,
                {"name": self.options.model, "versions": VARIANTS, "inputs": inputs, "outputs": [], "parameters": said},
                {},
            )
        if rest == "stats" and self.options.recompile_every:
            return 200, {"model_stats": [{"events": {"recompiles": self.recompiles}}]}, {}
        if rest != "infer":
            return 404, {"error": f"nothing at {path}"}, {}
        return await self.infer(variant, headers, body)

    def metrics(self) -> bytes:
        kinds = {"request_success": "counter", "request_failure": "counter", "pending_request_count": "gauge"}
        lines = []
        for name, kind in kinds.items():
            lines.append(f"# TYPE nv_inference_{name} {kind}")
            for variant in VARIANTS:
                labels = f'{{model="{self.options.model}",version="{variant}"}}'
                lines.append(f"nv_inference_{name}{labels} {self.counts[name, variant]}")
        return "\n".join([*lines, ""]).encode()

    @property
    def recompiles(self) -> int:
        return self.infers // self.options.recompile_every

    async def infer(self, variant: str, headers: dict[str, str], body: bytes) -> tuple[int, object, dict]:
        received = self.clock_ns()
        self.infers += 1
        mine = self.infers
        if self.options.keep:
            with Path(self.options.keep).open("a") as kept:
                kept.write(f"{headers.get('x-request-id')} {body.hex()}\n")
        if self.options.hang_every and mine % self.options.hang_every == 0:
            await asyncio.sleep(3600)
        if self.options.fail_every and mine % self.options.fail_every == 0:
            self.counts["request_failure", variant] += 1
            return 500, {"error": " ".join(["told to fail", *filter(None, [headers.get("authorization")])])}, {}
        queued = time.monotonic()
        self.counts["pending_request_count", variant] += 1
        if self.slots:
            await self.slots.acquire()
        self.counts["pending_request_count", variant] -= 1
        began = time.monotonic()
        await asyncio.sleep(self.options.delay_ms / 1e3)
        if self.slots:
            self.slots.release()
        self.counts["request_success", variant] += 1
        queue_ms, compute_ms = (began - queued) * 1e3, (time.monotonic() - began) * 1e3
        stages = f"queue;dur={queue_ms}, batch;dur=0, h2d;dur=0, compute;dur={compute_ms}, d2h;dur=0"
        more = {
            "server-timing": f"{stages}, total;dur={queue_ms + compute_ms}",
            f"x-{self.options.brand}-clock": f"{received},{self.clock_ns()}",
            f"x-{self.options.brand}-batch": "1",
            f"x-{self.options.brand}-replica": "only",
            f"x-{self.options.brand}-device": "cpu",
            "x-request-id": headers.get("x-request-id", ""),
        }
        if self.options.plain:
            more = {}
        return 200, {"outputs": [{"name": "y", "datatype": "UINT8", "shape": [1], "data": [1]}]}, more


def endpoint(**options: object) -> AbstractContextManager[str]:
    """`with endpoint(delay_ms=5) as url:` — a stand-in in a process of its own."""
    return starts.stand_in(Path(__file__), options, "https" if options.get("cert") else "http")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="null")
    parser.add_argument("--delay-ms", type=float, default=5)
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--fail-every", type=int, default=0)
    parser.add_argument("--hang-every", type=int, default=0)
    parser.add_argument("--clock-ahead-s", type=float, default=0)
    parser.add_argument("--recompile-every", type=int, default=0)
    parser.add_argument("--fallback", default="")
    parser.add_argument("--telemetry", type=int, default=1)
    parser.add_argument("--brand", default="tailrate")
    parser.add_argument("--plain", type=int, default=0)
    for name in ("--token", "--cert", "--key", "--keep"):
        parser.add_argument(name, default="")
    endpoint = Endpoint(parser.parse_args())
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if endpoint.options.cert else None
    if tls is not None:
        tls.load_cert_chain(endpoint.options.cert, endpoint.options.key)
    where = {"port": endpoint.options.port, "family": socket.AF_INET, "ssl": tls}
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", **where)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
