"""A loop over rows as it stands and as machine code: the same to the last bit, whichever it was that ran."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from folders import rewrite
from streamed import written
from test_counts import _run as requests

from tailrate import analysis
from tailrate.analysis.counting import loop
from tailrate.analysis.counting.streams import count_streams
from tailrate.analysis.stats import compiled
from tailrate.analysis.stats.select import Select
from tailrate.analysis.verdicts.run import Run


def leaves(found: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every number of it by its place, arrays as their bytes."""
    if isinstance(found, Select):
        found = found.__dict__
    if is_dataclass(found):
        for each in fields(found):
            yield from leaves(getattr(found, each.name), f"{at}.{each.name}")
    elif isinstance(found, dict):
        for key, value in sorted(found.items(), key=str):
            yield from leaves(value, f"{at}[{key}]")
    elif isinstance(found, list | tuple):
        for number, value in enumerate(found):
            yield from leaves(value, f"{at}[{number}]")
    else:
        yield at, (found.dtype, found.tobytes()) if isinstance(found, np.ndarray) else found


def odd(folder: Path) -> None:
    """Batches of no size and of more than there can be, and figures that no arithmetic is made for."""
    requests(folder)
    rows = pd.read_parquet(folder / "requests.parquet")
    rows["batch_rows"] = pd.array(np.resize([0, 3, 2**31 - 1], len(rows)), dtype="Int64")
    rows["compute_ms"] = np.resize([0.0, 1.0, math.inf, 1e300, math.nan], len(rows))
    rewrite(folder, rows)


@pytest.mark.parametrize(
    ("made", "counted", "least"),
    [
        (requests, lambda run: run.tallies, 10_000),
        (odd, lambda run: run.tallies, 10_000),
        (lambda folder: written(folder, np.random.default_rng(4)), count_streams, 1000),
    ],
)
def test_python_and_machine_code_count_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[Path], Any],
    counted: Callable[[Run], Any],
    least: int,
) -> None:
    found = []
    made(tmp_path / "run")
    for enough in (0, 10**9):
        monkeypatch.setattr(compiled, "ENOUGH", enough)
        found.append(dict(leaves(counted(analysis.load(tmp_path / "run")))))
    assert found[0] == found[1]
    assert sum(len(value[1]) for value in found[0].values() if isinstance(value, tuple)) > 8 * least


def test_the_first_rows_of_a_process_wait_for_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(compiled, "_gone", compiled.Counter())
    monkeypatch.setattr(compiled, "in_machine_code", lambda loop: asked.append(loop) or loop)
    run = requests(tmp_path / "run", group_rows=1000)[0]
    assert run.tallies.rows > compiled.ENOUGH
    assert asked
    assert set(asked) == {loop.gather}
    assert 1000 * len(asked) < 1000 + run.tallies.rows - compiled.ENOUGH
