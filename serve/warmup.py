"""Every shape warm before the first request, and what compiling left behind kept for the next start.

Owns the folder of compiled artefacts (one per model, variant, settings, device and torch version; one
writer at a time, since two processes that build the same thing break each other's files). Runs in the
engine's thread: torch guards on thread, mode and thread count.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from serve.spec import ModelSpec, Variant
from serve.weights import locked

CALLS = 3
"""Per bucket: the first compiles, the second may record a CUDA graph, the third runs as those to come."""


@dataclass(frozen=True, slots=True)
class Artefacts:
    """The folder of one endpoint's compiled code."""

    folder: Path

    @classmethod
    def of(cls, spec: ModelSpec, variant: Variant, device: str, threads: int, cache: Path) -> Artefacts:
        import torch

        what = json.dumps([dict(spec.settings), device, threads], sort_keys=True)
        key = hashlib.blake2b(what.encode(), digest_size=4).hexdigest()
        return cls(cache / "compiled" / f"{spec.name}-{variant.name}-torch{torch.__version__}-{key}")

    @property
    def complete(self) -> Path:
        return self.folder / "complete"

    @contextmanager
    def used(self, say: Callable[[str], None]) -> Iterator[None]:
        """Inductor reads and writes this folder meanwhile, and no other process does."""
        waiting = partial(say, "waiting for another process that compiles the same")
        with locked(self.folder.with_name(self.folder.name + ".lock"), waiting):
            self.folder.mkdir(parents=True, exist_ok=True)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder)
            yield

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
