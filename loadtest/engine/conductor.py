"""One run from its first sentence to its last row: plan, order, collect, close.

Lives in the only or the master process. Resolves the endpoints, makes the run folder, starts the device
collector, gives each block of steps to the crew (the load processes) when the one before has been answered, and
writes what they report. Knows nothing of Locust: the crew is a handful of functions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import numpy as np

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.analysis.records.folder import BEFORE, taken
from tailrate.analysis.records.objective import overall
from tailrate.analysis.text import words
from tailrate.loadtest.engine.clock import Offset
from tailrate.loadtest.engine.endpoint import server_facts
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.endpoint.discovery import Tried, check_objectives, discover, try_out
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.servers import OpenEndpoint, Servers
from tailrate.loadtest.engine.endpoint.target import Settings, Target
from tailrate.loadtest.engine.faults import LoadSide
from tailrate.loadtest.engine.injection import FaultInjection
from tailrate.loadtest.engine.live.board import Board
from tailrate.loadtest.engine.live.step_stats import Live
from tailrate.loadtest.engine.modes.knee import KneeSearch
from tailrate.loadtest.engine.modes.soak import Soak
from tailrate.loadtest.engine.record import manifest
from tailrate.loadtest.engine.record.device_collector import Collector
from tailrate.loadtest.engine.record.devices.collector import Sources, SourcesCollector, of_servers
from tailrate.loadtest.engine.record.run_folder import RunFolder
from tailrate.loadtest.engine.record.segments import Batcher
from tailrate.loadtest.engine.record.server_metrics.collector import MetricCollector
from tailrate.loadtest.engine.record.server_metrics.sources import MetricSource
from tailrate.loadtest.engine.record.server_metrics.sources import parse as metric_sources
from tailrate.loadtest.engine.scenario import answerable, fault_plan
from tailrate.loadtest.engine.scenario.arrivals import Pattern
from tailrate.loadtest.engine.scenario.knee_guide import ask_about
from tailrate.loadtest.engine.scenario.knee_search import Knee, KneeObjective, ProbeOutcome
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError
from tailrate.loadtest.engine.scenario.steps import LoadStep, StepPlan, known
from tailrate.loadtest.engine.soak.chapters import SoakConduct
from tailrate.loadtest.engine.workers import selfcheck
from tailrate.loadtest.engine.workers.dispatch import LEAD_S, Dispatch
from tailrate.loadtest.engine.workers.input import foretold
from tailrate.loadtest.engine.workers.input.deal import Handout
from tailrate.loadtest.engine.workers.input.requests import DataRequests, FileInputs
from tailrate.loadtest.engine.workers.on_time import cpu_priority
from tailrate.loadtest.engine.workers.on_time.breath import breath
from tailrate.loadtest.engine.workers.protocol import Companion, Crew
from tailrate.loadtest.engine.workers.work_order import WorkOrder

ANNOUNCE_S = 10.0
"""A soak says how many rows there are so often only: two lines each second would be 30 MB a day."""

say = logging.getLogger("tailrate")


class Conductor:
    """`prepare` raises `ScenarioError` before any load; `run` blocks until the plan is done."""

    def __init__(
        self,
        scenario: Scenario,
        servers: Servers,
        folder: Path,
        command: str,
        crew: Crew,
        board: Board,
        devices: Sources | None = None,
    ) -> None:
        self.scenario = scenario
        self.board = board
        self.folder = folder
        self.wanted = 1
        """Load processes that were asked for."""
        self.finished = False
        self._opened = False
        self._aborting = False
        self._command = command
        self._crew = crew
        self._servers = servers
        self._devices = devices
        self._base = board.base
        self._offset = Offset()
        self._endpoints: list[OpenEndpoint] = []
        self._scheduled = 0
        """Since the chapter began; a run that is no soak is one chapter."""
        self._steps: list[int] = []
        self._soak: SoakConduct | None = None
        self._companions: list[Companion] = []
        """What goes on beside the steps, from before the first of them to the end."""
        self._ending: str | None = None
        """Why it ends before its time."""
        self._dispatch = Dispatch(crew, self._base, self._now, self._lose)
        self._live: dict[int, Live] = {}
        self._cpu_pct = 0.0
        self._checked: list[dict[str, float]] = []
        self._first: Tried | None = None
        """What one request at the first endpoint brought, for the self-check."""
        self._metric_sources: tuple[MetricSource, ...] = ()
        self._data: DataRequests | None = None
        """What the first endpoint gets, where requests carry rows of a file."""
        self._handout: Handout | None = None
        """Of these rows."""
        self._foretold: list[str] = []

    # ---- before

    def prepare(self, targets: Sequence[Target], settings: Mapping[str, Settings], inputs: Inputs) -> None:
        """Finds the endpoints and tries one request at each; `settings` are those of each protocol."""
        found = discover(self._servers, targets, settings)
        if not self.scenario.mode.resumes and (why := taken(self.folder, BEFORE)):
            raise ScenarioError(why)
        check_objectives(self.scenario.slos, found)
        names = [endpoint.name for endpoint in found]
        fault_plan.check(self.scenario.faults, names)
        self._metric_sources = metric_sources(self.scenario.metrics, self.scenario.metrics_match, names)
        tried = [try_out(self._servers, endpoint, inputs) for endpoint in found]
        self._endpoints, self._first = [each.to for each in tried], tried[0]
        if isinstance(inputs, FileInputs):
            self._handout = Handout(inputs.deal)
            self._data = inputs.requests(self._endpoints[0])
            if inputs.dialogue:
                self._check_sessions()
            foretold.check(self.scenario, self._data)
            self._foretold = [*foretold.sentences(self.scenario, names, self._data)]

    def _check_sessions(self) -> None:
        """Whether they make sense here."""
        if self.scenario.mode.closed or self.scenario.mode.endless:
            name = self.scenario.mode.name
            raise ScenarioError(f"--turns: an arrival begins a session, so it needs rates, which mode {name} has not")
        for each in self._endpoints:
            each.protocol.continued((), "")

    @property
    def _client(self) -> Client:
        """Of the first endpoint's server, which is the one that faults are asked of where they name no other."""
        return self._endpoints[0].client

    @property
    def file(self) -> str:
        """What was read as `--data`, which has to be what load processes read."""
        return self._data.data.file if self._data else ""

    # ---- the run

    def run(self) -> None:
        names = [endpoint.name for endpoint in self._endpoints]
        knees: dict[str, Knee] = {}
        block_s: list[float] | None = None
        of: int | None = None
        mode = self.scenario.mode
        if isinstance(mode, KneeSearch):
            ask = partial(ask_about, self.folder, slo=self.scenario.searched_slo) if mode.guided else None
            blocks = mode.searches(self.scenario, names, knees, ask)
        elif not isinstance(mode, Soak):
            planned = mode.blocks(StepPlan(self.scenario), names)
            blocks, of = known(planned), sum(map(len, planned))
            if not mode.endless:
                block_s = [LEAD_S + max(step.start_s + step.seconds for step in block) for block in planned]
        self._open(of)
        shares = self._data.data.shares() if self._data else {}
        for sentence in (*answerable.sentences(self.scenario, len(names), shares), *self._foretold):
            say.info("%s", sentence)
        for sentence in cpu_priority.lacks():
            say.warning("this machine has %s", sentence)
        if (ready := len(self._crew.members())) < self.wanted:
            self._event("workers_missing", sentence=f"{ready} of {self.wanted} load processes became ready")
        if self._soak:
            blocks, block_s = self._soak.blocks(LEAD_S), self._soak.planned_s(LEAD_S)
            of = self._manifest.scenario["planned_steps"] = len(block_s) * len(names)
        if self.scenario.self_check:
            self.board.doing = "trying what the load generator can do"
            self._check_self()
        self._collector.start()
        if self.scenario.faults:
            self._companions.append(self._faults(block_s))
        for companion in self._companions:
            companion.start()
        idle_s = self.scenario.idle_seconds if self._collector.host else 0.0
        self.board.plan(of, block_s, idle_s, self._now() + int(idle_s * 1e9))
        self._be_idle()
        outcomes: list[ProbeOutcome] | None = None
        while not self._aborting and not self._ending:
            try:
                steps = blocks.send(outcomes)  # type: ignore[arg-type]  # the first of them is None
            except StopIteration:
                break
            self._tell(knees)
            outcomes = self._run_block(steps, of)
        blocks.close()  # a search that was stopped says how far it came
        self._tell(knees)
        if not self._aborting:
            if not self._ending:
                if self._soak:
                    self._soak.note_gap(self._now())
                self._be_idle()
                server_facts.after(self._endpoints, self._manifest)
            self._close("aborted" if self._ending else "complete")

    def _faults(self, block_s: list[float] | None) -> FaultInjection:
        total_s = self.scenario.mode.measured_s(self.scenario) if self._soak else sum(block_s) if block_s else None
        began_ns = self._manifest.started_ns if self.scenario.mode.resumes else None
        here = LoadSide(self._client, self._crew, self._collector, self.folder)
        clients = {endpoint.name: endpoint.client for endpoint in self._endpoints}
        return FaultInjection(self.scenario.faults, here, self._event, self._now, total_s, began_ns, clients)

    def end_early(self, sentence: str) -> None:
        """Sends no more, waits for what is under way, and closes the folder as aborted, with the reason."""
        if self._ending or self._aborting:
            return
        self._ending = sentence
        self._interrupt(sentence)
        say.warning("the run ends early: %s", sentence)
        if self._dispatch.under_way:
            self._dispatch.cut()

    def _be_idle(self) -> None:
        """What the devices draw without load, before the first step and after the last."""
        if self._collector.host and self.scenario.idle_seconds:
            began = self._now()
            self.board.doing = "no load, for what the devices draw when idle"
            gevent.sleep(self.scenario.idle_seconds)
            self._event("idle", start_ns=began, end_ns=self._now())

    def abort(self, sentence: str = "") -> None:
        """Halts the crew and closes the folder with what there is, and with the reason where that is not the user."""
        if self.finished or self._aborting:
            return
        self._aborting = True
        if not self._opened:
            self.board.close("aborted", self._now())
            return
        self.board.status = "stopping"
        self._interrupt(sentence)
        if self._dispatch.under_way:
            self._dispatch.halt()
        self._close("aborted")

    def _interrupt(self, sentence: str) -> None:
        if sentence:
            self._manifest.extra["stopped"] = sentence
        if self._soak:  # from here on, if it goes on one day, there is a gap
            self._manifest.extra.setdefault("interrupted_ns", self._now())
        self._event("aborted", **({"sentence": sentence} if sentence else {}))

    def _run_block(self, steps: list[LoadStep], of: int | None) -> list[ProbeOutcome]:
        """Until every arrival is answered; what a search wants to know of it."""
        if not (steps := self._with_rows(steps)):
            return []
        endpoints = {opened.name: opened.endpoint for opened in self._endpoints}
        self._dispatch.prepare(steps, [endpoints[step.endpoint] for step in steps], self.scenario.pattern)
        due_s = [np.empty(0) if step.concurrency else step.offsets(self.scenario.pattern) / 1e9 for step in steps]
        if self._is_ending():
            self._dispatch.dismiss()
            return []
        order = self._dispatch.start()
        self._steps += [step.index for step in steps]
        if self._soak:
            self._soak.begin(order.start_ns, order.start_ns + steps[0].length_ns)
        for step, due in zip(steps, due_s, strict=True):
            start_ns = order.start_ns + step.begin_ns
            self._live[step.index] = self.board.begin(step, start_ns, due, keep=self._sought is not None)
            times = {"start_ns": start_ns, "end_ns": start_ns + step.length_ns}
            self._manifest.scenario["steps"].append(asdict(step) | times)
            what = {"step": step.index, "of": of, "endpoint": step.endpoint, "rate": step.rate, "seconds": step.seconds}
            more = {"concurrency": step.concurrency} if step.concurrency else {}
            self._event("step_start", time_ns=start_ns, **what, **more)
        self._files.write()
        self._cpu_pct = 0.0
        self._dispatch.wait(self._watch_over)
        if self._aborting:
            return []
        outcomes = [self._finish(step, of) for step in steps]
        if self._soak:
            self._end_chapter()
            self._soak.over()
            self._crew.forget()
        return outcomes

    def _with_rows(self, steps: list[LoadStep]) -> list[LoadStep]:
        """The same, each with the rows of the file that its requests carry; none where these are used up."""
        if self._handout is None:
            return steps
        found = []
        for step in steps:
            arrivals = step.arrivals(self.scenario.pattern)
            first = self._handout.first(step.seed, step.rate, step.seconds, arrivals)
            if first is None:
                left, where = self._handout.left, f"step {step.index + 1} has {arrivals or 'more'} arrivals"
                self.end_early(f"the rows of the file are used up: there are {left} left, and {where}")
                return []
            found.append(replace(step, data_from=first, sessions=self._data is not None and bool(self._data.dialogue)))
        return found

    @property
    def _sought(self) -> KneeObjective | None:
        """Of a search."""
        return self.scenario.objective if isinstance(self.scenario.mode, KneeSearch) else None

    def _is_ending(self) -> bool:
        return self._aborting or self._ending is not None

    def _watch_over(self) -> None:
        """Ends a search's probe whose answer is already clear, and a run that nobody can write down any more."""
        if self._files.lost:
            self.end_early(self._files.lost)
        if (objective := self._sought) is None or self._dispatch.stopped_ns:
            return
        for live in self._live.values():
            if live.drowning((self._now() - live.start_ns) / 1e9, objective):
                self._event("step_cut", step=live.step.index, sentence="the queue grows without bound")
                live.cut(self._dispatch.cut())

    def _finish(self, step: LoadStep, of: int | None) -> ProbeOutcome:
        """Writes down how the step ended, which for a closed loop or one that was cut is not when it was to end."""
        live, entry = self._live.pop(step.index), self._manifest.scenario["steps"][step.index]
        stopped_ns = self._dispatch.stopped_ns
        ran_out = bool(step.concurrency) and self._handout is not None and self._handout.left == 0
        if stopped_ns or step.requests or ran_out:
            entry["end_ns"] = min(entry["end_ns"], stopped_ns or self._now())
            entry["seconds"] = (entry["end_ns"] - entry["start_ns"]) / 1e9
            entry["cut"] = bool(stopped_ns)
            self._files.write()
        seconds = entry["seconds"]
        figures = live.figures(seconds)
        more = {"concurrency": step.concurrency} if step.concurrency else {}
        self._event("step_end", step=step.index, endpoint=step.endpoint, rate=step.rate, **figures, **more)
        number = f"{step.index + 1} of {of}" if of else f"{step.index + 1}"
        say.info("step %s  %s", number, live.sentence(seconds))
        if self._soak:
            self._soak.finished(live)
        if (objective := self._sought) is None:
            live.end(seconds)
            return ProbeOutcome(step.rate, 0, 0, seconds=seconds)
        vetoes = self.scenario.vetoes
        outcome = live.outcome(objective, seconds, self._cpu_pct, bool(stopped_ns), vetoes)
        live.end(seconds)
        return replace(outcome, seconds=(self._now() - entry["start_ns"]) / 1e9)

    def _tell(self, knees: dict[str, Knee]) -> None:
        """What searches have found since the last time."""
        for endpoint, knee in knees.items():
            self._event("knee", endpoint=endpoint, **asdict(knee))
            where = words.interval(knee.low_rps, knee.high_rps, 4)
            how = f"; {knee.guide}" if knee.guide else ""
            how += f"; whether {knee.open} is kept there cannot be said" if knee.open else ""
            say.info("knee of %s: %s/s%s", endpoint, where, f", unresolved: {knee.reason}{how}" if knee.reason else how)
        knees.clear()

    def _check_self(self) -> None:
        """What this machine's load processes can do by themselves, before they are asked to do it to an endpoint."""
        scenario, first = self.scenario, self._first
        assert first is not None
        endpoint, protocol = first.to.endpoint, first.to.protocol
        answer, pace = protocol.replayed(first.answer), protocol.pace(first.answer)
        closed = scenario.mode.closed
        wanted = scenario.peak_rps
        if self._sought and len(scenario.rates) == 1:
            wanted = max(selfcheck.UNKNOWN_RPS, wanted)
        pattern = Pattern(scenario.pattern.spacing, scenario.pattern.burstiness)
        processes = len(self._crew.members())
        key = selfcheck.key(endpoint.protocol, first.payloads, answer, processes, pattern.spacing)
        found = None if closed else selfcheck.remembered(key, wanted)
        if found is None:

            def ask(rate: float) -> list[dict[str, float]]:
                most = int(max(scenario.mode.levels(scenario))) if closed else 0
                step = LoadStep(0, endpoint.name, rate, selfcheck.SECONDS, 0.0, 0, scenario.seed, concurrency=most)
                self._checked = []
                self._dispatch.prepare([step], [endpoint], pattern, (answer, pace))
                self._dispatch.start()
                self._dispatch.wait()
                if not self._checked:
                    raise ScenarioError("no load process answered the self-check")
                return self._checked

            found = selfcheck.search(wanted, ask, closed)
            if not closed:
                selfcheck.remember(key, found)
        self._manifest.extra["self_check"] = found.as_json() | {"closed": closed}
        self._files.write()
        self._event("self_check", sentence=found.sentence(closed))
        say.info("self-check: %s", found.sentence(closed))

    def _lose(self, order: WorkOrder, index: int, member: str) -> None:
        """A load process that answers no more: an event, and its share of the schedule is counted as lost."""
        steps = [step.index for step in order.steps]
        self._event("worker_lost", worker=index, member=member, steps=steps)
        for step_index in steps:
            self._live[step_index].lose(index, order.count)
        say.warning("load process %s was lost; its share of this step is counted as lost", member)

    # ---- what the crew reports

    def on_rows(self, batch: Any) -> None:
        if self.finished:
            return
        self._files.requests(batch)
        breath()
        if self._soak:
            self._soak.see(batch)
        steps = np.asarray(batch.column("step"))
        found = np.unique(steps)
        for index in found:
            if live := self._live.get(int(index)):
                live.see(batch if len(found) == 1 else batch.filter(steps == index))
        self.board.tick(self._now())

    def _on_samples(self, batch: Any) -> None:
        self._files.samples(batch)
        self.board.samples(batch, self._now())

    def on_clock(self, windows: list[tuple[int, int, int]]) -> None:
        if self.finished:
            return
        if self._collector.host:
            self._collector.merge(windows)
        else:
            self._offset.merge(windows)

    def on_done(self, member: str, index: int, content: dict[str, Any]) -> None:
        if not self.finished:
            for step, figures in content["watched"]:
                pct = figures.pop("cpu_pct")
                self._event("load_cpu", worker=index, step=step, pct=pct, lead_ms=content["lead_ms"], **figures)
                self._cpu_pct = max(self._cpu_pct, pct)
                if live := self._live.get(step):
                    live.window.cpu_pct = max(pct, live.window.cpu_pct or 0.0)
            if content["bad"]:
                self._event("bad_fields", worker=index, fields=content["bad"], sentence=bad_fields(content["bad"]))
            self._scheduled += content["due"]
            if self._handout is not None:
                self._handout.used(content.get("reached", 0))
            self._dispatch.done(member)

    def on_process(self, index: int, found: dict[str, Any]) -> None:
        if self._soak and not self.finished:
            self._soak.process(f"load {index}", found)

    def on_prepared(self, member: str) -> None:
        self._dispatch.done(member)

    def on_check(self, member: str, figures: dict[str, float]) -> None:
        self._checked.append(figures)
        self._dispatch.done(member)

    # ---- the folder

    def _open(self, of: int | None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        endpoints = [opened.endpoint for opened in self._endpoints]
        servers: dict[str, dict[str, Any]] = {}
        for opened in self._endpoints:
            if opened.client.url not in servers:
                servers[opened.client.url] = opened.server()
        if self.scenario.mode.resumes:
            self.scenario, self._manifest = manifest.resumed(self.folder, self.scenario, endpoints, self._now())
            if self._handout is not None:
                self._handout.used(foretold.carried(self.scenario, self._manifest.scenario["steps"]))
        else:
            promptness = cpu_priority.promptness(self._crew.priority())
            self._manifest = manifest.fresh(
                self.folder.name, self.scenario, endpoints, servers, promptness, self._now(), self._command
            )
            self._manifest.scenario |= {"planned_steps": of} if of else {}
        if self._metric_sources:
            self._manifest.extra["metrics"] = [source.as_json() for source in self._metric_sources]
        if self._data is not None:
            for key, more in self._data.data.as_json().items():
                self._manifest.scenario[key] = {**self._manifest.scenario.get(key, {}), **more}
        soak = self.scenario.mode if isinstance(self.scenario.mode, Soak) else None
        every_s = ANNOUNCE_S if soak else 0.0
        self._files = RunFolder(self.folder, self._manifest, self._now, self.board.event, every_s)
        rows = Batcher(DEVICE_COLUMNS, self._on_samples)
        if devices := self._devices or of_servers(self._endpoints, servers):
            self._collector: Collector | SourcesCollector = SourcesCollector(
                devices, self._client, self._base, rows, self._event, self._manifest
            )
        else:
            self._collector = Collector(self._client, self._base, rows, self._event)
        if soak:
            crew = self._crew.distributed
            self._soak = SoakConduct(self.scenario, soak, self._endpoints, self._files, self._now, self.end_early, crew)
            self._companions.append(self._soak)
        if self._metric_sources:
            match, told, entries = self.scenario.metrics_match, self._event, self._manifest.extra["metrics"]
            keep, client = self._files.metrics, self._client
            self._companions.append(
                MetricCollector(self._metric_sources, match, client, self._base, keep, told, entries)
            )
        if any("events_before" not in entry for entry in self._manifest.endpoints):
            server_facts.before(self._endpoints, self._manifest, servers)
        self._files.write()
        self._opened = True
        facts: dict[str, Any] = {"run": self.folder.name, "folder": str(self.folder), "url": self._client.url}
        facts |= {"name": self.scenario.name, "mode": self.scenario.mode.name}
        facts |= {"total_s": soak.total_seconds} if soak else {}
        bounds = [slo.bounds for slo in overall(self.scenario.slos)]
        facts |= {"slo_ms": [one[""].ms for one in bounds if "" in one]}
        facts |= {"ttft_slo_ms": [one["ttft"].ms for one in bounds if "ttft" in one]}
        names = [endpoint.name for endpoint in self._endpoints]
        self.board.open(facts, names, overall(self.scenario.slos), self._now(), self._manifest.streams)
        say.info("run folder: %s", self.folder)

    def _end_chapter(self) -> None:
        self._scheduled += self._dispatch.went_down()
        self._files.end_chapter(self._steps, self._now(), self._scheduled)
        self._scheduled, self._steps = 0, []

    def _close(self, status: str) -> None:
        if self.finished:
            return
        now = self._now()
        for companion in self._companions:
            companion.stop()
        self._collector.stop()
        self.finished = True
        if self._steps or not self._soak:
            self._end_chapter()
        self._files.close()
        unknown = self._offset.as_json("unknown")
        self._manifest.status = status
        self._manifest.finished_ns = now
        self._manifest.clock = self._collector.clocks() or ([unknown] if unknown else [])
        self._manifest.totals = self._files.totals()
        self._manifest.release()
        self._manifest.write(self.folder)
        self._servers.close()
        self.board.close(status, now)
        say.info("run %s: %s; read it with: tailrate report %s", self.folder.name, status, self.folder)

    def _event(self, kind: str, **what: Any) -> None:
        self._files.event(kind, **what)
        if kind == "fault" and self._soak:
            self._soak.fault(what)

    def _now(self) -> int:
        return self._base.wall_ns(time.monotonic_ns())


def bad_fields(found: Mapping[str, int]) -> str:
    named = ", ".join(f"{name} {count} times" for name, count in sorted(found.items()))
    return f"answers had fields that cannot be meant, and are empty in their rows: {named}"


def spawn(conductor: Conductor, on_end: Callable[[str | None], None]) -> gevent.Greenlet[..., None]:
    """Runs the plan in a greenlet of its own; `on_end` gets None, or the sentence that says why it ended."""

    def work() -> None:
        problem: str | None = "the run ended without saying why"
        try:
            conductor.run()
            problem = None
        except (ScenarioError, OSError) as known:
            problem = str(known)
        finally:  # whatever happened, what there is is kept and the test comes to its end
            conductor.abort(problem or "")
            on_end(problem)

    return gevent.spawn(work)
