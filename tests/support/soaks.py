"""Run folders of soaks with a known truth: hours in chapters, noise that remembers, and what is to be found in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from folders import GPU, START_NS, Floats, Load, Waveform, make_run, rewrite

from tailrate.analysis.records.folder import DEVICES, append_event

CHAPTER_S = 600.0
GIB = 2**30


def remembering(rng: np.random.Generator, n: int, carry: float, deviation: float) -> Floats:
    """Autoregressive noise of first order, stationary from its start."""
    news = rng.normal(size=n) * np.sqrt(1 - carry**2)
    found = np.empty(n)
    found[0] = rng.normal()
    for k in range(1, n):
        found[k] = carry * found[k - 1] + news[k]
    return deviation * found


def flat(at_h: Floats) -> Floats:
    return np.ones(len(at_h))


@dataclass(frozen=True)
class Truth:
    """What happens in a soak; factors are functions of the hour."""

    hours: float = 6.0
    rate: float = 4.0
    median_ms: float = 20.0
    latency: Callable[[Floats], Floats] = flat
    memory: Callable[[Floats], Floats] = flat
    own: Callable[[Floats], Floats] | None = None
    """The server's part of that; None: it doesn't say."""
    stall_ms: float = 0.0
    stall_period_s: float = 60.0
    stall_phase_s: float = 7.0
    stall_from_h: float = 0.0
    throttled_from_h: float | None = None
    """From then on a third of the samples are throttled by heat, and clocks are lower."""
    carry: float = 0.7
    deviation: float = 0.02
    slo: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    endpoints: tuple[str, ...] = ("m/a",)
    daily: tuple[float, float] | None = None
    """Depth and period in seconds of a sine that the rate follows."""


def write(folder: Path, truth: Truth, seed: int = 1) -> Path:
    """The folder of one soak."""
    rng = np.random.default_rng(seed)
    chapters = round(truth.hours * 3600 / CHAPTER_S)
    minutes = round(truth.hours * 60)
    loads = []
    noise = {name: remembering(rng, minutes + 1, truth.carry, truth.deviation) for name in truth.endpoints}
    for chapter in range(chapters):
        for endpoint in truth.endpoints:
            begin = chapter * CHAPTER_S
            latency = _latency(truth, begin, noise[endpoint])
            settle = 30.0 if chapter == 0 else 0.0
            most = truth.rate * (1 + truth.daily[0]) if truth.daily else truth.rate
            loads.append(Load(endpoint, most, latency, CHAPTER_S - 0.5, settle, begin, block=chapter))
    devices = [Waveform(period_s=10.0, idle_s=0.0)]
    written = make_run(folder, loads, seed=seed, mode="soak", slo=truth.slo, poisson=True, devices=devices)
    written.manifest.scenario |= {
        "chapter_seconds": CHAPTER_S,
        "total_seconds": truth.hours * 3600,
        "soak": dict(truth.limits),
    }
    if truth.daily:
        depth, period_s = truth.daily
        written.manifest.scenario["daily"] = f"sine:{depth:g}:{period_s:g}"
        rows = written.requests
        at_s = (rows["intended_ns"].to_numpy() - START_NS) / 1e9
        rows = rows[rng.random(len(rows)) * (1 + depth) < curve(truth, at_s)].copy()
        rows["seq"] = rows.groupby("step").cumcount()
        rewrite(folder, rows)
        written.manifest.totals |= {"scheduled": len(rows), "ok": len(rows)}
    written.manifest.write(folder)
    rewrite(folder, _samples(truth, rng, written.devices), DEVICES)
    for role, pid in (("load 0", 11), ("conductor", 12)):
        rss = 150e6 * (1 + remembering(rng, minutes, 0.5, 0.002))
        for minute in range(minutes):
            append_event(
                folder, "process", time_ns=START_NS + (60 * minute + 5) * 10**9, role=role, pid=pid,
                rss_bytes=int(rss[minute]), cpu_pct=12.0, open_files=40,
            )  # fmt: skip
    return folder


def curve(truth: Truth, at_s: Floats) -> Floats:
    """By how much the rate is more than in the mean."""
    depth, period_s = truth.daily or (0.0, 1.0)
    return 1 + depth * np.sin(2 * np.pi * at_s / period_s)


def _latency(truth: Truth, begin_s: float, noise: Floats) -> Callable[[np.random.Generator, Floats], Floats]:
    def made(rng: np.random.Generator, at_s: Floats) -> Floats:
        since = begin_s + at_s
        found = truth.median_ms * np.exp(0.2 * rng.normal(size=len(at_s)))
        found *= truth.latency(since / 3600) * (1 + noise[(since / 60).astype(int)])
        # the folder's zero is no whole minute, so the phase is that since the start
        held = ((since - truth.stall_phase_s) % truth.stall_period_s < 1.0) & (since >= 3600 * truth.stall_from_h)
        whole: Floats = found + np.where(held, truth.stall_ms, 0.0)
        return whole

    return made


def _samples(truth: Truth, rng: np.random.Generator, samples: Any) -> Any:
    at_h = (samples["time_ns"].to_numpy() - START_NS) / 3.6e12
    n = len(at_h)
    hot = np.zeros(n, dtype=bool) if truth.throttled_from_h is None else at_h >= truth.throttled_from_h
    held = hot & (np.arange(n) % 3 == 0)
    load = curve(truth, at_h * 3600)
    memory = 20 * GIB * truth.memory(at_h) * (1 + np.abs(remembering(rng, n, 0.5, 0.001)))
    if truth.own is not None:
        own = 12 * GIB * truth.own(at_h) * (1 + np.abs(remembering(rng, n, 0.5, 0.001)))
        samples = samples.assign(own_mem_bytes=own.astype(np.int64))
    return samples.assign(
        device=GPU,
        mem_bytes=memory.astype(np.int64),
        util_pct=(40 if truth.daily else 80) * load + remembering(rng, n, 0.8, 3.0),
        power_w=100 + 300 * load + remembering(rng, n, 0.8, 10.0),
        energy_j=np.nan,
        temp_c=60 + remembering(rng, n, 0.9, 1.0),
        sm_mhz=np.where(hot, 1500.0, 1980.0),
        throttle_bits=np.where(held, 0x20, 0x0),
    )
