"""What a run will do, resolved before it starts: endpoints, rates, steps, objectives.

Options (the same as Locust options, as environment variables, and as fields of the web UI's start form)
become one `Scenario`; whatever is wrong with them is said here in one sentence, before any load.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.analysis.judging.judge import Term, terms
from tailrate.analysis.records import MAX_RECOVERY_S, Slo
from tailrate.loadtest.engine.scenario import soak_limits
from tailrate.loadtest.engine.scenario.arrivals import SHAPES, SPACINGS, Pattern, parse_shape, peak
from tailrate.loadtest.engine.scenario.knee_search import KneeObjective
from tailrate.loadtest.engine.scenario.stop_rules import Stop

if TYPE_CHECKING:
    from tailrate.loadtest.engine.scenario.fault_plan import Plan

MODES = {
    "ramp": "rising rates, the variants one after the other at each rate",
    "mixed": "rising rates, all variants at once, each at an equal share of the rate",
    "hold": "every rate once in the order given, the variants one after the other",
    "ab": "every rate in rounds, the variants in random and balanced order on the same arrivals, some of them twice "
    "in a row to show the noise",
    "knee": "searches the highest rate that keeps the objective, from the first of the rates on",
    "spike": "each rate, then a multiple of it, then the rate again, without a pause",
    "replay": "the arrivals of a recorded trace",
    "closed": "closed loop: so many requests always under way, the next one as soon as one is answered",
    "single": "closed loop with one request under way: latency of a lone request",
    "offline": "all requests at once, as many under way as allowed: rows per second",
    "soak": "one rate for hours or days, all variants at once, in chapters",
}
CLOSED = ("closed", "single", "offline")
"""Modes without a schedule: a slow endpoint is asked less often, so nothing can be late and no rate is kept."""

MOST_STEPS = 10_000


class ScenarioError(Exception):
    """Options that make no run: one sentence that says what to write instead."""


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
    pattern: Pattern = field(default_factory=Pattern)
    trace: str = ""
    speed: float = 1.0
    rounds: int = 4
    spike: float = 3.0
    concurrency: tuple[int, ...] = (1,)
    requests: int = 1000
    budget_s: float = 1200.0
    guided: bool = False
    seed: int = 1
    rows: tuple[int, ...] = (1,)
    timeout_s: float = 10.0
    max_in_flight: int = 1000
    in_flight_by: str = ""
    """What that follows from; nothing: it was given."""
    slos: tuple[Slo, ...] = ()
    self_check: bool = False
    total_seconds: float = 3600.0
    chapter_seconds: float = 600.0
    daily: str = ""
    keep_hours: float = 0.0
    keep_gb: float = 0.0
    stop_on: str = ""
    limits: str = ""
    max_memory_mb: float = 0.0
    resume: str = ""
    faults: Plan = ()
    max_recovery_s: float = MAX_RECOVERY_S
    max_failed: float = 1.0

    @property
    def stop(self) -> Stop:
        """When a soak ends before its time."""
        return Stop.parse(self.stop_on, self.max_memory_mb)

    @property
    def objective(self) -> KneeObjective | None:
        """What a search asks for: the first objective with a latency, by the strictest of its shares."""
        slo = self._searched
        if slo is None or slo.latency_ms is None:
            return None
        return KneeObjective(slo.latency_ms, min(term.allowed for term in terms(slo) if math.isfinite(term.limit_ms)))

    @property
    def searched_slo(self) -> str:
        """The same in words."""
        found = self.objective
        return f"p{100 * (1 - found.target):g}<{found.latency_ms:g}ms" if found else ""

    @property
    def vetoes(self) -> tuple[Term, ...]:
        """What else a rate must not miss: errors, and the terms of other objectives."""
        return tuple(
            term for slo in self.slos for term in terms(slo) if slo is not self._searched or math.isinf(term.limit_ms)
        )

    @property
    def _searched(self) -> Slo | None:
        return next((slo for slo in self.slos if slo.latency_ms is not None), None)

    @property
    def peak_rps(self) -> float:
        """The highest rate that it will ask for, as far as that is known before."""
        if self.pattern.trace_ns:
            return len(self.pattern.trace_ns) / max(1e-3, self.pattern.trace_ns[-1] / 1e9)
        factor = peak(self.daily or self.pattern.shape)
        return max(self.rates) * factor * (self.spike if self.mode == "spike" else 1)

    def as_json(self) -> dict[str, Any]:
        """The manifest's `scenario`, its steps aside."""
        found = {
            "name": self.name,
            "model": self.model,
            "variants": list(self.variants),
            "mode": self.mode,
            "closed": self.mode in CLOSED,
            "rates": list(self.rates),
            "seed": self.seed,
            "arrivals": self.pattern.spacing,
            "burstiness": self.pattern.burstiness,
            "shape": self.pattern.shape,
            "timeout_s": self.timeout_s,
            "max_in_flight": self.max_in_flight,
            "rows": self.rows[0] if len(self.rows) == 1 else list(self.rows),
            "slo": [slo.as_json() for slo in self.slos],
        }
        found |= {"trace": self.trace, "speed": self.speed} if self.trace else {}
        found |= {"guided": True} if self.guided else {}
        found |= {"in_flight_by": self.in_flight_by} if self.in_flight_by else {}
        if self.faults:
            found |= {"faults": [fault.as_json() for fault in self.faults]}
            found |= {"max_recovery_s": self.max_recovery_s, "max_failed": self.max_failed}
        if self.mode == "soak":
            keys = ("total_seconds", "chapter_seconds", "daily", "keep_hours", "keep_gb", "stop_on", "max_memory_mb")
            found |= {key: getattr(self, key) for key in keys}
            found["soak"] = soak_limits.parse(self.limits)
        return found


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
    """One option of a run: on Locust's command line, in its environment, in its start form, and in `tailrate run`."""

    name: str
    default: str | int | float
    what: str
    choices: tuple[str, ...] | None = None
    at_start: bool = False
    """Read when a process starts, so it is no field of the start form."""
    least: float | None = None

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


OPTIONS = (
    Option("variants", "", "variants to drive, such as eager,compiled; empty: all that the endpoint hosts"),
    Option("rates", "10", "offered requests per second: 50:400:50 (first:last:step) or 50,100,200"),
    Option("step-seconds", 30.0, "length of each step in seconds", least=0.5),
    Option("settle-seconds", 5.0, "how much of each step's start is not measured, in seconds", least=0),
    Option("mode", "ramp", "; ".join(f"{mode}: {what}" for mode, what in MODES.items()), tuple(MODES)),
    Option("arrivals", "poisson", "; ".join(f"{name}: {what}" for name, what in SPACINGS.items()), tuple(SPACINGS)),
    Option("burstiness", 1.0, "for gamma: below 1 bursts, 1 is poisson, above it more and more even", least=0.01),
    Option("shape", "flat", f"how the rate changes within a step, in factors of it: {', '.join(SHAPES.values())}"),
    Option("rounds", 4, "mode ab: how often each rate is repeated", least=1),
    Option("spike", 3.0, "mode spike: how many times the rate", least=1),
    Option("concurrency", "1,4,16", "mode closed: how many requests are always under way, step by step"),
    Option("requests", 1000, "mode offline: how many there are", least=1),
    Option("trace", "", "mode replay: CSV or Parquet file with a column of instants"),
    Option("speed", 1.0, "mode replay: how many times as fast as recorded", least=0.001),
    Option("budget-seconds", 1200.0, "mode knee: longest search for each endpoint", least=1),
    Option("guided", "off", "mode knee: let a model of the endpoint say where to probe: faster", ("on", "off")),
    Option("slo", "", "objective, such as p99<50ms or p99<50ms,rate>=200; several are separated by ;"),
    Option("seed", 1, "same seed, same arrivals and payloads"),
    Option("rows", "1", "rows in each request; of several, such as 1,4, each of the bodies draws one"),
    Option("max-in-flight", "1000", "arrivals beyond so many unanswered requests are dropped, and counted; or auto"),
    Option("timeout", 10.0, "seconds after which a request is given up", least=0.001),
    Option("total-seconds", 3600.0, "mode soak: how long it is in all", least=1),
    Option("chapter-seconds", 600.0, "mode soak: length of its steps, which follow each other", least=1),
    Option("daily", "", "mode soak: a curve over all of it, such as sine:0.5:86400 (depth, period in seconds)"),
    Option(
        "keep-hours",
        0.0,
        "mode soak: rows of requests older than this are deleted, their minutes stay; 0: none",
        least=0,
    ),
    Option(
        "keep-gb", 0.0, "mode soak: so much of the disk for rows of requests, the oldest are deleted; 0: any", least=0
    ),
    Option("stop-on", "", "mode soak: ends early on errors over a share, on slo or replica, such as slo,replica"),
    Option("limits", "", "mode soak: the most of p99_trend, p99_step, memory and stall that passes: see docs/soak.md"),
    Option("max-memory-mb", 0.0, "mode soak: ends when a process of the harness is larger; 0: never", least=0),
    Option("resume", "", "mode soak: the run folder that it goes on with"),
    Option("faults", "", "what is broken on purpose, and when: a CSV file, or names such as replica,telemetry"),
    Option(
        "max-recovery", MAX_RECOVERY_S, "seconds after a fault within which users must be served as before", least=0
    ),
    Option(
        "max-failed",
        100.0,
        "percent of the requests that may fail from a fault until users are served as before",
        least=0,
    ),
    Option(
        "idle-seconds",
        2.0,
        "seconds without load before the first step and after the last, for the idle power",
        least=0,
    ),
    Option("self-check", "off", "first drive a null server on this machine, to see what can be trusted", ("on", "off")),
    Option("token-file", "", "holds the token that the endpoint wants; so may TAILRATE_TOKEN", at_start=True),
    Option("ca-file", "", "certificates (PEM) that vouch for an https endpoint, not the system's", at_start=True),
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
            include_in_web_ui=not option.at_start,
        )


def from_options(name: str, model: str, options: argparse.Namespace) -> Scenario:
    """The scenario that the options describe, or `ScenarioError`."""
    from tailrate.loadtest.engine.scenario import fault_plan, in_flight, trace

    rates = parse_rates(options.rates)
    _check_numbers(options)
    _check_mode(options, rates)
    slos = _objectives(options)
    _check_soak(options, rates)
    trace_ns = trace.read(Path(options.trace), options.speed) if options.trace else ()
    if "/" in options.run_id or options.run_id.startswith("."):
        raise ScenarioError(f"--run-id '{options.run_id}' must be a plain folder name; --run-dir says where")
    own = {
        "name": name,
        "model": model,
        "variants": tuple(dict.fromkeys(part.strip() for part in options.variants.split(",") if part.strip())),
        "rates": rates,
        "pattern": Pattern(options.arrivals, options.burstiness, options.shape, trace_ns),
        "concurrency": _concurrency(options),
        "budget_s": options.budget_seconds,
        "guided": options.guided == "on",
        "self_check": options.self_check == "on",
        "rows": parse_rows(options.rows),
        "timeout_s": options.timeout,
        "slos": slos,
        "faults": fault_plan.read(options.faults, options.mode),
        "max_recovery_s": options.max_recovery,
        "max_failed": options.max_failed / 100,
    }
    # the other options are taken as they are; how many may be under way follows from the rest
    same = {option.key for option in OPTIONS} & {one.name for one in fields(Scenario)} - own.keys() - {"max_in_flight"}
    found = Scenario(**own, **{key: getattr(options, key) for key in same})
    known = None if found.mode in ("knee", *CLOSED) else found.peak_rps
    try:
        most, by = in_flight.parse(str(options.max_in_flight), known, found.timeout_s)
    except ValueError as problem:
        raise ScenarioError(str(problem)) from None
    concurrency = {"single": (1,), "offline": (most,)}.get(found.mode, found.concurrency)
    return replace(found, max_in_flight=most, in_flight_by=by, concurrency=concurrency)


def _check_numbers(options: argparse.Namespace) -> None:
    for option in OPTIONS:
        if option.least is not None and not getattr(options, option.key) >= option.least:
            raise ScenarioError(f"--{option.name} must be at least {option.least}, not {getattr(options, option.key)}")
    length = "chapter_seconds" if options.mode == "soak" else "step_seconds"
    if options.settle_seconds >= getattr(options, length):
        raise ScenarioError(
            f"--settle-seconds {options.settle_seconds:g} leaves nothing of "
            f"--{length.replace('_', '-')} {getattr(options, length):g}"
        )


def _check_mode(options: argparse.Namespace, rates: tuple[float, ...]) -> None:
    if options.mode not in MODES:
        raise ScenarioError(f"unknown mode '{options.mode}'; known are {', '.join(MODES)}")
    if options.arrivals not in SPACINGS:
        raise ScenarioError(f"unknown arrivals '{options.arrivals}'; known are {', '.join(SPACINGS)}")
    try:
        parse_shape(options.shape)
    except ValueError as problem:
        raise ScenarioError(f"--{problem}") from None
    if (options.mode == "replay") != bool(options.trace):
        raise ScenarioError("mode replay and --trace FILE go together")
    if options.mode == "ramp" and list(rates) != sorted(set(rates)):
        raise ScenarioError(f"--rates '{options.rates}' must rise in mode ramp; use --mode hold for any order")


def _concurrency(options: argparse.Namespace) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in options.concurrency.split(","))
    except ValueError:
        found = ()
    if min(found, default=0) < 1:
        sentence = (
            f"--concurrency '{options.concurrency}' is not understood; write numbers of at least 1, such as 1,4,16"
        )
        raise ScenarioError(sentence)
    return found


def _objectives(options: argparse.Namespace) -> tuple[Slo, ...]:
    try:
        slos = tuple(Slo.parse(part) for part in options.slo.split(";") if part.strip())
    except ValueError as problem:
        raise ScenarioError(f"--slo: {problem}") from None
    if options.mode == "knee" and not any(slo.latency_ms for slo in slos):
        raise ScenarioError("mode knee searches for an objective with a latency; say for instance --slo 'p99<50ms'")
    return slos


def _check_soak(options: argparse.Namespace, rates: tuple[float, ...]) -> None:
    if options.mode != "soak":
        if options.resume:
            raise ScenarioError("--resume goes on with a soak; say --mode soak beside it")
        return
    if len(rates) > 1:
        raise ScenarioError(f"mode soak has one rate, and --rates '{options.rates}' has {len(rates)}")
    try:
        Stop.parse(options.stop_on)
    except ValueError as problem:
        raise ScenarioError(f"--stop-on {problem}") from None
    try:
        soak_limits.parse(options.limits)
    except ValueError as problem:
        raise ScenarioError(f"--limits {problem}") from None
    if not options.daily:
        return
    try:
        kind, numbers = parse_shape(options.daily)
    except ValueError:
        kind, numbers = "", ()
    if kind != "sine" or len(numbers) != 2:
        raise ScenarioError(f"--daily '{options.daily}' is not understood; write for instance sine:0.5:86400")
    if options.shape != "flat":
        raise ScenarioError("--daily is a curve over the whole soak, --shape one over each step: give one of them")


def parse_rows(text: str) -> tuple[int, ...]:
    """
    >>> parse_rows("1,4")
    (1, 4)
    """
    try:
        rows = tuple(int(word) for word in str(text).split(","))
    except ValueError:
        rows = ()
    if not rows or min(rows) < 1:
        raise ScenarioError(f"--rows must be at least 1, or several such as 1,4, not '{text}'")
    return rows
