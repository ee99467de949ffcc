"""One endpoint over several runs: what it takes, and its P99 at a rate that they have in common.

Runs are on one chart where scenario mode and objective agree. Where host, versions or settings changed from one run to
the next, a numbered line says that the two points cannot be compared as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tailrate.analysis.history.run_summary import STATES, Entry, Level, SustainedRate
from tailrate.analysis.pages.html.markup import Attribute, Html, tag
from tailrate.analysis.pages.html.svg import Panel, Scale, fitting, linear
from tailrate.analysis.text import words

MOST_TRENDS = 40
MOST_POINTS = 60
MOST_CHANGES = 12
MOST_FACTS = 6

_FOLLOWED = ("rates", "seed", "git")
"""What may differ on one line: it changes no figure, or is what a line over time is drawn to follow."""


@dataclass(frozen=True, slots=True)
class TrendPoint:
    entry: Entry
    kept: SustainedRate | None
    level: Level | None
    """At the common load."""
    changed: list[str]
    """What is different since the point before."""


@dataclass(frozen=True, slots=True)
class Trend:
    endpoint: str
    mode: str
    objective: str
    asked: str
    """The common load."""
    points: list[TrendPoint]
    """In order of time; the latest `MOST_POINTS`."""
    runs: int


def trends(entries: Iterable[Entry]) -> list[Trend]:
    """Those with the most runs first."""
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.time_ns, entry.name)):
        for endpoint in entry.endpoints if entry.levels else ():
            groups.setdefault((endpoint, entry.mode, entry.objective), []).append(entry)
    found = [_trend(*key, group) for key, group in groups.items() if len(group) > 1]
    return sorted((trend for trend in found if trend), key=lambda trend: (-trend.runs, trend.endpoint))


def _trend(endpoint: str, mode: str, objective: str, entries: Sequence[Entry]) -> Trend | None:
    shown = entries[-MOST_POINTS:]
    loads = [{(level.rate, level.concurrency): level for level in entry.of_endpoint(endpoint)} for entry in shown]
    # of the loads that most runs can speak of, the highest
    said = Counter(load for found in loads for load, level in found.items() if not level.doubtful)
    common = max((said or Counter(load for found in loads for load in found)).items(), key=lambda item: item[::-1])[0]
    points: list[TrendPoint] = []
    for entry, found in zip(shown, loads, strict=True):
        changed = _changed(points[-1].entry, entry, endpoint) if points else []
        points.append(TrendPoint(entry, entry.kept.get(endpoint), found.get(common), changed))
    if not any(sum(known(point) for point in points) > 1 for known in (_has_limit, _has_p99)):
        return None
    return Trend(endpoint, mode, objective, words.load(*common), points, len(entries))


def _has_limit(point: TrendPoint) -> bool:
    return point.kept is not None and (point.kept.low_rps or point.kept.high_rps) is not None


def _has_p99(point: TrendPoint) -> bool:
    return point.level is not None and point.level.figures["p99_ms"] is not None


def _changed(before: Entry, after: Entry, endpoint: str) -> list[str]:
    return [
        f"{'' if group == endpoint else group + ' '}{name} {before.origin.get((group, name), words.ABSENT)} → "
        f"{after.origin.get((group, name), words.ABSENT)}"
        for group, name in sorted(before.origin.keys() | after.origin.keys())
        if group in ("host", "version", "setting", endpoint)
        and name not in _FOLLOWED
        and before.origin.get((group, name)) != after.origin.get((group, name))
    ]


# ---- drawn

_LIMITS, _P99, _BETWEEN, _ABOVE = 90, 120, 44, 22


def chart(trend: Trend) -> Html:
    """Both panels over one axis, with a link to its report over each run."""
    points = trend.points
    x = Scale(-0.5, len(points) - 0.5)
    limits = [rps for p in points if p.kept for rps in (p.kept.low_rps, p.kept.high_rps) if rps is not None]
    latencies = [y for p in points if p.level for key in _P99_KEYS if (y := p.level.figures[key]) is not None]
    drawn: list[Html] = []
    y = _ABOVE
    if sum(map(_has_limit, points)) > 1:
        panel = Panel(x, linear(1.2 * rps for rps in limits), _LIMITS)
        panel.grid(panel.y.labels(4, words.rate_tick))
        for k, point in enumerate(points):
            _limit(panel, k, point.kept)
        drawn += [_title("keeps the objective up to", y), _placed(panel, y)]
        y += _LIMITS + _BETWEEN
    if sum(map(_has_p99, points)) > 1:
        panel = Panel(x, fitting(latencies), _P99)
        panel.grid(panel.y.labels(5, words.latency_tick))
        for piece in _unchanged(points):
            panel.line(((k, p.level.figures["p99_ms"] if p.level else None) for k, p in piece), "p99 thin s1")
        for k, point in enumerate(points):
            _latency(panel, k, point.level)
        drawn += [_title(f"P99 at {trend.asked}", y), _placed(panel, y)]
        y += _P99 + _BETWEEN
    bottom = y - _BETWEEN
    days = Panel(x, Scale(0, 1), 0)
    days.x_ticks(_days(points))
    drawn.append(_placed(days, bottom))
    changes = Panel(x, Scale(0, 1), bottom)
    found = _changes(points)
    for number, (k, _) in enumerate(found, start=1):
        changes.upright(k - 0.5, "event")
        if number % math.ceil(len(found) / MOST_CHANGES) == 0:
            changes.text(k - 0.5, bottom - 4, str(number), "event")
    drawn += changes.marks
    label = f"P99 and capacity of {trend.endpoint} over {len(points)} runs"
    size: dict[str, Attribute] = {"width": "100%", "height": bottom + 26, "role": "group", "aria_label": label}
    links = [_link(k, len(points), bottom, point, trend) for k, point in enumerate(points)]
    picture = tag("svg", drawn, links, class_="plot", **size)
    of = f"{len(points)} of {words.count(trend.runs)}" if trend.runs > len(points) else words.count(trend.runs)
    note = " · ".join(part for part in (f"{of} runs", trend.mode, trend.objective or "no objective") if part)
    return tag(
        "figure",
        tag("figcaption", tag("strong", trend.endpoint), " ", tag("span", note)),
        tag("div", picture, class_="plots"),
        _in_words(points),
        class_="trend",
    )


def _changes(points: Sequence[TrendPoint]) -> list[tuple[int, TrendPoint]]:
    return [(k, point) for k, point in enumerate(points) if point.changed]


def _unchanged(points: Sequence[TrendPoint]) -> list[list[tuple[int, TrendPoint]]]:
    """Stretches of runs between which nothing changed: only their points are joined by a line."""
    found: list[list[tuple[int, TrendPoint]]] = [[]]
    for k, point in enumerate(points):
        if point.changed:
            found.append([])
        found[-1].append((k, point))
    return found


def _in_words(points: Sequence[TrendPoint]) -> Html | None:
    changes = list(enumerate(_changes(points), start=1))
    if not changes:
        return None
    rows = []
    for number, (_, point) in changes[-MOST_CHANGES:]:
        more = f"; and {len(point.changed) - MOST_FACTS} more" if len(point.changed) > MOST_FACTS else ""
        said = words.sentence_list(fact[:120] for fact in point.changed[:MOST_FACTS])
        rows.append(tag("li", f"before {point.entry.when}: {said}{more}", value=number))
    times = "once" if len(changes) == 1 else f"{len(changes)} times"
    summary = f"What it ran on, or its settings, changed {times}: not comparable across a numbered line"
    return tag("details", tag("summary", summary), tag("ol", rows))


_P99_KEYS = ("p99_ms", "p99_low_ms", "p99_high_ms")


def _limit(panel: Panel, k: int, kept: SustainedRate | None) -> None:
    """The limit lies in the bar, which goes to the top where no rate missed the objective."""
    if kept is None:
        return
    panel.whisker(k, kept.low_rps or 0.0, math.inf if kept.high_rps is None else kept.high_rps, "whisker s0")
    if kept.low_rps is not None:
        panel.dot(k, kept.low_rps, "dot s0", radius=3.5)


def _latency(panel: Panel, k: int, level: Level | None) -> None:
    p99, low, high = (level.figures[key] for key in _P99_KEYS) if level else (None, None, None)
    if level is None or p99 is None:
        return
    if low is not None and high is not None:
        panel.whisker(k, low, high, "whisker s1")
    panel.dot(k, p99, "dot s1 hollow" if level.doubtful else "dot s1", radius=3.5)


def _title(text: str, y: int) -> Html:
    return tag("text", text, x=0, y=y - 8)


def _placed(panel: Panel, y: int) -> Html:
    return tag("svg", panel.marks, y=y, class_="mark")


def _days(points: Sequence[TrendPoint]) -> list[tuple[float, str]]:
    """At most four dates under the axis, none twice in a row."""
    step = max(1, math.ceil(len(points) / 4))
    found = [(float(k), points[k].entry.when[:10]) for k in range(0, len(points), step)]
    return [tick for k, tick in enumerate(found) if not k or tick[1] != found[k - 1][1]]


def _link(k: int, of: int, height: int, point: TrendPoint, trend: Trend) -> Html:
    """The whole column over a run: it shows the values, and leads to the report."""
    entry = point.entry
    said = [f"{entry.when}, {entry.name}: {STATES[entry.state]}"]
    if _has_limit(point) and point.kept:
        said.append(point.kept.said)
    if _has_p99(point) and point.level:
        figures = point.level.figures
        span = words.interval(figures["p99_low_ms"], figures["p99_high_ms"])
        p99 = words.ms(figures["p99_ms"]) + ("" if span == words.ABSENT else f" ({span})")
        said.append(f"P99 {p99} at {trend.asked}")
    if git := entry.origin.get(("version", "git")):
        said.append(f"git {git[:40]}")
    text = "; ".join(said)
    place: dict[str, Attribute] = {"x": f"{100 * k / of:.2f}%", "width": f"{100 / of:.2f}%", "y": 0, "height": height}
    target = f"{entry.url}/report.{'html' if entry.page else 'json'}"
    return tag("a", tag("rect", class_="hit", **place), href=target, data_tip=text, aria_label=text)
