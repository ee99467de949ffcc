"""An agent in a process of its own, whose wall clock may be shifted (`--ahead-s`) and drift (`--drift-ppm`).

The stand-in NVML comes by its environment. Prints its port, and with which instant its clock drifts from, as the first
line; ended, it prints which modules it had, as the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shifted import shift_clock
from starts import need

ROOT = Path(__file__).parents[2]


@contextmanager
def agent(environment: dict[str, str] | None = None, **options: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """(URL, what it says of itself; `modules` and `code` are there afterwards)"""
    need("live")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, __file__, *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path} | (environment or {}),
    )
    said: dict[str, Any] = {}
    try:
        assert process.stdout is not None
        said |= json.loads(process.stdout.readline())
        yield f"http://127.0.0.1:{said['port']}", said
    finally:
        process.terminate()
        last, _ = process.communicate()
        said |= {"code": process.returncode} | (json.loads(last) if last else {})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ahead-s", type=float, default=0)
    parser.add_argument("--drift-ppm", type=float, default=0)
    parser.add_argument("--sample-ms", type=int, default=100)
    given = parser.parse_args()
    began_ns = shift_clock(given.ahead_s, given.drift_ppm)
    from tailrate.serve.telemetry.agent.agent import AgentOptions, run

    def say(sentence: str) -> None:
        port = int(sentence.split("127.0.0.1:")[1].split()[0])
        print(json.dumps({"port": port, "began_ns": began_ns, "pid": os.getpid()}), flush=True)

    asyncio.run(run(AgentOptions(port=0, sample_ms=given.sample_ms), say))
    print(json.dumps({"modules": sorted({name.partition(".")[0] for name in sys.modules})}))


if __name__ == "__main__":
    main()
