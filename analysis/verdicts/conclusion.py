"""One or two sentences for a review: what the endpoints can take, what it bought, or why this cannot be said.

The first says where it ran, the rate that each endpoint sustains at the objective that gives way first, how that
compares with the first variant's rate, what a request takes of its energy, and what limits. The second compares
latencies at the highest load that allows it. Pure: made of what `verdict`, `compare` and `capacity` found.

A limit is never more certain than what was tried: of rising rates it lies between two of them, and so does the ratio of
two limits; only a search that came to its end has a middle and an uncertainty, which has at most two digits.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tailrate.analysis.records.loopback import leads_here
from tailrate.analysis.records.manifest import Manifest, endpoint_name
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.steps import fault_windows
from tailrate.analysis.steps.capacity import Capacity
from tailrate.analysis.steps.variant_pairs import Pair
from tailrate.analysis.text import words
from tailrate.analysis.verdicts import verdict
from tailrate.analysis.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.verdicts.run import Run

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
MOST_NAME = 60
"""Characters of a device's name, which is whatever a server says."""
ALIKE_PCT = 2.0
"""A smaller difference in energy without an interval is none to speak of."""


def conclusion(
    run: Run, judged: Verdict, compared: Sequence[Pair], limits: Sequence[Capacity], soaked: str | None = None
) -> str:
    """`soaked`: of a soak, what hours brought to light; that comes first."""
    if flaws := verdict.flaws(run):
        return f"{f'{soaked}. ' if soaked else ''}This run cannot say what the endpoints can take: {flaws[0]}."
    open_ = judged.verdict == verdict.INCONCLUSIVE
    best = comparisons(compared)
    if limits:
        # what could not be judged is what an inconclusive verdict's reason says already
        judgeable = [row for row in limits if not open_ or row.low_rps is not None or row.high_rps is not None]
        searched = any(event["event"] == "knee" for event in run.events)
        clause = sustained(judgeable, run.manifest.slos, best, searched)
    else:
        clause = answered(run.calm, run.manifest.slos, judged, best)
        clause += ", the time of planned faults left out" if clause and fault_windows.injected(run) else ""
    said = [answer.sentence for answer in fault_windows.answers(run) if answer.kept is False]
    said += [soaked] if soaked else []
    if open_ and not soaked:
        what = "whether the objective is met" if run.manifest.slos else "what the endpoints can take"
        why = next((reason for reason in judged.reasons if reason != verdict.NONE_SET), "")
        said.append(f"This run cannot say {what}: {why}")
    if clause and not soaked:
        where = place(run)
        endpoints = [step.summary.endpoint for step in run.measured]
        named = where or clause.startswith(tuple(endpoints))  # an endpoint's name stays as it is
        said.append(f"{where and f'On {where}, '}{clause if named else clause[0].upper() + clause[1:]}")
    several = len({pair.a.rpartition("/")[0] for pair in best}) > 1
    return ". ".join([*said, *(latency(pair, several) for pair in best)]) + "."


# ---- where it ran


def place(run: Run) -> str:
    """`two H200s (torch 2.11)`, or `this machine's CPU`; empty where nobody says."""
    names, torch = {}, str(run.manifest.versions.get("torch") or "")
    served: dict[str, set[str]] = {}
    for step in run.measured:
        served.setdefault(step.summary.endpoint, set()).update(step.tally.devices)
    for entry in run.manifest.endpoints:
        endpoint = endpoint_name(entry)
        parameters = entry.get("parameters")
        said: Mapping[str, object] = parameters if isinstance(parameters, Mapping) else {}
        torch = torch or str(said.get("torch") or "")
        if endpoint in served:
            for device in served[endpoint] or {str(entry.get("device") or said.get("device") or "")}:
                names[device] = " ".join(str(said.get("device_name") or "").split())[:MOST_NAME]
    names.pop("", None)
    cpus = [device for device in names if device.lower().startswith("cpu")]
    gpus = Counter(names[device].removeprefix("NVIDIA ") or "GPU" for device in names if device not in cpus)
    counted = [f"{number(count)} {name}{'s' if count > 1 else ''}" for name, count in gpus.items()]
    if cpus:
        counted.append("this machine's CPU" if on_one_machine(run.manifest) else "the server's CPU")
    version = re.match(r"\d+\.\d+", torch)
    return " and ".join(counted) + (f" (torch {version[0]})" if counted and version else "")


def on_one_machine(manifest: Manifest) -> bool:
    """Whether load generator and server ran on the same host, as far as the manifest says."""
    by_role = {str(entry.get("role")): entry for entry in manifest.hosts}
    server, load = by_role.get("server", {}), by_role.get("load", {})
    if server.get("host") and load.get("host"):
        return bool(server["host"] == load["host"])
    return leads_here(str(server.get("url") or ""))


def number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


# ---- rising rates


def sustained(limits: Iterable[Capacity], slos: Sequence[Slo], best: Sequence[Pair], searched: bool) -> str:
    """Each endpoint's limit, that of a variant before that of the one that it is compared with."""
    tightest: dict[str, Capacity] = {}
    for row in sorted(limits, key=lambda row: (row.low_rps or 0.0, row.high_rps or math.inf)):
        tightest.setdefault(row.endpoint, row)
    if not tightest:
        return ""
    against = {pair.b: pair for pair in best if pair.b in tightest}
    order = [*against, *(name for name in tightest if name not in against)]
    same_slo = len({row.slo for row in tightest.values()}) == 1
    causes = {name: _causes(row) for name, row in tightest.items()}
    shared = len(order) > 1 and len(set(causes.values())) == 1
    clauses: list[str] = []
    for name in order:
        row, pair = tightest[name], against.get(name)
        slo = next((one.without(row.open or "") for one in slos if str(one) == row.slo), None)
        first = not same_slo or not any("requests/s" in clause for clause in clauses)
        said = [f"{name} {_limit(row, slo, first, searched and row.resolved)}"]
        if row.open:
            said[0] += f" (whether it keeps {_and(row.open.split(', '))} there cannot be said)"
        if pair:
            ratio = rates_ratio(tightest.get(pair.a), row, searched)
            said += [part for part in (ratio, less_energy(pair, alone=not ratio)) if part]
        if slo and slo.min_rate_rps is not None and first:
            said.append(f"where {three(slo.min_rate_rps)} were asked for")
        if causes[name] and not shared:
            said.append(f"limited by {causes[name]}")
        clauses.append(", ".join(said))
    if shared and causes[order[0]]:
        clauses.append(f"{'both' if len(order) == 2 else 'all'} are limited by {causes[order[0]]}")
    return "; ".join(clauses)


def _limit(row: Capacity, slo: Slo | None, first: bool, exact: bool) -> str:
    objective = _objective(slo) if slo else row.slo  # nothing where only a rate was asked for
    low, high = row.low_rps, row.high_rps
    unit = f" requests/s{objective and f' at {objective}'}" if first else ""
    if low is None and high is None:
        return "could be judged at no rate"
    if low is None:
        said = f"misses {objective} already at" if objective else "does not sustain even"
        return f"{said} {three(high)} requests/s"
    if high is None:
        why = row.limited_by or ""
        end = ", the highest rate tried" if why.startswith("nothing") else ""
        end = ", above which the load generator gave up first" if "client-limited" in why else end
        # of a search that came to no end, a probe that is surely kept says more than where it stood
        least = row.max_rps if why.startswith("unresolved") and row.max_rps else low
        return f"sustains at least {three(least)}{unit}{end}"
    return f"sustains {plus_minus(low, high) if exact else _between(low, high)}{unit}"


def _between(low: float, high: float) -> str:
    one, other = three(low), three(high)
    return f"about {one}" if one == other else f"between {one} and {other}"


def _objective(slo: Slo) -> str:
    """`P99 ≤ 50 ms and errors ≤ 0.1 %`, without the rate that was asked for."""
    terms = [
        f"{f'{name} '.upper().lstrip()}P{bound.percentile:g} ≤ {bound.ms:g} ms" for name, bound in slo.bounds.items()
    ]
    if slo.max_error_rate is not None:
        terms.append(f"errors ≤ {slo.max_error_rate * 100:g} %")
    if slo.min_goodput is not None:
        terms.append(f"goodput ≥ {slo.min_goodput * 100:g} %")
    return _and(terms) + (f" in slice {slo.slice}" if slo.slice and terms else "")


def rates_ratio(one: Capacity | None, other: Capacity, searched: bool) -> str:
    """What `other` takes against `one`; each limit lies between low and high, so the ratio between the extremes."""
    if one is None:
        return ""
    least = other.low_rps / one.high_rps if other.low_rps and one.high_rps else None
    most = other.high_rps / one.low_rps if other.high_rps and one.low_rps else None
    rate = f"the rate of {_short(one.endpoint)}"
    if least is not None and most is not None:
        if least < 1 < most:
            return f"not told apart from {rate} ({three(least)}–{three(most)}×)"
        if searched and one.resolved and other.resolved:
            middles = [(row.low_rps or 0) + (row.high_rps or 0) for row in (other, one)]
            value, low, high = to_uncertainty(middles[0] / middles[1], least, most)
            return f"{value}×{_interval(low, high)} {rate}"
        return f"{three(least)} to {three(most)} times {rate}"
    if least is not None and least > 1:
        return f"at least {three(least)} times {rate}"
    return f"at most {three(most)} times {rate}" if most is not None and most < 1 else ""


def _causes(row: Capacity) -> str:
    """What limits, without its figures, which the table of capacities has; nothing where no rate missed."""
    if row.high_rps is None or not row.limited_by or row.limited_by.startswith("unresolved"):
        return ""
    causes = re.sub(r" \([^()]*\)", "", row.limited_by).split(", ")
    spoken = (re.sub(r"^(?:memory of )?GPU-\S*", lambda m: "the GPU" + "'s memory" * ("of" in m[0]), c) for c in causes)
    return _and(list(dict.fromkeys(cause.replace("host CPU", "the host's CPU") for cause in spoken)))


# ---- held rates, closed loops, and no objective


def answered(steps: Iterable[MeasuredStep], slos: Sequence[Slo], judged: Verdict, best: Sequence[Pair]) -> str:
    """The highest rate that each endpoint kept up with, and what became of the objective."""
    found: dict[str, str] = {}
    for step in sorted(steps, key=lambda step: step.rate):
        if step.summary.trusted and step.overloaded:
            found.setdefault(step.summary.endpoint, "kept up with no rate that was tried")
        elif step.summary.trusted or (judged.verdict == verdict.PASS and step.summary.n):  # sent late, and kept it
            found[step.summary.endpoint] = _answered(step)
    energy = {pair.b: f", {said}" for pair in best if (said := less_energy(pair, alone=True))}
    clause = "; ".join(f"{name} {said}{energy.get(name, '')}" for name, said in found.items())
    objectives = _and([term for slo in slos for term in (_objective(slo), _wanted(slo)) if term])
    if not slos:
        return clause and f"{clause}; no objective was set"
    if judged.verdict == verdict.PASS:
        return f"every step met {objectives}: {clause}"
    if judged.verdict == verdict.FAIL:
        why = judged.reasons[0].replace(", misses the objective:", ":")
        return f"the objective {objectives} was missed ({why}); {clause}"
    return clause


def _wanted(slo: Slo) -> str:
    return "" if slo.min_rate_rps is None else f"≥ {three(slo.min_rate_rps)} requests/s"


def _answered(step: MeasuredStep) -> str:
    row = step.summary
    rate = f"answered {three(row.achieved_rps)} requests/s"
    rate += f" with {step.concurrency} under way" if step.concurrency else ""
    if row.p99_ms is None or not math.isfinite(row.p99_ms):
        failed = words.significant(100 * row.errors / row.n, 2)
        return f"{rate} with no finite P99, as {failed} % of the arrivals failed"
    value, low, high = to_uncertainty(row.p99_ms, row.p99_low_ms, row.p99_high_ms)
    return f"{rate} {'and' if step.concurrency else 'with'} a P99 of {value} ms{_interval(low, high)}"


# ---- one against the other


def comparisons(compared: Iterable[Pair]) -> list[Pair]:
    """Each variant against the first of its model, at the highest load that has an interval, else that has a ratio."""
    chosen: dict[tuple[str, str], Pair] = {}
    known: dict[str, str] = {}
    for pair in (pair for pair in compared if pair.a != pair.b):
        before = chosen.get((pair.a, pair.b))
        if known.setdefault(pair.a.rpartition("/")[0], pair.a) != pair.a or pair.p99_ratio is None:
            continue
        if before is None or pair.differs is not None or before.differs is None:
            chosen[pair.a, pair.b] = pair
    return list(chosen.values())


def latency(pair: Pair, several_models: bool) -> str:
    model = pair.a.rpartition("/")[0]
    at = f"{pair.concurrency} under way" if pair.concurrency else f"{three(pair.rate)} requests/s"
    said = words.pair_sentence(asdict(pair))
    both = f"no difference between {_short(pair.b)} and {_short(pair.a)} shown"
    said = said.replace("no difference shown", both, 1) if said.startswith("no difference shown") else said
    return f"{f'For {model} at' if several_models else 'At'} {at}, {said}"


def less_energy(pair: Pair, *, alone: bool) -> str:
    """`with 38 % (35–41) less energy a request at equal load`; `alone`: it is not yet said than which."""
    ratio, low, high = pair.joules_ratio, pair.joules_low, pair.joules_high
    if not ratio:
        return ""
    if low and high and low <= 1 <= high:
        return "with no difference in energy a request shown"
    than, pct = (f" than {_short(pair.a)}" if alone else ""), 100 * abs(1 - 1 / ratio)
    if low and high:
        value, *ends = to_uncertainty(pct, *sorted(100 * abs(1 - 1 / end) for end in (low, high)))
        change = f"{value} %{_interval(*ends)}"
    elif pct < ALIKE_PCT:
        return f"with about the same energy a request{than.replace(' than', ' as')} at equal load"
    else:
        change = f"about {words.significant(pct, 2)} %"
    return f"with {change} {'less' if ratio > 1 else 'more'} energy a request{than} at equal load"


# ---- numbers to be read out


def three(value: float | None) -> str:
    """At most three significant digits."""
    return words.ABSENT if value is None else words.tick(float(f"{value:.3g}"))


def to_uncertainty(value: float, low: float | None, high: float | None) -> tuple[str, str, str]:
    """A value and its interval, rounded alike.

    >>> to_uncertainty(2.1347, 1.911, 2.342), to_uncertainty(412.4, 403.1, 421.6)
    (('2.1', '1.9', '2.3'), ('412', '403', '422'))
    """
    if low is None or high is None or not 0 < high - low < math.inf:
        return three(value), "", ""
    place = _place(value, (high - low) / 2)
    return _at(value, place), _at(low, place), _at(high, place)


def plus_minus(low: float, high: float) -> str:
    """The middle of an interval and its half.

    >>> plus_minus(403.1, 421.6)
    '412 ± 9'
    """
    middle, half = (low + high) / 2, (high - low) / 2
    place = _place(middle, half)
    return f"{_at(middle, place)} ± {_at(half, place)}" if round(half, place) else three(middle)


def _place(value: float, half: float) -> int:
    """Decimals that show one digit of the uncertainty, or two of one that begins with 1; of the value at most three."""
    place = 2 - math.floor(math.log10(abs(value))) if value else 0
    if half:
        exponent = math.floor(math.log10(half))
        place = min(place, (half < 2 * 10.0**exponent) - exponent)
    return place


def _at(value: float, place: int) -> str:
    return f"{round(value, place):,.{max(place, 0)}f}"


def _interval(low: str, high: str) -> str:
    return f" ({low}–{high})" if low != high else ""


def _and(terms: Sequence[str]) -> str:
    *others, last = terms or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _short(endpoint: str) -> str:
    return endpoint.rpartition("/")[2] or endpoint
