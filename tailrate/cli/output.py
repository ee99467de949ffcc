"""Standard output and error of a command whose reader may leave, or whose disk may fill, before it is done.

A reader that has had enough (`| head -1`) ends no command and changes no exit code. What cannot be written for another
reason is an error, unless a run is under way: its load goes on and is reported whoever reads along.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

_forgiven: tuple[type[OSError], ...] = (BrokenPipeError,)


def forgive(*problems: type[OSError]) -> None:
    """Which problems of standard output end nothing from here on; what comes after the first goes nowhere."""
    global _forgiven
    _forgiven = problems


class Output(io.FileIO):
    """A standard stream that fails once at most; a failure of standard error has nowhere to be told."""

    def write(self, content: Any) -> Any:
        try:
            return super().write(content)
        except OSError as problem:
            _to_nowhere(self.fileno())
            if self.fileno() == 1 and not isinstance(problem, _forgiven):
                raise OSError(problem.errno, problem.strerror, "standard output") from None
            return len(content)


def prepare() -> None:
    """At the start of a command: a stream that was closed goes nowhere, and a letter that it lacks is escaped."""
    forgive(BrokenPipeError)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            _to_nowhere(number)
        elif stream is not getattr(sys, f"__{name}__"):  # a test's, or prepared
            continue
        encoding = stream.encoding if stream else "utf-8"
        by_line = bool(stream and (stream.line_buffering or stream.write_through))
        raw = io.BufferedWriter(Output(number, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=by_line))


def _to_nowhere(number: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    os.set_inheritable(number, True)
