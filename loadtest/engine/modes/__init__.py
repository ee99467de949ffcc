"""The ways to drive endpoints, one file each: its class, a `Mode`, says what a run of it sends and has its own options.

A new mode is a new file: help, checks, plan and the start form of the web UI take it from here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tailrate.loadtest.engine.endpoint.protocols import PROTOCOLS
from tailrate.loadtest.engine.scenario.mode import Mode
from tailrate.loadtest.engine.scenario.options import COMMON, MOST, Option, resolve
from tailrate.loadtest.engine.scenario.scenario import Scenario, ScenarioError


def _classes() -> Iterator[type[Mode]]:
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        found = import_module(f"{__name__}.{path.stem}")
        yield next(kind for kind in vars(found).values() if getattr(kind, "name", "") == path.stem)


MODES: Mapping[str, type[Mode]] = {kind.name: kind for kind in _classes()}


def _own_options() -> Iterator[Option]:
    """Each once, with the modes that have it."""
    for option in dict.fromkeys(option for kind in MODES.values() for option in kind.options):
        yield replace(option, modes=tuple(kind.name for kind in MODES.values() if option in kind.options))


OPTIONS = (
    *COMMON,
    Option(
        "mode",
        "ramp",
        "; ".join(f"{name}: {kind.what}" for name, kind in MODES.items()) + " [default: ramp]",
        tuple(MODES),
    ),
    *_own_options(),
    Option(
        "protocol",
        "",
        "how the endpoint is spoken to; empty: found out by asking it; "
        + "; ".join(f"{name}: {kind.what}" for name, kind in PROTOCOLS.items()),
        at_start=True,
    ),
    *(replace(option, protocol=name) for name, kind in PROTOCOLS.items() for option in kind.options),
)


def defaults(scenario_class: Mapping[str, Any]) -> dict[str, Any]:
    """Of all options; attributes of a scenario class go before ours, or `ScenarioError`."""
    found = {}
    for option in OPTIONS:
        own = scenario_class.get(option.key, option.default)
        try:
            found[option.key] = type(option.default)(own)
        except (TypeError, ValueError, OverflowError):
            raise ScenarioError(f"the scenario's own {option.key} is {own!r}, which is no number") from None
    return found


def protocol_settings(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Those of each protocol that has options: of `--json-path`, the setting `path` of `json`."""
    return {
        name: {option.key[len(name) + 1 :]: getattr(options, option.key) for option in kind.options}
        for name, kind in PROTOCOLS.items()
    }


def from_options(name: str, model: str, options: argparse.Namespace, usual: Mapping[str, Any]) -> Scenario:
    """What the options describe, or `ScenarioError`; one that is not as usual was given, and has to be the mode's."""
    if options.mode not in MODES:
        raise ScenarioError(f"unknown mode '{options.mode}'; known are {', '.join(MODES)}")
    for option in OPTIONS:
        value = getattr(options, option.key)
        if option.least is not None and not value >= option.least:
            raise ScenarioError(f"--{option.name} must be at least {option.least}, not {value}")
        if isinstance(value, float) and not value < MOST:
            raise ScenarioError(f"--{option.name} must be below {MOST:,.0f}, not {value}")
        if option.modes and options.mode not in option.modes and value != usual[option.key]:
            raise ScenarioError(f"--{option.name} is for mode {' or '.join(option.modes)}, not for {options.mode}")
    return resolve(name, model, MODES[options.mode].read(options), options)
