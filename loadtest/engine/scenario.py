"""What a run will do, resolved before it starts: endpoints, rates, steps, objectives.

Options (the same as Locust options, as environment variables, and as fields of the web UI's start form)
become one `Scenario`; whatever is wrong with them is said here in one sentence, before any load.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.records import Slo
from loadtest.engine.arrivals import PROCESSES

MODES = {
    "ramp": "rising rates, the variants one after the other at each rate",
    "mixed": "rising rates, all variants at once, each at an equal share of the rate",
    "hold": "every rate once in the order given, the variants one after the other",
}

MOST_STEPS = 10_000


class ScenarioError(Exception):
    """Options that make no run: one sentence that says what to write instead."""


@dataclass(frozen=True, slots=True)
class LoadStep:
    """One endpoint at one rate; steps of the same `block` run at the same time."""

    index: int
    endpoint: str
    rate: float
    seconds: float
    settle_s: float
    block: int
    seed: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides the arrivals and the judgement of a run, the endpoints aside."""

    name: str
    model: str
    variants: tuple[str, ...]
    """Empty: every variant that the endpoint hosts."""
    mode: str = "ramp"
    rates: tuple[float, ...] = (10.0,)
    step_seconds: float = 30.0
    settle_seconds: float = 5.0
    idle_seconds: float = 2.0
    arrivals: str = "constant"
    seed: int = 1
    rows: int = 1
    timeout_s: float = 10.0
    max_in_flight: int = 1000
    slos: tuple[Slo, ...] = ()

    def steps(self, endpoints: Sequence[str]) -> list[LoadStep]:
        """The plan. At one rate every endpoint gets the same seed, hence the same arrivals and payloads."""
        plan: list[LoadStep] = []
        block = 0
        for turn, rate in enumerate(self.rates):
            at_once = self.mode == "mixed"
            for endpoint in endpoints:
                each = rate / len(endpoints) if at_once else rate
                seed = self.seed * 1_000_003 + turn
                plan.append(LoadStep(len(plan), endpoint, each, self.step_seconds, self.settle_seconds, block, seed))
                block += not at_once
            block += at_once
        return plan

    def as_json(self) -> dict[str, Any]:
        """The manifest's `scenario`, its steps aside."""
        return {
            "name": self.name,
            "model": self.model,
            "variants": list(self.variants),
            "mode": self.mode,
            "rates": list(self.rates),
            "seed": self.seed,
            "arrivals": self.arrivals,
            "timeout_s": self.timeout_s,
            "max_in_flight": self.max_in_flight,
            "rows": self.rows,
            "slo": [slo.as_json() for slo in self.slos],
        }


def parse_rates(text: str) -> tuple[float, ...]:
    """`50:400:50` (both ends included) or `50,100,200`, in requests per second.

    >>> parse_rates("50:200:50")
    (50.0, 100.0, 150.0, 200.0)
    """
    sentence = f"--rates '{text}' is not understood; write 50:400:50 (first:last:step) or 50,100,200"
    try:
        if ":" in text:
            first, last, step = (float(part) for part in text.split(":"))
            if not (step > 0 and last >= first):
                raise ScenarioError(sentence)
            if (last - first) / step > MOST_STEPS:
                raise ScenarioError(f"--rates '{text}' makes more than {MOST_STEPS} steps")
            # counted, not accumulated: 0.1 steps must not drift past the last rate
            rates = tuple(first + step * n for n in range(int((last - first) / step + 1e-9) + 1))
        else:
            rates = tuple(float(part) for part in text.split(","))
    except (ValueError, OverflowError):
        raise ScenarioError(sentence) from None
    if not rates or not all(0 < rate < 1e7 for rate in rates):
        raise ScenarioError(f"--rates '{text}' must be positive requests per second, below ten million")
    return rates


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a run: on Locust's command line, in its environment, in its start form, and in `headroom run`."""

    name: str
    default: str | int | float
    what: str
    choices: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


OPTIONS = (
    Option("variants", "", "variants to drive, such as eager,compiled; empty: all that the endpoint hosts"),
    Option("rates", "10", "offered requests per second: 50:400:50 (first:last:step) or 50,100,200"),
    Option("step-seconds", 30.0, "length of each step in seconds"),
    Option("settle-seconds", 5.0, "how much of each step's start is not measured, in seconds"),
    Option("mode", "ramp", "; ".join(f"{mode}: {what}" for mode, what in MODES.items()), tuple(MODES)),
    Option("arrivals", "poisson", "how arrivals are spaced", PROCESSES),
    Option("slo", "", "objective, such as p99<50ms or p99<50ms,rate>=200; several are separated by ;"),
    Option("seed", 1, "same seed, same arrivals and payloads"),
    Option("rows", 1, "rows in each request"),
    Option("max-in-flight", 1000, "arrivals beyond this many unanswered requests are dropped, and counted"),
    Option("timeout", 10.0, "seconds after which a request is given up"),
    Option("idle-seconds", 2.0, "seconds without load before the first step, for the idle power"),
    Option("run-dir", "runs", "folder that holds run folders"),
    Option("run-id", "", "name of the run folder; empty: UTC time and scenario"),
)


def add_options(parser: Any, scenario_class: type) -> None:
    """Puts our options on Locust's parser; attributes of the scenario class are their defaults."""
    for option in OPTIONS:
        parser.add_argument(
            f"--{option.name}",
            env_var=f"LOCUST_{option.key.upper()}",
            type=type(option.default),
            default=type(option.default)(getattr(scenario_class, option.key, option.default)),
            choices=option.choices,
            help=option.what,
        )


def from_options(name: str, model: str, options: argparse.Namespace) -> Scenario:
    """The scenario that the options describe, or `ScenarioError`."""
    rates = parse_rates(options.rates)
    at_least = {"step_seconds": 0.5, "settle_seconds": 0, "timeout": 0.001, "rows": 1, "max_in_flight": 1}
    for key, least in (at_least | {"idle_seconds": 0}).items():
        if not getattr(options, key) >= least:
            raise ScenarioError(f"--{key.replace('_', '-')} must be at least {least}, not {getattr(options, key)}")
    if options.settle_seconds >= options.step_seconds:
        raise ScenarioError(
            f"--settle-seconds {options.settle_seconds:g} leaves nothing of --step-seconds {options.step_seconds:g}"
        )
    if options.mode not in MODES:
        raise ScenarioError(f"unknown mode '{options.mode}'; known are {', '.join(MODES)}")
    if options.arrivals not in PROCESSES:
        raise ScenarioError(f"unknown arrivals '{options.arrivals}'; known are {', '.join(PROCESSES)}")
    if options.mode == "ramp" and list(rates) != sorted(set(rates)):
        raise ScenarioError(f"--rates '{options.rates}' must rise in mode ramp; use --mode hold for any order")
    try:
        slos = tuple(Slo.parse(part) for part in options.slo.split(";") if part.strip())
    except ValueError as problem:
        raise ScenarioError(f"--slo: {problem}") from None
    if "/" in options.run_id or options.run_id.startswith("."):
        raise ScenarioError(f"--run-id '{options.run_id}' must be a plain folder name; --run-dir says where")
    return Scenario(
        name=name,
        model=model,
        variants=tuple(dict.fromkeys(part.strip() for part in options.variants.split(",") if part.strip())),
        mode=options.mode,
        rates=rates,
        step_seconds=options.step_seconds,
        settle_seconds=options.settle_seconds,
        idle_seconds=options.idle_seconds,
        arrivals=options.arrivals,
        seed=options.seed,
        rows=options.rows,
        timeout_s=options.timeout,
        max_in_flight=options.max_in_flight,
        slos=slos,
    )
