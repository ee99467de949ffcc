"""A step's figures while it runs, for the progress line; the report computes its own from the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadtest.engine.client import OK
from loadtest.engine.scenario import LoadStep


class Live:
    """A step's figures while it runs, for the progress line; the report computes its own from the rows."""

    def __init__(self, step: LoadStep) -> None:
        self._step = step
        self._latency_ms: list[Any] = []
        self._late_ms: list[Any] = []
        self._ok = 0
        self._bad = 0

    def see(self, batch: Any) -> None:
        ok = np.asarray(batch.column("status").to_pylist()) == OK
        intended = np.asarray(batch.column("intended_ns"))
        self._ok += int(ok.sum())
        self._bad += int((~ok).sum())
        sent = batch.column("sent_ns").to_numpy(zero_copy_only=False).astype(float)
        self._late_ms.append((sent - intended)[~np.isnan(sent)] / 1e6)
        done = batch.column("done_ns").to_numpy(zero_copy_only=False).astype(float)
        self._latency_ms.append(np.where(ok, (done - intended) / 1e6, np.inf))

    def figures(self) -> dict[str, float | int | None]:
        return {
            "achieved_rps": round(self._ok / self._step.seconds, 3),
            "p50_ms": _quantile(self._latency_ms, 0.5),
            "p99_ms": _quantile(self._latency_ms, 0.99),
            "late_p99_ms": _quantile(self._late_ms, 0.99),
            "errors": self._bad,
        }

    def sentence(self) -> str:
        found = {key: "–" if value is None else f"{value:g}" for key, value in self.figures().items()}
        return (
            f"{self._step.endpoint}  offered {self._step.rate:g}/s  answered {found['achieved_rps']}/s  "
            f"P50 {found['p50_ms']} ms  P99 {found['p99_ms']} ms  late P99 {found['late_p99_ms']} ms  "
            f"errors {found['errors']}"
        )


def _quantile(chunks: list[Any], q: float) -> float | None:
    values = np.concatenate(chunks) if chunks else np.empty(0)
    value = float(np.quantile(values, q, method="higher")) if len(values) else np.inf
    return round(value, 3) if np.isfinite(value) else None
