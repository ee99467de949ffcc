"""The history as it is shown: a table per endpoint and environment, sentences for what stands out, JSON, an exit code.

Judges nothing itself: calls come from `expectation`, ratios between values of a fact from `contrast`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tailrate.analysis.history import log
from tailrate.analysis.history.by_factor import Contrast, contrasts
from tailrate.analysis.history.figure_series import KINDS, Lineage, lineages, title
from tailrate.analysis.history.log import FILE, History, key_of
from tailrate.analysis.history.regression import UNKNOWN, WORSE, FigureVerdict, judge
from tailrate.analysis.history.run_summary import STATES, Entry
from tailrate.analysis.history.text import run_by_run, sentences, table
from tailrate.analysis.records.folder import MANIFEST, RunError
from tailrate.analysis.text import words
from tailrate.analysis.text.table import Table, plain, safe
from tailrate.analysis.verdicts.verdict import EXIT_CODES, FAIL, INCONCLUSIVE, PASS


@dataclass(frozen=True, slots=True)
class Overview:
    held: History
    judged: list[tuple[Lineage, list[FigureVerdict]]]
    listed: bool
    """Whether each run's value is shown."""

    @property
    def verdict(self) -> str:
        """Of the newest run: fail where a figure is worse, inconclusive where one cannot be judged."""
        newest = key_of(self.judged[-1][0].newest)
        calls = {one.call for lineage, found in self.judged if key_of(lineage.newest) == newest for one in found}
        return FAIL if WORSE in calls else INCONCLUSIVE if UNKNOWN in calls or not calls else PASS

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def tables(self) -> Iterator[Table]:
        before: dict[str, Lineage] = {}
        for lineage, found in self.judged:
            yield table(lineage, found, before.get(lineage.endpoint))
            before[lineage.endpoint] = lineage
            for one in found if self.listed else ():
                yield run_by_run(self.held, lineage, one.track)

    def sentences(self) -> list[str]:
        """What stands out, and what could not be read."""
        said = [sentence for lineage, found in self.judged for sentence in sentences(lineage, found)]
        pins = [f"{name} is pinned to {run}." for name, (run, _) in sorted(self.held.pins.items())]
        agreed = [
            f"What is worse in {run} was accepted by {one.who} ({words.clock_time(one.at_ns)[:10]}): {one.why}."
            for (run, _), one in sorted(self.held.accepted.items(), key=lambda item: item[1].at_ns)
        ]
        return [plain(text) for text in (*said, *pins, *agreed, *self._anew())] + _problems(self.held.problems)

    def _anew(self) -> Iterator[str]:
        """Verdicts change with the rules, not only with the endpoint."""
        told = [
            f"{run} ({STATES[before]}, now {STATES[self.held.runs[run, at].state]})"
            for (run, at), before in sorted(self.held.anew.items(), key=lambda one: one[0][1])
        ]
        if told:
            more = f" and {len(told) - 3} more" if len(told) > 3 else ""
            yield f"Judged anew: {', '.join(told[-3:])}{more}."

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "pins": {name: {"run": run, "time_ns": at} for name, (run, at) in sorted(self.held.pins.items())},
            "accepted": [
                {"run": run, "time_ns": at, **asdict(one)} for (run, at), one in sorted(self.held.accepted.items())
            ],
            "problems": self.held.problems,
            "series": [
                {
                    "endpoint": lineage.endpoint,
                    "environment": lineage.environment,
                    "runs": [{"run": entry.name, "time_ns": entry.time_ns} for entry in lineage.entries],
                    "figures": [_figure(lineage, one) for one in found],
                }
                for lineage, found in self.judged
            ],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """By the values of one fact."""

    by: str
    found: list[Contrast]
    problems: list[str]
    exit_code: int = EXIT_CODES[PASS]

    def tables(self) -> Iterator[Table]:
        heads = ("endpoint", "figure", f"{self.by}: base", "and", "base", "value", "runs", "ratio", "95 % interval", "")
        rows = []
        for one in self.found:
            kind = KINDS[one.key]
            word = {True: "differs", False: "no difference shown", None: "too few runs for an interval"}[one.differs]
            also = f"; also different: {', '.join(one.along)}" if one.along else ""
            rows.append([
                one.endpoint, title(one.key, one.at), one.base, one.value, kind.written(one.base_usual),
                kind.written(one.usual), f"{one.base_runs}, {one.runs}", words.significant(one.ratio),
                words.interval(one.low, one.high), word + also,
            ])  # fmt: skip
        yield safe(Table(f"What {self.by} changes, all else alike", heads, rows, texts=4))

    def sentences(self) -> list[str]:
        return _problems(self.problems)

    def as_json(self) -> dict[str, Any]:
        return {"by": self.by, "problems": self.problems, "contrasts": [asdict(one) for one in self.found]}


def overview(
    runs: Path, *, endpoint: str | None = None, figure: str | None = None, since: str | None = None,
    against: str | None = None,
) -> Overview:  # fmt: skip
    held = log.read(runs)
    pinned = None
    if against is not None:
        if (base := held.find(against)) is None:
            known = f"pinned are {', '.join(sorted(held.pins))}" if held.pins else "nothing is pinned"
            raise RunError(f"--against {against}: there is no such pin or run in {runs}; {known}")
        pinned = against, base
    found = [one for one in lineages(_chosen(held, endpoint, since)) if _is(one.endpoint, endpoint)]
    return Overview(held, judge(found, pinned, _figures(figure), held.accepted), figure is not None)


def compared(
    runs: Path, by: str, *, endpoint: str | None = None, figure: str | None = None, since: str | None = None,
    against: str | None = None,
) -> Comparison:  # fmt: skip
    if against is not None:
        raise RunError("--by compares the values of a fact, and takes no --against")
    held = log.read(runs)
    entries = _chosen(held, endpoint, since)
    names = {level.endpoint for entry in entries for level in entry.levels if _is(level.endpoint, endpoint)}
    found = contrasts(entries, by, names, _figures(figure))
    if not found:
        raise RunError(f"--by {by}: no endpoint was measured at more than one value of it, all else being alike")
    return Comparison(by, found, held.problems)


# ---- changes


def added(folders: Iterable[Path]) -> list[str]:
    """Run folders, or folders that hold them, into the history beside them; a sentence for each history."""
    homes: dict[Path, list[Path]] = {}
    for folder in folders:
        if (folder / MANIFEST).is_file():
            homes.setdefault(Path(os.path.relpath(folder.resolve().parent)), []).append(folder)
        elif folder.is_dir() and (found := log.folders_in(folder)):
            homes.setdefault(folder, []).extend(found)
        else:
            raise RunError(f"{folder} is neither a run folder nor holds one")
    said = []
    for home, found in homes.items():
        entries = [Entry.of(folder) for folder in found]
        new, without = log.add(home, entries), sum(not log.has_figures(entry) for entry in entries)
        left = f"; {without} without figures (no report, aborted or unreadable) left out" if without else ""
        runs = f"{words.count(len(found))} {'run' if len(found) == 1 else 'runs'}"
        said.append(f"{new} of {runs} added to {home / FILE}{left}")
    return [plain(line) for line in said]


def pinned(runs: Path, pin: tuple[str, str] | None, unpin: str | None) -> list[str]:
    """Takes a name away, then gives one; a sentence for each."""
    said = []
    if unpin is not None:
        log.unpin(runs, unpin)
        said.append(f"{unpin} is pinned no more")
    if pin is not None:
        name, run = pin
        home, entry = _found(runs, run, f"--pin {name}")
        if not re.fullmatch(r"[\w.+-]+", name) or (home / name).exists():
            raise RunError(f"--pin {name}: a name is letters, digits and . _ + - only, and that of no file in {home}")
        log.pin(home, name, entry)
        said.append(f"{name} is pinned to {entry.name} in {home / FILE}")
    return [plain(line) for line in said]


def accepted(runs: Path, run: str, who: str, why: str) -> str:
    """Says so, and that it was written down."""
    if not why.strip():
        raise RunError(f"--accept {run}: say --why, so that whoever looks later knows")
    home, entry = _found(runs, run, "--accept")
    log.accept(home, entry, who, " ".join(why.split()))
    return plain(f"what is worse in {entry.name} is accepted by {who} in {home / FILE}")


def _found(runs: Path, run: str, asked: str) -> tuple[Path, Entry]:
    """A run by its folder, pin or name, and the folder of runs with its history."""
    folder = Path(run)
    if (folder / MANIFEST).is_file():
        folder = folder.resolve()
        return Path(os.path.relpath(folder.parent)), Entry.of(folder)
    if (known := log.read(runs).find(run)) is None:
        raise RunError(f"{asked} {run}: there is no such run in {runs}")
    return runs, known


# ---- what was asked for


def _is(endpoint: str, asked: str | None) -> bool:
    return asked is None or endpoint == asked or fnmatchcase(endpoint, asked)


def _figures(figure: str | None) -> list[str]:
    if figure is not None and figure not in KINDS:
        raise RunError(f"--figure {figure}: known are {', '.join(KINDS)}")
    return list(KINDS) if figure is None else [figure]


def _chosen(held: History, endpoint: str | None, since: str | None) -> list[Entry]:
    """Runs since then that have an endpoint of that name."""
    least = 0 if since is None else _time_ns(since)
    entries = [entry for entry in held.entries if entry.time_ns >= least]
    known = sorted({level.endpoint for entry in entries for level in entry.levels})
    if not known:
        raise RunError(f"no run has figures since {since}" if since else "no run has figures yet")
    if not any(_is(name, endpoint) for name in known):
        raise RunError(f"--endpoint {endpoint}: no run has it; known are {plain(', '.join(known))}")
    return entries


def _time_ns(since: str) -> int:
    """A day, or so many days ago."""
    if found := re.fullmatch(r"(\d{1,5})d", since):
        begin = datetime.now(UTC) - timedelta(days=int(found[1]))
    else:
        try:
            begin = datetime.fromisoformat(since)
        except ValueError:
            raise RunError(f"--since {since} is not understood; write for instance 2026-11-01 or 30d") from None
    return int(begin.replace(tzinfo=begin.tzinfo or UTC).timestamp() * 1e9)


def _problems(found: Sequence[str]) -> list[str]:
    more = [f"So are {len(found) - 3} more lines."] if len(found) > 3 else []
    return [plain(text) for text in (*(f"{problem}." for problem in found[:3]), *more)]


def _figure(lineage: Lineage, one: FigureVerdict) -> dict[str, Any]:
    """Infinity, which JSON lacks, is null beside a reading that is not."""

    def number(value: float | None) -> float | None:
        return None if value is None or not math.isfinite(value) else value

    readings = [
        None if r is None else {key: number(value) for key, value in asdict(r).items()} for r in one.track.readings
    ]
    keys = ("call", "against", "usual", "low", "high", "ratio", "ratio_low", "ratio_high", "why")
    return {
        "figure": one.track.key,
        "at": one.track.at,
        **{key: getattr(one, key) for key in keys},
        "shifts": [{"run": lineage.entries[s.place].name, "ratio": s.ratio, "call": s.call} for s in one.shifts],
        "readings": readings,
    }
