"""Servers that people know beside ours, with a model that costs next to nothing: what a request costs on its way.

Each holds a network of two small layers and gets 64 numbers a request, from our own load side, so many always under
way; it is started anew for each visit and alone on the machine, so that nobody's idling costs another. Where a server
takes tensors as bytes it gets bytes, else JSON. One that is not installed is left out (`make peers`).

Physics: nothing else may run on the machine meanwhile.

Prints a table (medians over rounds, the lowest and the highest), then one JSON line.

    python tests/bench/other_servers.py [--only ours,triton] [--concurrency 1,32] [--seconds 6] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, left_out, shown, spreads  # noqa: E402
from peer_servers import MissingError, asked, started  # noqa: E402

CONTESTANTS: Mapping[str, tuple[str, str]] = {
    "ours": ("", "http"),
    "ours, gRPC": ("", "grpc"),
    "triton": ("triton", "http"),
    "triton, gRPC": ("triton", "grpc"),
    "mlserver": ("mlserver", "http"),
    "kserve": ("kserve", "http"),
    "torchserve": ("torchserve", "http"),
    "fastapi": ("fastapi", "http"),
}
"""By name: the server of `make peers`, empty for ours, and how it is spoken to."""
Options = list[str]


@contextmanager
def ours(scheme: str, folder: Path) -> Iterator[tuple[str, Options]]:
    from serving import served

    from tailrate.serve.deploy.haproxy import free_port

    grpc_port = free_port()
    how = {"grpc_port": grpc_port} if scheme == "grpc" else {}
    with served(folder / "cache", models=["mlp"], variants=["eager"], **how) as server:
        yield f"it={f'grpc://127.0.0.1:{grpc_port}' if scheme == 'grpc' else server.url}#mlp/eager", []


@contextmanager
def theirs(name: str, scheme: str, folder: Path) -> Iterator[tuple[str, Options]]:
    with started(name, folder) as peer:
        endpoint, _, options = asked(peer, scheme)
        yield endpoint, options


def visit(contestant: str, concurrency: str, seconds: float) -> dict[str, float]:
    """Requests per second, P50 and P99 in ms at each number of requests under way."""
    name, scheme = CONTESTANTS[contestant]
    with tempfile.TemporaryDirectory(prefix="tailrate-") as scratch:
        folder = Path(scratch)
        with theirs(name, scheme, folder) if name else ours(scheme, folder) as (endpoint, options):
            command = [
                sys.executable, "-m", "tailrate", "run", "mlp", f"--endpoints={endpoint}", "--mode=closed",
                f"--concurrency={concurrency}", f"--step-seconds={seconds + 1}", "--settle-seconds=1",
                "--idle-seconds=0", "--self-check=off", "--timeout=60", *options, f"--run-dir={folder}", "--run-id=run",
            ]  # fmt: skip
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode in (0, 3), done.stdout + done.stderr
        steps = json.loads((folder / "run" / "report.json").read_text())["steps"]
    found = {}
    for step, level in zip(steps, concurrency.split(","), strict=True):
        assert not step["errors"], f"{contestant}: {step['errors']} of {step['n']} failed"
        found |= {f"rps@{level}": step["achieved_rps"], f"p50@{level}": step["p50_ms"], f"p99@{level}": step["p99_ms"]}
    return found


def installed(contestant: str) -> bool:
    name, scheme = CONTESTANTS[contestant]
    if not name:
        return True
    try:
        with tempfile.TemporaryDirectory(prefix="tailrate-") as scratch, theirs(name, scheme, Path(scratch)):
            return True
    except MissingError as why:
        print(f"{contestant} is left out: {why}")
        return False


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--only", default=",".join(CONTESTANTS).replace(", gRPC", "+gRPC"), help="some of them")
    found.add_argument("--concurrency", default="1,32", help="how many requests are always under way, step by step")
    found.add_argument("--seconds", type=float, default=6.0, help="of each step")
    found.add_argument("--rounds", type=int, default=5)
    return found


def main() -> None:
    options = parser().parse_args()
    wanted = [name.replace("+gRPC", ", gRPC") for name in options.only.split(",")]
    if unknown := [name for name in wanted if name not in CONTESTANTS]:
        raise SystemExit(f"no server is called {', '.join(unknown)}; there are {', '.join(CONTESTANTS)}")
    names = [name for name in wanted if installed(name)]
    if not names:
        left_out("other_servers", "none of them is installed: make peers")
        return
    ways: dict[str, Callable[[], dict[str, float]]] = {
        name: partial(visit, name, options.concurrency, options.seconds) for name in names
    }
    found = {name: spreads(rows) for name, rows in in_turns(options.rounds, ways).items()}
    for level in options.concurrency.split(","):
        print(f"\n{level} under way{'requests/s':>38} {'P50, ms':>22} {'P99, ms':>22}")
        for name, of in found.items():
            times = (shown(of[f"{percent}@{level}"], ".2f", 22) for percent in ("p50", "p99"))
            print(f"{name:<24}", shown(of[f"rps@{level}"], ".0f", 24), *times)
    last_line("other_servers", rounds=options.rounds, servers=found)


if __name__ == "__main__":
    main()
