"""What a replica has done so far, counted: in Triton's statistics form and as Prometheus text.

Counters of several replicas add up, so they travel as plain dictionaries of numbers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

Counts = dict[str, Any]

SPANS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


def zero() -> Counts:
    return {
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": {span: {"count": 0, "ns": 0} for span in (*SPANS, "cache_hit", "cache_miss")},
        "batch_stats": {},
    }


class Counters:
    """Counts batches (from the device's thread) and answers (from the event loop's)."""

    def __init__(self) -> None:
        self._counts = zero()
        self._lock = threading.Lock()

    def batch(self, rows: int, stages_ns: Mapping[str, int], queued_ns: Iterable[int]) -> None:
        """One execution: `stages_ns` of the batch, `queued_ns` of each of its requests."""
        queued = list(queued_ns)
        spans = {
            "compute_input": stages_ns["batch"] + stages_ns["h2d"],
            "compute_infer": stages_ns["compute"],
            "compute_output": stages_ns["d2h"],
        }
        with self._lock:
            counts = self._counts
            counts["last_inference"] = time.time_ns() // 1_000_000
            counts["inference_count"] += rows
            counts["execution_count"] += 1
            _span(counts["inference_stats"]["queue"], sum(queued), len(queued))
            by_size = counts["batch_stats"].setdefault(str(rows), {span: {"count": 0, "ns": 0} for span in spans})
            for span, ns in spans.items():
                # as Triton does: every request of a batch is charged with the batch's time
                _span(counts["inference_stats"][span], ns * len(queued), len(queued))
                _span(by_size[span], ns, 1)

    def answer(self, ok: bool, ns: int) -> None:
        """One request answered, however it ended."""
        with self._lock:
            _span(self._counts["inference_stats"]["success" if ok else "fail"], ns, 1)

    def snapshot(self) -> Counts:
        with self._lock:
            return add(zero(), self._counts)


def _span(span: dict[str, int], ns: int, count: int) -> None:
    span["count"] += count
    span["ns"] += ns


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
    """One entry of `model_stats` in Triton's statistics extension."""
    batches = [{"batch_size": int(size), **spans} for size, spans in counts["batch_stats"].items()]
    return {"name": model, "version": variant, **counts, "batch_stats": sorted(batches, key=lambda b: b["batch_size"])}


def as_prometheus(reports: Iterable[Mapping[str, Any]]) -> str:
    """Text exposition of the replicas' reports."""
    found = list(reports)
    lines: list[str] = []

    def metric(name: str, kind: str, what: str, samples: Iterable[tuple[str, float]]) -> None:
        lines.extend([f"# HELP headroom_{name} {what}", f"# TYPE headroom_{name} {kind}"])
        lines.extend(f"headroom_{name}{{{labels}}} {value!r}" for labels, value in samples)

    def labels(report: Mapping[str, Any], **more: str) -> str:
        own = {key: report[key] for key in ("model", "variant", "replica")}
        return ",".join(f'{key}="{value}"' for key, value in (own | more).items())

    def spans(*names: str) -> list[tuple[Mapping[str, Any], str, Mapping[str, int]]]:
        return [(report, name, report["counts"]["inference_stats"][name]) for report in found for name in names]

    metric("ready", "gauge", "Whether the replica is warm.", [(labels(r), int(r["state"] == "READY")) for r in found])
    metric("waiting", "gauge", "Requests in the replica's queue.", [(labels(r), r["waiting"]) for r in found])
    metric(
        "requests_total", "counter", "Requests answered.",
        [(labels(r, outcome=name), span["count"]) for r, name, span in spans("success", "fail")],
    )  # fmt: skip
    metric(
        "request_seconds_total", "counter", "Time in the replica of the requests answered.",
        [(labels(r, outcome=name), span["ns"] / 1e9) for r, name, span in spans("success", "fail")],
    )  # fmt: skip
    metric(
        "stage_seconds_total", "counter", "Time of requests in each stage.",
        [(labels(r, stage=name), span["ns"] / 1e9) for r, name, span in spans(*SPANS[2:])],
    )  # fmt: skip
    metric("rows_total", "counter", "Rows inferred.", [(labels(r), r["counts"]["inference_count"]) for r in found])
    metric("batches_total", "counter", "Batches run.", [(labels(r), r["counts"]["execution_count"]) for r in found])
    return "\n".join(lines) + "\n"
