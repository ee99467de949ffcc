"""Prints as constraints what is installed here of all that tailrate and its extras need: `make constraints`.

What torch alone brings (CUDA's libraries, Triton) is left out: torch says it exactly, and a build for the CPU has none.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS: Final = ("serve", "agent", "dev", "bench")
OF_TORCH: Final = re.compile(r"triton$|(nvidia|cuda)-(?!ml-py)")
HEAD: Final = """\
# What tailrate was last tested with, on Python 3.11: `pip install -c docker/constraints/common.txt .`
# Made by `make constraints`; which build of torch it is, cpu.txt and cuda.txt say."""


def main() -> None:
    versions: dict[str, str] = {}
    visited: set[tuple[str, frozenset[str]]] = set()
    pending: list[tuple[str, frozenset[str]]] = [("tailrate", frozenset(EXTRAS))]
    while pending:
        name, extras = pending.pop()
        if (name, extras) in visited or OF_TORCH.match(name):
            continue
        visited.add((name, extras))
        try:
            found = distribution(name)
        except PackageNotFoundError:  # an extra of somebody else's that nobody asked for, or an optional bench
            continue
        versions[name] = found.version.partition("+")[0]
        for text in found.requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                pending.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    for name in ("tailrate", "pip", "setuptools"):
        versions.pop(name, None)
    print(HEAD)
    for name in sorted(versions):
        print(f"{name}=={versions[name]}")


if __name__ == "__main__":
    main()
