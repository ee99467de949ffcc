"""Requests made before the start: the inputs that a scenario draws, and the bodies that a protocol makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailrate.serve.wire import Array


@dataclass(frozen=True, slots=True)
class Inputs:
    """The same for every endpoint; arrival `seq` sends number `seq` modulo their count."""

    tensors: tuple[Mapping[str, Array], ...]
    """Named input tensors of each request."""
    rows: tuple[int, ...]
    """In each request."""
    outputs: tuple[str, ...] = ()
    """To ask for; empty: all that the model has."""
    file: str = ""
    """What was read as `--data`, where these are a few of its requests."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """The inputs as one endpoint takes them."""

    bodies: tuple[bytes, ...]
    headers: tuple[Mapping[str, str], ...]
    """One for each body: how long its JSON header is depends on the shapes in it."""
    rows: tuple[int, ...]
