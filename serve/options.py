"""What `tailrate serve` can be asked for, as options, as text and as YAML has it; without torch or Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tailrate.serve import machine, models
from tailrate.serve.spec import ModelSpec, ServeError

__all__ = ["ServeError", "ServeOptions", "as_args", "from_args", "named"]

DEVICES = ("auto", "cpu", "cuda")
WAYS = ("auto", "fast", "plain")
WHERE = ("host", "port", "grpc_port", "tls_cert", "tls_key")
"""Options of where and how to listen, which is for whoever starts a cluster to say."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Which endpoints to serve, where and how."""

    models: tuple[str, ...]
    variants: tuple[str, ...] = ("eager", "compiled")
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int = 0
    """Where the same is asked over gRPC; 0: nowhere"""
    tls_cert: str = ""
    """PEM: the certificate, and its chain if it has one; empty: plain HTTP"""
    tls_key: str = ""
    weights: str = "random"
    """random, pretrained, or a path"""
    seed: int = 0
    max_batch: int | None = None
    """Rows per batch; None: 4 on the CPU and 16 on CUDA, 64 for null."""
    buckets: tuple[int, ...] = ()
    """Rows that batches are padded to, the largest being `max_batch`; empty: powers of two up to `max_batch`."""
    max_wait_ms: float = 0.0
    """How long a request that waits alone for an idle device waits for company."""
    max_queue: int = 256
    """Waiting requests per replica beyond which more are refused."""
    max_body_bytes: int = 64 << 20
    max_rows: int | None = None
    """Of a request; None: as many as 64 batches hold, and never more than the queue does in batches."""
    replicas: int = 1
    max_replicas: int | None = None
    """Up to which Ray Serve may add replicas under load; None: there are as many as `replicas` says."""
    threads: int | None = None
    """Of a replica's torch; None: the cores shared by the replicas of one endpoint, as variants take turns."""
    num_gpus: float | None = None
    """Share of a GPU per replica; None: the GPUs divided among the endpoints, one at most."""
    settings: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    """Of models of the user's own: name → file.py:function or module:function."""
    sample_ms: int = 100
    device_trace: str = ""
    """A recorded trace of device samples that is played back instead of sampling."""
    cache_dir: str | None = None
    ingress: str = "auto"
    """fast (HAProxy straight to the replicas), plain (Ray's Python proxy), or auto: fast where it is possible"""
    keep_on_parity_failure: bool = False
    parity_share: float = 0.001
    """Of the responses, compared with eager fp32 in the pauses; 0: none, and no eager module is kept for it."""
    fail_on_recompile: bool = False
    """Whether a request that would make torch.compile compile again is refused instead."""
    profile: bool = False
    """Whether clients may ask for a profile of the next batches."""
    drain_s: float = 30.0
    """How long a server that stops may take to answer what is under way; what is left then gets a 503."""
    allow_faults: bool = False
    """Whether clients may break things: kill a replica, take the CPU."""

    @property
    def largest_batch(self) -> int | None:
        """Rows, where that was said at all."""
        return max(self.buckets, default=self.max_batch)

    @property
    def endpoints(self) -> list[tuple[str, str]]:
        """(model, variant) of each; a model's first variant answers where a request names none."""
        return [(model, variant) for model in self.models for variant in self.variants]

    def spec(self, model: str) -> ModelSpec:
        """The model with those of the settings that it knows."""
        source = self.sources.get(model, model)
        known = models.settings(source)
        return models.load(source, {k: v for k, v in self.settings.items() if k in known}, self.weights)

    def known_settings(self) -> set[str]:
        """Of all the models."""
        return {key for model in self.models for key in models.settings(self.sources.get(model, model))}

    @property
    def most_replicas(self) -> int:
        """Of one endpoint, at any time."""
        return self.max_replicas or self.replicas

    @property
    def replica_threads(self) -> int:
        """CPU threads of one replica, such that those of one endpoint do not fight over cores."""
        return self.threads or max(1, machine.cores() // self.most_replicas)

    @property
    def cache_folder(self) -> Path:
        """Where calibrated weights and compiled artefacts are kept."""
        return Path(self.cache_dir).expanduser().absolute() if self.cache_dir else machine.cache_folder()

    @property
    def baked_folder(self) -> Path | None:
        """Another such folder, which an image was built with and which is only read."""
        named = os.environ.get("TAILRATE_BAKED")
        return Path(named).absolute() if named else None


def named(options: ServeOptions) -> ServeOptions:
    """With models of the user's own under the names that they give themselves."""
    sources = {reference: models.located(reference) for reference in options.models if ":" in reference}
    if not sources:
        return options
    asked = replace(options, sources=sources)
    names = {reference: asked.spec(reference).name for reference in sources}
    return replace(
        options,
        models=tuple(names.get(model, model) for model in options.models),
        sources={names[reference]: source for reference, source in sources.items()},
    )


def from_args(args: Mapping[str, str]) -> ServeOptions:
    """Options from text, as `serve run` and YAML give them."""
    kinds = {f.name: str(f.type) for f in fields(ServeOptions)}
    values: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for key, text in args.items():
        name = {"model": "models", "variant": "variants"}.get(key, key)
        kind, words = kinds.get(name), [word.strip() for word in str(text).split(",") if word.strip()]
        try:
            if kind is None or name == "settings":
                settings[key] = str(text)
            elif name == "sources":
                values[name] = dict(word.split("=", 1) for word in words)
            elif kind.startswith("tuple[int"):
                values[name] = tuple(map(int, words))
            elif kind.startswith("tuple"):
                values[name] = tuple(words)
            elif kind.startswith("bool"):
                values[name] = str(text).lower() in ("1", "true", "yes")
            else:
                values[name] = {"int": int, "float": float, "str": str}[kind.split(" ")[0]](text)
        except ValueError:
            raise ServeError(f"{key} must be a number, not '{text}'") from None
    if not values.get("models"):
        raise ServeError("name a model, such as model=bert")
    return named(ServeOptions(**values, settings=settings))


def as_args(options: ServeOptions) -> dict[str, str]:
    """The text that `from_args` reads: what differs from the defaults, without where to listen."""
    found = dict(options.settings)
    for item in fields(ServeOptions):
        value = getattr(options, item.name)
        if item.name in ("settings", *WHERE) or (item.name != "models" and value == item.default):
            continue
        if item.name == "sources" and not value:
            continue
        if isinstance(value, Mapping):
            value = [f"{key}={text}" for key, text in value.items()]
        found[item.name] = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return found
