"""Every risk is there when its cause is in the run, and only then."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from folders import START_NS, Latency, Load, Waveform, constant, lognormal, make_run, queue, rewrite

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.records.objective import LEAST_FOR_P999
from tailrate.analysis.verdicts import risks
from tailrate.analysis.verdicts.risks import SEVERITIES, Risk

FAST, SLOW = constant(10), constant(90)
CLEAN = [
    Load(f"m/{name}", rate, by, seconds=12) for name in ("eager", "compiled") for rate, by in ((400, FAST), (480, SLOW))
]
"""A limit that is known to a fifth, of enough arrivals, by a load generator that is far from its own."""
ALWAYS = {"one_run"}


@dataclass(frozen=True)
class Case:
    kind: str
    severity: str
    part: str
    """Of the sentence."""
    figure: float | None = None
    loads: list[Load] = field(default_factory=lambda: CLEAN)
    change: Any = None
    events: Sequence[dict[str, Any]] = ()
    beside: tuple[str, ...] = ()
    """What such a run cannot but have, too."""
    more: dict[str, Any] = field(default_factory=dict)
    lost: int = 0


def said(endpoint: int, **more: Any) -> Callable[[Manifest], None]:
    """Of the server, about one of its endpoints."""
    return lambda manifest: manifest.endpoints[endpoint]["parameters"].update(more)


def noted(**more: Any) -> Callable[[Manifest], None]:
    return lambda manifest: manifest.extra.update(more)


def on(server: str, load: str) -> Callable[[Manifest], None]:
    hosts = [{"role": "server", "host": server}, {"role": "load", "host": load, "cpus": 2}]
    return lambda manifest: setattr(manifest, "hosts", hosts)


def check(**more: Any) -> dict[str, Any]:
    return {"safe_rps": 2000.0, "late_p99_ms": 0.1, "cpu_pct": 10.0, "closed": False} | more


SAID = {"weights": "pretrained", "parity_ok": True, "parity_relative_error": 1e-6, "start": "warm"}


def made(folder: Path, case: Case) -> Path:
    written = make_run(folder, case.loads, **{"slo": ["p99<50ms"]} | case.more)
    manifest, rows = written.manifest, written.requests
    for entry in manifest.endpoints:
        entry["parameters"] = dict(SAID)
    on("a", "b")(manifest)
    noted(self_check=check())(manifest)
    if case.change:
        case.change(manifest)
    manifest.write(folder)
    if case.lost:
        rows.loc[rows.index[::500][: case.lost], ["status", "done_ns"]] = "lost", pd.NA
        rewrite(folder, rows)
    for event in case.events:
        append_event(folder, time_ns=START_NS, **event)
    return folder


def found(folder: Path) -> dict[str, Risk]:
    """The risks by kind, in order."""
    report = report_of(analysis.load(folder))
    order = [SEVERITIES.index(row["severity"]) for row in report["risks"]]
    assert order == sorted(order)
    assert not any(row["sentence"].endswith(".") or "None" in row["sentence"] for row in report["risks"])
    return {row["kind"]: Risk(**row) for row in report["risks"]}


def test_an_ordinary_good_run_has_hardly_any(tmp_path: Path) -> None:
    assert set(found(made(tmp_path / "run", Case("", "", "")))) == ALWAYS


def each(**more: Any) -> list[Load]:
    return [replace(load, **more) for load in CLEAN]


def alike(count: int) -> Latency:
    """So many arrivals in a row are as fast as each other."""
    return lambda rng, at_s: np.repeat(lognormal(10)(rng, at_s[::count]), count)[: len(at_s)]


def stepped(**more: Any) -> Callable[[Manifest], None]:
    def change(manifest: Manifest) -> None:
        for step in manifest.scenario["steps"]:
            step.update(more)

    return change


CASES = [
    Case("flaw", "wrong", "81 recorded rows of requests are missing from the folder",
         events=[{"kind": "rows", "table": "requests", "file": "requests-0000.arrows", "rows": 21_201}]),
    Case("untrusted", "wrong", "4 of 4 steps cannot be trusted: m/eager at 400/s: the load generator was late", 4,
         each(late_ms=3.0), beside=("limit_above",)),
    Case("warning", "doubt", "torch.compile was at work for m/compiled during the run (3 recompiles",
         change=lambda m: m.endpoints[1].update(events={"recompiles": 3})),
    Case("late", "doubt", "m/eager at 400/s: requests were sent late by 2 ms (P99), where more than 2.50 ms", 0.8,
         each(late_ms=2.0)),
    Case("load_cpu", "doubt", "busy for 71 % of the time", 71.0, events=[{"kind": "load_cpu", "pct": 71.0}]),
    Case("self_check", "limit", "no self-check", change=noted(self_check=None)),
    Case("self_check", "doubt", "about 1.4 times what was asked of it", 85 / 60,
         change=noted(self_check=check(safe_rps=480.0, cpu_pct=60.0))),
    Case("system", "doubt", "machine has no timerfd, so a; it has no precedence, so b",
         change=lambda m: m.hosts[1].update(lacks=["no timerfd, so a", "no precedence, so b"])),
    Case("same_machine", "doubt", "they share its 2 cores, and no network", change=on("a", "a")),
    Case("same_machine", "doubt", "its 2 cores (up to 90 % busy)", 90.0, change=on("a", "a"),
         more={"devices": [Waveform("cpu", power=False, counter=False)]}, beside=("join",)),
    Case("closed_loop", "doubt", "hide the queue", 8, change=stepped(rate=0.0, concurrency=8), more={"mode": "closed"}),
    Case("plain_proxy", "doubt", "some 25 times fewer", change=noted(ingress={"before": {"way": "plain"}})),
    Case("errors", "doubt", "% of the arrivals failed (", loads=each(failed=0.004)),
    Case("dropped", "doubt", "% of the arrivals were never sent", loads=each(dropped=0.0004)),
    Case("lost", "doubt", "the answers to 10 arrivals were lost", 10, lost=10),
    Case("incident", "doubt", "telemetry lost: refused (and 1 more)", 2,
         events=[{"kind": "telemetry_lost", "sentence": "refused"}, {"kind": "samples_overwritten", "count": 4}]),
    Case("few_arrivals", "doubt", "m/eager at 400/s: 400 arrivals are fewer than the 459", 400,
         each(seconds=1.0), beside=("no_p999", "limit_below")),
    Case("wide_interval", "doubt", "P99 is known to ±", loads=[
        Load("m/a", 400, lognormal(5, 0.8), seconds=2), Load("m/a", 480, SLOW, seconds=12)]),
    Case("dependent", "limit", "neighbours are alike: 12,000 arrivals are worth", loads=[
        Load("m/a", 400, alike(10), seconds=30), Load("m/a", 480, SLOW, seconds=12)]),
    Case("no_interval", "doubt", "P99 is not bounded from above in 1 of 2 steps", 1, [
        Load("m/a", 400, alike(20), seconds=30), Load("m/a", 480, SLOW, seconds=12)]),
    Case("unsteady", "doubt", "m/a at 400/s: latency rose by", loads=[
        Load("m/a", 400, lambda rng, at_s: 10 + at_s, seconds=12), Load("m/a", 480, SLOW, seconds=12)],
        beside=("no_interval", "limit_below")),
    Case("no_p999", "limit", f"the {LEAST_FOR_P999:,} arrivals that P99.9 takes, but at most 960", 960,
         each(seconds=2.0)),
    Case("random_weights", "limit", "weights are random", change=said(0, weights="random, seed 0")),
    Case("graph_breaks", "limit", "the graph of m/compiled has breaks (3)", 3, change=said(1, graph_breaks=3)),
    Case("cold_start", "limit", "m/compiled was compiled at this start (12.7 s until it was warm)", 12.74,
         change=said(1, start="cold", compilations=3, warmup_s=12.74)),
    Case("parity", "doubt", "whether m/compiled answers", change=said(1, parity_relative_error=None)),
    Case("precision", "limit", "outputs of m/compiled differ from eager fp32's by 0.15", 0.15,
         change=said(1, parity_relative_error=0.15)),
    Case("small_batches", "doubt", "batches held 4 of at most 16 rows while the queue grew", 4, [
        Load("m/a", 400, FAST, seconds=12), Load("m/a", 480, queue(4), seconds=12)]),
    Case("small_batches", "doubt", "batches held 4 of at most 16 rows", 4, [
        Load("old", 400, FAST, seconds=12), Load("old", 480, queue(4), seconds=12)],
        lambda m: m.endpoints[0].update(name="old", model="m")),
    Case("no_batching", "limit", "batches held 4 rows at most", 4, change=lambda m: m.scenario.update(rows=4)),
    Case("limit_above", "limit", "the limit of m/eager lies above 400/s (and 1 more)", 400, CLEAN[::2]),
    Case("limit_below", "limit", "the limit of m/eager lies below 480/s (and 1 more)", 480, CLEAN[1::2]),
    Case("wide_bracket", "limit", "between 400 and 600/s, which is a factor of 1.5", 1.5, [
        CLEAN[0], Load("m/eager", 600, SLOW, seconds=12)]),
    Case("throttled", "doubt", "clocks were held down: power cap 25 % of the time", more={"devices": [Waveform()]},
         beside=("energy_window",)),
    Case("hot", "doubt", "°C hot", loads=each(seconds=30.0),
         more={"devices": [Waveform()]}, beside=("throttled",)),
    Case("energy_window", "limit", "over 12 s", 12, more={"devices": [Waveform()]}, beside=("throttled",)),
    Case("no_idle", "limit", "no idle power", more={"devices": [Waveform(idle_s=0.0)]},
         beside=("throttled", "energy_window")),
    Case("utilisation", "limit", "m/a at 400/s: the GPU showed 98 % busy, and the endpoint kept up with 900/s", 98, [
        Load("m/a", 400, FAST, seconds=12), Load("m/a", 900, FAST, seconds=12)],
        more={"devices": [Waveform(util_pct=98.0)]}, beside=("throttled", "energy_window", "limit_above")),
    Case("shared_device", "doubt", "its device also served m/compiled: its energy is an estimate", loads=[
        replace(load, at_s=0.0) for load in CLEAN[::2]], more={"devices": [Waveform()], "mode": "mixed"},
        beside=("throttled", "energy_window")),
    Case("join", "doubt", "100 % of the requests have no sample of their device", 100,
         more={"devices": [Waveform("GPU-2")]}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}, {case.severity}")
def test_a_cause_is_found_and_nothing_else(tmp_path: Path, case: Case) -> None:
    rows = found(made(tmp_path / "run", case))
    assert set(rows) == ALWAYS | {case.kind, *case.beside}, rows
    risk = rows[case.kind]
    assert risk.severity == case.severity
    assert case.part in risk.sentence
    if case.figure is not None:
        assert risk.figure == pytest.approx(case.figure)


def test_every_kind_has_a_case() -> None:
    known = re.findall(r'Risk\(\s*"(\w+)"', Path(risks.__file__).read_text(encoding="utf-8"))
    assert set(known) == {case.kind for case in CASES} | ALWAYS


def test_the_documentation_names_every_kind() -> None:
    page = (Path(__file__).parents[3] / "docs" / "analysis.md").read_text(encoding="utf-8")
    table = page.partition("## Risks")[2].partition("\n## ")[0].partition("|---|")[2]
    assert set(re.findall(r"`(\w+)`", table)) == {case.kind for case in CASES} | ALWAYS
