"""The agent of one host: its sampler, what it answers, and its life from the first sample to a signal.

`/telemetry/devices` and `/telemetry/clock` are those of a server of models, `/metrics` has the same for Prometheus, and
`/telemetry/holders?port=8080` says which GPUs the server on that port holds. Imports neither torch nor Ray.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from tailrate.serve import wire
from tailrate.serve.asgi import HttpAnswer, Request, as_app, as_json, only
from tailrate.serve.edge import auth, listener
from tailrate.serve.edge.telemetry_api import METRICS, TelemetryApi
from tailrate.serve.spec import ServeError
from tailrate.serve.telemetry.agent import holders
from tailrate.serve.telemetry.agent.http_server import MOST_BODY_BYTES, HttpServer
from tailrate.serve.telemetry.all_hosts import AllHosts
from tailrate.serve.telemetry.nvml import NvmlSource
from tailrate.serve.telemetry.sampler import MIN_PERIOD_MS, Sampler, sources

NAME = "tailrate-agent"
NO_MODELS = "this is an agent, which has device samples and no models: its place is --devices"


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """As `tailrate serve` calls them."""

    host: str = "127.0.0.1"
    port: int = 9410
    tls_cert: str = ""
    tls_key: str = ""
    sample_ms: int = 100
    device_trace: str = ""


def check(options: AgentOptions) -> str | None:
    """What to say of what was asked for; raises `ServeError` with one sentence for what cannot work."""
    if options.sample_ms < MIN_PERIOD_MS:
        raise ServeError(f"sample_ms must be at least {MIN_PERIOD_MS}")
    listener.check_tls(options.tls_cert, options.tls_key)
    said = listener.exposure(options.host, options.port, tls=bool(options.tls_cert), what="samples")
    listener.check_port(options.host, options.port)
    return said


class Agent:
    """What is answered, and the sampler behind it."""

    def __init__(self, options: AgentOptions) -> None:
        found = sources(options.device_trace, own=False)
        self._gpus = [source for source in found if isinstance(source, NvmlSource)]
        self.sampler = Sampler(found, options.sample_ms)
        self._telemetry = TelemetryApi(AllHosts(self.sampler))

    async def answer(self, request: Request) -> HttpAnswer:
        path = request.path.rstrip("/")
        if path == wire.SERVER or path in (wire.LIVE, wire.READY):
            only(request, "GET")
            return as_json(self._self() if path == wire.SERVER else {path.rpartition("/")[2]: True})
        if path.startswith(wire.SERVER):
            raise wire.WireError(404, NO_MODELS)
        if path not in (wire.DEVICES, wire.CLOCK, wire.HOLDERS, wire.METRICS):
            there = ", ".join((wire.DEVICES, wire.CLOCK, wire.HOLDERS, wire.METRICS))
            raise wire.WireError(404, f"unknown path {request.path[:200]}; there are {there}")
        only(request, "GET")
        if path == wire.DEVICES:
            return await self._telemetry.devices(request)
        if path == wire.CLOCK:
            return await self._telemetry.clock(request)
        if path == wire.HOLDERS:
            return as_json(await asyncio.to_thread(self._holders, request.asked("port")))
        return HttpAnswer(200, (await self._telemetry.text()).encode(), METRICS)

    def _self(self) -> dict[str, object]:
        try:
            number = version("tailrate")
        except PackageNotFoundError:
            number = "0"
        return {"name": NAME, "version": number, "extensions": ["telemetry"], "host": self.sampler.host}

    def _holders(self, port: str) -> dict[str, object]:
        if not (port.isascii() and port.isdigit() and 0 < len(port) <= 5):
            raise wire.WireError(400, f"port must be a number, such as 8080, not '{port[:64]}'")
        held = {device: pids for source in self._gpus for device, pids in source.holders().items()}
        return {"host": self.sampler.host, "devices": holders.devices_of(int(port), held)}


async def run(options: AgentOptions, say: Callable[[str], None]) -> None:
    """Until SIGTERM or SIGINT; says where once it answers."""
    agent = Agent(options)
    server = HttpServer(auth.guarded(as_app(agent.answer, MOST_BODY_BYTES), auth.tokens()))
    tls = listener.check_tls(options.tls_cert, options.tls_key)
    agent.sampler.start()
    try:
        try:
            port = await server.start(options.host, options.port, tls)
        except OSError as problem:
            raise ServeError(f"cannot listen on {options.host}:{options.port} ({problem})") from None
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        name = f"[{options.host}]" if ":" in options.host else options.host
        say(f"ready: samples of {agent.sampler.host} at http{'s' if tls else ''}://{name}:{port} (Ctrl-C stops)")
        await stopped.wait()
    finally:
        await server.stop()
        await asyncio.to_thread(agent.sampler.stop)
