"""docs/notebook.ipynb, cell by cell, over a run that is known."""

import math
import os
from base64 import b64decode
from pathlib import Path

import notebook_cells
import pytest
from folders import Load, Waveform, constant, lognormal, make_run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    loads = [
        Load(name, rate, lognormal(ms, 0.3), seconds=20, failed=failed)
        for rate, failed in ((100, 0), (200, 0.02))
        for name, ms in (("m/eager", 20), ("m/compiled", 10))
    ]
    make_run(tmp_path / "runs" / "one", [Load("m/eager", 100, constant(5))])
    newest = make_run(tmp_path / "runs" / "two", loads, poisson=True, devices=[Waveform()])
    for path, at_s in ((tmp_path / "runs" / "one", 1e9), (newest.folder, 2e9)):
        os.utime(path / "run.json", (at_s, at_s))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_cell_shows_what_it_says(here: Path) -> None:
    values, names = notebook_cells.execute()
    assert all(value is not None for value in values)
    about, steps, sticks, by_hand, stages, curves, devices, against, everything = values
    assert about == "two: complete, mode ramp"
    assert steps["endpoint"].tolist() == ["m/eager", "m/compiled"] * 2
    assert by_hand[0] == pytest.approx(by_hand[1], rel=1e-9)
    assert math.isfinite(by_hand[0])
    for endpoint in ("m/eager", "m/compiled"):
        assert stages.loc[endpoint].index.tolist() == ["half", "to P90", "to P99", "slowest"]
        assert stages.loc[endpoint, "latency_ms"].is_monotonic_increasing
    assert devices.loc["m/eager", "util_pct"] == pytest.approx(90, abs=1)
    assert against.loc[0, ["a", "b", "rate"]].tolist() == ["m/eager", "m/compiled", 100]
    assert against.loc[0, "p50_ratio"] == pytest.approx(2, rel=0.1)
    assert everything.loc["one", "m/eager"] == pytest.approx(5)
    for figure in (sticks, curves):
        assert figure._repr_html_().startswith("<iframe")
    assert names["run"].folder == Path("runs/two")


def test_it_keeps_what_its_cells_showed() -> None:
    """A reader sees tables and pictures before running anything; after a change of a cell, run it anew."""
    code = [cell for cell in notebook_cells.cells() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kept = [output["data"] for cell in code for output in cell["outputs"]]
    assert len(kept) == len(code)
    for shown in kept:
        figure = "".join(shown["text/plain"]).startswith("Figure(")
        assert figure == ("image/png" in shown)
        if figure:
            assert b64decode(shown["image/png"]).startswith(b"\x89PNG")
