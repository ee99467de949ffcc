"""The Ray Serve application: which process holds what, and how requests reach it. The only file that imports Ray.

`start` makes a cluster of its own on this machine with one Serve application per endpoint, so that one hop
leads from Ray's ingress to the replica, and a gateway for everything else. `build` makes one application
of the same parts for `serve run serve.app:build model=bert variants=eager,compiled`, where the gateway is
the ingress and requests take two hops.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve import ingress, wire
from serve.asgi import Answer, App, Request, as_app, settled
from serve.board import Name
from serve.compiler import send_logs_to
from serve.endpoint import Endpoint
from serve.gateway import Gateway
from serve.options import ServeOptions, as_args, check, from_args
from serve.spec import ServeError, unknown

if TYPE_CHECKING:
    from ray.serve import Application

log = logging.getLogger(__name__)

GATEWAY = "gateway"
NAMESPACE = "headroom"
REPORT_S = 1.0
LOADING_REPORT_S = 0.25
POLL_S = 0.25
STILL_S = 5.0
"""How often it is said that something is still going on."""
UP_S = 60.0
STUCK_S = 120.0
"""A batch that runs longer than this will not come back."""
OBJECT_STORE_BYTES = 128 << 20
CPU_SHARE = 0.1
"""Of a logical core, so that Ray places any number of endpoints on a small machine: threads are ours to set."""
EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Where a server that listens everywhere is reached from here."""
FALLBACK = "HEADROOM_INGRESS_FALLBACK"
"""In the environment of a cluster of ours: why it does without the fast way."""

DIED = "its process died while loading (out of memory?)"


# ---- inside the cluster


class EndpointReplica:
    """One replica of an endpoint as a Serve deployment: a bare ASGI application, or called by handle."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, options: ServeOptions, model: str, variant: str, gateway_app: str | None
    ) -> None:
        from ray import serve

        _stay_on_loopback()
        # Ray says 1 here. Passive: threads that spin between batches take cores that the ingress needs.
        # Both are read but once, when torch is loaded.
        os.environ["OMP_NUM_THREADS"] = str(options.replica_threads)
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        context = serve.get_replica_context()
        self._name = (model, variant)
        self._options = options
        self._endpoint = Endpoint(options, model, variant, context.replica_id.unique_id)
        self._gateway = serve.get_deployment_handle(GATEWAY, gateway_app or context.app_name)
        self._reporting = asyncio.create_task(self._report_always())
        if await self._replaces_another():
            # others carry the traffic: Ray sends nothing here before this returns
            while self._endpoint.engine.state == "LOADING":
                await asyncio.sleep(LOADING_REPORT_S)

    def __serve_build_asgi_app__(self) -> App:
        prefix = wire.model_path(*self._name)

        async def answer(request: Request) -> Answer:
            return await self._answer(request, request.path.removeprefix(prefix).strip("/"))

        return as_app(answer, self._options.max_body_bytes)

    async def handed_on(self, request: Request, tail: str) -> Answer:
        """A request that came through the gateway, whose clocks may be another machine's."""
        here = dataclasses.replace(request, received_ns=time.perf_counter_ns(), received_wall_ns=time.time_ns())
        return await settled(self._answer(here, tail), request.path)

    async def _answer(self, request: Request, tail: str) -> Answer:
        if tail == "stats" and self._options.most_replicas > 1:
            await self._gateway.report.remote(self._endpoint.report())
            counted: Answer = await self._gateway.answer.remote(request)
            return counted
        return await self._endpoint.answer(request, tail)

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
            try:
                await asyncio.wait_for(self._gateway.report.remote(self._endpoint.report()), 10)
            except Exception as problem:
                log.info("the gateway does not take reports: %s", problem)
            loading = self._endpoint.engine.state == "LOADING"
            if not loading and not frozen:  # else full collections over torch's and Ray's heap fall into batches
                gc.collect()
                gc.freeze()
                frozen = True
            await asyncio.sleep(LOADING_REPORT_S if loading else REPORT_S)


class GatewayReplica:
    """The gateway as a Serve deployment; `children` are the endpoints when they are bound into its application."""

    async def __init__(self, options: ServeOptions, *children: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        _stay_on_loopback()
        self._options = options
        self._handles: dict[Name, Any] = dict(zip(options.endpoints, children, strict=False))
        self._gateway = Gateway(options, self._forward, self._ingress)

    def __serve_build_asgi_app__(self) -> App:
        return as_app(self._gateway.answer, self._options.max_body_bytes)

    async def answer(self, request: Request) -> Answer:
        return await settled(self._gateway.answer(request), request.path)

    async def report(self, report: Mapping[str, Any]) -> None:
        self._gateway.board.put(report, time.monotonic())

    async def was_ready(self, name: Name) -> bool:
        return self._gateway.board.was_ready(name)

    def _ingress(self) -> dict[str, Any]:
        """Which way requests take, why not the fast one although it was wanted, and how many missed it."""
        import ray

        if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
            node: str = ray.get_runtime_context().get_node_id()
            return {"way": "fast", "fallback": None, "slow_requests": ingress.slow_requests(node)}
        why = os.environ.get(FALLBACK, "the cluster was started without the environment of the fast way")
        return {"way": "plain", "fallback": None if self._options.ingress == "plain" else why, "slow_requests": None}

    async def _forward(self, name: Name, request: Request, tail: str) -> Answer:
        from ray import serve

        if name not in self._handles:
            self._handles[name] = serve.get_deployment_handle(deployment_name(name), deployment_name(name))
        sent = dataclasses.replace(request, gone=None)  # only here can that be told
        found: Answer = await self._handles[name].handed_on.remote(sent, tail)
        return found


def _stay_on_loopback() -> None:
    """Where all of Ray is on loopback, so shall be the port for calls between replicas, which Ray opens everywhere.

    Whoever reaches that port can make the replica unpickle what they please.
    """
    import ray
    from ray.serve._private import replica

    if ray.util.get_node_ip_address() != ingress.LOOPBACK:  # type: ignore[no-untyped-call]
        return
    listen = getattr(replica, "add_port_to_grpc_server", None)
    if listen is None:
        log.warning("this Ray opens its port for calls between replicas in another way, maybe on every interface")
        return
    vars(replica)["add_port_to_grpc_server"] = lambda server, address: listen(
        server, address.replace("[::]", ingress.LOOPBACK)
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


def _endpoint(options: ServeOptions, name: Name, num_gpus: float, gateway_app: str | None) -> Application:
    from ray import serve

    deployment: Any = serve.deployment(
        serve.ingress()(EndpointReplica) if gateway_app else EndpointReplica,  # Ray allows one ingress per application
        name=deployment_name(name),
        num_replicas=None if options.max_replicas else options.replicas,
        autoscaling_config=_autoscaling(options, name),
        # more than the queue holds, so that it is the engine that refuses, at once and with a sentence
        max_ongoing_requests=options.max_queue + 1024,
        max_constructor_retry_count=1,
        ray_actor_options={"num_cpus": CPU_SHARE, "num_gpus": num_gpus},
        health_check_timeout_s=120,  # compiling holds the interpreter for long stretches
        graceful_shutdown_timeout_s=30,
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
    return min(1.0, resources.get("GPU", 0.0) / (len(options.endpoints) * options.replicas))


def build(args: Mapping[str, str]) -> Application:
    """For `serve run serve.app:build model=bert variants=eager,compiled …` and KubeRay's `import_path`.

    Keys are the options' names (`model` or `models`; several separated by commas); any other is a model's setting.
    With `part`, only the gateway or one endpoint, as `configuration` lists them; else all, and requests take two hops.
    """
    given = dict(args)
    part = given.pop("part", None)
    options = from_args(given)
    check(dataclasses.replace(options, port=0))
    share = _gpu_share(options)
    if part == GATEWAY:
        return _gateway(options)
    if part is not None:
        found = {"/".join(name): name for name in options.endpoints}
        if part not in found:
            raise unknown("part", part, [GATEWAY, *found])
        return _endpoint(options, found[part], share, GATEWAY)
    return _gateway(options, *(_endpoint(options, name, share, None) for name in options.endpoints))


def configuration(options: ServeOptions) -> str:
    """The YAML that `serve run`, `serve deploy` and KubeRay's `serveConfigV2` take, one hop to each endpoint."""
    import yaml

    args = as_args(options)
    parts = [(GATEWAY, "/", GATEWAY)]
    parts += [(deployment_name(name), wire.model_path(*name), "/".join(name)) for name in options.endpoints]
    quiet = {"enable_access_log": False, "log_level": "WARNING"}
    found = {
        "http_options": {"host": options.host, "port": options.port},
        "logging_config": quiet,
        "applications": [
            {"name": name, "route_prefix": prefix, "import_path": "serve.app:build", "args": {**args, "part": part}}
            for name, prefix, part in parts
        ],
    }
    text: str = yaml.safe_dump(found, sort_keys=False)
    return text


# ---- outside it


class Server:
    """A running cluster of our own and its endpoints."""

    def __init__(self, url: str, endpoints: list[str], scratch: str) -> None:
        self.url = url
        self.endpoints = endpoints
        self._scratch = scratch

    def stop(self) -> None:
        """Ends every process of the cluster; may be called again."""
        import ray

        ray.shutdown()
        shutil.rmtree(self._scratch, ignore_errors=True)


def start(options: ServeOptions, say: Callable[[str], None]) -> Server:
    """Serves until stopped; returns when every replica is warm, or raises `ServeError` with what went wrong."""
    check(options)
    _sweep()
    scratch = tempfile.mkdtemp(prefix=f"hr{os.getpid()}-")  # short: Ray puts sockets there, whose paths are limited
    try:
        fast = _prepare_environment(options, Path(scratch), say)
        if path := send_logs_to(options.cache_folder / "logs", os.environ):
            say(f"what TORCH_LOGS asks for goes to {path}, of every replica")
        import ray

        if ray.is_initialized():
            raise ServeError("this process has a Ray cluster already; use `serve run serve.app:build` there")
    except BaseException:
        shutil.rmtree(scratch)
        raise
    host = EVERY_INTERFACE.get(options.host, options.host)
    host = f"[{host}]" if ":" in host else host
    server = Server(f"http://{host}:{options.port}", ["/".join(name) for name in options.endpoints], scratch)
    try:
        say("starting Ray")
        # the fast way opens the host's port itself: all else stays on loopback
        _start_cluster(options, scratch, ingress.LOOPBACK if fast else options.host)
        _wait_until_ready(server, options, say)
        if fast:
            _wait_until_up(1 + len(options.endpoints) * options.replicas)
    except BaseException as problem:
        server.stop()
        if isinstance(problem, ServeError | KeyboardInterrupt | SystemExit):
            raise
        log.debug("start failed", exc_info=problem)
        cause = (str(problem).strip() or repr(problem)).splitlines()[-1]
        raise ServeError(f"Ray Serve could not be started: {cause}") from problem
    return server


def _sweep() -> None:
    """Removes what servers that were killed have left behind."""
    for left in Path(tempfile.gettempdir()).glob("hr[0-9]*-*"):
        pid = left.name.removeprefix("hr").partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)


def _prepare_environment(options: ServeOptions, scratch: Path, say: Callable[[str], None]) -> bool:
    """Sets what Ray must find; whether it is the fast way."""
    why = None if options.ingress == "plain" else ingress.obstacle()
    fast = options.ingress != "plain" and why is None
    if why is not None:
        if options.ingress == "fast":
            raise ServeError(f"the fast way is not possible: {why}")
        say(f"requests take Ray's plain proxy, a few hundred a second at most: {why}")
        os.environ[FALLBACK] = why
    wanted = ingress.ONE_MACHINE | ingress.environment(scratch / "h" if fast else None, options.host)
    missing = {key: value for key, value in wanted.items() if key not in os.environ}
    if missing and "ray" in sys.modules:
        raise ServeError("Ray was imported before its environment was set; import it after `start` has been called")
    os.environ.update(missing)
    return fast


def _start_cluster(options: ServeOptions, scratch: str, host: str) -> None:
    import ray
    from ray import serve

    ray.init(
        address="local",
        namespace=NAMESPACE,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=scratch,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    quiet = {"enable_access_log": False, "log_level": "WARNING"}
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(http_options={"host": host, "port": options.port}, logging_config=quiet)
    share = _gpu_share(options)
    targets = [serve.RunTarget(_gateway(options), GATEWAY, "/", quiet)]
    for name in options.endpoints:
        endpoint = _endpoint(options, name, share, GATEWAY)
        targets.append(serve.RunTarget(endpoint, deployment_name(name), wire.model_path(*name), quiet))
    serve.run_many(targets, wait_for_applications_running=False)


def _wait_until_ready(server: Server, options: ServeOptions, say: Callable[[str], None]) -> None:
    """Polls the index until every endpoint is ready, and says what changes."""
    from ray import serve

    said: dict[str, tuple[str, float]] = {}
    replicas: dict[str, set[str]] = {}
    while True:
        for application_name, application in serve.status().applications.items():
            if application.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                cause = DIED if application.status == "UNHEALTHY" else _cause(application)
                raise ServeError(f"{application_name} could not be started: {cause}")
        index = _index(server.url)
        for entry in index or ():
            name = f"{entry['name']}/{entry['version']}"
            if entry["state"] == "UNAVAILABLE":
                raise ServeError(f"{name} could not be started: {entry['reason']}")
            seen = replicas.setdefault(name, set())
            seen.update(entry["replicas"])
            if len(seen) > options.replicas:
                raise ServeError(f"{name} could not be started: {DIED}")
            line = "ready" if entry["state"] == "READY" else entry["reason"]
            what = line.rsplit(",", 1)[0]  # without its seconds
            before, said_s = said.get(name, ("", 0.0))
            if what != before or (line != what and time.monotonic() - said_s > STILL_S):
                said[name] = (what, time.monotonic())
                say(f"{name}: {what if what != before else line}")
        if index and all(entry["state"] == "READY" for entry in index):
            return
        time.sleep(POLL_S)


def _wait_until_up(replicas: int) -> None:
    """Until then HAProxy sends their requests to the Python proxy."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    until_s = time.monotonic() + UP_S
    while ingress.replicas_up(node) < replicas:
        if time.monotonic() > until_s:
            raise ServeError("HAProxy does not see the replicas, though they are ready; try --ingress plain")
        time.sleep(POLL_S)


def _cause(application: Any) -> str:
    """The last line of the first traceback or message that Ray Serve has of it."""
    messages = [application.message, *(deployment.message for deployment in application.deployments.values())]
    lines = [line for message in messages for line in str(message).strip().splitlines()]
    return lines[-1] if lines else "Ray Serve says no more"


def _index(url: str) -> list[dict[str, Any]] | None:
    """None while nothing answers there."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=5)
    try:
        connection.request("POST", wire.INDEX, b"{}")
        response = connection.getresponse()
        found: list[dict[str, Any]] = json.loads(response.read())
        return found if response.status == 200 else None
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()
