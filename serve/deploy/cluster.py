"""A Ray cluster of our own on this machine: started with the application, watched until it is ready, ended with us."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil

from tailrate.serve import file_locks, wire
from tailrate.serve.deploy import by_model, haproxy, logs, probe, worker
from tailrate.serve.deploy.app import FALLBACK, GATEWAY, QUIET, application, applications
from tailrate.serve.deploy.check_options import check
from tailrate.serve.edge import auth
from tailrate.serve.edge.gateway import NAMED
from tailrate.serve.options import ServeOptions
from tailrate.serve.runner.compile_watch import send_logs_to
from tailrate.serve.spec import ServeError

log = logging.getLogger(__name__)

NAMESPACE = "tailrate"
POLL_S = 0.25
GIVEN_UP_S = 5.0
"""For what has been given up to be told so."""
GONE_S = 0.2
"""For the last answers to be through the proxy."""
STILL_S = 5.0
"""How often it is said that something is still going on."""
UP_S = 60.0
ALIVE = "alive"
"""A file in a server's folder, locked as long as it lives."""
TRIES = 4
"""Of Ray to start, where all it says is that time ran out."""
OBJECT_STORE_BYTES = 128 << 20
AUTH_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105  # its name
DIED = "its process died while loading (out of memory?)"


class Server:
    """A running cluster of our own and its endpoints."""

    def __init__(self, url: str, endpoints: list[str], scratch: str, held: int) -> None:
        self.url = url
        self.endpoints = endpoints
        self._scratch = scratch
        self._held: int | None = held
        """The lock that says that this folder is in use."""

    def drain(self, within_s: float, say: Callable[[str], None]) -> None:
        """Takes nothing new, and waits until what is under way is answered; what is not within that gets a 503."""
        try:
            asyncio.run_coroutine_threadsafe(_drained(within_s, say), _running_loop()).result()
        except TimeoutError:
            say("some requests got no answer: they did not come whole, or were not taken, in time")
        except Exception as problem:  # no gateway, no word from it
            say(f"what is under way cannot be waited for: {problem!r}")
        time.sleep(GONE_S)

    def stop(self) -> None:
        """Ends every process of the cluster; may be called again."""
        import ray

        ray.shutdown()
        shutil.rmtree(self._scratch, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _running_loop() -> asyncio.AbstractEventLoop:
    """As long as this process: Ray goes on to call the loop that it was used in, and complains where that has ended."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


async def _drained(within_s: float, say: Callable[[str], None]) -> None:
    from ray import serve

    gateway = serve.get_deployment_handle(GATEWAY, GATEWAY)
    said_s = time.monotonic()
    async with asyncio.timeout(within_s + GIVEN_UP_S):
        await gateway.stop.remote(within_s)
        while left := await gateway.under_way.remote():
            if time.monotonic() > said_s + STILL_S:
                said_s = time.monotonic()
                say(f"{left} requests are under way still (Ctrl-C ends them)")
            await asyncio.sleep(POLL_S / 5)


def start(
    options: ServeOptions, say: Callable[[str], None], log_format: str = "text", copy: Path | None = None
) -> Server:
    """Serves until stopped; returns when every replica is warm, or raises `ServeError` with what went wrong.

    What replicas log goes to standard error in that format, and to the file `copy`.
    """
    check(options)
    _sweep()
    # for this user alone, unlike what Ray makes of a folder; short, as paths of the sockets in it are limited
    scratch = tempfile.mkdtemp(prefix=f"tr{os.getpid()}-")
    held = file_locks.live(Path(scratch, ALIVE))
    try:
        fast = _prepare_environment(options, Path(scratch), say)
        logs.gather(Path(scratch), log_format, sys.stderr, copy)
        if path := send_logs_to(options.cache_folder / "logs", os.environ):
            say(f"what TORCH_LOGS asks for goes to {path}, of every replica")
        worker.import_serve()
        import ray

        if ray.is_initialized():
            raise ServeError(
                "this process has a Ray cluster already; use `serve run tailrate.serve.deploy.app:build` there"
            )
        if fast:
            _check_ray(Path(scratch, "h"))
    except BaseException:
        shutil.rmtree(scratch)
        os.close(held)
        raise
    url = probe.url(options.host, options.port, tls=bool(options.tls_cert))
    server = Server(url, ["/".join(name) for name in options.endpoints], scratch, held)
    try:
        say("starting Ray")
        with _handlers_kept():
            _start_cluster(options, f"{scratch}/r", _http_options(options, fast))
        _wait_until_ready(server, options, say)
        if fast:
            _wait_until_up(1 + len(options.endpoints) * options.replicas)
        _look_at_ports(options)
    except BaseException as problem:
        server.stop()
        if isinstance(problem, ServeError | KeyboardInterrupt | SystemExit):
            raise
        log.debug("start failed", exc_info=problem)
        cause = (str(problem).strip() or repr(problem)).splitlines()[-1]
        raise ServeError(f"Ray Serve could not be started: {cause}") from problem
    return server


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray puts handlers of its own in their place, which end this process and leave its cluster."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
    yield
    if threading.current_thread() is threading.main_thread():
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _sweep() -> None:
    """Removes what servers of ours that were killed have left behind: they hold a lock in it as long as they live."""
    for left in Path(tempfile.gettempdir()).glob("tr[0-9]*-*"):
        held = None if left.is_symlink() else file_locks.grip(left / ALIVE)
        if held is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)


def _prepare_environment(options: ServeOptions, scratch: Path, say: Callable[[str], None]) -> bool:
    """Sets what Ray must find; whether it is the fast way."""
    why = None if options.ingress == "plain" else haproxy.obstacle()
    fast = options.ingress != "plain" and why is None
    if why is not None:
        if options.ingress == "fast":
            raise ServeError(f"the fast way is not possible: {why}")
        say(f"requests take Ray's plain proxy, a few hundred a second at most: {why}")
        os.environ[FALLBACK] = why
    tls = (options.tls_cert, options.tls_key) if options.tls_cert else None
    texts = any(options.spec(model).language for model in options.models)
    more = by_model.rules(options, NAMED, haproxy.HEAD_S) if texts else ""
    wanted = haproxy.ONE_MACHINE | haproxy.environment(scratch / "h" if fast else None, options.host, tls, more)
    # other users of this machine could have Ray run what they please, through its ports on loopback
    wanted |= {"RAY_AUTH_MODE": "token", AUTH_TOKEN: secrets.token_hex(32)}
    # what a shell or another program has set there would open what is closed here
    for key in sorted(filter(_decides, os.environ)):
        if os.environ[key] not in (wanted.get(key), _ours.get(key)):
            raise ServeError(f"{key} is set in the environment, and is for tailrate serve to set: unset {key}")
    missing = {key for key in wanted if key not in os.environ}
    if missing and "ray" in sys.modules:
        raise ServeError("Ray was imported before its environment was set; import it after `start` has been called")
    _ours.update({key: value for key, value in wanted.items() if key in missing or _decides(key)})
    os.environ.update(_ours)
    return fast


def _check_ray(folder: Path) -> None:
    """Raises `ServeError` before anything starts, where HAProxy would be refused its configuration later."""
    try:
        from ray.serve._private.haproxy import HAProxyApi, HAProxyConfig

        written = folder / "tried.cfg"
        api = HAProxyApi(HAProxyConfig(socket_path=str(folder / "a")), config_file_path=str(written))
        api._generate_config_file_internal()
        haproxy.edited(written.read_text(), haproxy.LOOPBACK, folder / "lost.http")
    except haproxy.UnfamiliarError as problem:
        raise ServeError(str(problem)) from None
    except (ImportError, AttributeError, TypeError) as problem:  # private parts of Ray that are no longer there
        raise ServeError(str(haproxy.UnfamiliarError(problem))) from problem


_ours: dict[str, str] = {}
"""What this process has set in its environment for Ray."""


def _decides(key: str) -> bool:
    """Whether a variable decides who may have Ray run something, or which way requests take."""
    ways = ("RAY_AUTH_", "RAY_SERVE_HAPROXY_", "RAY_SERVE_ENABLE_HA_PROXY", *haproxy.ONE_MACHINE, *auth.CALLBACK)
    return key.startswith(ways)


def _http_options(options: ServeOptions, fast: bool) -> dict[str, Any]:
    """For Ray; the fast way opens the host's port itself, and all else stays on loopback."""
    if fast:
        return {"host": haproxy.LOOPBACK, "port": options.port}
    tls = {"ssl_keyfile": str(Path(options.tls_key).absolute()), "ssl_certfile": str(Path(options.tls_cert).absolute())}
    return {"host": options.host, "port": options.port} | (tls if options.tls_cert else {})


def _start_cluster(options: ServeOptions, scratch: str, http_options: dict[str, Any]) -> None:
    from ray import serve

    before = set(psutil.Process().children())
    for left in reversed(range(TRIES)):
        try:
            _start_ray(scratch)
            break
        except Exception as problem:
            # half a minute is Ray's own limit for a node; on a busy machine the next one starts faster
            if "timed out" not in str(problem) or not left:
                raise
            for child in set(psutil.Process().children()) - before:
                child.kill()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        serve.start(http_options=http_options, logging_config=QUIET)
    except TimeoutError:  # a minute was too little for a proxy, which goes on starting: a busy machine
        serve.start()
    targets = [
        serve.RunTarget(application(options, part), name, route, QUIET) for name, route, part in applications(options)
    ]
    serve.run_many(targets, wait_for_applications_running=False)


class _NoPaths(list[str]):
    """Ray adds the working directory, to be the first place where its workers look for modules: a file in it that is
    named like one of ours would run in its place."""

    def extend(self, paths: Iterable[str]) -> None:
        """Not these."""


def _start_ray(scratch: str) -> None:
    import ray
    from ray.job_config import JobConfig

    job = JobConfig()
    job._py_driver_sys_path = _NoPaths()
    with _less_of_ray():
        ray.init(
            address="local",
            job_config=job,
            namespace=NAMESPACE,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=scratch,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )


@contextmanager
def _less_of_ray() -> Iterator[None]:
    """Without the process that tells drivers what workers print and the one that asks a cloud for machines, for which
    `ray start` has options and `ray.init` none; and workers that import less.
    """
    from ray._private import parameter

    there: Any = parameter
    usual = there.RayParams
    less = {"include_log_monitor": False, "no_monitor": True, "worker_path": worker.__file__}
    there.RayParams = partial(usual, **less)
    try:
        yield
    finally:
        there.RayParams = usual


def _wait_until_ready(server: Server, options: ServeOptions, say: Callable[[str], None]) -> None:
    """Polls the index until every endpoint is ready, and says what changes."""
    from ray import serve

    said: dict[str, tuple[str, float]] = {}
    replicas: dict[str, set[str]] = {}
    while True:
        for part, status in serve.status().applications.items():
            if status.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                cause = DIED if status.status == "UNHEALTHY" else _cause(status)
                raise ServeError(f"{part} could not be started: {cause}")
        index = _index(server.url, options.tls_cert)
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
    while haproxy.replicas_up(node) < replicas:
        if time.monotonic() > until_s:
            raise ServeError("HAProxy does not see the replicas, though they are ready; try --ingress plain")
        time.sleep(POLL_S)


def _look_at_ports(options: ServeOptions) -> None:
    """Raises `ServeError` where a process of the cluster can be reached from elsewhere, but for the port asked for."""
    asked = set() if auth.is_loopback(options.host) else {options.port}
    for process in _processes():
        with suppress(psutil.NoSuchProcess):
            for each in process.net_connections("inet"):
                listens = each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and each.laddr
                if listens and not auth.is_loopback(each.laddr.ip) and each.laddr.port not in asked:
                    raise ServeError(
                        f"{process.name()} listens on {each.laddr.ip}:{each.laddr.port}, where others can reach it "
                        "and nobody asked for that: this is not safe to run"
                    )


def _processes() -> Iterator[psutil.Process]:
    """Those of our cluster, whoever their parents are: each has the secret of its calls."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(AUTH_TOKEN) == _ours[AUTH_TOKEN]:
                yield process


def _cause(application: Any) -> str:
    """The last line of the first traceback or message that Ray Serve has of it."""
    messages = [application.message, *(deployment.message for deployment in application.deployments.values())]
    lines = [line for message in messages for line in str(message).strip().splitlines()]
    return lines[-1] if lines else "Ray Serve says no more"


def _index(url: str, certificate: str) -> list[dict[str, Any]] | None:
    """None while nothing answers there."""
    try:
        status, body = probe.ask(url, wire.INDEX, "POST", certificate)
        found: list[dict[str, Any]] = json.loads(body)
        return found if status == 200 else None
    except (OSError, HTTPException, ValueError):
        return None
