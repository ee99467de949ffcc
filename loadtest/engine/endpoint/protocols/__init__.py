"""One file per protocol, with its settings as its fields; a new file is a new protocol.

`endpoint.protocol` says what each of them has to have.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tailrate.loadtest.engine.endpoint.protocol import KNOWN as PROTOCOLS

for found in iter_modules(__path__, f"{__name__}."):
    if not found.name.rpartition(".")[2].startswith("_"):
        import_module(found.name)

__all__ = ["PROTOCOLS"]
