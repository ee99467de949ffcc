import json
import math
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from folders import Load, make_run

from tailrate.analysis.records.folder import EVENTS, MANIFEST, RunError, append_event, read_events, write_atomically
from tailrate.analysis.records.loopback import is_loopback
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.run.environment import origin
from tailrate.analysis.verdicts.conclusion import on_one_machine
from tailrate.loadtest.engine.live import same_origin
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.edge import auth


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("p99<50ms", Slo(percentile=99, latency_ms=50)),
        ("p99.9<=0.2s, errors<0.1%", Slo(percentile=99.9, latency_ms=200, max_error_rate=0.001)),
        ("p95<20ms,goodput>95%", Slo(percentile=95, latency_ms=20, min_goodput=0.95)),
        ("p99<0.000001ms, rate>=2000000", Slo(percentile=99, latency_ms=1e-6, min_rate_rps=2e6)),
        ("rate>=200", Slo(min_rate_rps=200)),
        ("[long] p99<200ms, errors<1%", Slo(percentile=99, latency_ms=200, max_error_rate=0.01, slice="long")),
        (" [two words, and more]errors<5%", Slo(max_error_rate=0.05, slice="two words, and more")),
    ],
)
def test_an_objective_is_read_and_written_back(text: str, slo: Slo) -> None:
    assert Slo.parse(text) == slo
    assert Slo.parse(str(slo)) == slo
    assert Slo.from_json(slo.as_json()) == slo


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p99",
        "p99>50ms",
        "p99<50",
        "errors>1%",
        "p0<5ms",
        "p99<0ms",
        "p99<5ms,p50<1ms",
        "goodput>90%",
        "p99<5ms,goodput>100%",
        "p99<5ms,goodput>150%",
        "p99<5ms,goodput>0%",
        "errors<0%",
        "errors<100%",
        "errors<150%",
        "[long]",
        "[] p99<5ms",
        "[long p99<5ms",
        "[long] rate>=5",
    ],
)
def test_a_wrong_objective_is_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="SLO") as caught:
        Slo.parse(text)
    assert "\n" not in str(caught.value)


def test_the_manifest_keeps_what_it_does_not_know(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [Load("m/a", 10)]).folder
    found = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(found | {"weather": "rain"}))
    manifest = Manifest.read(folder)
    assert manifest.extra == {"weather": "rain"}
    manifest.write(folder)
    assert json.loads((folder / MANIFEST).read_text()) == found | {"weather": "rain"}


def test_a_lone_clock_entry_and_nulls_are_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [Load("m/a", 10)]).folder
    found = json.loads((folder / MANIFEST).read_text())
    entry = {"offset_ns": 5, "error_ns": 1, "drift_ppm": 0.0}
    (folder / MANIFEST).write_text(json.dumps(found | {"clock": entry, "finished_ns": None, "versions": None}))
    manifest = Manifest.read(folder)
    assert manifest.clock == [entry]
    assert manifest.finished_ns == 0
    assert manifest.versions == {}


def _step(**changes: Any) -> dict[str, Any]:
    step = {"index": 0, "endpoint": "m/a", "rate": 1, "seconds": 1, "start_ns": 0, "end_ns": 1}
    return {"scenario": {"steps": [{**step, **changes}]}}


def _slo(term: Any) -> dict[str, Any]:
    return {"scenario": {"slo": [term], "steps": []}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": 3}, "schema 3"),
        ({"status": "done"}, "status 'done' is not one of running, complete, aborted"),
        ({"status": None}, "has no 'status'"),
        ({"totals": []}, "has a wrong 'totals': it must be an object, not []"),
        ({"totals": {"lost": "x"}}, "has a wrong 'totals.lost': it must be a whole number, not 'x'"),
        ({"started_ns": 10**30}, "has a wrong 'started_ns'"),
        ({"pid": "x"}, "has a wrong 'pid'"),
        ({"endpoints": [5]}, "has a wrong 'endpoints[0]': it must be an object, not 5"),
        ({"clock": [{}, {"offset_ns": math.nan}]}, "has a wrong 'clock[1].offset_ns': it must be a number, not nan"),
        ({"clock": [None]}, "has no 'clock[0]'"),
        ({"device_sources": [{"changes_s": "often"}]}, "has a wrong 'device_sources[0].changes_s'"),
        ({"scenario": {}}, "has no 'scenario.steps'"),
        ({"scenario": {"steps": [{"index": 0}]}}, "has no 'scenario.steps[0].endpoint'"),
        (_step(rate="fast"), "has a wrong 'scenario.steps[0].rate': it must be a number of 0 or more, not 'fast'"),
        (_step(rate=math.nan), "has a wrong 'scenario.steps[0].rate'"),
        (_step(rate=-1), "has a wrong 'scenario.steps[0].rate'"),
        (_step(index=True), "has a wrong 'scenario.steps[0].index'"),
        (_step(end_ns=None), "has no 'scenario.steps[0].end_ns'"),
        (_step(settle_s="long"), "has a wrong 'scenario.steps[0].settle_s'"),
        (_step(block=0.5), "has a wrong 'scenario.steps[0].block'"),
        (_step(concurrency="x" * 99), f"not '{'x' * 59}…"),
        (
            _slo({"percentile": math.inf}),
            "has a wrong 'scenario.slo[0].percentile': it must be a number between 0 and 100",
        ),
        (_slo("p99<5ms"), "has a wrong 'scenario.slo[0]': it must be an object"),
        (_slo({"ttft": {"ms": 5}}), "has no 'scenario.slo[0].ttft.percentile'"),
    ],
)
def test_a_wrong_manifest_names_the_file_and_the_key(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    folder = make_run(tmp_path / "run", [Load("m/a", 10)]).folder
    found = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(found | changes))
    with pytest.raises(RunError, match=r"run\.json") as caught:
        Manifest.read(folder)
    assert said in str(caught.value)


def test_no_folder_no_manifest_and_broken_json_say_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a folder; give a run folder"):
        Manifest.read(tmp_path / "none")
    with pytest.raises(RunError, match=r"it has no run\.json"):
        Manifest.read(tmp_path)
    (tmp_path / MANIFEST).write_text('{"schema": 1,\n "id" 3}')
    with pytest.raises(RunError, match=r"run\.json, line 2"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"schema": {"9" * 5000}}}', "\xff", "[1]", ""])
def test_json_that_nobody_reads_is_an_error_of_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=r"run\.json"):
        Manifest.read(tmp_path)


def test_events_that_nobody_reads_are_an_error_of_their_file(tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_text("[" * 100_000 + "\n")
    with pytest.raises(RunError, match=r"events\.jsonl, line 1: not valid JSON \(.*recursion"):
        list(read_events(tmp_path))
    (tmp_path / EVENTS).unlink()
    (tmp_path / EVENTS).mkdir()
    with pytest.raises(RunError, match=r"events\.jsonl cannot be read: .*Is a directory"):
        list(read_events(tmp_path))


def test_a_last_event_cut_by_a_kill_is_passed_over_but_no_other(tmp_path: Path) -> None:
    append_event(tmp_path, "idle", start_ns=1)
    append_event(tmp_path, "rows", time_ns=7, rows=3)
    with (tmp_path / EVENTS).open("a") as out:
        out.write('{"time_ns": 8, "ev')
    events = list(read_events(tmp_path))
    assert [event["event"] for event in events] == ["idle", "rows"]
    assert events[1] == {"time_ns": 7, "event": "rows", "rows": 3}
    with (tmp_path / EVENTS).open("a") as out:
        out.write('\n{"event": "rows"}\n')
    with pytest.raises(RunError, match=r"events\.jsonl, line 3"):
        list(read_events(tmp_path))


def test_an_atomic_write_replaces_the_whole(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "one, and long")
    write_atomically(tmp_path / "a.txt", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "two"
    write_atomically(tmp_path / "a.txt", "of a folder called r\udcff")
    assert (tmp_path / "a.txt").read_text() == "of a folder called r?"


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("::1%lo", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.example.org", False),
        ("10.0.0.7", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_all_agree_on_what_is_this_machine(monkeypatch: pytest.MonkeyPatch, host: str, here: bool) -> None:
    assert is_loopback(host) is auth.is_loopback(host) is here
    url = f"http://[{host}]:8000" if ":" in host else f"http://{host}:8000"
    run = Manifest("r", "complete", {"steps": []}, hosts=[{"role": "server", "url": url}])
    assert on_one_machine(run) is here
    assert (("host", "server url") not in origin(run)) is here
    monkeypatch.delenv(same_origin.PASSWORD, raising=False)
    page = SimpleNamespace(app=Flask("test"), host=host, web_login=False)
    with nullcontext() if here else pytest.raises(ScenarioError, match="would let whoever reaches this machine"):
        same_origin.attach(page)


def test_two_processes_may_write_one_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, path = Path.replace, tmp_path / "a.txt"

    def overtaken(scratch: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", real)
        with monkeypatch.context() as other:
            other.setattr("os.getpid", os.getppid)
            write_atomically(path, "two")
        return real(scratch, target)

    monkeypatch.setattr(Path, "replace", overtaken)
    write_atomically(path, "one")
    assert path.read_text() == "one"
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]


def test_what_a_killed_process_left_half_written_goes_with_the_next_write(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    alive, other = f"a.txt.{os.getppid()}.part", f"b.txt.{dead.pid}.part"
    for name in (f"a.txt.{dead.pid}.part", alive, "a.txt.mine.part", other):
        (tmp_path / name).write_text("half")
    write_atomically(tmp_path / "a.txt", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", alive, "a.txt.mine.part", other}


def test_a_load_process_gets_the_records_without_pandas() -> None:
    ask = (
        "import sys, tailrate.analysis.records.manifest as _, tailrate.analysis.records.rows as _\n"
        "print({'pandas', 'numpy', 'pyarrow', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
