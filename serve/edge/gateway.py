"""What answers for the server as a whole: health, index, telemetry, metrics, and models without a version.

Requests that name a version go straight to that endpoint's replicas where the topology allows it; those
that come here are handed on. Holds the board that replicas report to and the samplers of all hosts'
devices. Knows nothing of Ray: how a request reaches a replica or another host is given to it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tailrate.serve import wire
from tailrate.serve.asgi import HttpAnswer, Request, Room, as_error, as_json, only, reason
from tailrate.serve.edge import auth, openai
from tailrate.serve.edge.contract import contract
from tailrate.serve.edge.fault_api import FaultApi
from tailrate.serve.edge.replica_board import NOBODY, Name, ReplicaBoard
from tailrate.serve.edge.telemetry_api import METRICS, TelemetryApi
from tailrate.serve.faults import Kill
from tailrate.serve.models._code_digest import installed
from tailrate.serve.options import ServeOptions
from tailrate.serve.telemetry.all_hosts import AllHosts, Others, alone
from tailrate.serve.telemetry.sampler import Sampler, sources
from tailrate.serve.wire import WireError

EXTENSIONS = ["binary_tensor_data", "model_repository", "statistics", "model_configuration", "telemetry"]

FRESH_S = 2.0
"""How long those who ask for statistics wait for replicas that have not reported since: they do each second."""

NAMED = tuple(f"/{tail}" for tail in openai.TAILS)
"""Where the body names the model."""
Forward = Callable[[Name, Request, str], Awaitable[HttpAnswer]]
"""(endpoint, request, what follows the endpoint's path) → its answer."""


class Gateway:
    """Answers every path that no endpoint has for its own."""

    def __init__(
        self,
        options: ServeOptions,
        forward: Forward,
        ingress: Callable[[], dict[str, Any]],
        others: Others = alone,
        device: str = "cpu",
        host: str | None = None,
        kills: Mapping[str, Kill] | None = None,
        exported: Callable[[], bytes] | None = None,
    ) -> None:
        """`host` is this one's name and `device` what samples call it; `kills` are for planned faults.

        `exported` gets what Ray itself exports, from a port of its own that may be out of reach for others.
        """
        self._options = options
        self._forward = forward
        self._ingress = ingress
        self._exported = exported
        self.board = ReplicaBoard(options.endpoints, options.replicas, time.time_ns())
        self.room = Room(options.max_body_bytes)
        self._fleet = AllHosts(Sampler(sources(options.device_trace, device), options.sample_ms, host=host), others)
        self._fleet.local.start()
        self._telemetry = TelemetryApi(self._fleet)
        self._faults = FaultApi(options.allow_faults, self.board, kills or {})
        self._paths: dict[str, tuple[str, Callable[[Request], HttpAnswer | Awaitable[HttpAnswer]]]] = {
            wire.SERVER: ("GET", self._server),
            wire.LIVE: ("GET", self._live),
            wire.READY: ("GET", self._ready),
            wire.SERVING: ("GET", self._serving),
            wire.INDEX: ("POST", self._index),
            wire.DEVICES: ("GET", self._telemetry.devices),
            wire.CLOCK: ("GET", self._telemetry.clock),
            wire.CONTRACT: ("GET", self._contract),
            wire.METRICS: ("GET", self._metrics),
            wire.RAY_METRICS: ("GET", self._ray_metrics),
            wire.FAULTS: ("POST", self._faults.answer),
            wire.STOP: ("POST", self._stop),
            openai.MODELS: ("GET", self._models),
            openai.HEALTH: ("GET", self._ready),
            **dict.fromkeys(NAMED, ("POST", self._named_in_body)),
        }

    def stop(self, within_s: float) -> None:
        """Nothing new is taken from now on; replicas hear of it when they report next, within a second."""
        if self.board.stop_at_s is None:
            self.board.stop_at_s = time.monotonic() + within_s

    def under_way(self) -> int:
        """Requests that are not answered yet, here or at a replica."""
        return self.board.under_way(time.monotonic()) + self.room.requests

    def close(self) -> None:
        self._fleet.local.stop()
        self._faults.close()

    async def answer(self, request: Request) -> HttpAnswer:
        try:
            return await self._answered(request)
        except Exception as problem:  # a replica that it was handed to has counted it, also where its client has gone
            self.refused(request.path, reason(problem), time.perf_counter_ns() - request.received_ns)
            if isinstance(problem, WireError) and request.path.rstrip("/").endswith(NAMED):
                return openai.refusal(as_error(problem))
            raise

    def refused(self, path: str, why: str, ns: int) -> None:
        """Counts a request for inference that no replica has had, for its endpoint where there is such a one."""
        if not path.rstrip("/").endswith(("/infer", *NAMED)):
            return
        try:
            name, _ = self._find(_parts(path) or [])
        except WireError:
            name = NOBODY
        self.board.refused(name, why, ns)

    async def statistics(self, names: Sequence[Name]) -> HttpAnswer:
        """Of all replicas, once each that is heard of has reported."""
        since_s = time.monotonic()
        while not self.board.heard(names, since_s, now_s := time.monotonic()) and now_s < since_s + FRESH_S:
            await asyncio.sleep(FRESH_S / 40)
        return as_json({"model_stats": self.board.statistics(names, now_s), "refused": self.board.nobody()})

    async def _answered(self, request: Request) -> HttpAnswer:
        path = request.path.rstrip("/")
        if (parts := _parts(path)) is not None:
            return await self._model(request, parts)
        if path not in self._paths:
            raise WireError(404, f"unknown path {request.path[:200]}; models are under {wire.SERVER}/models/")
        method, found = self._paths[path]
        only(request, method)
        if path == wire.FAULTS and request.header(b"origin") is not None:  # such a page may reach loopback
            raise WireError(403, "nothing is broken for a page in a browser")
        answer = found(request)
        return answer if isinstance(answer, HttpAnswer) else await answer

    def _live(self, request: Request) -> HttpAnswer:
        return as_json({"live": True})

    def _ready(self, request: Request) -> HttpAnswer:
        if why := self.board.ready(self.board.endpoints, time.monotonic()):
            raise WireError(503, why)
        return as_json({"ready": True})

    def _serving(self, request: Request) -> HttpAnswer:
        if why := self.board.serving(time.monotonic()):
            raise WireError(503, why)
        return as_json({"serving": True})

    def _index(self, request: Request) -> HttpAnswer:
        return as_json(self.board.index(time.monotonic()))

    async def _metrics(self, request: Request) -> HttpAnswer:
        text = self.board.metrics(time.monotonic()) + await self._telemetry.text()
        return HttpAnswer(200, text.encode(), METRICS)

    async def _ray_metrics(self, request: Request) -> HttpAnswer:
        if self._exported is None:
            raise WireError(404, "there is no Ray here")
        return HttpAnswer(200, await asyncio.to_thread(self._exported), METRICS)

    def _contract(self, request: Request) -> HttpAnswer:
        return as_json(contract(self._options))

    def _stop(self, request: Request) -> HttpAnswer:
        """Asked again until nothing is under way; then whoever runs the cluster can end it."""
        if not auth.tokens():
            raise WireError(403, f"whoever shows a token may stop this server, and it has none: set {auth.TOKEN}")
        try:
            within_s = float(request.asked("seconds") or self._options.drain_s)
        except ValueError:
            within_s = math.nan
        if not 0 <= within_s < math.inf:
            raise WireError(400, "seconds must be a number of at least 0")
        self.stop(within_s)
        return as_json({"under_way": self.under_way() - 1})  # without this one

    def _server(self, request: Request) -> HttpAnswer:
        found = {
            "name": "tailrate",
            "version": installed("tailrate") or "0",
            "extensions": EXTENSIONS,
            "host": self._fleet.local.host,
            "endpoints": ["/".join(name) for name in self.board.endpoints],
            "ingress": self._ingress(),
            "versions": {name: found for name in ("torch", "ray") if (found := installed(name))},
        }
        return as_json(found)

    async def _model(self, request: Request, parts: list[str]) -> HttpAnswer:
        """`parts` is what follows /v2/models: model[/versions/variant][/tail], or stats alone."""
        name, tail = (NOBODY, "stats") if parts == ["stats"] else self._find(parts)
        if tail == "stats":
            only(request, "GET")
            return await self.statistics(self.board.endpoints if name == NOBODY else [name])
        return await self._handed_on(name, request, tail)

    async def _handed_on(self, name: Name, request: Request, tail: str) -> HttpAnswer:
        now_s = time.monotonic()
        if not self.board.reports(name, now_s):  # a request handed on would wait for a replica instead
            raise WireError(503, f"{'/'.join(name)} is {self.board.state(name, now_s)[1]}")
        return await self._forward(name, request, tail)

    def _models(self, request: Request) -> HttpAnswer:
        """Those that take texts, by themselves and with each variant, as OpenAI lists them."""
        specs = {name: self._options.spec(name) for name in self._options.models}
        found = [name for name, spec in specs.items() if spec.text or spec.language]
        variants = [f"{name}/{variant}" for name in found for variant in self._options.variants]
        return as_json(openai.listed([*found, *variants]))

    async def _named_in_body(self, request: Request) -> HttpAnswer:
        model, _, variant = openai.model_of(openai.head_of(request.body)).partition("/")
        name, _ = self._find([model, *(["versions", variant] if variant else [])])
        return await self._handed_on(name, request, request.path.strip("/"))

    def _find(self, parts: list[str]) -> tuple[Name, str]:
        """The endpoint that is meant, its model's first variant where none is named, and the tail."""
        model, variant, tail = (parts or [""])[0], self._options.variants[0], parts[1:]
        if tail[:1] == ["versions"] and len(tail) > 1:
            variant, tail = tail[1], tail[2:]
        if model not in self._options.models:
            raise WireError(404, f"unknown model '{model[:64]}'; this server has {', '.join(self._options.models)}")
        if variant not in self._options.variants:
            known = ", ".join(self._options.variants)
            raise WireError(404, f"unknown version '{variant[:64]}' of {model}; this server has {known}")
        return (model, variant), "/".join(tail)


def _parts(path: str) -> list[str] | None:
    """What follows /v2/models; None of another path."""
    parts = path.rstrip("/").split("/")
    return parts[3:] if parts[:3] == ["", "v2", "models"] else None
