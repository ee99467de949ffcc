"""A capacity plan as it is read: its conclusion, what is to be said before it, tables for a terminal, and `plan.md`.

Works nothing out. Names in a plan are whatever endpoints and folders are called, so tables are made safe for a
terminal, and Markdown's signs in them have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tailrate.analysis.records.objective import Slo
from tailrate.analysis.text import words
from tailrate.analysis.text.markdown import table, text
from tailrate.analysis.text.table import Table, plain, safe
from tailrate.analysis.text.words import ABSENT, count, significant
from tailrate.analysis.verdicts.conclusion import number
from tailrate.analysis.verdicts.verdict import INCONCLUSIVE

if TYPE_CHECKING:
    from tailrate.analysis.planning.plan.autoscaling import AutoscalingAdvice
    from tailrate.analysis.planning.plan.candidates import PlannedVariant
    from tailrate.analysis.planning.plan.plan import Plan
    from tailrate.analysis.planning.plan.question import Question
    from tailrate.analysis.planning.plan.sized_fleet import SizedFleet

AUTOSCALERS = 6


def ms(seconds: float) -> str:
    return words.ms(seconds * 1e3)


def share(value: float | None, digits: int = 2) -> str:
    return ABSENT if value is None else f"{significant(100 * value, digits)} %"


def objective(slo: Slo) -> str:
    """`P99 ≤ 50 ms, errors ≤ 0.1 %`."""
    terms = [f"P{slo.percentile:g} ≤ {slo.latency_ms:g} ms"]
    if slo.max_error_rate is not None:
        terms.append(f"errors ≤ {slo.max_error_rate * 100:g} %")
    if slo.min_goodput is not None:
        terms.append(f"goodput ≥ {slo.min_goodput * 100:g} %")
    return ", ".join(terms)


def money(plan: Plan) -> Callable[[float | None], str]:
    unit = plan.question.prices.currency
    return lambda value: ABSENT if value is None else f"{significant(value)} {unit}".strip()


def counted(replicas: int, noun: str = "replica") -> str:
    return f"{number(replicas)} {noun}{'' if replicas == 1 else 's'}"


def devices(variant: PlannedVariant, answer: SizedFleet) -> str:
    return counted(answer.gpus, "machine" if variant.is_cpu else "GPU")


# ---- sentences


def conclusion(plan: Plan) -> str:
    """One or two sentences that can be read out."""
    asked = plan.question
    wanted = f"{_rates(asked)} at {objective(asked.slo)}"
    if plan.best is None:
        why = "; ".join(f"{variant.endpoint}: {answer}" for variant, answer in plan.variants)
        return f"Nothing that was measured can hold {wanted}; {why}."
    variant, answer = plan.best
    loss = f", also with {number(asked.n_plus)} of them lost" if asked.n_plus else ""
    between = ""
    if answer.p99_low_ms is not None and answer.p99_high_ms is not None:
        between = f" ({words.interval(answer.p99_low_ms, answer.p99_high_ms)})"
    bill = ""
    if answer.cost_per_hour is not None:
        per_million = money(plan)(answer.cost_per_million)
        bill = f", for {money(plan)(answer.cost_per_hour)} an hour, {per_million} per million requests"
    hold = "holds" if answer.replicas == 1 else "hold"
    said = [
        f"{counted(answer.replicas).capitalize()} of {variant.endpoint} on {devices(variant, answer)} {hold} {wanted}"
        f"{loss}: P{asked.slo.percentile:g} {words.ms(answer.p99_ms)}{between}, {_knee(answer)}{bill}",
        "; ".join(_other(other, found, answer) for other, found in plan.variants if other is not variant),
    ]
    if variant.error is not None:
        said.append(f"On rates that it had not seen the model's rate at the objective was {share(variant.error)} off")
    return ". ".join(filter(None, said)) + "."


def _knee(answer: SizedFleet) -> str:
    """Where the objective is just held."""
    if answer.headroom_pct < 1:
        return "right at the knee"
    return f"the knee {significant(answer.headroom_pct, 2)} % higher"


def _rates(asked: Question) -> str:
    if asked.peak == 1:
        return f"{significant(asked.rate_rps)} requests/s"
    return f"{significant(asked.peak_rps)} requests/s at the peak ({significant(asked.mean_rps)} on average)"


def _other(variant: PlannedVariant, answer: SizedFleet | str, best: SizedFleet) -> str:
    if isinstance(answer, str):
        return f"{variant.endpoint} cannot: {answer}"
    doubt = "" if answer.trusted else ", by a plan that cannot be trusted"
    if answer.replicas == best.replicas:
        return f"{variant.endpoint} takes as many{doubt}"
    return f"{variant.endpoint} takes {counted(answer.replicas)}{doubt}"


def without_power(found: Sequence[tuple[PlannedVariant, SizedFleet]]) -> list[PlannedVariant]:
    """Of which the power is not known, where that of others is: what they cost is not of one kind."""
    unknown = [variant for variant, answer in found if answer.joules_per_request is None]
    return unknown if len(unknown) < len(found) else []


def warnings(plan: Plan) -> list[str]:
    """What stands above all else."""
    if best := plan.best:
        doubtful, rest = not best[1].trusted, list(best[1].warnings)
    else:
        doubtful, rest = plan.verdict == INCONCLUSIVE, [why for variant, _ in plan.variants for why in variant.doubts()]
    said = [f"This plan cannot be trusted: {rest[0]}"] if doubtful else []
    if unknown := without_power(plan.answered):
        names = " and ".join(variant.endpoint for variant in unknown)
        ranked = "variants are ranked by the devices that they take, without their electricity"
        said.append(f"the power of {names} is not known, so {ranked}")
    return [f"{one[:1].upper()}{one[1:]}." for one in (*said, *rest[doubtful:], *plan.left_out)]


# ---- tables


def variants_table(plan: Plan) -> Table:
    """A row for each variant, and a column for each figure that any of them has."""
    priced, asked = money(plan), plan.question
    columns: list[tuple[str, Callable[[PlannedVariant, SizedFleet], str]]] = [
        ("replicas", lambda _, a: count(a.replicas)),
        (_devices(plan), lambda _, a: count(a.gpus)),
        (f"P{asked.slo.percentile:g} ms", lambda _, a: significant(a.p99_ms)),
        ("between", lambda _, a: words.interval(a.p99_low_ms, a.p99_high_ms)),
        (f"less {asked.n_plus}", lambda _, a: significant(a.p99_after_loss_ms)),
        ("busy", lambda _, a: share(a.utilisation)),
        ("batch", lambda _, a: significant(a.mean_batch)),
        ("knee/s", lambda _, a: significant(a.knee_rps)),
        ("headroom", lambda _, a: f"{significant(a.headroom_pct, 2)} %"),
        ("an hour", lambda _, a: priced(a.cost_per_hour)),
        ("per million", lambda _, a: priced(a.cost_per_million)),
        ("J/request", lambda _, a: significant(a.joules_per_request)),
        ("g CO2e/million", lambda _, a: significant(a.co2_g_per_million)),
        ("model off by", lambda v, _: share(v.error)),
    ]
    answers = plan.answered
    kept = [(head, cell) for head, cell in columns if any(cell(*one) != ABSENT for one in answers)] or columns[:1]
    rows = []
    for variant, answer in plan.variants:
        if isinstance(answer, str):
            rows.append([variant.endpoint, "none", *[""] * (len(kept) - 1)])
        else:
            rows.append([variant.endpoint, *(cell(variant, answer) for _, cell in kept)])
    title = f"{_rates(asked)} at {objective(asked.slo)}"
    return safe(Table(title, ("endpoint", *(head for head, _ in kept)), rows))


def _devices(plan: Plan) -> str:
    return "machines" if all(variant.is_cpu for variant, _ in plan.variants) else "GPUs"


def what_if_table(plan: Plan) -> Table:
    priced = money(plan)
    rows = [
        [one.change, _none(one.replicas), priced(one.cost_per_hour), significant(one.p99_ms)] for one in plan.what_if
    ]
    return _narrowed("What if", ("", "replicas", "an hour", f"P{plan.question.slo.percentile:g} ms"), rows)


def sensitivity_table(plan: Plan) -> Table:
    rows = [
        [one.assumption, one.change, _none(one.replicas), significant(one.p99_ms), _signed(one.share)]
        for one in plan.sensitivity
    ]
    percentile = f"P{plan.question.slo.percentile:g} ms"
    return _narrowed("If an assumption were wrong", ("", "", "replicas then", percentile, "more"), rows, texts=2)


def growth_table(plan: Plan) -> Table:
    priced = money(plan)
    rows = [
        [one.when, significant(one.rate_rps), _none(one.replicas), _none(one.gpus), priced(one.cost_per_hour)]
        for one in plan.growth
    ]
    asked = plan.question.growth
    title = f"With {asked.text if asked else 'no'} growth"
    return _narrowed(title, ("", "requests/s", "replicas", _devices(plan), "an hour"), rows)


def scaling_table(advice: AutoscalingAdvice) -> Table:
    """The best of what was simulated; the first row is advised."""
    found = sorted(advice.settings, key=lambda one: (one != advice.chosen, not one.kept, one.replicas_mean))
    rows = [
        [
            significant(one.target_ongoing),
            f"{one.min_replicas}–{one.max_replicas}",
            f"{one.upscale_delay_s:g} s",
            f"{one.downscale_delay_s:g} s",
            significant(one.replicas_mean),
            share(one.missed),
            words.ms(one.latency_ms),
            "" if one.kept else "misses",
        ]
        for one in found[:AUTOSCALERS]
    ]
    whole = "from end to end" if advice.whole else f"for {words.duration(advice.window_s)} around its steepest rise"
    title = (
        f"Ray Serve's autoscaler, cold start {advice.cold_start_s:.3g} s, the curve {whole}; means are of "
        f"{advice.over}, over which {counted(advice.static_replicas)} would stand otherwise"
    )
    heads = ("target", "replicas", "upscale", "downscale", "mean", "beyond", "latency", "")
    return safe(Table(title, heads, rows, texts=0))


def tables(plan: Plan, advice: AutoscalingAdvice | None = None) -> Iterator[Table]:
    """For a terminal: the shortest that answers."""
    yield variants_table(plan)
    if plan.what_if:
        yield what_if_table(plan)
    if plan.growth:
        yield growth_table(plan)
    if advice:
        yield scaling_table(advice)


def validation_table(variant: PlannedVariant) -> Table:
    rows = [
        [
            f"{significant(row.rate)}/s",
            "beyond" if row.beyond else "",
            *(significant(figures.p99_ms) for figures in (row.measured, row.predicted)),
            *(significant(figures.p50_ms) for figures in (row.measured, row.predicted)),
            ABSENT if row.rate_error is None else _signed(row.rate_error),
        ]
        for row in variant.validation.rows
    ]
    heads = ("rate", "", "P99 ms", "predicted", "P50 ms", "predicted", "rate off by")
    return safe(Table(f"{variant.endpoint}: rates that the model had not seen", heads, rows, texts=2))


def _none(value: int | None) -> str:
    return "none" if value is None else count(value)


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{significant(100 * value, 2)} %" if math.isfinite(value) else "∞"


def _narrowed(title: str, heads: Sequence[str], rows: list[list[str]], texts: int = 1) -> Table:
    """Without the columns in which nothing is known."""
    kept = [n for n in range(len(heads)) if n < texts or any(row[n] != ABSENT for row in rows)]
    return safe(Table(title, [heads[n] for n in kept], [[row[n] for n in kept] for row in rows], texts))


# ---- Markdown


def markdown(plan: Plan, command: str = "", advice: AutoscalingAdvice | None = None) -> str:
    asked = plan.question
    out = [f"# Capacity plan: {text(_rates(asked))} at {text(objective(asked.slo))}", ""]
    out += [f"**{text(conclusion(plan))}**", ""]
    out += _bullets(warnings(plan))
    out += _section(variants_table(plan), "## Variants")
    out += _bullets(
        f"{variant.endpoint}: {answer}" if isinstance(answer, str) else _settings(variant, answer)
        for variant, answer in plan.variants
    )
    if plan.what_if:
        out += _section(what_if_table(plan), "## What if")
    if plan.growth:
        out += _section(growth_table(plan), "## Growth")
    if advice:
        shown = scaling_table(advice)
        out += _section(shown, "## Autoscaling")
        out += [text(shown.title) + ".", ""]
    if plan.sensitivity:
        out += _section(sensitivity_table(plan), "## If an assumption were wrong")
    out += ["## How well the model predicts", ""]
    for variant, _ in plan.variants:
        off = (
            f"was {share(variant.error)} off in the rate at the objective"
            if variant.error is not None
            else "is untried"
        )
        out += [f"{text(variant.endpoint)}: on rates that it had not seen the model {off}.", ""]
        if variant.validation.rows:
            out += _section(validation_table(variant))
        out += _bullets(variant.calibration.notes)
    out += ["## What it rests on", "", *_bullets(f"run {name}" for name in plan.runs)]
    out += [f"    {plain(command)}", ""] if command else []
    return "\n".join(out).rstrip() + "\n"


def _settings(variant: PlannedVariant, answer: SizedFleet) -> str:
    fleet = variant.fleet
    wait = f"a batch wait of {ms(fleet.batch_wait_s)}" if fleet.batch_wait_s else "no batch wait"
    bound = (
        f"by theory fewer than {counted(answer.least_replicas)} could not do it, nor so many be quicker than "
        f"{words.ms(answer.p99_bound_ms)}"
    )
    return (
        f"{variant.endpoint}: batches of up to {fleet.max_batch}, {wait}, {answer.mean_batch:.2g} requests in one on "
        f"average; {bound}"
    )


def _section(shown: Table, head: str = "") -> list[str]:
    return [*([head, ""] if head else []), *table(shown.heads, shown.rows, shown.texts)]


def _bullets(lines: Sequence[str] | Iterator[str]) -> list[str]:
    found = [f"- {text(line)}" for line in lines]
    return [*found, ""] if found else []
