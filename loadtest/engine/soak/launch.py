"""How a soak is started and ended: alone in its folder of runs, at a share of a known capacity, telling a webhook."""

from __future__ import annotations

import fcntl
import json
import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tailrate.loadtest.engine.scenario.scenario import ScenarioError

LOCK = ".soak.lock"


@contextmanager
def alone(run_dir: Path) -> Iterator[int]:
    """One soak at a time in a folder of runs; a load process that is handed the lock holds it as long as it writes."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as problem:
        raise ScenarioError(f"{run_dir} cannot be written: {problem.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid, _, what = os.pread(lock, 300, 0).decode(errors="replace").strip().partition(" ")
            there = f"process {pid or 'unknown'} writes {what or 'a run'}"
            raise ScenarioError(f"a soak is under way in {run_dir}: {there}") from None
        hold(lock, os.getpid(), run_dir)
        yield lock
    finally:
        os.close(lock)


def hold(lock: int, pid: int, folder: Path) -> None:
    """Says who holds it."""
    os.pwrite(lock, f"{pid} {folder}\n".ljust(300).encode(), 0)


def share_of(known: Path, share: float) -> tuple[float, float]:
    """(rate, what the weakest endpoint of an earlier run could take)."""
    if not 0 < share <= 2:
        raise ScenarioError(f"--share {share:g} must lie between 0 and 2: 0.5 is half of the capacity")
    try:
        found = json.loads((known / "report.json").read_text(encoding="utf-8"))["capacity"]
        most = [float(row["max_rps"]) for row in found if row.get("max_rps")]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        made = f"make one with: tailrate report {known}"
        raise ScenarioError(f"{known} has no report.json with a capacity; {made}") from None
    if not most:
        how = "run a ramp or --mode knee with an objective, or say --rates"
        raise ScenarioError(f"{known} found no capacity; {how}")
    return share * min(most), min(most)


def check(url: str) -> None:
    """Of a webhook; the sentence doesn't repeat it, since whoever knows its address may write there."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good or not re.fullmatch("[!-~]+", url):
        raise ScenarioError("the webhook is not a URL; write for instance https://chat.example/hooks/1, without a user")


def tell(url: str, folder: Path, code: int) -> str | None:
    """POSTs what came of a run; the sentence about why it could not, which is no reason for another verdict.

    That names the host only: the rest of a webhook's address is what lets one write there.
    """
    told: dict[str, Any] = {"run": folder.name, "folder": str(folder.resolve()), "exit_code": code}
    with suppress(OSError, ValueError):
        found = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        told |= {key: found[key] for key in ("verdict", "reasons", "conclusion") if key in found}
    try:
        fields = {"content-type": "application/json"}
        request = urllib.request.Request(url, json.dumps(told).encode(), fields, method="POST")  # noqa: S310 -- theirs
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
    except OSError as problem:
        return f"the webhook at {urlsplit(url).hostname} could not be told: {problem}"
    except (ValueError, HTTPException) as problem:  # these may repeat the address
        return f"the webhook at {urlsplit(url).hostname} could not be told: {type(problem).__name__}"
    return None
