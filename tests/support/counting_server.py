"""The metrics of a made-up server whose counts are known exactly, for run folders of `folders.make_run`.

It counts what the folder's own rows say was answered, at the instant of each answer, and gauges what is under way; a
look each second says so as Triton does. What a test may change: when the server is started again (and so counts from
zero), who else asks it, when its page is away, how full its cache is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from folders import START_NS, Written, rewrite

from tailrate.analysis.records.folder import METRICS
from tailrate.loadtest.engine.record.server_metrics.presets import every

TRITON, VLLM = every()["triton"], every()["vllm"]


@dataclass(frozen=True)
class Server:
    """Times are seconds since the start of the run."""

    source: str = "localhost:8002"
    endpoint: str = ""
    every_s: float = 1.0
    first_s: float = -2.0
    before: int = 1000
    """Requests that it had answered before the run."""
    starts_s: tuple[float, ...] = ()
    """When it is started again."""
    others_rps: float = 0.0
    """Requests of somebody else."""
    away_s: tuple[float, float] = (0.0, 0.0)
    labelled: bool = True
    """Its series name model and version."""
    cache: Callable[[float], float] | None = None
    """Share of its KV cache in use."""
    rows_in_batch: int = 4


def tell(written: Written, *servers: Server) -> None:
    """Writes the looks at these servers into the run's folder."""
    servers = servers or (Server(),)
    entries = written.manifest.extra[METRICS] = []
    rows: list[tuple[Any, ...]] = []
    last = written.requests["done_ns"].max() if len(written.requests) else START_NS
    until_s = (max(int(last), written.manifest.finished_ns) - START_NS) / 1e9 + 2.0
    for server in servers:
        presets = [TRITON, VLLM] if server.cache else [TRITON]
        says = [preset.as_json(metric) for preset in presets for metric in preset.metrics]
        about = {"source": server.source, "endpoint": server.endpoint, "url": f"http://{server.source}/metrics"}
        entries.append(about | {"presets": [preset.title for preset in presets], "metrics": says})
        for at_s in np.arange(server.first_s, until_s, server.every_s):
            rows += [(START_NS + round(at_s * 1e9), server.source, *each) for each in _look(server, written, at_s)]
    written.manifest.write(written.folder)
    rewrite(written.folder, pd.DataFrame(rows, columns=["time_ns", "source", "name", "labels", "value"]), METRICS)


def _look(server: Server, written: Written, at_s: float) -> list[tuple[str, str, float]]:
    low, high = server.away_s
    if low <= at_s < high:
        return [("up", "{}", 0.0)]
    found: list[tuple[str, str, float]] = [("up", "{}", 1.0), ("scrape_duration_seconds", "{}", 0.004)]
    began_s = max([start for start in server.starts_s if start <= at_s], default=None)
    totals: dict[str, float] = {}
    for name, mine in written.requests.groupby("endpoint"):
        if server.endpoint not in ("", name):
            continue
        model, _, variant = str(name).rpartition("/")
        labels = json.dumps({"model": model, "version": variant}) if server.labelled else "{}"
        ok = (mine["status"] == "200").to_numpy()
        done_s = (mine["done_ns"].to_numpy(dtype=np.float64, na_value=np.inf) - START_NS) / 1e9
        sent_s = (mine["sent_ns"].to_numpy(dtype=np.float64, na_value=np.inf) - START_NS) / 1e9
        counts = (done_s < at_s) & (done_s >= (-np.inf if began_s is None else began_s))
        others = server.others_rps * (at_s - (server.first_s if began_s is None else began_s))
        success = (ok & counts).sum() + round(others) + (server.before if began_s is None else 0)
        said = {
            "nv_inference_request_success": success,
            "nv_inference_request_failure": (~ok & counts & np.isfinite(sent_s)).sum(),
            "nv_inference_count": success * server.rows_in_batch,
            "nv_inference_exec_count": success,
            "nv_inference_pending_request_count": ((sent_s < at_s) & (done_s >= at_s)).sum(),
        }
        for metric, value in said.items():
            if server.labelled:
                found.append((metric, labels, float(value)))
            totals[metric] = totals.get(metric, 0.0) + float(value)
    if not server.labelled:
        found += [(metric, "{}", value) for metric, value in totals.items()]
    if server.cache:
        found.append(("vllm:kv_cache_usage_perc", "{}", server.cache(at_s)))
    return found
