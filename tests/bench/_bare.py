"""A bare loop beside a server: the benchmark's own file once more, as `… --bare OPTIONS VARIANT`, told what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tailrate.serve.deploy.app import FOR_TORCH

_OTHERS, _COMPUTES = set(sorted(os.sched_getaffinity(0))[:-1]), {max(os.sched_getaffinity(0))}
"""Cores: one for what computes, and those for all else."""
AS_SERVED = {"OMP_NUM_THREADS": "1"} | FOR_TORCH
"""The environment of a replica."""


class Bare:
    """Says `ready`, then answers each line with a line of numbers."""

    def __init__(
        self, program: str, given: dict[str, Any], variant: str, pinned: bool = False, **environment: str
    ) -> None:
        words = [sys.executable, program, "--bare", json.dumps(given), variant]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | AS_SERVED | environment
        )
        if pinned:
            _pin(self._process.pid, _COMPUTES)
        if (line := self._said()) != "ready":
            raise SystemExit(f"the bare loop ended: {line}")

    def _said(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline().strip()):
            raise SystemExit("the bare loop ended")
        return line

    def run(self, much: float) -> list[float]:
        assert self._process.stdin is not None
        print(much, file=self._process.stdin, flush=True)
        return [float(number) for number in self._said().split()]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def _pin(pid: int, where: set[int]) -> None:
    """Every thread of it."""
    for thread in (int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread, where)


@contextmanager
def apart(server: int, computes: str) -> Iterator[dict[str, psutil.Process]]:
    """Those processes of a server whose command line has a pattern have a core to themselves; its other ones, and this
    program, have what is left. They are named by the pattern's group."""
    found: dict[str, psutil.Process] = {}
    for process in (psutil.Process(server), *psutil.Process(server).children(recursive=True)):
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            match = re.search(computes, " ".join(process.cmdline()))
            if match:
                found[match[1]] = process
            _pin(process.pid, _COMPUTES if match else _OTHERS)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _OTHERS)
    try:
        yield found
    finally:
        os.sched_setaffinity(0, before)


def as_the_engine(work: Callable[[dict[str, Any], str], None], words: Sequence[str]) -> None:
    """In a thread: the allocator gives it other memory than the main thread, and that alone is 30 %."""
    loop = threading.Thread(target=work, args=(json.loads(words[0]), words[1]))
    loop.start()
    loop.join()
