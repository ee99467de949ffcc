"""The history of a folder of runs: `history.jsonl` beside them, in which a run outlives its folder.

A line is a run in short (`entry`), a pin: a name that somebody gave to a run, or that somebody accepted what is worse
in one. Lines are only ever appended, so that `head` and `grep` read it and two writers cannot harm one another: a lock
is held while one looks what is there and appends what is new. Of several lines about one run, or one pin, the last
holds. A line that cannot be read costs itself and nothing else. A run is known by its name and when it began: a name
may be used again once its folder is deleted.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailrate.analysis.history.run_summary import (
    STATES,
    Entry,
    Level,
    StartFacts,
    SustainedRate,
    count,
    figure,
    figures_of,
)
from tailrate.analysis.records.folder import MANIFEST, RunError, append_whole, has_manifest
from tailrate.analysis.records.manifest import DERIVED_SCHEMA
from tailrate.analysis.text import words

FILE = "history.jsonl"

Key = tuple[str, int]
"""A run's name and when it began (ns)."""
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is worse since a run is what is usual from then on."""

    who: str
    why: str
    at_ns: int


@dataclass(slots=True)
class History:
    """What is known of the runs of a folder."""

    runs: dict[Key, Entry] = field(default_factory=dict)
    pins: dict[str, Key] = field(default_factory=dict)
    accepted: dict[Key, Accepted] = field(default_factory=dict)
    anew: dict[Key, str] = field(default_factory=dict)
    """Of runs whose report was made again with another verdict: the one before."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each line that could not be read."""

    @property
    def entries(self) -> list[Entry]:
        """Oldest first."""
        return [self.runs[key] for key in sorted(self.runs, key=lambda key: (key[1], key[0]))]

    def names_of(self, entry: Entry) -> list[str]:
        """The pins on a run."""
        return sorted(name for name, key in self.pins.items() if key == key_of(entry))

    def find(self, name: str) -> Entry | None:
        """A run by its pin, else the latest one of that name; a pin whose run is not known finds none."""
        if name in self.pins:
            return self.runs.get(self.pins[name])
        named = [key for key in self.runs if key[0] == name]
        return self.runs[max(named, key=lambda key: key[1])] if named else None


def key_of(entry: Entry) -> Key:
    return entry.name, entry.time_ns


def has_figures(entry: Entry) -> bool:
    """Only what has a report has figures; what was aborted says nothing of the endpoint."""
    return entry.state in words.VERDICTS


def read(runs: Path, entries: Iterable[Entry] | None = None) -> History:
    """The history file of a folder of runs, and what its folders have beyond that; nothing is written.

    Who has read the folders already gives what came of it.
    """
    try:
        found = _parsed((runs / FILE).read_bytes(), runs / FILE)
    except FileNotFoundError:
        found = History()
    except OSError as problem:
        raise RunError(f"{runs / FILE} cannot be read: {problem.strerror}") from None
    if entries is None:
        folders = folders_in(runs) if runs.is_dir() else []
        if not folders and not (runs / FILE).exists():
            raise RunError(f"{runs} holds neither a {FILE} nor a run folder")
        names = {name for name, _ in found.runs}
        entries = (
            Entry.of(folder) for folder in folders if folder.name not in names or _key_in(folder) not in found.runs
        )
    found.runs |= {key_of(entry): entry for entry in entries if has_figures(entry)}
    return found


def _key_in(folder: Path) -> Key:
    """Of the run in a folder; when one began that cannot be read, nobody knows."""
    try:
        return folder.name, int(json.loads((folder / MANIFEST).read_bytes())["started_ns"])
    except _NOT_OURS:
        return folder.name, -1


def folders_in(runs: Path) -> list[Path]:
    """Every folder that may be a run's."""
    return [path for path in runs.iterdir() if not path.name.startswith(".") and has_manifest(path)]


def add(runs: Path, entries: Iterable[Entry]) -> int:
    """Appends those whose figures are not in the history yet, and says how many; makes the file where there is none."""

    def new(held: History) -> Iterator[Line]:
        for entry in filter(has_figures, entries):
            line, before = _line(entry), held.runs.get(key_of(entry))
            if before is None or _line(before) != line:
                yield line

    return _append(runs, new)


def follow(folder: Path) -> None:
    """A run that was just reported goes into the history of its neighbours, where somebody has begun one."""
    runs = folder.resolve().parent
    if (runs / FILE).is_file():
        add(runs, [Entry.of(folder.resolve())])


def pin(runs: Path, name: str, entry: Entry) -> None:
    """Gives a run a name, which another run may have had until now; its figures are kept with it."""
    _say_of(runs, entry, "pin", {"pin": name, "run": entry.name, "time_ns": entry.time_ns})


def unpin(runs: Path, name: str) -> None:
    if name not in read(runs).pins:
        raise RunError(f"nothing is pinned as {name} in {runs}")
    _append(runs, lambda _: [{"unpin": name}])


def accept(runs: Path, entry: Entry, who: str, why: str) -> None:
    """What is worse in a run, and lasts, is usual from it on."""
    line = {"accept": entry.name, "time_ns": entry.time_ns, "who": who, "why": why, "at_ns": time.time_ns()}
    _say_of(runs, entry, "accept", line)


def _say_of(runs: Path, entry: Entry, what: str, line: Line) -> None:
    """Something about a run, whose figures are kept with it."""
    if not has_figures(entry):
        raise RunError(f"{entry.name} has no figures to {what}: {entry.said}")
    add(runs, [entry])
    _append(runs, lambda _: [line])


def pinned_folder(name: str, runs: Iterable[Path]) -> Path | None:
    """Where the run lies that one of these histories has pinned under a name; None where none has."""
    for home in dict.fromkeys(runs):
        if (home / FILE).is_file() and (key := _parsed((home / FILE).read_bytes(), home / FILE).pins.get(name)):
            if _key_in(home / key[0]) != key:
                there = has_manifest(home / key[0])
                gone = f"of {words.clock_time(key[1])}, and its folder holds another run now" if there else ""
                sentence = f"{name} is pinned to {key[0]}{f' {gone}' if gone else ', whose folder is gone'}"
                raise RunError(f"{sentence}; tailrate history {home} --against {name} has its figures")
            return home / key[0]
    return None


def _append(runs: Path, new: Callable[[History], Iterable[Line]]) -> int:
    """Appends what `new` makes of what is held, with nobody else writing in between."""
    import fcntl  # not everywhere; reading does without

    try:
        with (runs / FILE).open("a+b", buffering=0) as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            out.seek(0)
            there = out.read()
            lines = [json.dumps({"schema": DERIVED_SCHEMA, **line}) for line in new(_parsed(there, runs / FILE))]
            if lines:
                torn = there and not there.endswith(b"\n")  # the last writer was killed inside its line
                append_whole(out.fileno(), ("\n" * bool(torn) + "".join(f"{line}\n" for line in lines)).encode("ascii"))
                os.fsync(out.fileno())
    except OSError as problem:
        raise RunError(f"{runs / FILE} cannot be written: {problem.strerror}") from None
    return len(lines)


# ---- lines

_NOT_OURS = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""What a line of another shape raises; the operating system speaks up where a time is none."""


def _parsed(text: bytes, path: Path) -> History:
    found, lines = History(), text.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                _take(found, json.loads(line))
        except _NOT_OURS as problem:
            if number < len(lines):  # without a newline it is being written just now
                why = f"{type(problem).__name__}: {problem}"[:100]
                found.problems.append(f"{path}, line {number} is left out, it is not as tailrate writes it ({why})")
    return found


def _take(found: History, line: Mapping[str, Any]) -> None:
    if line["schema"] != DERIVED_SCHEMA:
        raise ValueError(f"schema {line['schema']!r}, but this version reads schema {DERIVED_SCHEMA}")
    if "pin" in line:
        found.pins[str(line["pin"])] = (str(line["run"]), _instant(line["time_ns"]))
    elif "unpin" in line:
        found.pins.pop(str(line["unpin"]), None)
    elif "accept" in line:
        key = str(line["accept"]), _instant(line["time_ns"])
        found.accepted[key] = Accepted(str(line["who"]), str(line["why"]), _instant(line["at_ns"]))
    else:
        entry = _entry(line)
        before = found.runs.get(key_of(entry))
        if before and before.state != entry.state:
            found.anew[key_of(entry)] = before.state
        found.runs[key_of(entry)] = entry


def _instant(value: Any) -> int:
    """A time of which a date can be said; raises of any other."""
    words.clock_time(int(value))
    return int(value)


def _line(entry: Entry) -> Line:
    """Infinity, which JSON lacks, is a word."""
    facts: dict[str, dict[str, str]] = {}
    for (group, name), said in entry.origin.items():
        facts.setdefault(group, {})[name] = said
    return {
        **{key: getattr(entry, key) for key in ("name", "time_ns", *_TEXTS)},
        "endpoints": entry.endpoints,
        "capacity": {name: [_short(k.low_rps), _short(k.high_rps)] for name, k in entry.kept.items() if k.rising},
        "opened": {name: asdict(one) for name, one in entry.opened.items()},
        "levels": [
            {"endpoint": one.endpoint, "rate": _short(one.rate)}
            | {key: getattr(one, key) for key in (*_COUNTS, *_ANSWERS)}
            | {key: _short(value) for key, value in one.figures.items()}
            for one in entry.levels
        ],
        "facts": facts,
    }


def _entry(line: Mapping[str, Any]) -> Entry:
    """The entry that a line was made of, as far as it is kept; raises what another shape makes it raise."""
    STATES[line["state"]]
    texts: Any = {key: str(line[key]) for key in _TEXTS}
    return Entry(
        name=str(line["name"]),
        time_ns=int(line["time_ns"]),
        when=words.clock_time(int(line["time_ns"])),
        said="",
        **texts,
        endpoints=[str(name) for name in line["endpoints"]],
        origin={(str(group), str(k)): str(v) for group, found in line["facts"].items() for k, v in found.items()},
        levels=[_level(one) for one in line["levels"]],
        kept={
            str(k): SustainedRate(figure(low), figure(high), None, True) for k, (low, high) in line["capacity"].items()
        },
        opened={
            str(name): StartFacts(str(one["start"]), figure(one["seconds"]), figure(one["parity_error"]))
            for name, one in line["opened"].items()
        },
        reported=True,
    )


def _level(found: Mapping[str, Any]) -> Level:
    counts: Any = {key: count(found[key]) for key in _COUNTS} | {key: found[key] is True for key in _ANSWERS}
    return Level(endpoint=str(found["endpoint"]), rate=float(found["rate"]), figures=figures_of(found), **counts)


_TEXTS = ("state", "scenario", "mode", "objective")
_COUNTS = ("concurrency", "errors", "rounds", "arrivals")
_ANSWERS = ("met", "doubtful", "overloaded")


def _short(value: float | None) -> float | str | None:
    """Nine digits are more than any figure has."""
    return None if value is None else "inf" if math.isinf(value) else float(f"{value:.9g}")
