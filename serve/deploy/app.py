"""The Ray Serve application: which process holds what, and how requests reach it.

There is one Serve application per endpoint, so that one hop leads from Ray's ingress to the replica, and a gateway
for everything else; `configuration` lists them for a cluster of anyone's, `deploy.cluster` starts them in one of ours.
`build` can also make a single application of all, where the gateway is the ingress and requests take two hops:

    serve run tailrate.serve.deploy.app:build model=bert variants=eager,compiled
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.serve import wire
from tailrate.serve.asgi import App, HttpAnswer, Request, Room, as_app, only, settled
from tailrate.serve.deploy import haproxy, logs, nodes
from tailrate.serve.deploy.check_options import check
from tailrate.serve.edge import auth, openai
from tailrate.serve.edge.endpoint import Endpoint
from tailrate.serve.edge.gateway import Gateway
from tailrate.serve.edge.language_endpoint import LanguageEndpoint
from tailrate.serve.edge.openai import text_api
from tailrate.serve.edge.replica_board import Name
from tailrate.serve.options import ServeOptions, as_args, from_args
from tailrate.serve.spec import ServeError, unknown
from tailrate.serve.wire import WireError

if TYPE_CHECKING:
    from ray.serve import Application

log = logging.getLogger(__name__)

GATEWAY = "gateway"
QUIET = {"enable_access_log": False, "log_level": "WARNING"}
REPORT_S = 1.0
LOADING_REPORT_S = 0.25
STOPPING_REPORT_S = 0.05
LAST_REPORT_S = 1.0
"""How long a replica that ends waits for the gateway to take what it counted."""
SETTLED_S = 10.0
"""After which a gateway has all that it keeps."""
STUCK_S = 120.0
"""A batch that runs longer than this will not come back."""
UNDER_WAY_OBJECTS = 10_000
"""So many more than before, and garbage is looked for: Python's 700 are there whenever sixty requests are under way."""
CPU_SHARE = 0.1
"""Of a logical core, so that Ray places any number of endpoints on a small machine: threads are ours to set."""
FOR_TORCH = {"OMP_WAIT_POLICY": "PASSIVE", "THP_MEM_ALLOC_ENABLE": "1"}
"""Unless the environment says otherwise. Threads that spin between batches take cores that the ingress needs. In small
pages one process computes up to 1.8 times as fast as the next, by where its memory happens to lie; in huge ones it
hardly matters."""
FALLBACK = "TAILRATE_INGRESS_FALLBACK"
"""In the environment of a cluster of ours: why it does without the fast way."""


class EndpointReplica:
    """One replica of an endpoint as a Serve deployment: a bare ASGI application, or called by handle."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, options: ServeOptions, model: str, variant: str, gateway_app: str | None
    ) -> None:
        from ray import serve

        context = serve.get_replica_context()
        logs.begin(f"{model}/{variant}", context.replica_id.unique_id)
        _stay_on_loopback()
        forget_lost_connections()
        # read but once, when torch is loaded
        os.environ.update(FOR_TORCH | os.environ)
        os.environ["OMP_NUM_THREADS"] = str(options.replica_threads)  # Ray says 1 here
        self._name = (model, variant)
        self._options = options
        self._room = Room(options.max_body_bytes)
        kind = LanguageEndpoint if options.spec(model).language else Endpoint
        self._endpoint = kind(options, model, variant, context.replica_id.unique_id, nodes.here().cpu)
        self._gateway = serve.get_deployment_handle(GATEWAY, gateway_app or context.app_name)
        self._reporting = asyncio.create_task(self._report_always())
        if await self._replaces_another():
            # others carry the traffic: Ray sends nothing here before this returns
            while self._endpoint.engine.state == "LOADING":
                await asyncio.sleep(LOADING_REPORT_S)

    def __serve_build_asgi_app__(self) -> App:
        prefix = wire.model_path(*self._name)

        def answer(request: Request) -> Awaitable[HttpAnswer]:
            return self._answer(request, request.path.removeprefix(prefix).strip("/"))

        def refused(path: str, reason: str, ns: int) -> None:
            self._endpoint.refused(path.removeprefix(prefix).strip("/"), reason, ns)

        return auth.guarded(as_app(answer, self._options.max_body_bytes, refused, self._room), auth.tokens())

    async def handed_on(self, request: Request, tail: str) -> HttpAnswer:
        """A request that came through the gateway, whose clocks may be another machine's."""
        here = dataclasses.replace(request, received_ns=time.perf_counter_ns(), received_wall_ns=time.time_ns())
        return await settled(self._answer(here, tail), request.path)

    async def handed_on_in_pieces(self, request: Request, tail: str) -> AsyncGenerator[Any]:
        """The same of an answer that may come in pieces: what it begins with, and then each."""
        found = await self.handed_on(request, tail)
        yield dataclasses.replace(found, pieces=None)
        if found.pieces is not None:
            async with aclosing(found.pieces) as pieces:
                async for piece in pieces:
                    yield piece

    def _answer(self, request: Request, tail: str) -> Awaitable[HttpAnswer]:
        return self._statistics(request) if tail == "stats" else self._endpoint.answer(request, tail)

    async def _statistics(self, request: Request) -> HttpAnswer:
        """Those of replicas before this one, and of others, count too."""
        only(request, "GET")
        counted: HttpAnswer = await self._gateway.statistics.remote(await self._report())
        return counted

    def check_health(self) -> None:
        """Ray replaces the replica when this raises; one that could not load stays, to say why."""
        if why := self._endpoint.engine.trouble(STUCK_S):
            raise RuntimeError(why)

    async def _replaces_another(self) -> bool:
        try:
            return bool(await asyncio.wait_for(self._gateway.was_ready.remote(self._name), 10))
        except Exception as problem:
            log.info("the gateway is not there yet: %s", problem)
            return False

    async def _report_always(self) -> None:
        frozen = False
        while True:
            pause_s = REPORT_S
            try:
                left_s = await asyncio.wait_for(self._gateway.report.remote(await self._report()), 10)
                if left_s is not None:
                    self._endpoint.stop(left_s)
                    pause_s = STOPPING_REPORT_S
            except Exception as problem:
                log.info("the gateway does not take reports: %s", problem)
            loading = self._endpoint.engine.state == "LOADING"
            if not loading and not frozen:  # else full collections over torch's and Ray's heap fall into batches
                _freeze()
                frozen = True
            await asyncio.sleep(LOADING_REPORT_S if loading else pause_s)

    async def __del__(self) -> None:
        """Ray awaits it when all is answered that this replica had, some of it since its last report."""
        self._reporting.cancel()
        with suppress(Exception):  # the gateway may have gone before
            last = await self._report() | {"ended": True}
            await asyncio.wait_for(self._gateway.report.remote(last), LAST_REPORT_S)

    async def _report(self) -> dict[str, Any]:
        return await self._endpoint.fresh_report() | {"under_way": self._room.requests}


class GatewayReplica:
    """The gateway as a Serve deployment; `children` are the endpoints when they are bound into its application."""

    async def __init__(self, options: ServeOptions, *children: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        logs.begin(GATEWAY, "-")
        _stay_on_loopback()
        forget_lost_connections()
        self._options = options
        self._handles: dict[Name, Any] = dict(zip(options.endpoints, children, strict=False))
        here = nodes.here()
        self._gateway = Gateway(
            options, self._forward, self._ingress, nodes.Samplers(options, here), here.cpu, here.host, nodes.KILLS,
            nodes.exported,
        )  # fmt: skip
        asyncio.get_running_loop().call_later(SETTLED_S, _freeze)
        if options.grpc_port:
            from tailrate.serve.edge.over_grpc import GrpcServer  # the package comes with Ray

            self._over_grpc = GrpcServer(self._gateway, options.max_body_bytes, auth.tokens())  # it ends when collected
            files = (Path(path).read_bytes() if path else b"" for path in (options.tls_cert, options.tls_key))
            await self._over_grpc.start(options.host, options.grpc_port, *files)

    def __serve_build_asgi_app__(self) -> App:
        app = as_app(self._gateway.answer, self._options.max_body_bytes, self._gateway.refused, self._gateway.room)
        return auth.guarded(app, auth.tokens())

    async def stop(self, within_s: float) -> None:
        self._gateway.stop(within_s)

    async def under_way(self) -> int:
        return self._gateway.under_way()

    async def answer(self, request: Request) -> HttpAnswer:
        return await settled(self._gateway.answer(request), request.path)

    async def statistics(self, report: Mapping[str, Any]) -> HttpAnswer:
        """Of the endpoint whose replica is asked for them, and says what it has itself."""
        asking = asyncio.create_task(self._gateway.statistics([(report["model"], report["variant"])]))
        await asyncio.sleep(0)  # it wants what is reported from now on
        await self.report(report)
        return await asking

    async def report(self, report: Mapping[str, Any]) -> float | None:
        """Within which the replica is to stop, if it is to."""
        board, now_s = self._gateway.board, time.monotonic()
        board.put(report, now_s)
        return None if board.stop_at_s is None else board.stop_at_s - now_s

    async def was_ready(self, name: Name) -> bool:
        return self._gateway.board.was_ready(name)

    def _ingress(self) -> dict[str, Any]:
        """Which way requests take, why not the fast one although it was wanted, and how many missed it."""
        import ray

        if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
            node: str = ray.get_runtime_context().get_node_id()
            return {"way": "fast", "fallback": None, "slow_requests": haproxy.slow_requests(node)}
        why = os.environ.get(FALLBACK, "the cluster was started without the environment of the fast way")
        return {"way": "plain", "fallback": None if self._options.ingress == "plain" else why, "slow_requests": None}

    async def _forward(self, name: Name, request: Request, tail: str) -> HttpAnswer:
        from ray import serve
        from ray.exceptions import RayActorError

        if name not in self._handles:
            self._handles[name] = serve.get_deployment_handle(deployment_name(name), deployment_name(name))
        sent = dataclasses.replace(request, gone=None)  # only here can that be told
        try:
            if tail in openai.TAILS:
                return await _in_pieces(self._handles[name].options(stream=True).handed_on_in_pieces.remote(sent, tail))
            found: HttpAnswer = await self._handles[name].handed_on.remote(sent, tail)
        except RayActorError:
            raise WireError(503, "the replica that had this request is gone; try again", "lost") from None
        return found


async def _in_pieces(coming: Any) -> HttpAnswer:
    """What a replica answers, through Ray's stream of objects."""
    first: HttpAnswer = await anext(coming)

    async def pieces() -> AsyncGenerator[bytes]:
        try:
            async for piece in coming:
                yield piece
        except Exception as problem:  # its replica has gone in the middle
            log.info("a stream broke off: %s", problem)
            yield text_api.error_event(WireError(503, "the replica that wrote this answer is gone", "lost"))
        finally:
            coming.cancel()

    streams = first.headers.get("content-type", "").startswith("text/event-stream")
    return dataclasses.replace(first, pieces=pieces()) if streams else first


def _freeze() -> None:
    """What is there now is no part of later collections."""
    gc.collect()
    gc.freeze()
    gc.collect()  # of nothing: the next full one is due when there is a quarter more than the last one found
    gc.set_threshold(UNDER_WAY_OBJECTS, *gc.get_threshold()[1:])


def forget_lost_connections() -> None:
    """For uvicorn in this process, which keeps those that were reset, buffers and all, for as long as they might have
    been idle: 90 s with Ray, and HAProxy resets all that it closes."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol

    whole = Protocol.connection_lost
    if whole.__module__ == __name__:
        return

    def connection_lost(self: Protocol, problem: Exception | None) -> None:
        whole(self, problem)
        self._unset_keepalive_if_required()

    Protocol.connection_lost = connection_lost  # type: ignore[method-assign, assignment]


def _stay_on_loopback() -> None:
    """Where all of Ray is on loopback, so shall be the port for calls between replicas, which Ray opens everywhere.

    Whoever reaches that port can make the replica unpickle what they please.
    """
    import ray
    from ray.serve._private import replica

    if ray.util.get_node_ip_address() != haproxy.LOOPBACK:  # type: ignore[no-untyped-call]
        return
    listen = getattr(replica, "add_port_to_grpc_server", None)
    if listen is None:
        raise ServeError(
            f"Ray {ray.__version__} opens its port for calls between replicas in another way than those that are known "
            "here, maybe on every interface: install a Ray that pyproject.toml allows"
        )
    vars(replica)["add_port_to_grpc_server"] = lambda server, address: listen(
        server, address.replace("[::]", haproxy.LOOPBACK)
    )


def deployment_name(name: Name) -> str:
    return "-".join(name)  # Ray allows no slash


def _gateway(options: ServeOptions, *children: Any) -> Application:
    from ray import serve

    deployment: Any = serve.deployment(
        serve.ingress()(GatewayReplica),
        name=GATEWAY,
        num_replicas=1,
        max_ongoing_requests=10_000,
        max_constructor_retry_count=1,
        ray_actor_options={"num_cpus": CPU_SHARE},
        graceful_shutdown_timeout_s=2,
    )
    bound: Application = deployment.bind(options, *children)
    return bound


def _endpoint(options: ServeOptions, name: Name, gateway_app: str | None) -> Application:
    from ray import serve

    deployment: Any = serve.deployment(
        serve.ingress()(EndpointReplica) if gateway_app else EndpointReplica,  # Ray allows one ingress per application
        name=deployment_name(name),
        num_replicas=None if options.max_replicas else options.replicas,
        autoscaling_config=_autoscaling(options, name),
        # more than the queue holds, so that it is the engine that refuses, at once and with a sentence; and more than
        # HAProxy has connections, as a request has its slot before its body has come, however slowly
        max_ongoing_requests=options.max_queue + 5000,
        max_constructor_retry_count=1,
        ray_actor_options={"num_cpus": CPU_SHARE, "num_gpus": _gpu_share(options)},
        health_check_timeout_s=120,  # compiling holds the interpreter for long stretches
        graceful_shutdown_timeout_s=max(2.0, options.drain_s),
    )
    bound: Application = deployment.bind(options, *name, gateway_app)
    return bound


def _autoscaling(options: ServeOptions, name: Name) -> dict[str, Any] | None:
    """A replica more as soon as each has another batch waiting behind the one it runs."""
    if options.max_replicas is None:
        return None
    batch = options.largest_batch or options.spec(name[0]).max_batch[options.device == "cuda"]
    return {
        "min_replicas": options.replicas,
        "max_replicas": options.max_replicas,
        "target_ongoing_requests": 2 * batch,
        "upscale_delay_s": 5,
    }


def _gpu_share(options: ServeOptions) -> float:
    """Of a GPU for each replica: all that the cluster has divided evenly, at most one."""
    import ray

    if options.device == "cpu" or all(options.spec(model).build is None for model in options.models):
        return 0.0
    if options.num_gpus is not None:
        return options.num_gpus
    resources: Mapping[str, float] = ray.cluster_resources() if ray.is_initialized() else {}  # type: ignore[no-untyped-call]
    most = options.max_replicas or options.replicas
    return min(1.0, resources.get("GPU", 0.0) / (len(options.endpoints) * most))


def applications(options: ServeOptions) -> list[tuple[str, str, str]]:
    """(name, route, part) of each Serve application that together answer, one hop to each endpoint."""
    ours = [(deployment_name(name), wire.model_path(*name), "/".join(name)) for name in options.endpoints]
    return [(GATEWAY, "/", GATEWAY), *ours]


def application(options: ServeOptions, part: str) -> Application:
    """The gateway, or one endpoint by its name, to run beside the others that `applications` lists."""
    if part == GATEWAY:
        return _gateway(options)
    found = {"/".join(name): name for name in options.endpoints}
    if part not in found:
        raise unknown("part", part, [GATEWAY, *found])
    return _endpoint(options, found[part], GATEWAY)


def build(args: Mapping[str, str]) -> Application:
    """For `serve run tailrate.serve.deploy.app:build model=bert variants=eager,compiled …` and KubeRay's `import_path`.

    Keys are the options' names (`model` or `models`; several separated by commas); any other is a model's setting.
    With `part`, only one of the applications, as `configuration` lists them; else all, and requests take two hops.
    """
    given = dict(args)
    part = given.pop("part", None)
    options = from_args(given)
    check(dataclasses.replace(options, host=auth.ANYWHERE, port=0))
    if part is not None:
        return application(options, part)
    return _gateway(options, *(_endpoint(options, name, None) for name in options.endpoints))


def configuration(options: ServeOptions) -> str:
    """The YAML that `serve run`, `serve deploy` and KubeRay's `serveConfigV2` take."""
    import yaml

    if options.tls_cert:
        raise ServeError("clusters of others do TLS in front of Ray: leave --tls-cert and --tls-key out of --config")
    args = as_args(options)
    found = {
        "http_options": {"host": options.host, "port": options.port},
        "logging_config": QUIET,
        "applications": [
            {
                "name": name,
                "route_prefix": route,
                "import_path": "tailrate.serve.deploy.app:build",
                "args": {**args, "part": part},
            }
            for name, route, part in applications(options)
        ],
    }
    text: str = yaml.safe_dump(found, sort_keys=False)
    return text
