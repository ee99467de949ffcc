"""What is known of a run while it runs, as plain values: for the page at /tailrate and for the terminal.

Fed by the conductor with steps, events, rows (through each step's `Live`) and device samples; keeps one point a second
in a `LivePoints`. Pure: now is an argument, nothing is drawn and nothing sent here. A second becomes a point a second
after it ended, when every load process has reported it: at the next `tick`, from rows or samples that come or from
whoever asks, so that nothing piles up where nobody looks.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tailrate.analysis.records.objective import MOST_CPU_PCT, Slo
from tailrate.analysis.records.rows import is_success
from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.live.points import DEVICES, RATES, LivePoints, Point
from tailrate.loadtest.engine.live.step_stats import Live, Second
from tailrate.loadtest.engine.live.window import DROPPED, SETTLED_S
from tailrate.loadtest.engine.scenario.steps import LoadStep

MOST_EVENTS = 2000
STALE_NS = 3_000_000_000
"""A device that has not been heard of for so long has no value."""
HEARD = 5

OVER = ("complete", "aborted", "failed")

WARNINGS = {
    "warning": "",
    "aborted": "the run was stopped",
    "bad_fields": "",
    "device": "",
    "fault": "",
    "gap": "the soak went on; nothing was sent since it was interrupted",
    "metrics_back": "",
    "metrics_lost": "",
    "samples_overwritten": "the server overwrote device samples before they were read",
    "step_cut": "a step was cut short",
    "telemetry_back": "device samples come again",
    "telemetry_lost": "no device samples come any more",
    "workers_missing": "",
    "worker_lost": "a load process was lost; its share of the step is counted as lost",
}
TOLD = ("step_start", "step_end", "knee", "self_check", *WARNINGS)


def warning(event: Mapping[str, Any]) -> str | None:
    """What somebody who watches should know of an event; None of one that is a matter of course."""
    kind = str(event["event"])
    if kind == "load_cpu" and event["pct"] > MOST_CPU_PCT:
        return (
            f"load process {event['worker']} was busy for {event['pct']:.0f} % of the time: its steps are not trusted"
        )
    if kind == "fault":
        name = " ".join(str(event[key]) for key in ("fault", "target") if event.get(key))
        if event.get("phase") == "end":
            return f"{name} is over"
        return f"{name} {'was not' if event.get('phase') == 'refused' else 'is'} injected: {event.get('sentence')}"
    if kind not in WARNINGS:
        return None
    return ": ".join(str(part) for part in (WARNINGS[kind], event.get("sentence")) if part) or kind


class Board:
    """One run, from before its start to after its end."""

    def __init__(self, base: Base) -> None:
        self.base = base
        """The run's time, for whoever asks."""
        self.status = "waiting"
        """waiting, starting, running, stopping, or one of OVER"""
        self.doing = ""
        """What is going on where no step is, in a few words."""
        self.facts: dict[str, Any] = {}
        self.history = LivePoints()
        self._events: deque[tuple[int, str]] = deque(maxlen=MOST_EVENTS)
        """As JSON, which is a quarter of what it takes to hold them as they are."""
        self._told = 0
        self._endpoints: list[str] = []
        self._slos: Sequence[Slo] = ()
        self._streams = False
        self._of: int | None = None
        self._disk: dict[str, Any] = {}
        self._blocks_left_s: list[float] | None = None
        self._end_ns: int | None = None
        self._over_ns = 0
        self._origin_ns = 0
        self._second = 0
        """The first that is no point yet."""
        self._lives: list[Live] = []
        self._past: dict[str, Live] = {}
        """Each endpoint's last step of which nothing more will come."""
        self._devices: dict[tuple[str, str, int], deque[tuple[int, list[float | None]]]] = {}
        """When it was heard of and what it showed, the last few times."""

    # ---- what the conductor tells

    def open(
        self, facts: dict[str, Any], endpoints: Sequence[str], slos: Sequence[Slo], now_ns: int, streams: bool = False
    ) -> None:
        """`facts` are for the reader alone; `streams`: answers of any endpoint come token by token."""
        self.facts, self._endpoints, self._slos, self._origin_ns = facts, list(endpoints), slos, now_ns
        self._streams = streams
        self.status = "running"

    def plan(self, of: int | None, block_s: Sequence[float] | None, after_s: float, now_ns: int) -> None:
        """How many steps there will be, and how long each block takes; None where only the run itself will show."""
        self._of = of
        if block_s is not None:
            left = after_s + np.cumsum(np.asarray([*block_s, 0.0])[::-1])[::-1]
            self._blocks_left_s = [float(seconds) for seconds in left]
            self._end_ns = now_ns + int(self._blocks_left_s[0] * 1e9)

    def begin(self, step: LoadStep, start_ns: int, schedule_s: Any, keep: bool = False) -> Live:
        live = Live(step, start_ns, schedule_s, self._origin_ns, keep, self._slos, self._streams)
        live.next_second = self._second
        self._lives.append(live)
        self.doing = ""
        if self._blocks_left_s is not None:
            self._end_ns = start_ns + int((self._blocks_left_s[step.block] - step.start_s) * 1e9)
        return live

    def event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "disk":
            self._disk = {key: event[key] for key in ("used_bytes", "free_bytes")}
        known = kind in TOLD or (kind == "load_cpu" and event["pct"] > MOST_CPU_PCT)
        if not known:
            return
        self._told += 1
        told = event | {"n": self._told, "t": round((event["time_ns"] - self._origin_ns) / 1e9, 1)}
        if said := warning(event):
            told["warning"] = said
        self._events.append((self._told, json.dumps(told, separators=(",", ":"))))

    def samples(self, batch: Any, now_ns: int) -> None:
        """Device samples, averaged over what came at once: about a second of them."""
        columns = [batch.column(name).to_pylist() for name in ("host", "device", "index", *DEVICES)]
        found: dict[tuple[str, str, int], list[list[float]]] = {}
        for host, device, index, *values in zip(*columns, strict=True):
            kept = found.setdefault((host, device, index), [[] for _ in DEVICES])
            for column, value in zip(kept, values, strict=True):
                if value is not None:
                    column.append(value)
        for which, kept in found.items():
            means = [round(sum(values) / len(values), 1) if values else None for values in kept]
            self._devices.setdefault(which, deque(maxlen=HEARD)).append((now_ns, means))
        self.tick(now_ns)

    def fail(self, sentence: str) -> None:
        """There is no run, or no more: what was wrong."""
        self.status, self.doing = "failed", sentence

    def close(self, status: str, now_ns: int) -> None:
        """Everything has been said; what is left over becomes points."""
        if self.status == "failed":
            return
        self.status, self.doing, self._over_ns = status, "", now_ns
        for live in self._lives:
            if live.ended_s is None:
                live.end(max(1e-3, min(live.step.seconds, (now_ns - live.start_ns) / 1e9)))
        if self._origin_ns:
            self.tick(now_ns + int((1 + SETTLED_S) * 1e9))

    # ---- points

    def tick(self, now_ns: int) -> None:
        """Turns every second that is over, and settled, into a point."""
        until_ns = now_ns - int(SETTLED_S * 1e9)
        if self._over_ns:
            until_ns = min(until_ns, self._over_ns + int(1e9))
        until = (until_ns - self._origin_ns) // 1_000_000_000
        while self._origin_ns and self._second < until:
            self.history.add(self._point(self._second))
            self._second += 1

    def _point(self, second: int) -> Point:
        end_ns = self._origin_ns + (second + 1) * 1_000_000_000
        rates: dict[str, list[float | None]] = {}
        seen: dict[str, Second] = {}
        totals: dict[str, tuple[int | None, int | None, float]] = {}
        for live in self._lives:
            at_s = (end_ns - live.start_ns) / 1e9
            found, due, level = live.take(second), live.due(at_s) - live.due(at_s - 1), live.in_flight(at_s)
            if not (found or due or level):
                continue
            # two steps of one endpoint may meet within a second
            number = str(self._endpoints.index(live.step.endpoint))
            so_far = seen.setdefault(number, Second())
            if found:
                so_far.merge(found)
            offered, in_flight, step_s = totals.get(number, (None, 0, 0.0))
            if live.step.scheduled:
                offered = (offered or 0) + due
            covered_s = max(0.0, min(at_s, live.step.seconds) - max(at_s - 1, 0.0))
            together = None if in_flight is None or level is None else in_flight + level
            totals[number] = offered, together, round(step_s + covered_s, 3)
            rates[number] = [offered, *so_far.columns(), *totals[number][1:], *so_far.streamed()]
        for live in [live for live in self._lives if live.drained]:
            live.forget()
            self._lives.remove(live)
            self._past[live.step.endpoint] = live
        shown = {str(number): _shown(heard, end_ns) for number, heard in enumerate(self._devices.values())}
        devices = {number: values for number, values in shown.items() if values}
        return {"t": second + 1, "s": 1, "e": rates, "d": devices}

    # ---- what is read

    def state(self, now_ns: int) -> dict[str, Any]:
        """Everything but the points and the events."""
        now_ns = self._over_ns or now_ns
        present = self._present(now_ns)
        running = [live for live in present.values() if live.ended_s is None]
        hosts = len({host for host, *_ in self._devices})
        left_s = None
        if self._end_ns is not None and self.status in ("running", "stopping"):
            left_s = round(max(0.0, (self._end_ns - now_ns) / 1e9), 1)
        return {
            "status": self.status,
            "doing": self.doing,
            "facts": self.facts,
            "elapsed_s": round(max(0.0, (now_ns - self._origin_ns) / 1e9), 1) if self._origin_ns else 0.0,
            "left_s": left_s,
            "of": self._of,
            "steps": [_step(live, now_ns) for live in running],
            "soak": self._soak(running),
            "endpoints": [self._endpoint(name, present.get(name)) for name in self._endpoints],
            "devices": [
                {"name": _name(*which, hosts), "stale": now_ns - heard[-1][0] > STALE_NS}
                | dict(zip(DEVICES, heard[-1][1], strict=True))
                for which, heard in self._devices.items()
            ],
            "doubts": [doubt for live in running for doubt in self._doubts(live)],
        }

    def _soak(self, running: Sequence[Live]) -> dict[str, Any] | None:
        """Which chapter it is in, and what it takes of the disk; None where the run is no soak."""
        if "total_s" not in self.facts or self._blocks_left_s is None:
            return None
        number = max((live.step.block + 1 for live in running), default=None)
        known = {"chapter": number, "of": len(self._blocks_left_s) - 1, "total_s": self.facts.get("total_s")}
        return known | {key: self._disk.get(key) for key in ("used_bytes", "free_bytes")}

    def events(self, after: int) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self._newer(after)]

    def answer(self, cursor: str, now_ns: int, **more: Any) -> str:
        """The page's next look, as JSON: what has changed since the one that gave this cursor, or all there is."""
        self.tick(now_ns)
        run, point, event = ([*cursor.split("."), "", "", ""])[:3]
        whole = run != str(self._origin_ns) or not (point.isdecimal() and event.isdecimal())
        points = self.history.after(0 if whole else int(point))
        events = self._newer(0 if whole else int(event))
        head = {
            "cursor": f"{self._origin_ns}.{self._second}.{self._told}",
            "whole": whole,
            "state": self.state(now_ns),
            "names": {"rates": RATES, "devices": DEVICES},
        } | more
        return f'{json.dumps(head)[:-1]}, "points": [{",".join(points)}], "events": [{",".join(events)}]}}'

    def _newer(self, after: int) -> list[str]:
        found = []
        for number, text in reversed(self._events):
            if number <= after:
                break
            found.append(text)
        return found[::-1]

    def _present(self, now_ns: int) -> dict[str, Live]:
        """Each endpoint's step that is under way, or else the next, or the last one; a block may have several."""
        found = dict(self._past)
        for live in self._lives:
            known = found.get(live.step.endpoint)
            if known is None or known.ended_s is not None or live.start_ns <= now_ns:
                found[live.step.endpoint] = live
        return found

    def _endpoint(self, name: str, live: Live | None) -> dict[str, Any]:
        """The figures of its step, since that began."""
        if live is None:
            return {"endpoint": name, "step": None}
        # up to where every load process has reported
        reported_ns = self._origin_ns + self._second * 1_000_000_000
        seconds = live.ended_s or min(live.step.seconds, max(0.0, (reported_ns - live.start_ns) / 1e9))
        offered = live.n if live.ended_s else live.due(seconds)
        answered = live.in_time if live.ended_s else min(live.taken_ok, live.in_time)
        statuses = live.statuses
        return {
            "endpoint": name,
            "step": live.step.index,
            "running": live.ended_s is None,
            "rate": live.step.rate,
            "concurrency": live.step.concurrency,
            "offered_rps": round(offered / seconds, 3) if seconds and live.step.scheduled else None,
            "achieved_rps": round(answered / seconds, 3) if seconds else None,
            "n": live.n,
            "p50_ms": live.latency.quantile(0.5),
            "p99_ms": live.latency.quantile(0.99),
            "ttft_p99_ms": live.ttft.quantile(0.99) if live.streams else None,
            "tokens_rps": round(live.tokens / seconds, 3) if live.streams and seconds else None,
            "in_flight": 0 if live.ended_s else live.in_flight((reported_ns - live.start_ns) / 1e9),
            "late_p99_ms": live.lateness.quantile(0.99),
            "late": live.late,
            "dropped": statuses.pop(DROPPED, 0),
            "failed": {status: count for status, count in statuses.items() if not is_success(status)},
        }

    def _doubts(self, live: Live) -> list[str]:
        """What would be held against a step if it ended now."""
        name = live.step.endpoint
        shown = live.shown
        found = [f"{name} is not trusted: {why}" for why in (shown.late, *shown.doubts) if why]
        told = (answer for answer in live.answers() if answer.kept is False or answer.against)
        found += [f"{name}: so far {answer.sentence}" for answer in told]
        return found


def _step(live: Live, now_ns: int) -> dict[str, Any]:
    step, elapsed_s = live.step, max(0.0, (now_ns - live.start_ns) / 1e9)
    return {
        "index": step.index,
        "endpoint": step.endpoint,
        "rate": step.rate,
        "concurrency": step.concurrency,
        "seconds": step.seconds,
        "elapsed_s": round(elapsed_s, 1),
        # a step of so many requests ends with the last of them
        "left_s": None if step.requests else round(max(0.0, step.seconds - elapsed_s), 1),
    }


def _shown(heard: Iterable[tuple[int, list[float | None]]], at_ns: int) -> list[float | None] | None:
    """The last that a device showed by then, unless that is long ago."""
    known = [(heard_ns, values) for heard_ns, values in heard if at_ns - STALE_NS < heard_ns <= at_ns]
    return known[-1][1] if known else None


def _name(host: str, device: str, index: int, hosts: int) -> str:
    name = "CPU" if device.lower().startswith("cpu") else f"GPU {index}" if device.startswith("GPU-") else device
    return f"{host} {name}" if hosts > 1 else name
