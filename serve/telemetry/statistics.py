"""What a replica has done so far, counted: in Triton's statistics form and as Prometheus text.

Costs a request a few hundred nanoseconds, since everything is counted on the way of one. Counters of several
replicas add up, so they travel as plain dictionaries of numbers.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from operator import itemgetter
from typing import Any

from tailrate.serve.telemetry import token_counts
from tailrate.serve.telemetry.prometheus_text import Labels, Sample, family
from tailrate.serve.wire import BUSY, REASONS, STAGES

Counts = dict[str, Any]

SPANS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
REFUSED = (*REASONS.values(), *BUSY)
"""The words for why a request got no result."""
EVENTS = {
    "out_of_memory": "Batches that did not fit into the device's memory and were halved.",
    "recompiled_requests": "Requests that waited for torch.compile in their batch.",
    "first_hits": "Batches that made torch.compile build something that the warm-up had not reached.",
    "recompiles": "Batches that made torch.compile build something once more, as a guard had failed.",
    "fallbacks": "Batches in which torch.compile gave up on code, which runs eager from then on.",
    "parity_samples": "Responses that were compared with eager fp32 afterwards.",
    "profiled_batches": "Batches that ran under the profiler, which slows them.",
    "parity_failures": "Responses compared with eager fp32 that were beyond the tolerance.",
}
BOUNDS_S = tuple(digit * 10.0**power for power in range(-4, 2) for digit in (1, 2.5, 5))[:-2]
"""Upper ends of the buckets of every histogram: 0.1 ms to 10 s, three to the decade."""
BOUNDS_NS = tuple(round(bound * 1e9) for bound in BOUNDS_S)
_SPENT = itemgetter(*STAGES[1:])
LE = (*(f"{bound:.10g}" for bound in BOUNDS_S), "+Inf")


class DurationHistogram:
    """Durations by size, and their sum; one thread writes, any may read."""

    __slots__ = ("ns", "sizes")

    def __init__(self) -> None:
        self.sizes = [0] * len(LE)
        self.ns = 0

    def add(self, ns: int, times: int = 1) -> None:
        self.sizes[bisect_left(BOUNDS_NS, ns)] += times
        self.ns += ns * times

    def as_counts(self) -> Counts:
        sizes = list(self.sizes)
        return {"count": sum(sizes), "ns": self.ns, "sizes": dict(zip(LE, sizes, strict=True))}


def zero() -> Counts:
    return Counters().snapshot()


class Counters:
    """Counts batches (in the device's thread), answers (in the event loop's), and rare events (in any)."""

    def __init__(self) -> None:
        self._last_ms = 0
        self._rows = 0
        self._batches: dict[int, list[int]] = {}
        """By size: how many, and the ns of their input, inference and output."""
        self._stages = {stage: DurationHistogram() for stage in STAGES}
        self._spent = [self._stages[stage] for stage in STAGES[1:]]
        self._answers = {True: DurationHistogram(), False: DurationHistogram()}
        self._refused = dict.fromkeys(REFUSED, 0)
        self._events = dict.fromkeys(EVENTS, 0)
        self.more: Callable[[], Counts] = dict
        """What else is counted where this kind of model is served."""
        self._lock = threading.Lock()

    def batch(self, rows: int, stages_ns: Mapping[str, int], queued_ns: Iterable[int]) -> None:
        """One execution: `stages_ns` of the batch, `queued_ns` of each request that is in it whole."""
        spent_ns = batch, h2d, compute, d2h = _SPENT(stages_ns)
        with self._lock:
            self._last_ms = time.time_ns() // 1_000_000
            self._rows += rows
            queue, requests = self._stages["queue"], 0
            for ns in queued_ns:
                queue.add(ns)
                requests += 1
            # as Triton does: every request of a batch is charged with the batch's time
            for histogram, ns in zip(self._spent, spent_ns, strict=True):
                histogram.sizes[bisect_left(BOUNDS_NS, ns)] += requests
                histogram.ns += ns * requests
            size = self._batches.get(rows)
            if size is None:
                size = self._batches[rows] = [0, 0, 0, 0]
            size[0] += 1
            size[1] += batch + h2d
            size[2] += compute
            size[3] += d2h

    def in_chunks(self, stages_ns: Mapping[str, int]) -> None:
        """One request that went in several batches, now that the last of them is done."""
        with self._lock:
            for stage, ns in stages_ns.items():
                self._stages[stage].add(ns)

    def answer(self, ns: int, refused: str = "") -> None:
        """One request that ended, with a result or `refused` for one of `REFUSED`; in the event loop's thread alone."""
        self._answers[not refused].add(ns)
        if refused:
            self._refused[refused] += 1

    def event(self, name: str, times: int = 1) -> None:
        """One of `EVENTS`."""
        with self._lock:
            self._events[name] += times

    def compiled(self, kind: str, requests: int) -> None:
        """A batch of so many requests waited for torch.compile (see `compiler.Kind`)."""
        self.event(f"{kind}s")
        self.event("recompiled_requests", requests)

    def snapshot(self) -> Counts:
        with self._lock:
            stages = {stage: histogram.as_counts() for stage, histogram in self._stages.items()}
            sizes = {rows: tuple(size) for rows, size in self._batches.items()}
            events, last_ms, rows_done = dict(self._events), self._last_ms, self._rows
        answers = {outcome: self._answers[ok].as_counts() for ok, outcome in ((True, "success"), (False, "fail"))}
        spans = {name: (found["count"], found["ns"]) for name, found in (answers | stages).items()}
        (requests, batch_ns), (_, h2d_ns) = spans["batch"], spans["h2d"]
        spans |= {
            "compute_input": (requests, batch_ns + h2d_ns),
            "compute_infer": spans["compute"],
            "compute_output": spans["d2h"],
        }
        return {
            "last_inference": last_ms,
            "inference_count": rows_done,
            "execution_count": sum(count for count, *_ in sizes.values()),
            "inference_stats": {name: _span(*spans.get(name, (0, 0))) for name in (*SPANS, "cache_hit", "cache_miss")},
            "batch_stats": {
                str(rows): {name: _span(count, ns) for name, ns in zip(SPANS[3:], spent_ns, strict=True)}
                for rows, (count, *spent_ns) in sizes.items()
            },
            "stages": {stage: _span(*spans[stage]) for stage in STAGES},
            "refused": dict(self._refused),
            "events": events,
            "histograms": {"request": answers, "stage": stages},
            **self.more(),
        }


def _span(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def add(into: Counts, more: Mapping[str, Any]) -> Counts:
    """Adds `more` into `into` and returns it."""
    for key, value in more.items():
        if isinstance(value, Mapping):
            add(into.setdefault(key, {}), value)
        elif key == "last_inference":
            into[key] = max(into.get(key, 0), value)
        else:
            into[key] = into.get(key, 0) + value
    return into


def as_statistics(model: str, variant: str, counts: Counts) -> dict[str, Any]:
    """One entry of `model_stats` in Triton's statistics extension, with stages, refusals and events beside it."""
    batches = [{"batch_size": int(size), **spans} for size, spans in counts["batch_stats"].items()]
    rest = {key: value for key, value in counts.items() if key != "histograms"}
    return {"name": model, "version": variant, **rest, "batch_stats": sorted(batches, key=lambda b: b["batch_size"])}


# ---- Prometheus


def as_prometheus(reports: Iterable[Mapping[str, Any]]) -> str:
    """Text exposition of the replicas' reports."""
    found = [({key: str(r[key]) for key in ("model", "variant", "replica")}, r, r["counts"]) for r in reports]
    lines: list[str] = []

    def metric(name: str, kind: str, what: str, samples: Iterable[Sample]) -> None:
        lines.extend(family(name, kind, what, samples))

    def gauge(name: str, what: str, key: str) -> None:
        metric(name, "gauge", what, [("", own, report[key]) for own, report, _ in found])

    def histogram(name: str, what: str, key: str, label: str) -> None:
        by_value = [
            (own | {label: value}, sizes)
            for own, _, counts in found
            for value, sizes in counts["histograms"][key].items()
        ]
        metric(name, "histogram", what, [sample for labels, sizes in by_value for sample in _histogram(labels, sizes)])

    ready = [("", own, int(report["state"] == "READY")) for own, report, _ in found]
    metric("ready", "gauge", "Whether the replica is warm.", ready)
    gauge("waiting", "Requests in the replica's queue.", "waiting")
    metric(
        "requests_total", "counter", "Requests answered.",
        [("", own | {"outcome": outcome}, counts["inference_stats"][outcome]["count"])
         for own, _, counts in found for outcome in ("success", "fail")],
    )  # fmt: skip
    histogram("request_seconds", "Time in the replica of the requests answered.", "request", "outcome")
    histogram("stage_seconds", "Time of requests in each stage.", "stage", "stage")
    metric(
        "refused_total", "counter", "Requests that got no result, by reason.",
        [("", own | {"reason": why}, n) for own, _, counts in found for why, n in counts["refused"].items()],
    )  # fmt: skip
    for name, key, what in (
        ("rows_total", "inference_count", "Rows inferred."),
        ("batches_total", "execution_count", "Batches run."),
    ):
        metric(name, "counter", what, [("", own, counts[key]) for own, _, counts in found])
    for name, what in EVENTS.items():
        metric(f"{name}_total", "counter", what, [("", own, counts["events"][name]) for own, _, counts in found])
    lines += token_counts.families(found)
    return "\n".join(lines) + "\n"


def _histogram(labels: Labels, counts: Counts) -> Iterable[Sample]:
    for le, below in zip(LE, accumulate(counts["sizes"][le] for le in LE), strict=True):
        yield "_bucket", {**labels, "le": le}, below
    yield "_sum", labels, counts["ns"] / 1e9
    yield "_count", labels, counts["count"]
