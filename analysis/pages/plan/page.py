"""`plan.html`: a capacity plan for a meeting, as one page that opens from disk and answers what if.

What `tailrate plan` has worked out is in the markup, drawings included, so the page is whole without its script. With
it there are controls, and what they ask is simulated in the page: `simulator.js` is the simulator, `sizing.js` how it
is asked, `plan.js` the controls. A figure that the script replaces has its name in `data-fill`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from tailrate.analysis.pages.assets import texts
from tailrate.analysis.pages.html.document import THEME, document, panel_script, section
from tailrate.analysis.pages.html.markup import Html, embedded, tag
from tailrate.analysis.pages.plan.controls import controls
from tailrate.analysis.pages.plan.sections import sections
from tailrate.analysis.pages.plan.view import PlanView, percent
from tailrate.analysis.planning.model.cross_validation import GATE

SCRIPTS = ("simulator.js", "sizing.js", "wording.js", "drawing.js", "plan.js")
CONTROLLED = ("--rate", "--slo", "--n-plus", "--burst", "--max-batch", "--max-wait-ms", "--gpu-hour", "--kwh", "--co2")
"""Options that the controls say, which a copied command leaves out of the one that made the plan."""
DROPPED = (*CONTROLLED, "--out", "--endpoint")


def page(found: Mapping[str, Any]) -> str:
    """`found` is what `plan.json` holds."""
    view = PlanView(found)
    title = f"Capacity of {_model(view)}"
    body = (
        tag("a", "Skip to the figures", href="#main", class_="skip"),
        _masthead(view, title),
        tag(
            "div",
            controls(view),
            tag("main", (section(*one) for one in sections(view)), id="main"),
            class_="desk",
        ),
        tag(
            "footer",
            tag("p", "Made ", _moment(found), " by ", tag("code", found.get("command") or "tailrate plan"), "."),
        ),
        tag("div", embedded(_embedded(view)), id="plan", hidden=True),
    )
    script = "\n".join([panel_script(), *map(_own, SCRIPTS)])
    return document(f"{title} · tailrate", body, style=_own("plan.css"), script=script, workers=True)


def _own(name: str) -> str:
    return texts(__package__, f"script/{name}")


def _moment(found: Mapping[str, Any]) -> str:
    return str(found["made"])[:16].replace("T", " ") + " UTC"


def _model(view: PlanView) -> str:
    models = sorted({one.endpoint.rpartition("/")[0] or one.endpoint for one in view.variants})
    return ", ".join(models)


# ---- the top


def _masthead(view: PlanView, title: str) -> Html:
    first, *rest = re.split(r"(?<=\.)\s+", str(view.found["conclusion"]).replace(" ≤ ", "\u00a0≤\u00a0"), maxsplit=1)
    return tag(
        "header",
        tag("div", tag("h1", title), THEME, class_="top"),
        tag("ul", (tag("li", one) for one in view.found["warnings"]), class_="bars", data_warnings=True),
        tag(
            "p",
            tag("strong", first, data_fill="conclusion"),
            tag("span", " ", rest, data_fill="more") if rest else None,
            class_="conclusion",
            role="status",
        ),
        _trust(view),
    )


def _trust(view: PlanView) -> Html:
    """How far the model was off, and what that means for the plan."""
    said = []
    for one in view.variants:
        kind = "pass" if one.error is not None and one.error <= GATE else "fail"
        off = "untried" if one.error is None else f"{percent(one.error)} off"
        said.append(tag("li", tag("span", one.short, ": ", off, class_=f"verdict {kind}", title=one.endpoint)))
    gate = f"of the rate at the objective, on rates that the model had not seen; at most {percent(GATE)} is let through"
    return tag("div", tag("b", "Model"), tag("ul", said), tag("span", gate), class_="trust")


# ---- for the script


def _embedded(view: PlanView) -> dict[str, Any]:
    demand, slo = view.demand, view.slo
    peak = view.rate_rps / float(demand["rate_rps"])
    return {
        "variants": [
            {
                "endpoint": one.endpoint,
                "short": one.short,
                "fleet": one.found["fleet"],
                "per_gpu": one.per_gpu,
                "measured_per_gpu": one.found["measured_per_gpu"],
                "idle_w": one.calibration.get("idle_w"),
                "active_w": one.calibration.get("active_w"),
                "highest_rps": one.calibration["highest_rps"],
                "error": one.error,
                "measured": {
                    "max_batch": one.calibration["max_batch"],
                    "wait_ms": float(f"{1e3 * one.calibration['batch_wait_s']:.6g}"),
                },
                "cpu": one.is_cpu,
            }
            for one in view.variants
        ],
        "best": view.best.series if view.best else 0,
        "errors": slo.max_error_rate,
        "goodput": slo.min_goodput,
        "peak": peak,
        "mean": float(demand.get("mean_rps") or demand["rate_rps"]) / float(demand["rate_rps"]),
        "growth": [
            {"when": one["when"], "factor": float(one["rate_rps"]) / float(demand["rate_rps"])}
            for one in view.found["growth"]
        ],
        "most": view.most_rps / view.rate_rps,
        "currency": view.found["prices"]["currency"] or "",
        "gate": GATE,
        "command": _command(view),
        "endpoint": len(view.variants) > 1,
    }


def _command(view: PlanView) -> list[str]:
    """The command that made the plan, without what the controls say."""
    try:
        made = shlex.split(str(view.found.get("command") or ""))
    except ValueError:  # no command of ours
        made = []
    if made[:2] != ["tailrate", "plan"]:
        return ["tailrate", "plan", *map(str, view.found["runs"])]
    kept, skip = [], False
    for word in made:
        if not skip and word.partition("=")[0] not in DROPPED:
            kept.append(word)
        skip = not skip and word in DROPPED
    return kept
