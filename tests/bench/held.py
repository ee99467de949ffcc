"""What each process of a server holds after bad requests: does it grow, or keep room for the most there was at once?

Resident sizes climb to what was needed at once and stay there, as neither glibc nor HAProxy's pools give back what is
free. So between rounds a debugger (gdb) asks each process for malloc's own count of what is in use, without what
HAProxy's pools have free, and of Python for its number of small objects, which malloc does not see. The server, the bad
requests and the clients that misbehave beside them are those of `fuzz.py`; a leak of 50 bytes per request would be
0.25 MB per 5000.

Prints a table (slopes are Theil–Sen's through the second half of the rounds, with their intervals of 95 %), then one
JSON line.

    python tests/bench/held.py [--requests 60000] [--rounds 12] [--rate 300] [--seed 9] [--leaving 100]
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench import fuzz  # noqa: E402
from bench._rounds import last_line, left_out  # noqa: E402
from serving import served  # noqa: E402

WORKERS = 32
REST_S = 3.0
"""After a round, until what was under way is over."""
PER = 5000
HAPROXY = "haproxy"
PRINTED = 3
"""What malloc_info and fclose return, and the number of objects."""
KINDS = {"in_use": "MB in use", "resident": "MB resident", "objects": "Python's objects, thousands"}


def pools_free(process: psutil.Process) -> int:
    """Bytes that HAProxy's pools have taken and do not use."""
    command = process.cmdline()
    configuration = Path(command[command.index("-f") + 1]).read_text()
    with socket.socket(socket.AF_UNIX) as admin:
        found = re.search(r"stats socket (\S+)", configuration)
        assert found is not None
        admin.connect(found[1])
        admin.sendall(b"show pools\n")
        total = admin.makefile(encoding="utf-8").read().strip().splitlines()[-1]
    taken, used = re.findall(r"(\d+) (?:bytes allocated|used)", total)
    return int(taken) - int(used)


def asked(process: psutil.Process) -> dict[str, float]:
    """In MB, and thousands of objects where it is Python."""
    with tempfile.NamedTemporaryFile() as file:
        calls = [
            "sharedlibrary libc\\.",
            "sharedlibrary libpython",
            f'set $file = ((void *(*)(const char *, const char *))fopen)("{file.name}", "w")',
            "call ((int (*)(int, void *))malloc_info)(0, $file)",
            "call ((int (*)(void *))fclose)($file)",
            "print ((long (*)(void))_Py_GetAllocatedBlocks)()",
        ]
        words = ["gdb", "-nx", "-batch", "-iex", "set auto-solib-add off", "-p", str(process.pid)]
        words += [word for call in calls for word in ("-ex", call)]
        said = subprocess.run(words, capture_output=True, text=True, check=False)
        whole = Path(file.name).read_text().rpartition("</heap>")[2]
    sizes = {
        kind: sum(int(size) for size in re.findall(rf'type="(?:{kind})"[^>]* size="(\d+)"', whole))
        for kind in ("fast|rest", "current", "mmap")
    }
    python = process.name() != HAPROXY
    printed = re.findall(r"^\$\d+ = (\d+)$", said.stdout, re.MULTILINE)
    if not sizes["current"] or (python and len(printed) != PRINTED):
        raise SystemExit(f"gdb could not ask process {process.pid}: {said.stderr.strip()[-300:]}")
    free = sizes["fast|rest"] + (0 if python else pools_free(process))
    has = {"resident": process.memory_info().rss / 1e6, "in_use": (sizes["current"] + sizes["mmap"] - free) / 1e6}
    return has | ({"objects": int(printed[-1]) / 1e3} if python else {})


async def measured(given: argparse.Namespace, port: int, watched: Any) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    ours = {name: process for process, name in watched.processes() if not name.startswith(("ray::", "gcs", "raylet"))}
    tally, slow = fuzz.Tally(), Counter[str]()
    for number in range(given.rounds + 1):
        for name, process in ours.items():
            for kind, value in asked(process).items():
                found.setdefault(name, {}).setdefault(kind, []).append(round(value, 2))
        resident = ", ".join(f"{name.partition(':')[0]} {kinds['resident'][-1]:.0f}" for name, kinds in found.items())
        sent = number * given.requests // given.rounds
        print(f"{sent} bad requests, {len(tally.found)} wrong; MB resident: {resident}", flush=True)
        if number < given.rounds:
            share = range(*(given.requests * bound // given.rounds for bound in (number, number + 1)))
            await fuzz.bad_round(port, given.seed, share, given.rate, WORKERS, tally, slow)
            await asyncio.sleep(REST_S)
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--requests", type=int, default=60_000)
    found.add_argument("--rounds", type=int, default=12)
    found.add_argument("--rate", type=float, default=300, help="of bad requests, per second at most")
    found.add_argument("--seed", type=int, default=9)
    found.add_argument("--leaving", type=int, default=0, help="clients more, that ask for 4096 rows and soon reset")
    return found


def main() -> None:
    given = parser().parse_args()
    if shutil.which("gdb") is None:
        left_out("held", "there is no gdb, which asks a process what it holds (Debian: apt-get install gdb)")
        return
    fuzz.SLOW["leaves"] = given.leaving
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as cache, served(Path(cache), **fuzz.OPTIONS) as server:
        port = int(server.url.rpartition(":")[2])
        found = asyncio.run(measured(given, port, fuzz.Watched(server.process.pid)))
    rows = []
    for name, kinds in found.items():
        print(name)
        for kind, values in kinds.items():
            scale = PER * given.rounds / given.requests
            slope, low, high = (round(value * scale, 3) for value in fuzz.late_slope(values))
            rows.append({"process": name, "of": kind, "values": values, f"per_{PER}": [slope, low, high]})
            shown = " ".join(f"{value:.1f}" for value in values)
            print(f"  {KINDS[kind]:28s} {shown}   {slope:+.3f} ({low:+.3f} to {high:+.3f}) per {PER}")
    last_line("held", requests=given.requests, seed=given.seed, rows=rows)


if __name__ == "__main__":
    main()
