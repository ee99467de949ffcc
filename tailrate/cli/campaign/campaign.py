"""A campaign in its folder: `campaign.json` says which it is, so that it goes on as the same one or not at all."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tailrate.cli.campaign import page
from tailrate.cli.campaign.runner import CELLS, RUNS, CampaignError, Work, read, write
from tailrate.cli.campaign.tables import measured, tables

FACTS, TABLES, PICTURES = "campaign.json", "campaign.md", "campaign.html"
SAME = ("what", "device", "torch", "only")
"""What must be as it was when a campaign goes on: figures of two machines in one table would be nobody's."""


def study(work: Work, what: str, machine: Mapping[str, Any]) -> Path:
    """Measures what is still missing and writes the tables after each cell; gives the page's path.

    `what` names the size, `machine` says what it is measured on.
    """
    known = [subject.label for subject in work.size.subjects]
    if strange := [label for label in work.only if label not in known]:
        raise CampaignError(f"unknown subject '{strange[0]}'; this campaign has {', '.join(known)}")
    with work.alone():
        facts = _facts(work.folder, what, machine, work.only)
        work.kept()
        _write(work, facts)
        for _ in work.each():
            _write(work, facts)
    return work.folder / PICTURES


def _facts(folder: Path, what: str, machine: Mapping[str, Any], only: Sequence[str]) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    facts: dict[str, Any] = {
        "what": what, "only": list(only), "date": now, "python": platform.python_version(),
        "tailrate": _version(), "command": shlex.join(["tailrate", *sys.argv[1:]]), **machine,
    }  # fmt: skip
    if (folder / FACTS).exists():
        before = _before(folder / FACTS)
        for key in SAME:
            if before.get(key) != facts.get(key):
                raise CampaignError(
                    f"{folder} holds a campaign with {key} {before.get(key)}, and now it would be {facts.get(key)}; "
                    f"take another folder"
                )
        facts["date"] = before["date"]
    elif strange := [name for name in (CELLS, TABLES, PICTURES) if (folder / name).exists()]:
        raise CampaignError(f"{folder} holds {strange[0]} and no {FACTS}; take another folder")
    return facts


def _before(path: Path) -> dict[str, Any]:
    found = read(path)
    if "date" not in found:
        raise CampaignError(f"{path} was not written by tailrate campaign; take another folder")
    return found


def _version() -> str:
    try:
        return version("tailrate")
    except PackageNotFoundError:  # from a folder, as on a machine that nothing can be installed on
        return "not installed"


def _write(work: Work, facts: Mapping[str, Any]) -> None:
    done = measured(work.size, work.found, work.only)
    found = list(tables(work.size, work.found, work.only))
    write(work.folder / FACTS, {**facts, "done": done[0], "of": done[1], "cells": work.found})
    (work.folder / TABLES).write_text(page.markdown(facts, done, work.size, work.found, found))
    (work.folder / PICTURES).write_text(page.page(facts, done, work.size, work.found, found, work.folder / RUNS))
