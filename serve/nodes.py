"""The nodes of a Ray cluster as hosts of devices: what each is called, and a sampler on every other one than ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serve.telemetry import Sampler, sources

if TYPE_CHECKING:
    from serve.fleet import Remote
    from serve.options import ServeOptions

log = logging.getLogger(__name__)

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
