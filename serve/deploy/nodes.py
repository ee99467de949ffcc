"""The nodes of a Ray cluster as hosts of devices: what each is called, and a sampler on every other one than ours.

Also what a planned fault kills of the cluster: a replica, the proxy, a node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from tailrate.serve.telemetry.sampler import Sampler, sources
from tailrate.serve.wire import WireError

if TYPE_CHECKING:
    from tailrate.serve.faults import Kill
    from tailrate.serve.options import ServeOptions
    from tailrate.serve.telemetry.all_hosts import Remote

log = logging.getLogger(__name__)

EXPORT_S = 5.0
HEAD = "node:__internal_head__"
"""A resource that the head node alone has."""


@dataclass(frozen=True, slots=True)
class Node:
    """A host by its name; its CPU is a device of that name, on the head node just `cpu`."""

    id: str
    host: str
    cpu: str


def known() -> list[Node]:
    """Those that are alive. Other nodes than the head bear a part of their number: several may be on one machine."""
    import ray

    listed: Iterable[Mapping[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [_named(node) for node in listed if node["Alive"]]


def here() -> Node:
    """The node of this process."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    return next(node for node in known() if node.id == own)


def _named(node: Mapping[str, Any]) -> Node:
    number, name = str(node["NodeID"]), str(node["NodeManagerHostname"])
    if HEAD in node["Resources"]:
        return Node(number, name, "cpu")
    host = f"{name}-{number[:6]}"
    return Node(number, host, f"cpu:{host}")


def exported() -> bytes:
    """What Ray exports for Prometheus of the node of this process."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    listed: Iterable[Mapping[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    node = next(node for node in listed if node["NodeID"] == own)
    where = f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
    try:
        with urlopen(f"http://{where}/metrics", timeout=EXPORT_S) as answer:
            text: bytes = answer.read()
    except OSError as problem:
        raise WireError(503, f"Ray exports nothing at {where}: {problem}") from None
    return text


class NodeSampler:
    """A Ray actor that samples the devices of its node."""

    def __init__(self, options: ServeOptions, node: Node) -> None:
        self._sampler = Sampler(sources(options.device_trace, node.cpu), options.sample_ms, host=node.host)
        self._sampler.start()

    def read(self, after: str) -> dict[str, Any]:
        return self._sampler.read(after)

    def clock(self) -> dict[str, int]:
        return self._sampler.clock()


class _Far:
    """An actor's handle as a `fleet.Remote`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def read(self, after: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._actor.read.remote(after)
        return found

    async def clock(self) -> dict[str, int]:
        found: dict[str, int] = await self._actor.clock.remote()
        return found


class Samplers:
    """One for each other node, pinned to it; started when the node is first seen, forgotten when it has gone."""

    def __init__(self, options: ServeOptions, own: Node) -> None:
        self._options, self._own = options, own
        self._far: dict[Node, _Far] = {}

    async def __call__(self) -> Mapping[str, Remote]:
        alive = set(await asyncio.to_thread(known)) - {self._own}
        self._far = {node: self._far.get(node) or self._start(node) for node in sorted(alive, key=lambda n: n.host)}
        return {node.host: far for node, far in self._far.items()}

    def _start(self, node: Node) -> _Far:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        log.info("sampling the devices of %s", node.host)
        pinned = NodeAffinitySchedulingStrategy(node.id, soft=False)
        kind: Any = ray.remote(NodeSampler)
        return _Far(kind.options(num_cpus=0, max_restarts=-1, scheduling_strategy=pinned).remote(self._options, node))


# ---- what a planned fault kills


def _kill_replica(replica: str) -> str:
    _kill_actor(f"SERVE_REPLICA::*#{replica}")
    return replica


def _kill_ingress(target: str) -> str:
    """Of this node; HAProxy ends with the actor that started it."""
    _kill_actor(f"SERVE_PROXY_ACTOR-{here().id}")
    return "the proxy"


def _kill_actor(pattern: str) -> None:
    """As a crash would, without a last word; Serve's controller starts another."""
    import ray

    listed: Iterable[Mapping[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    for actor in listed:
        if fnmatchcase(actor["name"], pattern):
            with suppress(ValueError):  # gone meanwhile
                ray.kill(ray.get_actor(actor["name"], actor["namespace"]))
                return
    raise WireError(409, f"Ray knows no {pattern} any more")


def _kill_node(target: str) -> str:
    """The raylet of a host that is neither the head nor this one."""
    own = here()
    others = [node for node in known() if node.cpu != "cpu" and node != own]
    chosen = next((node for node in others if target in ("", node.host)), None)
    if chosen is None:
        there = ", ".join(node.host for node in others) or "none"
        raise WireError(409, f"there is no such node beside the head's and the gateway's; there are {there}")
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def die() -> None:  # a worker's parent is its raylet
        if Path(f"/proc/{os.getppid()}/comm").read_text().strip() == "raylet":
            os.kill(os.getppid(), signal.SIGKILL)

    pinned = NodeAffinitySchedulingStrategy(chosen.id, soft=False)
    task: Any = ray.remote(die)
    ray.wait([task.options(num_cpus=0, max_retries=0, scheduling_strategy=pinned).remote()], timeout=10)
    return chosen.host


KILLS: Mapping[str, Kill] = {"replica": _kill_replica, "ingress": _kill_ingress, "node": _kill_node}
