"""The charts of the report for a notebook: each function takes a run or frames, and returns a figure to look at.

>>> from tailrate.analysis import load, plot  # doctest: +SKIP
>>> run = load("runs/20261120T101500Z-bert")  # doctest: +SKIP
>>> plot.hockey_stick(run)  # doctest: +SKIP
>>> plot.percentiles(run.requests(step=[4, 5]), slo="p99<50ms").save("slow.html")  # doctest: +SKIP

They are the report's own drawings, with its hover, legend and zoom; frames may be cut and joined at will, as long as
they keep the columns that a chart is made of. Several runs in one chart: join their frames and rename the endpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from tailrate.analysis.pages.html.document import document
from tailrate.analysis.pages.html.markup import Html
from tailrate.analysis.pages.report.charts import by_rate
from tailrate.analysis.pages.report.charts.batches import batch_charts
from tailrate.analysis.pages.report.charts.energy import energy_charts
from tailrate.analysis.pages.report.charts.percentiles import percentile_charts
from tailrate.analysis.pages.report.charts.time_chart import time_line as drawn_line
from tailrate.analysis.pages.report.charts.time_slices import device_slices, from_rows
from tailrate.analysis.records.folder import write_atomically
from tailrate.analysis.records.objective import Slo, overall
from tailrate.analysis.run.device_tracks import STATE
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.steps.curves import percentiles as carried
from tailrate.analysis.text import words
from tailrate.analysis.verdicts.run import Run

Steps: TypeAlias = "Run | pd.DataFrame"
"""A run, or a frame like `run.steps`."""
Row: TypeAlias = dict[str, Any]

_AROUND_PX, _PANEL_PX = 150, 40
"""What a figure takes beside the drawings, and beside each."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart: a notebook shows it in a frame of its own, `save` writes a page that opens from disk."""

    title: str
    body: Html = field(repr=False)

    @property
    def html(self) -> str:
        return document(self.title, self.body, style="body { padding: 12px 20px }")

    def save(self, path: str | Path) -> Path:
        """The page at this path, whole or not at all."""
        write_atomically(Path(path), self.html)
        return Path(path)

    def _repr_html_(self) -> str:
        heights = [float(found) for found in re.findall(r'height="([\d.]+)" class="plot"', self.body)]
        px = _AROUND_PX + sum(height + _PANEL_PX for height in heights)
        style = f"border:0;width:100%;height:{px:.0f}px"
        # in ASCII: whatever encoding the page around it has, the script is the one that the frame's policy lets run
        page = escape(self.html).encode("ascii", "xmlcharrefreplace").decode()
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def hockey_stick(
    steps: Steps, slo: str | Sequence[str] = (), id_: str = "hockey", series: Mapping[str, int] | None = None
) -> Figure:
    """P50 and P99 against the offered rate, by endpoint; a run brings its own objectives.

    A page with several needs an `id_` for each, and `series` for endpoints to have the same colours in all.
    """
    rows = _rows(steps, "offered_rps", "p50_ms", "p99_ms")
    drawn = by_rate.hockey_stick(rows, series or _series(rows), _slos(slo, steps), id_)
    return Figure("Latency against offered rate", drawn)


def achieved(steps: Steps) -> Figure:
    """Achieved against offered rate, by endpoint."""
    rows = _rows(steps, "offered_rps", "achieved_rps")
    return Figure("Achieved against offered rate", by_rate.achieved(rows, _series(rows)))


def energy(steps: Steps) -> Figure:
    """Peak memory, power and energy a request against the offered rate; whichever of them were measured."""
    rows = _rows(steps, "offered_rps")
    return _figure("Memory and energy", energy_charts(rows, _series(rows)), "these steps have no device figures")


def percentiles(requests: pd.DataFrame, slo: str | Sequence[str] = ()) -> Figure:
    """Latency by percentile, a curve for each endpoint over all of its rows in a frame like `run.requests()`."""
    steps, curves = [], []
    for endpoint, mine in _by_endpoint(requests, "latency_ms", "ok"):
        latency = np.where(mine["ok"], mine["latency_ms"], np.inf)
        asked = carried(len(latency))
        found = np.quantile(latency, np.divide(asked, 100), method="higher").tolist()
        steps.append({"index": 0, "endpoint": endpoint, "rate": 0.0, "asked": "all rows", "p99_ms": found[-1]})
        finite = [None if np.isinf(ms) else ms for ms in found]
        curves.append({"index": 0, "endpoint": endpoint, "percentile": asked, "latency_ms": finite})
    drawn = percentile_charts(steps, curves, _series(steps), _slos(slo, None))
    return _figure("Latency by percentile", drawn, "there are no requests")


def batches(requests: pd.DataFrame) -> Figure:
    """Sizes of batches and what they cost, by endpoint, of the successes in a frame like `run.requests()`."""
    steps, found = [], []
    for endpoint, mine in _by_endpoint(requests, "ok", "batch_rows", "compute_ms"):
        good = mine[mine["ok"] & mine["batch_rows"].notna()]
        steps.append({"index": 0, "endpoint": endpoint, "rate": 0.0, "asked": "all rows"})
        for rows in sorted(map(int, good["batch_rows"].unique())):
            same = good[good["batch_rows"] == rows]
            mean = float(same["compute_ms"].astype("float64").mean())
            known = {"compute_ms": mean, "rows_per_second": 1e3 * rows / mean} if mean > 0 else {}
            row = {"index": 0, "endpoint": endpoint, "batch_rows": rows, "requests": len(same)}
            found.append({**row, "compute_ms": None, "rows_per_second": None, **known})
    return _figure("Batches", batch_charts(steps, found, _series(steps)), "the server told no sizes of batches")


def time_line(requests: pd.DataFrame, devices: pd.DataFrame | None = None, steps: Iterable[Row] = ()) -> Figure:
    """Latency, rates and devices over the time of the requests.

    `devices` is a frame like `run.devices`, its clock taken to be that of the requests; `steps` those of the manifest,
    `run.manifest.scenario["steps"]`.
    """
    _need(requests, "endpoint", "intended_ns", "done_ns", "latency_ms", "ok")
    if requests.empty:
        raise ValueError("there are no requests")
    first, last = int(requests["intended_ns"].min()), int(requests["intended_ns"].max())
    began = [step for step in steps if first <= step["end_ns"] and step["start_ns"] <= last]
    start = min([first, *(step["start_ns"] for step in began)])
    line = Timeline.over(start, max(last, int(requests["done_ns"].fillna(last).max())))
    slices = from_rows(requests, line)
    samples = [] if devices is None else [*_samples(devices)]
    kind = "CPU" if all(name.lower().startswith("cpu") for name, *_ in samples) else "GPU"
    series = {name: number for number, name in enumerate(slices)}
    drawn = drawn_line(line, slices, device_slices(line, samples), kind, began, [], series)
    return Figure("Latency, rate and devices", drawn)


def _figure(title: str, drawn: Html | None, why_not: str) -> Figure:
    if drawn is None:
        raise ValueError(why_not)
    return Figure(title, drawn)


def _need(frame: pd.DataFrame, *columns: str) -> None:
    if missing := [name for name in columns if name not in frame]:
        raise ValueError(f"this chart needs the column {missing[0]}, which the frame does not have")


def _rows(steps: Steps, *columns: str) -> list[Row]:
    """The steps that have arrivals; what a frame does not say of them is taken from what it does."""
    if isinstance(steps, Run):
        known = [
            asdict(step.summary) | {"rate": step.rate, "asked": step.asked, "overloaded": step.overloaded}
            for step in steps.measured
        ]
    else:
        _need(steps, "endpoint", *columns)
        known = [{str(key): _plain(value) for key, value in row.items()} for row in steps.to_dict("records")]
    found: list[Row] = []
    for row in known:
        if row["offered_rps"] is None:
            continue
        reasons = row.get("reasons") or ()
        usual = {
            "rate": row["offered_rps"],
            "asked": words.rate(row["offered_rps"]),
            "overloaded": any(str(reason).startswith("overloaded") for reason in reasons),
            "trusted": True,
            "reasons": reasons,
        }
        found.append(_Absent(usual | row))
    if not found:
        raise ValueError("no step has an arrival, so there is nothing to draw")
    return found


class _Absent(dict[str, Any]):
    """A row in which what was not given is unknown."""

    def __missing__(self, key: str) -> None:
        return None


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


def _series(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(str(row["endpoint"]) for row in rows))}


def _slos(given: str | Sequence[str], steps: Any) -> list[Slo]:
    if not given and isinstance(steps, Run):
        return overall(steps.manifest.slos)
    return [Slo.parse(text) for text in ([given] if isinstance(given, str) else given) if text]


def _by_endpoint(requests: pd.DataFrame, *columns: str) -> Iterable[tuple[str, pd.DataFrame]]:
    _need(requests, "endpoint", *columns)
    return ((str(name), rows) for name, rows in requests.groupby("endpoint", observed=True, sort=False))


def _samples(devices: pd.DataFrame) -> Iterable[tuple[str, Any, dict[str, Any]]]:
    _need(devices, "time_ns", "device")
    for name, mine in devices.groupby("device", observed=True):
        known = {
            column: mine[column].to_numpy(dtype=np.float64, na_value=np.nan)
            if column in mine
            else np.full(len(mine), np.nan)
            for column in STATE
        }
        yield str(name), mine["time_ns"].to_numpy(dtype=np.int64), known
