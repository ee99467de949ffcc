"""The sections of a plan's page, each a function from a `PlanView` to what stands under its heading.

A figure that the page's script replaces has its name in `data-fill`, a column of variants also in `data-column`, so
that one of which nothing is known can be hidden.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrate.analysis.pages.html.markup import Child, Html, tag
from tailrate.analysis.pages.html.table import boxed, table
from tailrate.analysis.pages.plan import charts
from tailrate.analysis.pages.plan.view import PlanView, VariantView, lost_as_infinite, percent
from tailrate.analysis.text import words


def sections(view: PlanView) -> Iterator[tuple[str, str, Child]]:
    drawn = bool(view.answered)
    if drawn:
        yield "answer", "The answer", (_tiles(view), charts.hockey_stick(view))
        pair = tag("div", charts.by_replicas(view), charts.cost(view), class_="multiples wide")
        yield "fleet", "Fleet and cost", pair
    yield "variants", "Variants", (_variants(view), _refusals(view))
    if view.found["growth"]:
        yield "growth", "Growth", _growth(view)
    if view.found["what_if"]:
        yield "what-if", "What if", (_as_made(), _what_if(view))
    if view.found["sensitivity"]:
        yield "sensitivity", "If an assumption were wrong", (_as_made(), _sensitivity(view))
    if view.found.get("autoscaling"):
        yield "autoscaling", "An autoscaler", (_as_made(), _autoscaling(view))
    yield "model", "Is the model right?", _model_section(view)
    yield "method", "How it was worked out", _method(view)


def _as_made() -> Html:
    """Above what the controls do not change."""
    return tag("p", "For the plan as it was made, not for the controls.", class_="as-made", hidden=True)


TILES = (
    ("replicas", "Replicas", "on {gpus} {devices}, {busy} busy"),
    ("tail", "{percentile}", "between {between} ms"),
    ("after_loss", "{percentile} with {n_plus} lost", "from when they fall"),
    ("headroom", "Room to the knee", "which is at {knee}"),
    ("hour", "Cost an hour", "{million} per million requests"),
    ("joules", "Energy per request", "{co2} of CO₂e per million"),
)
"""Figure, what it is, and what is said below it; what is in braces is filled in."""


def _tiles(view: PlanView) -> Html:
    best = view.best or view.answered[0]
    figures = view.figures(best) | _plain(view)
    tiles = (
        tag(
            "div",
            tag("dt", _filled(name, figures)),
            tag("dd", figures[key], data_fill=key),
            tag("dd", _filled(below, figures), class_="below"),
            hidden=figures[key] == words.ABSENT,
        )
        for key, name, below in TILES
    )
    return tag("dl", tiles, class_="tiles")


def _plain(view: PlanView) -> dict[str, str]:
    return {"devices": view.devices, "percentile": view.percentile, "n_plus": str(view.n_plus)}


def _filled(text: str, figures: Mapping[str, str]) -> list[Child]:
    """What is in braces, under its name, for the script to replace."""
    pieces = re.split(r"\{(\w+)\}", text)
    return [tag("span", figures[one], data_fill=one) if n % 2 else one for n, one in enumerate(pieces)]


COLUMNS = (
    ("replicas", "replicas"),
    ("gpus", "{devices}"),
    ("tail", "{percentile}"),
    ("between", "between, ms"),
    ("after_loss", "less {n_plus}"),
    ("busy", "busy"),
    ("batch", "in a batch"),
    ("knee", "knee"),
    ("headroom", "headroom"),
    ("hour", "an hour"),
    ("million", "a million"),
    ("joules", "a request"),
    ("co2", "CO₂e"),
)


def _variants(view: PlanView) -> Html:
    """All columns, so that a control can fill one; those in which nothing is known are hidden."""
    plain = _plain(view)
    written = {one.series: view.figures(one) for one in view.variants}
    empty = {
        key for key, _ in COLUMNS if all(figures.get(key, words.ABSENT) == words.ABSENT for figures in written.values())
    }
    heads = [tag("th", "variant", scope="col")]
    for key, text in COLUMNS:
        heads.append(tag("th", _filled(text, plain), scope="col", class_="num", data_column=key, hidden=key in empty))
    rows = []
    for one in view.variants:
        figures = written[one.series]
        cells = (
            tag(
                "td",
                figures.get(key, "none" if key == "replicas" else words.ABSENT),
                class_="num",
                data_fill=f"{one.series}.{key}",
                data_column=key,
                hidden=key in empty,
            )
            for key, _ in COLUMNS
        )
        name = tag("th", tag("i", class_=f"swatch s{one.series}"), one.endpoint, scope="row")
        rows.append(tag("tr", name, cells, class_="best" if one is view.best else None, data_variant=one.series))
    head, caption = tag("thead", tag("tr", heads)), "Each with the fewest replicas that hold the objective"
    drawn = tag("table", tag("caption", caption), head, tag("tbody", rows), class_="figures")
    return boxed(caption, drawn)


def _refusals(view: PlanView) -> Html:
    items = (
        tag("li", one.endpoint, ": ", one.refused or None, hidden=not one.refused, data_refused=one.series)
        for one in view.variants
    )
    return tag("ul", items, class_="refused")


def _growth(view: PlanView) -> Html:
    rows = [
        [
            str(one["when"]),
            *(
                tag("span", text, data_fill=f"growth.{n}.{key}")
                for key, text in (
                    ("rate", words.rate(one["rate_rps"])),
                    ("replicas", "none" if one["replicas"] is None else words.count(one["replicas"])),
                    ("gpus", words.count(one["gpus"])),
                    ("hour", view.money(one["cost_per_hour"])),
                )
            ),
        ]
        for n, one in enumerate(view.found["growth"])
    ]
    of = f" of {view.best.short}" if view.best else ""
    heads = ["", "requests", "replicas", view.devices, "an hour"]
    return table(heads, rows, f"With {view.demand['growth']} growth{of}", sorts=False)


def _what_if(view: PlanView) -> Html:
    rows = [
        [
            str(one["change"]),
            "none" if one["replicas"] is None else words.count(one["replicas"]),
            view.money(one["cost_per_hour"]),
            words.ABSENT if one["replicas"] is None else words.ms(lost_as_infinite(one["p99_ms"])),
        ]
        for one in view.found["what_if"]
    ]
    return table(["", "replicas", "an hour", view.percentile], rows, "What the best variant would take", sorts=False)


def _sensitivity(view: PlanView) -> Html:
    """Sorted by what they do to the latency of the planned fleet."""
    found = sorted(view.found["sensitivity"], key=lambda one: -abs(_share(one)))
    most = max([abs(_share(one)) for one in found if _share(one) < 10], default=1.0) or 1.0
    rows = [
        [
            f"{one['assumption']}: {one['change']}",
            "none" if one["replicas"] is None else words.count(one["replicas"]),
            words.ms(lost_as_infinite(one["p99_ms"])),
            _more(_share(one)),
            tag(
                "i",
                class_=f"lean {'up' if _share(one) > 0 else ''}",
                style=f"--w:{min(1.0, abs(_share(one)) / most):.3f}",
            ),
        ]
        for one in found
    ]
    return table(
        ["", "replicas then", view.percentile, "more", ""], rows, "What the planned fleet would do", sorts=False
    )


def _share(one: Mapping[str, Any]) -> float:
    return lost_as_infinite(one["share"])


def _more(share: float) -> str:
    return ("+" if share > 0 else "") + percent(share) if share < 10 else words.significant(math.inf)


def _autoscaling(view: PlanView) -> Html:
    found = view.found["autoscaling"]
    chosen = found["chosen"]
    facts = [
        ("requests under way per replica", words.significant(chosen["target_ongoing"])),
        ("replicas", f"{words.count(chosen['min_replicas'])}–{words.count(chosen['max_replicas'])}"),
        ("more after", words.duration(chosen["upscale_delay_s"])),
        ("fewer after", words.duration(chosen["downscale_delay_s"])),
        (view.percentile, words.ms(lost_as_infinite(chosen["latency_ms"]))),
        (
            "replicas on average",
            f"{words.significant(chosen['replicas_mean'])} of {words.count(found['static_replicas'])}",
        ),
        ("saved", f"{percent(found['saved'])} over {found['over']}"),
    ]
    return _facts(facts)


def _facts(facts: Sequence[tuple[str, Child]]) -> Html:
    return tag("dl", (tag("div", tag("dt", name), tag("dd", said)) for name, said in facts), class_="facts")


# ---- the model


def _model_section(view: PlanView) -> Child:
    drawn = charts.predictions(view)
    tables = [_validation(one) for one in view.variants if one.validation["rows"]]
    side = (
        tag("div", drawn, tag("div", (_judged(one) for one in view.variants)), class_="multiples wide")
        if drawn
        else None
    )
    return side or [_judged(one) for one in view.variants], tables


def _judged(one: VariantView) -> Html:
    found, known = one.validation, one.calibration
    median = found["median"]
    facts = [
        ("rate at the objective", "untried" if one.error is None else f"{percent(one.error)} off"),
        ("P99, median", f"{percent(median.get('p99'))} off"),
        ("P50, median", f"{percent(median.get('p50'))} off"),
        ("throughput, median", f"{percent(median.get('throughput'))} off"),
        ("highest load measured", f"{words.rate(known['highest_rps'])} a replica"),
        ("a request alone", words.ms(known["lone_ms"])),
        ("batches", f"up to {words.count(one.fleet.max_batch)}, {one.fleet.rule}"),
        ("batch wait", words.ms(one.fleet.batch_wait_s * 1e3)),
        ("routing", str(one.fleet.routing).replace("_", " ")),
    ]
    notes = [*([found["reason"]] if found.get("reason") else []), *known.get("notes", ())]
    return tag(
        "article",
        tag("h3", tag("i", class_=f"swatch s{one.series}"), one.endpoint),
        _facts([fact for fact in facts if words.ABSENT not in fact[1]]),
        tag("ul", (tag("li", note) for note in notes), class_="notes") if notes else None,
    )


def _validation(one: VariantView) -> Html:
    rows = []
    for row in one.validation["rows"]:
        seen, said, off = row["measured"], row["predicted"], row["error"]
        p50, p99 = (
            [words.significant(seen[key]), words.significant(said[key]), _off(off[key])] for key in ("p50_ms", "p99_ms")
        )
        low, high = row["p99_measured_ms"] or (None, None)
        rows.append(
            [
                words.rate(row["rate"]) + (" (beyond)" if row["beyond"] else ""),
                *p50,
                p99[0],
                words.interval(low, lost_as_infinite(high)),
                *p99[1:],
                f"{words.significant(seen['throughput_rps'])} / {words.significant(said['throughput_rps'])}",
                f"{words.significant(seen['batch'])} / {words.significant(said['batch'])}",
                f"{percent(seen['utilisation'])} / {percent(said['utilisation'])}",
                _off(row["rate_error"]),
            ]
        )
    heads = ["rate", "P50 measured, ms", "predicted", "off", "P99 measured, ms", "between", "predicted", "off"]
    heads += ["answered/s", "requests a batch", "busy", "rate off"]
    return table(heads, rows, f"{one.endpoint}: measured and predicted, each rate by a model fitted without it")


def _off(share: Any) -> str:
    found = words.finite(share)
    return words.ABSENT if found is None else f"{'+' if found > 0 else ''}{percent(found)}"


def _method(view: PlanView) -> Child:
    flat = view.demand["shape"] == "flat"
    return (
        tag(
            "p",
            "Each replica is simulated request by request: when a batch is closed, who gets a request, how long a "
            "batch of its size takes, with the spread that was measured. The model is fitted to records of batches in ",
            words.sentence_list(view.found["runs"]),
            ", and held against rates it was not fitted to.",
        ),
        tag("p", "Replicas are counted for the peak of the curve ", tag("code", str(view.demand["shape"])), ".")
        if not flat
        else None,
        tag(
            "p",
            "What the controls ask is simulated in this page by the same rules, on fewer arrivals and others, so its "
            "figures can differ from the command's by what chance makes of a percentile. Costs by rate and growth are "
            "read from the knees of some numbers of replicas, and can be a replica off.",
            class_="scripted-only",
            hidden=True,
        ),
        tag("ul", (tag("li", one) for one in view.found.get("left_out", ()))),
    )
