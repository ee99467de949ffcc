"""Steps taken together: those of an endpoint, and of these what they say of each rate to an objective."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrate.analysis.judging import judge as judging
from tailrate.analysis.judging.judge import Window
from tailrate.analysis.judging.rates import AtRate
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.text.words import load

if TYPE_CHECKING:
    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.steps.measured_run import MeasuredRun

NEAR_ITS_MOST = 0.7
"""Of what a closed loop reaches at a null server: from here on the generator's own time shows in the figures."""
CHANCE = 1.1
"""By which random arrivals may exceed the rate that a check was made for."""


def beyond(check: Any, offered_rps: float, closed: bool) -> list[str]:
    """Whether a step asked for more than the load generator could do at a null server, by the run's `self_check`."""
    safe = check.get("safe_rps") if isinstance(check, Mapping) else None
    if safe is None or bool(check.get("closed")) != closed:
        return []
    if closed and offered_rps > NEAR_ITS_MOST * safe:
        return [f"the load generator reaches no more than {safe:.4g}/s by itself, as its self-check showed"]
    if not closed and offered_rps > CHANCE * safe:
        return [f"the self-check kept its schedule to {safe:.4g}/s only, and this step asked for {offered_rps:.4g}/s"]
    return []


def is_rising(run: MeasuredRun) -> bool:
    """Whether rates rise to find out what the endpoint can take, so that high ones may miss the objective."""
    mode = run.manifest.scenario.get("mode", "ramp")
    rates = {(step["endpoint"], step["rate"]) for step in run.manifest.scenario["steps"]}
    several = len(rates) > len({endpoint for endpoint, _ in rates})
    return mode in ("ramp", "knee") or (mode in ("mixed", "ab") and several)


def by_endpoint(steps: Iterable[MeasuredStep]) -> dict[str, list[MeasuredStep]]:
    found: dict[str, list[MeasuredStep]] = {}
    for step in steps:
        found.setdefault(step.summary.endpoint, []).append(step)
    return found


def level(step: MeasuredStep) -> tuple[float, int]:
    """The rate that a step asked for, or the concurrency."""
    return 0.0 if step.concurrency else step.rate, step.concurrency


def at_rates(steps: Iterable[MeasuredStep], number: int, slo: Slo, *, rounds: bool = True) -> list[AtRate]:
    """What an endpoint's steps say to the objective of this number: those of one rate, or concurrency, together.

    Of chapters of a soak, whether they were steady is asked of all of them together (`soak`), not of each.
    """
    levels: dict[tuple[float, int], list[MeasuredStep]] = {}
    for step in steps:
        levels.setdefault(level(step), []).append(step)
    return [
        AtRate(
            rate,
            judging.answers(slo, [*_windows(at, number, steady=not rounds)], rounds=rounds),
            load(rate, concurrency),
        )
        for (rate, concurrency), at in sorted(levels.items(), key=lambda level: level[0])
    ]


def _windows(steps: Iterable[MeasuredStep], number: int, *, steady: bool) -> Iterator[Window]:
    """`steady`: as if each were."""
    for step in steps:
        window = step.windows[number]
        yield replace(window, unsteady="", flatters=None) if steady else window
