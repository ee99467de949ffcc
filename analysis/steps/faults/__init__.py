"""What is to be known of a fault to judge a run: one file per fault that the endpoint does not notice, by its name.

A fault without a file here is the endpoint's, or weighs on it: users can be served worse because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules


@dataclass(frozen=True, slots=True)
class Reach:
    """What a fault breaks."""

    endpoint: bool = True
    """Users can be served worse, so a recovery is asked for."""
    load: bool = False
    """A share of the arrivals is gone until the step ends."""


def reach(fault: str) -> Reach:
    files = {file.name for file in iter_modules(__path__)}
    found: Reach = import_module(f"{__name__}.{fault}").REACH if fault in files else Reach()
    return found
