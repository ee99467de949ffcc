"""The named inputs of a row: which columns go into which input of the model, and as what.

Without a word each column is the input of its name, and columns x0, x1, … together are the input x; `--data-columns`
says it otherwise, and a scenario may make of a row what it wants (`from_row`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from tailrate.loadtest.engine.scenario.scenario import DataPlan, ScenarioError
from tailrate.loadtest.engine.workers.input.rows import Rows, Value, read, wrong
from tailrate.serve.wire import DTYPES, Array

MOST_LABELS = 50
TEXTS = "text"
KINDS = (TEXTS, *(str(kind) for kind in DTYPES.values() if kind.kind != "O"))
"""What an input may be said to be: texts (or bytes), or numbers of such a type."""

Row = Mapping[str, Any]
FromRow = Callable[[Row], dict[str, Array]]
"""A row's values by name: text, bytes, number, or array; and its inputs, whose first dimension is 1."""


class Wanted(NamedTuple):
    """An input, the columns that it is made of, and what it is to be."""

    name: str
    columns: tuple[str, ...]
    kind: str


class Source(Protocol):
    """What requests are made of, one after the other: the rows of a file, or what stands for them."""

    @property
    def own(self) -> bool:
        """The scenario says what a row becomes, so nobody knows before whether every row becomes something."""

    @property
    def labels(self) -> Sequence[str | None]: ...
    @property
    def name(self) -> str: ...
    @property
    def file(self) -> str:
        """What load processes that read the same have in common."""

    def as_json(self) -> dict[str, Any]:
        """What the manifest's scenario says of it beside what was asked for, under its key."""

    def label(self, row: int) -> str | None: ...
    def shares(self) -> dict[str, float]: ...
    def inputs(self, rows: Sequence[int]) -> dict[str, Array]: ...


@dataclass(frozen=True, eq=False)
class Data:
    """A file's rows, ready to be sent."""

    rows: Rows
    values: Mapping[str, Value]
    made: FromRow
    own: bool
    labels: Sequence[str | None] = ()

    @property
    def name(self) -> str:
        return str(self.rows.path)

    @property
    def file(self) -> str:
        return f"{self.rows.count} rows, {self.rows.nbytes} bytes"

    def as_json(self) -> dict[str, Any]:
        return {"data": {"rows": self.rows.count, "bytes": self.rows.nbytes}}

    def label(self, row: int) -> str | None:
        return self.labels[row] if self.labels else None

    def shares(self) -> dict[str, float]:
        """Of all rows, by label."""
        return {label: many / len(self.labels) for label, many in Counter(self.labels).items() if label}

    def inputs(self, rows: Sequence[int]) -> dict[str, Array]:
        """Of a request that carries these rows; `ScenarioError` where they cannot be in one."""
        found = [self._of(row) for row in rows]
        if len(found) == 1:
            return found[0]
        try:
            return {name: np.concatenate([one[name] for one in found]) for name in found[0]}
        except (ValueError, KeyError):
            shapes = " and ".join(dict.fromkeys(str([*map(np.shape, one.values())]) for one in found))
            which = f"rows {rows[0]} to {rows[-1]} differ in shape ({shapes})"
            raise wrong(self.rows.path, f"{which}, so they can't share a request: say --rows 1") from None

    def _of(self, row: int) -> dict[str, Array]:
        try:
            return self.made(_OneRow(self.values, row))
        except ScenarioError:
            raise
        except Exception as problem:  # the scenario's own code
            if isinstance(problem, KeyError) and problem.args[0] not in self.values:
                self.rows.column(problem.args[0])  # says what is near
            why = f"row {row} cannot be made into inputs: {type(problem).__name__}: {problem}"
            raise wrong(self.rows.path, why) from None


class _OneRow(Mapping[str, Any]):
    """Its values by column, each read when it is asked for."""

    def __init__(self, values: Mapping[str, Value], row: int) -> None:
        self._values, self._row = values, row

    def __getitem__(self, name: str) -> Any:
        return self._values[name](self._row)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def open_data(plan: DataPlan, declared: Mapping[str, str], from_row: FromRow | None) -> Data:
    """Reads the file; `declared` has the model's inputs with their kinds, where the scenario says them."""
    given = [*_given(plan)]
    texts = [plan.label, *(w.columns[0] for w in given if w.kind == TEXTS and len(w.columns) == 1)]
    rows = read(plan.path, tuple(name for name in texts if name))
    labels = _labels(rows, plan.label) if plan.label else ()
    if from_row is not None:
        named = {w.name: w.columns for w in given}
        values: dict[str, Value]
        if not named:  # it takes of them what it wants
            values = {name: partial(_asked, rows, name, {}) for name in rows.columns if name != plan.label}
        else:
            values = {name: _joined(rows, columns) for name, columns in named.items()}
        return Data(rows, values, from_row, True, labels)
    wanted = given or [*_guessed(rows, plan.label, declared)]
    kinds = {w.name: w.kind or declared.get(w.name, "") for w in wanted}
    values = {w.name: _joined(rows, w.columns) for w in wanted}
    return Data(rows, values, partial(_tensors, rows.path, kinds), False, labels)


def _asked(rows: Rows, name: str, read_by: dict[str, Value], row: int) -> Any:
    """What is wrong with a column that nobody asks for is nobody's business."""
    if name not in read_by:
        read_by[name] = rows.value(name)
    return read_by[name](row)


def _tensors(path: Path, kinds: Mapping[str, str], row: Row) -> dict[str, Array]:
    return {name: _tensor(path, name, value, kinds[name]) for name, value in row.items()}


def _labels(rows: Rows, column: str) -> list[str | None]:
    found = rows.words(column)
    if (different := len({*found} - {None})) > MOST_LABELS:
        raise wrong(rows.path, f"column '{column}' has {different} different values, and {MOST_LABELS} slices at most")
    return found


def _given(plan: DataPlan) -> Iterator[Wanted]:
    for name, said in plan.columns:
        column, _, kind = said.partition(":")
        if kind and kind not in KINDS:
            raise ScenarioError(f"--data-columns {name}={said}: '{kind}' is none of {', '.join(KINDS)}")
        spread = re.fullmatch(r"(.*?)(\d+)\.\.\1(\d+)", column)
        if spread and int(spread[2]) <= int(spread[3]):
            numbers = range(int(spread[2]), int(spread[3]) + 1)
            yield Wanted(name, tuple(f"{spread[1]}{number}" for number in numbers), kind)
        else:
            yield Wanted(name, (column,), kind)


def _guessed(rows: Rows, label: str, declared: Mapping[str, str]) -> Iterator[Wanted]:
    """Inputs of the model that are columns, or numbered ones; where nobody says what it has, all columns."""
    names = [name for name in rows.columns if name != label]
    numbered: dict[str, list[str]] = {}
    for name in names:
        if found := re.fullmatch(r"(.*?\D)(\d+)", name):
            numbered.setdefault(found[1], []).append(name)
    groups = {
        stem: tuple(f"{stem}{number}" for number in range(len(found)))
        for stem, found in numbered.items()
        if len(found) > 1 and stem not in names and {*found} == {f"{stem}{number}" for number in range(len(found))}
    }
    grouped = {name for columns in groups.values() for name in columns}
    for name in declared or dict.fromkeys([*(name for name in names if name not in grouped), *groups]):
        if name not in names and name not in groups:
            rows.column(name)  # says what is near
        yield Wanted(name, groups.get(name, (name,)), "")


def _joined(rows: Rows, columns: Sequence[str]) -> Value:
    values = [rows.value(name) for name in columns]
    if len(values) == 1:
        return values[0]
    return lambda row: np.array([value(row) for value in values])


def _tensor(path: Path, name: str, value: Any, kind: str) -> Array:
    """With a first dimension of 1; numbers with a fraction are as models take them, whole ones as they are."""
    if isinstance(value, (str, bytes)) or kind == TEXTS:
        found = np.empty((1, 1), dtype=object)
        found[0, 0] = value if isinstance(value, (str, bytes)) else str(value)
        if kind not in ("", TEXTS):
            raise wrong(path, f"input '{name}' is to be {kind}, and its column holds texts: {str(value)[:40]!r}")
        return found
    array = np.asarray(value)
    array = array.reshape(1, *(array.shape or (1,)))
    if kind:
        return array.astype(kind)
    return array.astype(np.float32) if array.dtype == np.float64 else array
