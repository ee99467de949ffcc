"""What `plan` and `tune` are asked, from options to values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tailrate.cli.misuse import refuse


def loaded(what: str, folders: Sequence[Path]) -> list[Any]:
    from tailrate import analysis

    if not folders:
        refuse(f"{what} what? give one or more run folders, such as runs/20261120T101500Z-bert")
    return [analysis.load(folder) for folder in folders]


def sizing(given: dict[str, Any], tell: Callable[[str], None]) -> Any:
    from tailrate.analysis.planning.plan.sizing import Objective, Sizing, Traffic
    from tailrate.analysis.records.objective import Slo

    if not given["slo"]:
        refuse("hold what? give an objective, such as --slo 'p99<50ms'")
    try:
        slo = Slo.parse(given["slo"])
    except ValueError as problem:
        refuse(f"--slo: {problem}")
    if slo.slice:
        refuse(f"--slo: a plan is of all arrivals, and '{slo}' of a slice")
    return Sizing(Objective(slo), Traffic.parse(given["burst"], _drawn), tell=tell)


def question(given: dict[str, Any], tell: Callable[[str], None]) -> Any:
    from tailrate.analysis.planning.plan.prices import Prices
    from tailrate.analysis.planning.plan.question import DemandGrowth, Question
    from tailrate.loadtest.engine.scenario.arrivals import mean_arrivals, parse_shape, peak

    if given["rate"] is None:
        refuse("hold how much? give a rate, such as --rate 5000")
    try:
        kind, _ = parse_shape(given["shape"])
    except ValueError as problem:
        refuse(f"--shape: {problem}")
    span_s = 86_400.0 if kind == "spike" else 60.0  # of a day with one spike, or of a shape that fills any span
    return Question(
        rate_rps=given["rate"],
        sizing=sizing(given, tell),
        prices=Prices(**{key: given[key] for key in ("gpu_hour", "kwh", "co2_kg_per_kwh", "currency")}),
        n_plus=given["n_plus"],
        shape=given["shape"],
        peak=peak(given["shape"]),
        mean=1.0 if kind == "sine" else mean_arrivals(given["shape"], span_s) / span_s,
        growth=None if given["growth"] is None else DemandGrowth.parse(given["growth"]),
    )


def _drawn(count: int, seed: int, burstiness: float) -> Any:
    """So many arrivals in seconds at a rate of one."""
    from tailrate.loadtest.engine.scenario.arrivals import Pattern

    pattern = Pattern("constant") if burstiness == float("inf") else Pattern("gamma", burstiness)
    milliseconds = 1.01 * count + 100
    while len(found := pattern.offsets(1000.0, milliseconds / 1000, seed)) < count:
        milliseconds *= 1.1
    return found[:count] / 1e6
