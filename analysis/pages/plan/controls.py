"""The controls of a plan's page: what is asked, each as a number with a slider beside it; hidden without a script."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrate.analysis.pages.html.markup import Html, tag
from tailrate.analysis.pages.plan.view import PlanView

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
EVEN = 100.0
"""From here on arrivals are evenly spaced."""
EVENNESS = f"1: at random; below: in bursts; {EVEN:g}: evenly spaced"
FEWEST = "as many as it takes"


@dataclass(frozen=True, slots=True)
class Knob:
    """A number; `low` above zero with `log` makes the slider's steps factors."""

    name: str
    label: str
    unit: str
    value: float | None
    low: float
    high: float
    log: bool = False
    whole: bool = False
    hint: str = ""
    auto: str = ""
    """What no number means."""


def controls(view: PlanView) -> Html:
    demand, prices = view.demand, view.found["prices"]
    best = view.best or (view.variants[0] if view.variants else None)
    fleet = best.fleet if best else None
    most = max((one.fleet.service.max_batch for one in view.variants), default=1)
    replicas = max((int(one.answer["replicas"]) for one in view.variants if one.answer), default=10)
    rate, currency = float(demand["rate_rps"]), str(prices["currency"] or "")
    peak = view.rate_rps / rate
    curve = f"replicas are counted for the peak, {peak:.3g} times as much" if peak != 1 else ""
    burstiness = EVEN if demand["burstiness"] is None else float(demand["burstiness"])
    device = "GPU hour" if view.devices == "GPUs" else "Machine hour"
    percentiles = [(f"{p:g}", f"P{p:g}") for p in sorted({*PERCENTILES, view.slo.percentile or 99.0})]
    variants = [(str(one.series), one.endpoint) for one in view.variants]

    def price(name: str, label: str, unit: str, value: float | None, usual: float) -> Html:
        high = max(usual, 10 ** math.ceil(math.log10(3 * value))) if value else usual
        return _knob(Knob(name, label, unit, value, 0, high, auto="none"))

    groups = (
        (
            "Demand",
            _knob(Knob("rate", "Rate", "/s", rate, *_around(rate, 20), log=True, hint=curve)),
            _knob(Knob("slo", "Objective", "ms", view.limit_ms, *_around(view.limit_ms, 10), log=True)),
            _choice("percentile", "Percentile", percentiles, f"{view.slo.percentile:g}"),
            _knob(Knob("burstiness", "Evenness of arrivals", "", burstiness, 0.05, EVEN, log=True, hint=EVENNESS)),
        ),
        (
            "Fleet",
            _choice("variant", "Variant", variants, str(best.series if best else 0)),
            _knob(Knob("replicas", "Replicas", "", None, 1, 4 * replicas, log=replicas > 20, whole=True, auto=FEWEST)),
            _knob(Knob("n_plus", "Replicas that may be lost", "", float(demand["n_plus"]), 0, 5, whole=True)),
            _knob(Knob("max_batch", "Largest batch", "", float(fleet.max_batch if fleet else 1), 1, most, whole=True)),
            _knob(Knob("wait", "Batch wait", "ms", 1e3 * (fleet.batch_wait_s if fleet else 0), 0, _wait_ms(view))),
        ),
        (
            "Prices",
            price("gpu_hour", device, currency, prices["gpu_hour"], 5),
            price("kwh", "Kilowatt-hour", currency, prices["kwh"], 0.5),
            price("co2", "CO₂e", "kg/kWh", prices["co2_kg_per_kwh"], 1),
        ),
    )
    short = tag("p", class_="short", aria_hidden="true")
    buttons = tag(
        "div",
        tag("button", "Copy the command", type="button", class_="go", name="copy"),
        tag("button", "Reset", type="reset", name="reset"),
        tag("span", role="status", class_="said"),
        class_="buttons",
    )
    sets = (tag("fieldset", tag("legend", name), *knobs) for name, *knobs in groups)
    return tag(
        "form", short, sets, buttons, class_="controls", aria_label="What is asked", hidden=True, autocomplete="off"
    )


def _around(value: float, factor: float) -> tuple[float, float]:
    """Round numbers so far below and above."""
    low, high = value / factor, value * factor
    return float(f"{low:.1g}"), float(f"{high:.1g}")


def _wait_ms(view: PlanView) -> float:
    longest = max((1e3 * one.fleet.batch_wait_s for one in view.variants), default=0.0)
    return float(f"{max(20.0, 2 * longest, view.limit_ms / 2):.1g}")


def _choice(name: str, label: str, options: list[tuple[str, str]], chosen: str) -> Html:
    made = (tag("option", said, value=value, selected=value == chosen) for value, said in options)
    return tag(
        "div",
        tag("label", label, for_=f"k-{name}"),
        tag("select", made, id=f"k-{name}", name=name),
        class_="knob choice",
    )


def _knob(knob: Knob) -> Html:
    value = None if knob.value is None else f"{knob.value:.6g}"
    number = tag(
        "input",
        type="number",
        id=f"k-{knob.name}",
        name=knob.name,
        value=value,
        min=f"{0 if knob.log else knob.low:g}",
        step="1" if knob.whole else "any",
        placeholder=knob.auto and "auto" if knob.whole else knob.auto or None,
        inputmode="numeric" if knob.whole else "decimal",
        aria_describedby=f"h-{knob.name}" if knob.hint else None,
    )
    slider = tag(
        "input",
        type="range",
        min=0,
        max=int(knob.high - knob.low) if knob.whole and not knob.log else 1000,
        aria_label=f"{knob.label}, as a slider",
        data_low=f"{knob.low:g}",
        data_high=f"{knob.high:g}",
        data_log=knob.log,
        data_whole=knob.whole,
        data_for=knob.name,
    )
    auto = tag(
        "button", "auto", type="button", class_="auto", data_auto=knob.name, aria_label=f"{knob.label}: {knob.auto}"
    )
    return tag(
        "div",
        tag("label", knob.label, for_=f"k-{knob.name}"),
        tag(
            "span",
            auto if knob.whole and knob.auto else None,
            number,
            tag("span", knob.unit, class_="measure"),
            class_="field",
        ),
        slider,
        tag("small", knob.hint, id=f"h-{knob.name}") if knob.hint else None,
        class_="knob",
    )
