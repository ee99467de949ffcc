"""Carries a campaign out: each cell in processes of its own, its result kept in a file as soon as it is there.

What is served and driven is given to it; it decides rates from what the cells before have shown. A cell that fails is
kept as failed, with the sentence why, and the campaign goes on. Nothing is measured twice: the file of a cell is
written whole or not at all. Its processes end when it does, even when it is killed, and hold its lock until then: what
is measured next has the machine to itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrate.analysis.records.folder import RunError, read_json, write_atomically
from tailrate.cli.campaign.matrix import RATES, Cell, Size, Subject, cells, expected_s
from tailrate.loadtest.engine import child_python

CELLS, RUNS, CACHE, LOGS, LOCK = "cells", "runs", "cache", "logs", ".lock"
LONE = 8.0
"""The knee's objective, in latencies of a lone request to the eager variant."""
MOST_RPS = 3000.0
"""Higher rates are not driven: one load process is to be trusted, on a machine that serves, too."""
SHARED = 0.3
"""Of what the eager variant can take bare, for the run in which two variants share the device."""

Serving = Callable[[Subject, Sequence[str], int], AbstractContextManager[str]]
"""(subject, variants, a file that it holds open) → the URL of a server that is ready."""


class CampaignError(Exception):
    """Misuse: one sentence that says what to do."""


@dataclass
class Work:
    """One campaign in its folder."""

    folder: Path
    size: Size
    device: str
    serving: Serving
    say: Callable[[str], None]
    threads: int
    """Of torch, bare as served."""
    only: Sequence[str] = ()
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Results by the cells' names."""
    _lock: int = -1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One campaign in a folder at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK).open("a") as file:
            self._lock = file.fileno()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say(f"waiting: processes of a campaign in {self.folder} are still at work")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def kept(self) -> None:
        """Finds what was measured before."""
        for cell in cells(self.size, self.only):
            with suppress(FileNotFoundError):
                self.found[cell.name] = read(self._path(cell))

    def each(self) -> Iterator[Cell]:
        """Every other cell, once its result is among those found."""
        todo, began, before = list(cells(self.size, self.only)), time.monotonic(), set(self.found)
        if missing := len(todo) - len(before):
            self.say(f"{missing} cells, about {minutes(self.left_s(before, 0))}")
        with ExitStack() as server:
            at: tuple[Subject, str] | None = None
            for number, cell in enumerate(todo, start=1):
                if cell.name in self.found:
                    continue
                spent_s = time.monotonic() - began
                left = minutes(self.left_s(before, spent_s))
                self.say(f"{number} of {len(todo)}, after {spent_s:.0f} s, about {left} to go: {cell.name}")
                try:
                    if cell.kind in ("bare", "profile"):
                        server.close()  # its replicas would take part of the device
                        at = None
                        result = self._alone(cell)
                    else:
                        if at is None or at[0] != cell.subject:
                            server.close()
                            at = cell.subject, server.enter_context(self._served(cell.subject))
                        result = self._driven(cell, at[1])
                except CampaignError as problem:
                    result = {"failed": str(problem)}
                    server.close()  # whatever was wrong with it
                    at = None
                self.found[cell.name] = result
                write(self._path(cell), result)
                yield cell

    def left_s(self, before: Collection[str], spent_s: float) -> float:
        """Of what is missing: as planned, times what the cells since `before` took of what was planned for them."""
        expected = {cell.name: expected_s(cell, self.size, self.device) for cell in cells(self.size, self.only)}
        left = sum(seconds for name, seconds in expected.items() if name not in self.found)
        done = sum(seconds for name, seconds in expected.items() if name in self.found and name not in before)
        return left * (spent_s / done if done else 1.0)

    def _path(self, cell: Cell) -> Path:
        return self.folder / CELLS / f"{cell.name}.json"

    # ---- in a process of its own

    def _alone(self, cell: Cell) -> dict[str, Any]:
        asked = {
            "model": cell.subject.model, "variant": cell.variant, "settings": dict(cell.subject.settings),
            "batches": list(self.size.batches_of(cell.subject)), "seconds": self.size.seconds, "device": self.device,
            "threads": self.threads, "cache_dir": str(self.folder / CACHE), "core": cell.subject.step,
        }  # fmt: skip
        if cell.kind == "profile":
            return self._bare(cell, asked | {"profile": str(self.folder / LOGS)})
        with self._empty_cache(cell) as cache:
            first = self._bare(cell, asked | {"cache_dir": str(cache)})
            if "ready_s" not in first:
                return first
            again = self._bare(cell, asked | {"cache_dir": str(cache), "timed": False})
        return first | {"again": {key: again.get(key) for key in ("ready_s", "warmup_s", "start", "failed")}}

    @contextmanager
    def _empty_cache(self, cell: Cell) -> Iterator[Path]:
        """Weights are there, and nothing that was compiled; what is compiled meanwhile serves those who come later."""
        cache, cold = (self.folder / CACHE).absolute(), (self.folder / CACHE / f"cold-{cell.name}").absolute()
        shutil.rmtree(cold, ignore_errors=True)
        (cache / "weights").mkdir(parents=True, exist_ok=True)
        cold.mkdir()
        (cold / "weights").symlink_to(cache / "weights", target_is_directory=True)
        try:
            yield cold
            for made in cold.glob("compiled/*"):
                kept = cache / "compiled" / made.name
                kept.parent.mkdir(exist_ok=True)
                if not kept.exists():
                    made.rename(kept)
        finally:
            shutil.rmtree(cold)

    def _bare(self, cell: Cell, asked: Mapping[str, Any]) -> dict[str, Any]:
        words = ["tailrate.serve.bare_loop", json.dumps(asked)]
        log, code, said = self._process(cell.name, words, self.size.limit_of(cell.subject))
        lines = said.splitlines()
        if code or not lines:
            raise CampaignError(f"its process ended with {code}: {log}")
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def _process(self, name: str, words: Sequence[str], limit: float | None = None) -> tuple[Path, int, str]:
        """(its log, its exit code, what it printed); it ends with us, and holds our lock until then."""
        log = self.folder / LOGS / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            try:
                done = subprocess.run(
                    child_python.command(*words), stdout=subprocess.PIPE, stderr=errors, text=True, timeout=limit,
                    env=os.environ | {"TAILRATE_PARENT": str(os.getpid())}, pass_fds=[self._lock], check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise CampaignError(f"not done within {limit:.0f} s: {log}") from None
        return log, done.returncode, done.stdout.strip()

    # ---- through a server

    @contextmanager
    def _served(self, subject: Subject) -> Iterator[str]:
        with ExitStack() as server:
            try:
                url = server.enter_context(self.serving(subject, self.size.pair(subject), self._lock))
            except SystemExit as problem:
                raise CampaignError(f"its server ended with {problem.code} before it was ready") from None
            yield url

    def _driven(self, cell: Cell, url: str) -> dict[str, Any]:
        eager, better = self.size.pair(cell.subject)
        most = {variant: self._best(cell.subject, variant) for variant in (eager, better)}
        step = self.size.step_seconds + self.size.settle_seconds
        words = [*cell.subject.load, "--variants", f"{eager},{better}"]
        words += ["--settle-seconds", f"{self.size.settle_seconds:g}"]
        if cell.kind == "lone":
            return self._run(cell, url, [*words, "--mode", "single", "--step-seconds", f"{step:g}"])
        if cell.kind == "ramp":
            highest = min(0.9 * max(most.values()), MOST_RPS)
            rates = spread(min(0.15 * most[eager], highest / 4), highest, RATES)
            more = ["--mode", "ab", "--rounds", str(self.size.rounds), "--step-seconds", f"{step:g}"]
            return self._run(cell, url, [*words, *more, "--rates", ",".join(f"{rate:.4g}" for rate in rates)])
        if cell.kind == "knee":
            lone = self.found.get(Cell("lone", cell.subject).name, {}).get("steps") or ()
            alone_ms = next((row["p50_ms"] for row in lone if row["endpoint"].endswith("/eager")), None)
            if alone_ms is None:
                raise CampaignError(
                    "how long a lone request takes is not known, so there is no objective to search for"
                )
            more = ["--mode", "knee", "--guided", "on", "--slo", f"p{self.size.percent}<{LONE * alone_ms:.3g}ms"]
            more += ["--budget-seconds", f"{self.size.budget_seconds:g}", "--step-seconds", f"{step:g}"]
            return self._run(cell, url, [*words, *more, "--rates", f"{min(0.3 * most[eager], MOST_RPS / 4):.4g}"])
        rate = min(SHARED * most[eager], MOST_RPS / 2)
        words += ["--step-seconds", f"{2 * step:g}"]
        alone = self._run(cell, url, [*words, "--mode", "hold", "--rates", f"{rate:.4g}"], "alone")
        both = self._run(cell, url, [*words, "--mode", "mixed", "--rates", f"{2 * rate:.4g}"], "both")
        return {"alone": alone, "both": both}

    def _best(self, subject: Subject, variant: str) -> float:
        """Rows per second of the bare loop, at the batch size where that is highest."""
        bare = self.found.get(Cell("bare", subject, variant).name, {})
        rates = [float(row["rows_s"]) for row in bare.get("batches", {}).values() if "rows_s" in row]
        if not rates:
            raise CampaignError(f"{variant} has no bare loop to tell which rates to drive")
        return max(rates)

    def _run(self, cell: Cell, url: str, words: Sequence[str], part: str = "") -> dict[str, Any]:
        """A run folder, and what its report says; one that is complete already is not driven again."""
        folder = self.folder / RUNS / "--".join(filter(None, (cell.name, part)))
        report = folder / "report.json"
        if not _complete(folder):
            if folder.exists():  # it was being driven when the campaign was killed
                folder.rename(folder.with_name(f"{folder.name}.{time.time_ns()}"))
            command = ["tailrate", "run", cell.subject.model, "--host", url]
            command += ["--run-dir", str(folder.parent), "--run-id", folder.name, *words]
            log, _, _ = self._process(folder.name, command)
            if not _complete(folder):
                raise CampaignError(f"its run is not complete: {log}")
        found = json.loads(report.read_text())
        kept = ("conclusion", "steps", "pairs", "capacity", "verdict", "trust")
        return {"run": folder.name} | {key: found.get(key) for key in kept}


def _complete(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        status: str = json.loads((folder / "run.json").read_text())["status"]
        return status == "complete" and (folder / "report.json").exists()
    return False


def minutes(seconds: float) -> str:
    """For people who wait.

    >>> minutes(40), minutes(80), minutes(700)
    ('1 minute', '1 minute', '12 minutes')
    """
    count = max(1, round(seconds / 60))
    return f"{count} minute{'s' if count > 1 else ''}"


def spread(first: float, last: float, count: int) -> list[float]:
    """Evenly, by factors.

    >>> spread(1, 16, 5)
    [1.0, 2.0, 4.0, 8.0, 16.0]
    """
    return [first * (last / first) ** (place / (count - 1)) for place in range(count)]


def read(path: Path) -> dict[str, Any]:
    """What `write` made; `FileNotFoundError` where there is none."""
    try:
        found = read_json(path)
    except RunError as problem:
        raise CampaignError(f"{problem}; remove it, or take another folder") from None
    if not isinstance(found, dict):
        raise CampaignError(f"{path} holds no JSON object; remove it, or take another folder")
    return found


def write(path: Path, value: object) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(value, indent=1))
