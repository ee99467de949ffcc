"""What all tests share: which worker runs which, what a test must be marked for to start, and where the time went.

A file's tests run in one worker and in order (`--dist=loadfile`), so that the file's servers are started once.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import starts

KINDS = ("served", "live", "browser", "computes")
"""Marks of what needs more than this process; the first that a test has is its kind, and "alone" that of the rest."""
HEAVY = ("soak_verdict", "plan_command", "plan", "plan_page", "forms", "simulate", "interval", "commands", "index")
"""Files that compute longest begin before the others, so that no worker is left with one while the rest have ended."""
SLOWEST = 15
STARTED = pytest.StashKey[tuple[float, float]]()

# a test may take what another file of tests has, by its name; no two are called alike
sys.path += sorted(map(str, {path.parent for path in Path(__file__).parent.rglob("test_*.py")}))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the cores are shared by workers already
# how long an example takes is the machine's mood
hypothesis.settings.register_profile("any pace", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any pace")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Ctrl-C reaches what tests start, also where the suite is run in the background of a script, which has it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)


def kind(item: pytest.Item) -> str:
    return next((name for name in KINDS if item.get_closest_marker(name)), "alone")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Servers and runs in real time, in turn, as one computes while the other waits; what only computes comes last."""
    kinds: dict[Path, str] = {}
    for item in items:
        kinds[item.path] = min(kinds.get(item.path, "alone"), kind(item), key=[*KINDS, "alone"].index)
    counts: dict[str, int] = defaultdict(int)
    place: dict[Path, tuple[bool, bool, int, str]] = {}
    for path, found in kinds.items():
        waits, heavy = found in ("served", "live"), path.stem.removeprefix("test_") in HEAVY
        place[path] = (not waits, waits or not heavy, counts[found], path.name)
        counts[found] += 1
    items.sort(key=lambda item: place[item.path])  # a stable sort: within a file the order stays


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    starts.marks = {mark.name for mark in item.iter_markers()}
    if torch := sys.modules.get("torch"):
        # else torch 2.11 for CUDA crashes without a GPU, where one thread compiles after the first that did has ended
        torch._C._ensureCUDADeviceGuardSet()


# ---- where the time went


def cpu_s() -> float:
    """Of this worker and of the processes that it started and waited for."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[STARTED] = (time.monotonic(), cpu_s())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if call.when == "teardown":
        began_s, cpu = item.stash[STARTED]
        report.user_properties.append(("spent", (kind(item), time.monotonic() - began_s, cpu_s() - cpu)))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """By kind and by file; only where it took long enough to ask."""
    spent = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            found = dict(getattr(report, "user_properties", ())).get("spent")
            if found and report.when == "teardown":
                spent.append((Path(report.nodeid.partition("::")[0]).name, *found))
    if sum(wall for _, _, wall, _ in spent) < 60:
        return
    terminalreporter.section("where the time went (seconds, of all workers together)")
    for title, keys, most in (("kind", 1, None), ("file", 0, SLOWEST)):
        totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        for row in spent:
            for place, value in enumerate((1, *row[2:])):
                totals[row[keys]][place] += value
        terminalreporter.write_line(f"{title:<40} {'tests':>6} {'waited':>8} {'CPU':>8}")
        for name, (count, wall, cpu) in sorted(totals.items(), key=lambda item: -item[1][1])[:most]:
            terminalreporter.write_line(f"{name:<40} {count:>6.0f} {wall:>8.1f} {cpu:>8.1f}")
