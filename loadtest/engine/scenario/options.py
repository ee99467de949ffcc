"""The options that all modes share, and how they make a scenario. Whatever is wrong with them is said here in one
sentence, before any load.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from tailrate.analysis.records.objective import MAX_RECOVERY_S, Slo
from tailrate.loadtest.engine.scenario import fault_plan, in_flight
from tailrate.loadtest.engine.scenario.arrivals import SHAPES, SPACINGS, Pattern, parse_shape
from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.scenario import DataPlan, Scenario, ScenarioError

MOST_STEPS = 10_000
MOST = 1e9
"""Of any number with a fraction: so many seconds are thirty years."""
DATA_ORDERS, DATA_REUSES = ("in-order", "drawn"), ("reused", "unique")


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
    modes: tuple[str, ...] = ()
    """That alone have it; empty: all do."""
    protocol: str = ""
    """That alone has it."""

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def help(self) -> str:
        if self.protocol:
            return f"protocol {self.protocol}: {self.what}"
        return f"mode {' or '.join(self.modes)}: {self.what}" if self.modes else self.what


COMMON = (
    Option("variants", "", "variants to drive, such as eager,compiled; empty: all that the endpoint hosts"),
    Option(
        "endpoints",
        "",
        "NAME=URL#MODEL/VERSION, several side by side, instead of --host; all but the URL may be left out",
        at_start=True,
    ),
    Option(
        "rates",
        "10",
        "offered requests per second: 50:400:50 (first:last:step) or 50,100,200 [default: 10; tailrate soak: none]",
    ),
    Option("step-seconds", 30.0, "length of each step in seconds [default: 30]", least=0.5),
    Option("settle-seconds", 5.0, "how much of each step's start is not measured, in seconds [default: 5]", least=0),
    Option(
        "arrivals",
        "poisson",
        "; ".join(f"{name}: {what}" for name, what in SPACINGS.items()) + " [default: poisson]",
        tuple(SPACINGS),
    ),
    Option(
        "burstiness",
        1.0,
        "for gamma: below 1 bursts, 1 is poisson, above it more and more even [default: 1]",
        least=0.01,
    ),
    Option(
        "shape",
        "flat",
        f"how the rate changes within a step, in factors of it: {', '.join(SHAPES.values())} [default: flat]",
    ),
    Option("slo", "", "objective, such as p99<50ms or p99<50ms,rate>=200; several are separated by ;"),
    Option("seed", 1, "same seed, same arrivals and payloads [default: 1]", least=0),
    Option("rows", "1", "rows in each request; of several, such as 1,4, each of the bodies draws one [default: 1]"),
    Option(  # no field of the start form: whoever reaches that could have any file sent anywhere
        "data",
        "",
        "rows to send: a CSV, Parquet, JSONL or text file, or a folder of images; empty: random inputs",
        at_start=True,
    ),
    Option(
        "data-order",
        "in-order",
        "how rows of --data follow each other: as in the file, or drawn [default: in-order]",
        DATA_ORDERS,
    ),
    Option(
        "data-reuse", "reused", "whether rows of --data come again when all were sent [default: reused]", DATA_REUSES
    ),
    Option("data-columns", "", "which columns are which inputs, such as x=pixels or x=x0..x63:uint8; empty: by name"),
    Option("data-label", "", "the column of --data that makes slices of the report"),
    Option(
        "max-in-flight",
        "1000",
        "arrivals beyond so many unanswered requests are dropped, and counted; or auto [default: 1000]",
    ),
    Option("timeout", 10.0, "seconds after which a request is given up [default: 10]", least=0.001),
    Option("faults", "", "what is broken on purpose, and when: a CSV file, or names such as replica,telemetry"),
    Option(
        "max-recovery",
        MAX_RECOVERY_S,
        "seconds after a fault's end within which users must be served as before [default: 60]",
        least=0,
    ),
    Option(
        "max-failed",
        100.0,
        "percent of the requests that may fail from a fault until users are served as before [default: 100]",
        least=0,
    ),
    Option(
        "idle-seconds",
        2.0,
        "seconds without load before the first step and after the last, for the idle power [default: 2]",
        least=0,
    ),
    Option(
        "self-check",
        "off",
        "first drive a null server on this machine, to see what can be trusted [default: off; tailrate run: on]",
        ("on", "off"),
    ),
    Option("token-file", "", "holds the token that the endpoint wants; so may TAILRATE_TOKEN", at_start=True),
    Option("ca-file", "", "certificates (PEM) that vouch for an https endpoint, not the system's", at_start=True),
    Option("metrics", "", "where servers tell their own metrics (Prometheus), as [NAME=]URL; several with commas"),
    Option("metrics-match", "", "also keeps metrics whose name holds this regular expression"),
    Option(
        "devices",
        "",
        "where device samples are: [NAME=]URL[@DEVICE], of an agent, or dcgm+URL; empty: at the endpoint",
        at_start=True,
    ),
    Option("run-dir", "runs", "folder that holds run folders [default: runs]"),
    Option("run-id", "", "name of the run folder; empty: UTC time and scenario"),
)


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


def resolve(name: str, model: str, mode: Mode, options: argparse.Namespace) -> Scenario:
    """The scenario that the options describe, or `ScenarioError`."""
    rates = parse_rates(options.rates)
    _check_lengths(mode, options)
    if "/" in options.run_id or options.run_id.startswith("."):
        raise ScenarioError(f"--run-id '{options.run_id}' must be a plain folder name; --run-dir says where")
    found = Scenario(
        name=name,
        model=model,
        variants=tuple(dict.fromkeys(part.strip() for part in options.variants.split(",") if part.strip())),
        mode=mode,
        rates=rates,
        step_seconds=options.step_seconds,
        settle_seconds=options.settle_seconds,
        idle_seconds=options.idle_seconds,
        pattern=mode.pattern(_arrivals(options)),
        seed=options.seed,
        rows=parse_rows(options.rows),
        timeout_s=options.timeout,
        slos=_objectives(options),
        self_check=options.self_check == "on",
        faults=fault_plan.read(options.faults, mode.name if mode.endless else ""),
        max_recovery_s=options.max_recovery,
        max_failed=options.max_failed / 100,
        metrics=options.metrics,
        metrics_match=options.metrics_match,
        data=_data(options),
    )
    _check_slices(found)
    mode.check(found)
    # how many may be under way follows from the rest
    known = None if mode.endless or mode.closed else found.peak_rps
    try:
        most, by = in_flight.parse(str(options.max_in_flight), known, found.timeout_s)
    except ValueError as problem:
        raise ScenarioError(str(problem)) from None
    return replace(found, max_in_flight=most, in_flight_by=by)


def _data(options: argparse.Namespace) -> DataPlan | None:
    if not options.data:
        for option in ("data-columns", "data-label"):
            if getattr(options, option.replace("-", "_")):
                raise ScenarioError(f"--{option} goes with --data, which says where the rows are")
        return None
    columns = []
    for word in filter(None, map(str.strip, options.data_columns.split(","))):
        name, equals, column = (part.strip() for part in word.partition("="))
        if not (name and equals and column):
            raise ScenarioError(f"--data-columns '{word}' is not understood; write for instance x=pixels,mask=m0..m63")
        columns.append((name, column))
    drawn, unique = options.data_order == DATA_ORDERS[1], options.data_reuse == DATA_REUSES[1]
    return DataPlan(Path(options.data), drawn, unique, tuple(columns), options.data_label)


def _check_slices(scenario: Scenario) -> None:
    label = scenario.data.label if scenario.data else ""
    if label and max(scenario.rows) > 1:
        raise ScenarioError("--data-label goes with --rows 1: rows of one request may have different labels")
    if not label and (slices := [slo for slo in scenario.slos if slo.slice]):
        raise ScenarioError(f"--slo '{slices[0]}' is of a slice, which takes --data and --data-label")


def _check_lengths(mode: Mode, options: argparse.Namespace) -> None:
    length_s = getattr(options, mode.step_option)
    if options.settle_seconds >= length_s:
        option = mode.step_option.replace("_", "-")
        raise ScenarioError(f"--settle-seconds {options.settle_seconds:g} leaves nothing of --{option} {length_s:g}")


def _arrivals(options: argparse.Namespace) -> Pattern:
    if options.arrivals not in SPACINGS:
        raise ScenarioError(f"unknown arrivals '{options.arrivals}'; known are {', '.join(SPACINGS)}")
    try:
        parse_shape(options.shape)
    except ValueError as problem:
        raise ScenarioError(f"--{problem}") from None
    return Pattern(options.arrivals, options.burstiness, options.shape)


def _objectives(options: argparse.Namespace) -> tuple[Slo, ...]:
    try:
        return tuple(Slo.parse(part) for part in options.slo.split(";") if part.strip())
    except ValueError as problem:
        raise ScenarioError(f"--slo: {problem}") from None
