"""Whether the harness grows with a soak's length: memory of its processes over as many arrivals as fit into the time.

Physics: a chapter's schedule, its rows on their way and its figures are all that a load process may hold, so its
memory is that of its second chapter for ever. Chapters are short here and the rate is what one core keeps, so that
minutes hold as many arrivals and chapters as a day at a usual rate.

The endpoint answers at once, from a process of its own. Prints a line per chapter (arrivals so far, resident memory,
open files, size of the folder), then one JSON line; the growth is that of the last half, per million arrivals.

    python tests/bench/soak_memory.py [--rate 2500] [--processes 1]          six minutes
    python tests/bench/soak_memory.py --rate 7500 --seconds 1420           ten million arrivals
    python tests/bench/soak_memory.py --seconds 120
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402

from tailrate.loadtest.engine.workers.null_server import NullServer  # noqa: E402

WORDS = {
    b"/v2 ": {"name": "null", "version": "1"},
    b"/v2/repository/index ": [{"name": "null", "version": "eager", "state": "READY"}],
    b"/v2/models/null/versions/eager ": {"name": "null", "inputs": [], "outputs": [], "parameters": {"recompiles": 0}},
    b"/v2/models/null/versions/eager/ready ": {},
}


class Endpoint(NullServer):
    """Says what it hosts, and answers everything else as the null server does."""

    def data_received(self, data: bytes) -> None:
        for path, said in WORDS.items():
            if data.partition(b" ")[2].startswith(path):
                body = json.dumps(said).encode()
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                self._transport.write(head.encode() + body)
                return
        if data.startswith(b"GET /telemetry"):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        super().data_received(data)


RESULT = b'{"outputs":[{"name":"y","datatype":"UINT8","shape":[1],"data":[1]}]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(RESULT), RESULT)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Endpoint(ANSWER), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def measure(rate: float, seconds: float, chapter_s: float, processes: int) -> dict[str, Any]:
    from tailrate.analysis.records.folder import read_events
    from tailrate.analysis.records.manifest import Manifest

    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}"
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "tailrate", "soak", "null", "--host", url, "--rates", f"{rate:g}"]
        command += ["--total-seconds", f"{seconds:g}", "--chapter-seconds", f"{chapter_s:g}", "--self-check", "off"]
        command += ["--settle-seconds", "1", "--run-dir", runs, "--run-id", "it", "--processes", str(processes)]
        try:
            subprocess.run([*command, "--body-bytes", "16"], cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
        finally:
            server.kill()
            server.wait()
        folder = Path(runs) / "it"
        events, manifest = list(read_events(folder)), Manifest.read(folder)
        on_disk = sum(path.stat().st_size for path in folder.iterdir())
    seen: dict[str, list[tuple[int, float, int]]] = {}
    chapters = manifest.extra["chapters"]
    ends, counts = [c["end_ns"] for c in chapters], np.cumsum([0] + [c["totals"]["scheduled"] for c in chapters])
    for event in events:
        if event["event"] == "process":
            so_far = float(np.interp(event["time_ns"], [manifest.started_ns, *ends], counts))
            seen.setdefault(event["role"], []).append((int(so_far), event["rss_bytes"] / 1e6, event["open_files"]))
    for role, rows in sorted(seen.items()):
        for so_far, mb, files in rows:
            print(f"{role:<10} {so_far:>10,} arrivals  {mb:7.1f} MB  {files:3d} files")
    growth = {}
    for role, rows in seen.items():
        half = np.array([row[:2] for row in rows[len(rows) // 2 :]])
        slope, _ = np.polyfit(half[:, 0] / 1e6, half[:, 1], 1)
        growth[role] = {"first_mb": rows[0][1], "most_mb": max(row[1] for row in rows), "mb_per_million": slope}
    found = {"arrivals": int(counts[-1]), "chapters": len(chapters), "growth": growth, "folder_mb": on_disk / 1e6}
    return found | {"totals": manifest.totals, "status": manifest.status}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    found.add_argument("--rate", type=float, default=2500)
    found.add_argument("--seconds", type=float, default=360)
    found.add_argument("--chapter-seconds", type=float, default=10)
    found.add_argument("--processes", type=int, default=1)
    return found


def main() -> None:
    given = parser().parse_args()
    if given.serve:
        asyncio.run(serve())
    else:
        last_line("soak_memory", **measure(given.rate, given.seconds, given.chapter_seconds, given.processes))


if __name__ == "__main__":
    main()
