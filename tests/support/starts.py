"""What a test may start: servers, runs and browsers are only for tests that are marked for it.

So `make check`, which leaves the marked ones out, needs none of them and stays quick.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

marks: set[str] | None = None
"""Of the test that runs now, set by `conftest.py`; None outside of tests."""


def need(mark: str) -> None:
    """Called by whatever starts something: fails a test that is not marked for it."""
    assert marks is None or mark in marks, f"this test starts what only tests marked '{mark}' may"


@contextmanager
def stand_in(program: Path, options: Mapping[str, object], scheme: str = "http") -> Iterator[str]:
    """The URL of a server in a process of its own; it prints its port first."""
    need("live")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    process = subprocess.Popen([sys.executable, program, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"{scheme}://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
