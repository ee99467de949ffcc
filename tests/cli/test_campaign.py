"""The campaign: which cells there are, that it goes on where it was, and that the tables say what the cells do."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, NoReturn

import pytest
from waiting import PATIENCE_S

from tailrate.cli.campaign import page
from tailrate.cli.campaign.campaign import FACTS, PICTURES, TABLES, study
from tailrate.cli.campaign.matrix import BERT, SIZES, UNET, Cell, Size, Subject, cells, expected_s
from tailrate.cli.campaign.published import CLAIMS
from tailrate.cli.campaign.runner import LOCK, CampaignError, Work, spread
from tailrate.cli.campaign.tables import STAGES, Table, best_batch, inside, served, tables, together
from tailrate.serve import models
from tailrate.serve.bare_loop import Loop
from tailrate.serve.runner.buckets import Bucket
from tailrate.serve.spec import install
from tailrate.serve.variants import load, refusal

MLP = Subject("mlp", "mlp")
MACHINE = {"kind": "cpu", "device": "a <CPU>", "cpu": "2 cores", "torch": "2.x"}


def never_served(subject: Subject, variants: Sequence[str], held: int) -> NoReturn:
    pytest.fail("nothing is to be served here")


def batches(speed: float, *rates: float) -> dict[str, Any]:
    return {
        str(batch): {
            "calls": 9,
            "p50_ms": 2.0,
            "p99_ms": 3.0,
            "eager_p50_ms": 2.0 * speed,
            "speed": speed,
            "rows_s": rate,
        }
        for batch, rate in zip((1, 8, 32), rates, strict=False)
    }


def bare(speed: float, *rates: float) -> dict[str, Any]:
    facts = {"parity_relative_error": 1e-6, "warmup_s": 31.0, "graph_breaks": 0, "peak_memory_bytes": 5e9}
    again = {"again": {"warmup_s": 4.0}}
    return (
        facts
        | again
        | {"batches": batches(speed, *rates), "new_shape": {"rows": 33, "first_ms": 900.0, "again_ms": 2.1}}
    )


@pytest.mark.parametrize("name", SIZES)
def test_the_ceiling_is_known_before_anything_is_driven(name: tuple[str, str]) -> None:
    found = list(cells(SIZES[name]))
    assert len({cell.name for cell in found}) == len(found)
    for place, cell in enumerate(found):
        if cell.kind != "bare":
            before = {(one.kind, one.subject, one.variant) for one in found[:place]}
            eager, better = SIZES[name].pair(cell.subject)
            assert {("bare", cell.subject, eager), ("bare", cell.subject, better)} <= before
    assert {subject.label for subject in SIZES[name].subjects} >= set(SIZES[name].served)
    for variant in {SIZES[name].pair(subject)[1] for subject in SIZES[name].subjects}:
        assert refusal(load(variant), models.load("custom_cnn"), name[1]) is None


def test_one_subject_alone() -> None:
    assert {cell.subject for cell in cells(SIZES["full", "cuda"], ["bert-128"])} == {BERT[128]}


def test_rates_are_spread_by_factors() -> None:
    assert spread(10, 160, 5) == pytest.approx([10, 20, 40, 80, 160])


def test_the_quick_form_on_a_gpu_is_over_within_a_quarter_of_an_hour_as_expected() -> None:
    size = SIZES["quick", "cuda"]
    expected = {cell.name: expected_s(cell, size, "cuda") for cell in cells(size)}
    assert 300 < sum(expected.values()) < 900
    assert expected["bare--bert-128--eager"] < expected["bare--bert-128--compiled-reduce-overhead"]
    full = SIZES["full", "cuda"]
    assert sum(expected_s(cell, full, "cuda") for cell in cells(full)) > 10 * sum(expected.values())


def test_what_is_left_is_expected_by_what_the_cells_took_that_ended(tmp_path: Path) -> None:
    size = SIZES["quick", "cuda"]
    every = {cell.name: expected_s(cell, size, "cuda") for cell in cells(size)}
    work = Work(tmp_path, size, "cuda", never_served, print, 1)
    assert work.left_s((), 0) == pytest.approx(sum(every.values()))
    kept, since = list(every)[:2], list(every)[2:5]
    work.found |= {name: {} for name in (*kept, *since)}
    left = sum(seconds for name, seconds in every.items() if name not in work.found)
    assert work.left_s(kept, 0) == 0  # nothing took any time
    twice = 2 * sum(every[name] for name in since)
    assert work.left_s(kept, twice) == pytest.approx(2 * left)  # they took twice as long as expected
    work.found |= {name: {} for name in every}
    assert work.left_s(kept, twice) == 0


def test_every_published_figure_is_of_something_that_the_full_campaign_measures() -> None:
    size = SIZES["full", "cuda"]
    assert {claim.subject for claim in CLAIMS} <= {subject.label for subject in size.subjects}
    assert {claim.batch for claim in CLAIMS} <= set(size.batches)
    assert [round(claim.ratio, 1) for claim in CLAIMS] == [2.3, 2.3, 2.8, 2.3, 2.5, 2.4, 1.6]


def test_the_tables_say_what_the_cells_do(tmp_path: Path) -> None:
    variants = ("eager", "compiled-reduce-overhead", "int8")
    size = Size(subjects=(CNN_LIKE, UNET), variants=variants, compiled_variant="int8", batches=(1, 8, 32))
    found = {
        "bare--resnet50--eager": bare(1.0, 400, 900, 1100),
        "bare--resnet50--compiled-reduce-overhead": bare(3.1, 1300, 3000, 2900),
        "bare--resnet50--int8": {"refused": "int8 needs torchao"},
    }
    claims, resnet, unet = tables(size, found)
    assert claims.rows[0][-1] == "yes"
    assert "2.33×" in claims.rows[0]
    assert "3.10×" in claims.rows[0]
    assert [row[0] for row in resnet.rows] == ["eager", "compiled-reduce-overhead"]
    assert "8" in resnet.rows[1]  # the best batch
    assert best_batch(found["bare--resnet50--eager"]) == "32"
    assert resnet.notes == ["int8: int8 needs torchao"]
    assert len(unet.notes) == 3  # not measured yet
    found["bare--resnet50--eager"] |= {
        "again": {"failed": "it crashed"},
        "new_shape": {"rows": 33, "failed": "no memory"},
    }
    found["bare--resnet50--eager"]["batches"]["32"] = {"failed": "does not fit"}
    found["profile--resnet50--int8"] = {"failed": "its process ended with -9"}
    assert next(table for table in tables(size, found) if table.title == "resnet50, bare").notes == [
        "eager, batches of 32: does not fit", "eager, warm start: it crashed", "eager, new shape: no memory",
        "int8: int8 needs torchao", "int8, profile: its process ended with -9",
    ]  # fmt: skip
    text = page.markdown(FACTS_OF, (3, 6), size, found, [claims, resnet, unet])
    assert "3 of 6 cells" in text
    assert "batch of 1: resnet50 3.10× (compiled-reduce-overhead)." in text
    shown = page.page(FACTS_OF, (3, 6), size, found, [claims, resnet, unet], tmp_path)
    assert "a &lt;CPU&gt;" in shown
    assert "<CPU>" not in shown


CNN_LIKE = Subject("resnet50", "resnet50")
FACTS_OF = MACHINE | {"python": "3.11", "tailrate": "0.1", "date": "2026-01-01", "command": "tailrate campaign"}


def step(rate: float, p50_ms: float = 10.0, errors: int = 0, *reasons: str, trusted: bool = True) -> dict[str, Any]:
    times = {"p50_ms": p50_ms, "p99_ms": 2 * p50_ms, "p99_low_ms": p50_ms, "mean_ms": p50_ms, "batch_rows_mean": 4.0}
    stages = {f"{stage}_mean_ms": None if stage == "h2d" else 2.0 for stage in STAGES}
    return times | stages | {
        "endpoint": "resnet50/eager", "offered_rps": rate, "n": 1000, "errors": errors, "reasons": list(reasons),
        "trusted": trusted,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        (
            step(50.0, 30.0, 0, "the load generator was late", trusted=False),
            "beside the other it cannot be trusted: the",
        ),
        (step(50.0, 30.0, 0, "overloaded: the queue grew"), "beside the other it was overloaded: the queue grew"),
        (step(50.0, 30.0, 300), "beside the other 300 of 1,000 requests failed"),
        (step(40.0, 30.0), "it was driven at 50/s by itself and at 40/s beside the other"),
        (None, "beside the other it was not measured"),
    ],
)
def test_side_by_side_is_compared_only_where_it_can_be(beside: dict[str, Any] | None, why: str) -> None:
    def table(both: dict[str, Any] | None) -> Table:
        parts = {"alone": {"steps": [step(50.0)]}, "both": {"steps": [both] if both else [], "conclusion": ["Hm."]}}
        return together(CNN_LIKE, ("eager",), {"mixed--resnet50": parts})

    assert table(step(51.0, 30.0)).rows[0][2:4] == ["10 → 30", "3.00×"]
    assert table(beside).rows == []
    assert table(beside).notes[0] == "both at once: Hm."
    assert why in table(beside).notes[1]


def test_only_rates_that_were_kept_are_said_to_be(tmp_path: Path) -> None:
    steps = [step(50.0), step(60.0), step(70.0, 10.0, 1000), step(80.0, 10.0, 0, "overloaded: it grew")]
    found = {"ramp--resnet50": {"run": "gone", "steps": [*steps, step(90.0, trusted=False)]}}
    limits = [{"endpoint": "resnet50/eager", "low_rps": None, "high_rps": 12.0, "resolved": False}]
    (row,) = served(CNN_LIKE, ("eager",), found | {"knee--resnet50": {"capacity": limits}}).rows
    assert (row[4], row[6]) == ("≤ 12", "60")
    (row,) = inside(CNN_LIKE, ("eager",), found).rows  # a stage that nobody told takes nothing of the way
    assert (row[6], row[9]) == ("–", "2")
    size = Size(subjects=(CNN_LIKE,), variants=("eager",), compiled_variant="eager")
    shown = page.page(FACTS_OF, (1, 2), size, found, list(tables(size, found)), tmp_path)
    assert "Not drawn: " not in shown  # no table of what is served, as nothing is served
    size = replace(size, served=("resnet50",))
    assert "Not drawn: " in page.page(FACTS_OF, (1, 2), size, found, list(tables(size, found)), tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff"])
@pytest.mark.parametrize("name", [FACTS, "cells/bare--mlp--eager.json"])
def test_a_file_that_is_not_a_campaigns_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "cells").mkdir()
    (tmp_path / FACTS).write_text(json.dumps({"what": "quick", "only": [], "date": "2026-11-30", **MACHINE}))
    (tmp_path / name).write_text(text, encoding="latin-1")
    size = Size(subjects=(MLP,), variants=("eager",), compiled_variant="eager", batches=(1,), seconds=0.1)
    work = Work(tmp_path, size, "cpu", never_served, print, 1)
    with pytest.raises(CampaignError, match=f"{name}.*; remove it, or take another folder"):
        study(work, "quick", MACHINE)


@pytest.mark.live
def test_it_goes_on_where_it_was_and_not_as_another(tmp_path: Path) -> None:
    """The first cell is there already, and is not measured again; the second can't be had and is kept as such."""
    size = Size(
        subjects=(MLP,), variants=("eager", "tensorrt"), compiled_variant="tensorrt", batches=(1, 4), seconds=0.1
    )
    kept = tmp_path / "cells" / f"{Cell('bare', MLP, 'eager').name}.json"
    said: list[str] = []
    work = Work(tmp_path, size, "cpu", never_served, said.append, 1)
    study(work, "tiny", MACHINE)
    assert said[0].startswith("4 cells, about ")
    assert "2 of 4" in said[2]
    first = json.loads(kept.read_text())
    assert first["batches"]["1"]["rows_s"] > 0
    kept.write_text(json.dumps(first | {"ready_s": 123.0}))
    said.clear()
    again = Work(tmp_path, size, "cpu", never_served, said.append, 1)
    study(again, "tiny", MACHINE)
    assert said == []
    assert json.loads((tmp_path / FACTS).read_text())["cells"]["bare--mlp--eager"]["ready_s"] == 123.0
    assert "needs cuda" in (tmp_path / TABLES).read_text()
    assert "needs cuda" in (tmp_path / PICTURES).read_text()
    with pytest.raises(CampaignError, match=r"torch 2\.x, and now it would be 2\.y"):
        study(again, "tiny", MACHINE | {"torch": "2.y"})
    with pytest.raises(CampaignError, match="unknown subject 'bert'"):
        study(Work(tmp_path, size, "cpu", never_served, said.append, 1, ["bert"]), "tiny", MACHINE)


TINY = Size(
    subjects=(MLP,), served=("mlp",), variants=("eager", "compiled-default"),
    compiled_variant="compiled-default", batches=(1, 4),
    seconds=0.2, step_seconds=0.8, settle_seconds=0.2, budget_seconds=5.0,
)  # fmt: skip
CAMPAIGN = """
import sys
from tailrate.cli.campaign import matrix
from tailrate.cli.main import main
from test_campaign import TINY

matrix.SIZES = {("quick", "cpu"): TINY}
main(["campaign", "--device", "cpu", "--out", sys.argv[1]])
"""


@pytest.mark.long
@pytest.mark.served
def test_a_campaign_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """Bare, served and driven, all of it; killed while rates rise, and started again at once."""
    command = [sys.executable, "-c", CAMPAIGN, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "said").open("w") as said:
        first = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        while not list(tmp_path.glob("runs/ramp--mlp/requests*")):
            assert first.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.1)
        first.kill()
        first.wait()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*.json")}
    assert list(before)
    assert not any("ramp" in name for name in before)
    subprocess.run(command, capture_output=True, timeout=900, check=True, env=environment)
    assert {name: (tmp_path / "cells" / name).stat().st_mtime_ns for name in before} == before
    assert len(list(tmp_path.glob("runs/ramp--mlp.*"))) == 1  # what was under way is kept, and not counted

    facts = json.loads((tmp_path / FACTS).read_text())
    assert (facts["done"], facts["of"]) == (8, 8)
    assert [name for name, cell in facts["cells"].items() if "failed" in cell or "refused" in cell] == []
    steps = facts["cells"]["ramp--mlp"]["steps"]
    assert {step["endpoint"] for step in steps} == {"mlp/eager", "mlp/compiled-default"}
    assert all(step["ok"] > 0 for step in steps)
    found = {table.title: table for table in tables(TINY, facts["cells"])}
    assert [row[0] for row in found["mlp, served"].rows] == ["eager", "compiled-default"]
    for row in found["mlp, where a served request's time goes"].rows:
        latency, *parts = (float(row[place]) for place in (3, 4, 5, 6, 7, 8, 9))
        assert sum(parts) == pytest.approx(latency, rel=0.02)  # of three digits each
    mixed = found["mlp, two variants on one device"]
    # beside other tests the load generator may be late, for which the table takes a variant out
    late = [note.split()[0] for note in mixed.notes if "it cannot be trusted: the load generator was late" in note]
    assert sorted([*(row[0] for row in mixed.rows), *late]) == ["compiled-default", "eager"]
    assert all(step["ok"] > 0 for part in ("alone", "both") for step in facts["cells"]["mixed--mlp"][part]["steps"])
    assert facts["cells"]["bare--mlp--compiled-default"]["again"]["start"] == "warm"
    assert len(facts["cells"]["profile--mlp--eager"]["profiles"]) == 2
    for name in (TABLES, PICTURES):
        text = (tmp_path / name).read_text()
        assert "mlp, served" in text
        assert "not measured yet" not in text
    assert 'id="rates-ramp--mlp"' in (tmp_path / PICTURES).read_text()
    assert (tmp_path / "runs/ramp--mlp/report.html").exists()


@pytest.mark.parametrize(
    ("name", "text"), [("campaign.md", "mine"), ("campaign.html", "mine"), ("campaign.json", "[]")]
)
def test_a_folder_of_somebody_else_is_left_as_it_is(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / ".lock").write_text("theirs")
    with pytest.raises(CampaignError, match="take another folder"):
        study(Work(tmp_path, Size(), "cpu", never_served, print, 1), "none", MACHINE)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: text, ".lock": "theirs"}


def test_one_campaign_at_a_time_in_a_folder(tmp_path: Path) -> None:
    said: list[str] = []
    work = Work(tmp_path, Size(), "cpu", never_served, said.append, 1)
    with (tmp_path / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = threading.Thread(target=study, args=(work, "none", MACHINE))
        thread.start()
        while not said:
            time.sleep(0.01)
        assert "still at work" in said[0]
        assert not (tmp_path / FACTS).exists()
    thread.join()
    assert (tmp_path / FACTS).exists()


def test_from_a_folder_that_nobody_installed_it_measures_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("tailrate.cli.campaign.campaign.version", version)
    study(Work(tmp_path, Size(), "cpu", never_served, print, 1), "none", MACHINE)
    assert json.loads((tmp_path / FACTS).read_text())["tailrate"] == "not installed"


def test_without_torch_it_says_what_is_needed(tmp_path: Path) -> None:
    """As where only the load side is installed."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    command = [sys.executable, "-m", "tailrate", "campaign", "--out", str(tmp_path / "it")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr == f"tailrate: measuring a model needs torch: {install('serve')}\n"
    assert not (tmp_path / "it").exists()


@pytest.mark.computes
def test_the_slowest_of_a_hundred_bare_calls_is_their_p99() -> None:
    took_ms = iter([ms for call in range(100) for ms in (95.0 if call == 50 else 1.0, 1.0)])

    class Played(Loop):
        def __init__(self) -> None:
            self._seconds, self._most, self._call, self._eager = 60.0, 100, list, list

        def _inputs(self, bucket: Bucket) -> list[Any]:
            return []

        def _ms(self, call: Any, inputs: Any) -> float:
            return next(took_ms)

        def _rows_s(self, bucket: Bucket, inputs: Any, calls: int) -> float:
            return 0.0

    found = Played().batch(Bucket(1))
    assert (found["calls"], found["p50_ms"], found["p99_ms"]) == (100, 1.0, 95.0)


@pytest.mark.computes
def test_a_bare_loop_says_what_it_cannot_do() -> None:
    def asked(**more: Any) -> Any:
        words = [sys.executable, "-m", "tailrate.serve.bare_loop", json.dumps({"model": "mlp", "batches": [1]} | more)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    assert "needs cuda" in asked(variant="cudagraph", device="cpu")["refused"]
    assert "unknown variant" in asked(variant="eagre")["refused"]
