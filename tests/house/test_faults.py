"""A fault is one file on each side: what a file dropped into a folder of faults brings about, without another line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from folders import Load, constant, make_run
from test_fault_api import asked, board, refused
from test_fault_effects import changed, fail, fault
from test_fault_plan import here, inject

from tailrate import analysis
from tailrate.analysis.steps import faults as judged
from tailrate.analysis.steps.fault_windows import answers, spans
from tailrate.loadtest.engine import faults as here_faults
from tailrate.loadtest.engine.faults import LoadFault, kinds
from tailrate.loadtest.engine.scenario.fault_plan import Fault, named, parse
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve import faults as server_faults
from tailrate.serve.edge.fault_api import FaultApi
from tailrate.serve.faults import ServerFault

ROOT = Path(__file__).parents[2]

SERVER = """
from tailrate.serve.faults import ServerFault, Target

async def strike(server, target, seconds):
    return f"{target or 1} meteors fell for {seconds:g} s"

FAULT = ServerFault(word="sky", seconds=3, target=Target("how many meteors", "one", below=10), strike=strike)
"""
LOAD = """
from contextlib import contextmanager
from tailrate.loadtest.engine.faults import LoadFault

@contextmanager
def lasting(here, target, seconds):
    yield f"it rains on {here.folder.name} for {seconds:g} s"

FAULT = LoadFault(word="weather", seconds=0.01, lasting=lasting)
"""
JUDGED = """
from tailrate.analysis.steps.faults import Reach

REACH = Reach(endpoint=False)
"""

Drop = Callable[[ModuleType, str, str], None]


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drop]:
    """drop(package, name, text): as if the folder of the package held that file, too."""
    dropped = []

    def one(package: ModuleType, name: str, text: str) -> None:
        folder = tmp_path / package.__name__
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        dropped.append(f"{package.__name__}.{name}")

    yield one
    for name in dropped:
        sys.modules.pop(name, None)


def test_a_file_on_the_server_is_a_fault_of_the_server_and_of_every_plan(drop: Drop) -> None:
    drop(server_faults, "meteor", SERVER)
    able = FaultApi(True, board(), {})
    assert asked(able, fault="meteor", target="2", seconds=3)["sentence"] == "2 meteors fell for 3 s"
    assert refused(able, fault="comet")[1].endswith("cpu_taken, gpu_memory_taken, meteor")
    assert named(["sky"]) == (Fault("meteor", "", 3, at_share=0.5),)
    assert parse("at_s,fault,target\n1,meteor,9.5\n") == (Fault("meteor", "9.5", 3, at_s=1),)
    with pytest.raises(ScenarioError, match="the target of meteor is how many meteors; empty: one, not '10'"):
        parse("at_s,fault,target\n1,meteor,10\n")
    with pytest.raises(ScenarioError, match=r"known are .*, gpu_memory_taken, meteor, slow_client"):
        parse("at_s,fault\n1,comet\n")
    (event,) = inject((Fault("meteor", at_s=0),), here())
    assert event["sentence"].startswith("the server did not do it (connect)")


def test_a_file_on_the_load_side_is_a_fault_of_every_plan_that_happens_there(drop: Drop, tmp_path: Path) -> None:
    drop(here_faults, "rain", LOAD)
    with pytest.raises(ScenarioError, match="the target of rain is nothing, not 'x'"):
        parse("at_s,fault,target\n1,rain,x\n")
    with pytest.raises(ScenarioError, match=r"names of replica, .*, cpu-here, weather$"):
        named(["comet"])
    begin, end = inject(named(["weather"]), here(folder=tmp_path / "run"))
    assert (begin["fault"], begin["sentence"]) == ("rain", "it rains on run for 0.01 s")
    assert (end["phase"], end["end_ns"] > begin["start_ns"]) == ("end", True)


def test_a_file_in_the_analysis_says_that_the_endpoint_does_not_notice_a_fault(drop: Drop, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [Load("m/eager", 100, constant(10), seconds=180)], mode="hold")
    fault(run, 60, 75, fault="rain")
    changed(run, lambda rows, s: fail(rows, (s >= 60) & (s < 150)))

    def told() -> tuple[float, int]:
        """Seconds that are left out of the verdict, and what the fault is blamed for."""
        loaded = analysis.load(run.folder)
        ((start, end),) = spans(loaded)
        return (end - start) / 1e9, len(list(answers(loaded)))

    assert told() == (pytest.approx(75, abs=0.1), 1)  # until its end, and the minute that a recovery may take
    drop(judged, "rain", JUDGED)
    assert told() == (pytest.approx(15, abs=0.1), 0)  # its own time alone


def test_every_file_is_a_fault_with_a_word_of_its_own_and_a_line_in_the_docs() -> None:
    known = kinds()
    assert len({kind.word for kind in known.values()}) == len(known)
    own = {path.stem for path in Path(here_faults.__path__[0]).glob("[!_]*.py")}
    assert own == {name for name, kind in known.items() if isinstance(kind, LoadFault)}
    assert {*known} - own == {name for name, kind in known.items() if isinstance(kind, ServerFault)}
    assert {path.stem for path in Path(judged.__path__[0]).glob("[!_]*.py")} <= {*known}
    table = re.findall(r"^\| `(\w+)` \| (?:`([\w-]+)`)? ?\|", (ROOT / "docs" / "soak.md").read_text(), re.MULTILINE)
    assert table == [(name, kind.word if kind.takes("") else "") for name, kind in known.items()]
