"""Whether a change makes tailrate slower: what pieces of it cost at two commits, in turns, and how sure that is.

A piece is a process that is run by the code of one commit and then of the other, who is first taking turns: its CPU
time, where it does not tell a figure of its own, as that of a request. What a machine does meanwhile meets both sides,
and CPU time is the same whoever waits for whom, so a few per cent can be told on a machine that is not quite quiet;
what only makes somebody wait cannot be seen here (`request_path`, `schedule_kept`). A ratio is Hodges and Lehmann's
estimate over rounds with its 95 % interval (Wilcoxon's signed ranks). A piece is slower where all of that interval is
beyond two per cent, which equal code hardly ever is; where the interval leaves open whether it is, there are as many
rounds again, twice at most. Ends with 1 if any is slower.

Prints a table, then one JSON line. BASE and NEW are anything that git knows; the working tree as it is, where no NEW is
given. The environment is one for both.

    python tests/bench/commits.py main~3            `make bench-compare BASE=main~3`
    python tests/bench/commits.py v1 v2 --only help,report --rounds 40
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402

MATTERS = 0.02
"""A change in cost that is called one."""
LEAST_ROUNDS = 10
"""Of fewer the interval is none of 95 %."""
MOST_TIMES = 3
"""As many rounds as were asked for, where fewer leave it open."""
OPEN = "none that shows"

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Modules are compiled once, and not in each round."""

REQUESTS = """
import asyncio, sys, time
import numpy as np
from tailrate.serve.asgi import as_app
from tailrate.serve.body.request import encode_infer
from tailrate.serve.edge.endpoint import Endpoint
from tailrate.serve.options import ServeOptions

async def main(size, count):
    options = ServeOptions(models=("null",), variants=("eager",), device="cpu")
    endpoint = Endpoint(options, "null", "eager", "it")
    app = as_app(lambda request: endpoint.answer(request, "infer"), 1 << 24)
    while endpoint.engine.state != "READY":
        await asyncio.sleep(0.01)
    body, headers = encode_infer({"x": np.zeros((1, size), np.uint8)})
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"",
             "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        pass

    async def client(count):
        for _ in range(count):
            await app(scope, receive, send)

    await asyncio.gather(*(client(50) for _ in range(8)))
    began = time.process_time()
    await asyncio.gather(*(client(count // 8) for _ in range(8)))
    print(1e6 * (time.process_time() - began) / count)
    endpoint.engine.close()

asyncio.run(main(*map(int, sys.argv[1:])))
"""


@dataclass(frozen=True)
class Piece:
    words: tuple[str, ...]
    """Of Python's command line; FOLDER, SMALL, LARGE and HOST stand for what is prepared."""
    unit: str = "s of CPU"
    told: bool = False
    """It prints its figure."""
    codes: tuple[int, ...] = (0,)


PIECES = {
    "help": Piece(("-m", "tailrate", "--help")),
    "report": Piece(("-m", "tailrate", "report", "SMALL")),
    "report of a million rows": Piece(("-m", "tailrate", "report", "--no-page", "LARGE")),
    "request of 1 KB": Piece(("-c", REQUESTS, "1000", "8000"), "µs of CPU", told=True),
    "request of 150 KB": Piece(("-c", REQUESTS, "150000", "8000"), "µs of CPU", told=True),
    "run of 2,000 requests": Piece(
        ("-m", "tailrate", "run", "null", "--host", "HOST", "--rates", "500", "--step-seconds", "4", "--variants",
         "eager", "--settle-seconds", "0.5", "--idle-seconds", "0", "--self-check", "off", "--run-dir", "FOLDER"),
        codes=(0, 1, 3),
    ),
}  # fmt: skip


def cost(piece: Piece, tree: Path, stands: Mapping[str, str]) -> float:
    """Of one run of it by the code of a tree."""
    words = [stands.get(word, word) for word in piece.words]
    with tempfile.TemporaryDirectory(prefix="tr-") as folder, tempfile.TemporaryFile() as said:
        words = [folder if word == "FOLDER" else word for word in words]
        process = subprocess.Popen(
            [sys.executable, "-P", *words], stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=ENVIRONMENT | {"PYTHONPATH": str(tree)}, cwd=folder,
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode(errors="replace")
    if process.returncode not in piece.codes:
        raise SystemExit(f"{' '.join(words)[:200]} ended with {process.returncode} in {tree}:\n{text[-2000:]}")
    return float(text) if piece.told else used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Compared:
    """Costs of the new side over those of the base."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, base: Sequence[float], new: Sequence[float]) -> Compared:
        logs = [math.log(mine / its) for mine, its in zip(new, base, strict=True)]
        means = sorted((one + other) / 2 for one, other in combinations_with_replacement(logs, 2))
        rounds = len(logs)
        error = math.sqrt(rounds * (rounds + 1) * (2 * rounds + 1) / 24)
        outside = max(0, math.floor(len(means) / 2 - 1.96 * error))
        return cls(*(math.exp(log) for log in (statistics.median(means), means[outside], means[-1 - outside])))

    @property
    def verdict(self) -> str:
        if self.low > 1 + MATTERS:
            return "slower"
        if self.high < 1 - MATTERS:
            return "faster"
        return "no change" if self.low > 1 - MATTERS and self.high < 1 + MATTERS else OPEN

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f}–{self.high:.3f})"


def compared(measure: Callable[[Path], float], trees: Sequence[Path], rounds: int) -> tuple[list[float], list[float]]:
    """What both trees cost, in turns, until it is decided."""
    base: list[float] = []
    new: list[float] = []
    for turn in range(MOST_TIMES * rounds):
        sides = [(trees[0], base), (trees[1], new)]
        for tree, costs in sides if turn % 2 else reversed(sides):
            costs.append(measure(tree))
        if not (turn + 1) % rounds and Compared.of(base, new).verdict != OPEN:
            break
    return base, new


# ---- the two trees, and what they work on


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tr-") as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def prepare(folder: Path) -> dict[str, str]:
    """Run folders that both sides read."""
    import wide
    from folders import Load, make_run

    loads = [Load(endpoint, rate) for rate in (100, 200) for endpoint in ("bert/eager", "bert/compiled")]
    make_run(folder / "small", loads, slo=["p99<100ms"])
    wide.write(folder / "large", 1_000_000, 8, 0)
    return {"SMALL": str(folder / "small"), "LARGE": str(folder / "large")}


# ---- all of it


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("base", nargs="?", default="HEAD", metavar="BASE")
    found.add_argument("new", nargs="?", metavar="NEW")
    found.add_argument("--rounds", type=int, default=30)
    found.add_argument("--only", default="", help="pieces that begin so, such as help,report")
    return found


def chosen(only: str) -> dict[str, Piece]:
    words = [word.strip() for word in only.split(",") if word.strip()]
    found = {name: piece for name, piece in PIECES.items() if not words or name.startswith(tuple(words))}
    if missing := [word for word in words if not any(name.startswith(word) for name in PIECES)]:
        raise SystemExit(f"no piece begins with '{missing[0]}'; there are {', '.join(PIECES)}")
    return found


def main() -> None:
    asked = parser().parse_args()
    if asked.rounds < LEAST_ROUNDS:
        raise SystemExit(f"--rounds must be {LEAST_ROUNDS} or more: fewer cannot be sure")
    pieces = chosen(asked.only)
    with ExitStack() as stack:
        from endpoint import endpoint

        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tr-")))
        trees = [
            stack.enter_context(checkout(asked.base)),
            stack.enter_context(checkout(asked.new)) if asked.new else ROOT,
        ]
        stands = prepare(scratch) | {"HOST": stack.enter_context(endpoint())}
        print(f"{'piece':26} {'base':>10} {'new':>10} {'unit':10} {'new ÷ base':>22}  verdict")
        rows = {}
        for name, piece in pieces.items():
            for tree in trees:
                cost(piece, tree, stands)  # compiles what is kept from then on
            base, new = compared(partial(cost, piece, stands=stands), trees, asked.rounds)
            found = Compared.of(base, new)
            rows[name] = {
                "base": statistics.median(base), "new": statistics.median(new), "unit": piece.unit, "rounds": len(base),
                "ratio": found.ratio, "low": found.low, "high": found.high, "verdict": found.verdict,
            }  # fmt: skip
            print(
                f"{name:26} {rows[name]['base']:10.4g} {rows[name]['new']:10.4g} {piece.unit:10} {found!s:>22}"
                f"  {found.verdict}",
                flush=True,
            )
    commits = {"base": git("rev-parse", "--short", asked.base), "new": asked.new or "working tree"}
    last_line("commits", **commits, rounds=asked.rounds, pieces=rows)
    sys.exit(any(row["verdict"] == "slower" for row in rows.values()))


if __name__ == "__main__":
    main()
