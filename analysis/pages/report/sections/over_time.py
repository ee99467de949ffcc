"""The whole run on one time axis, with its events listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrate.analysis.pages.html.markup import Html, join, tag
from tailrate.analysis.pages.report.charts.metric_lanes import metric_lanes
from tailrate.analysis.pages.report.charts.time_chart import moment, time_line
from tailrate.analysis.pages.report.charts.time_slices import device_slices, slices
from tailrate.analysis.pages.report.sections.faults import fault_event
from tailrate.analysis.pages.report.sections.section import Section
from tailrate.analysis.pages.report.sections.view import View
from tailrate.analysis.text import words


def _html(view: View) -> Html | None:
    line = view.line()
    if line is None:
        return None
    devices = device_slices(line, ((track.device, track.time_ns, track.state) for track in view.tracks()))
    kind, events = "GPU" if view.has_gpu() else "CPU", view.events()
    lanes = metric_lanes(view.run.metric_tracks, line, view.series)
    drawn = [time_line(line, slices(view.run, line), devices, kind, view.begun(line), events, view.series, lanes)]
    if not devices:
        drawn.append(tag("p", "The server sent no device samples, so utilisation, memory and power are not shown."))
    if events:
        said = (tag("li", tag("b", moment(line.at(event["time_ns"]))), f" {event_text(event)}") for event in events)
        drawn.append(tag("ol", said, class_="events"))
    return join(drawn)


def event_text(event: Mapping[str, Any]) -> str:
    """`replica lost: replica r1`, or the sentence that the event carries."""
    if event["event"] == "fault" and event.get("fault"):
        return fault_event(event)
    shown = (key for key in event if key not in ("event", "sentence") and not key.endswith("_ns"))
    rest = {key: event[key] for key in shown if event[key] not in (None, "")}
    said = "; ".join(
        part for part in (str(event.get("sentence") or ""), words.fact("", rest)[1] if rest else "") if part
    )
    return f"{str(event['event']).replace('_', ' ')}{': ' if said else ''}{said}"


OVER_TIME = Section("time", "Over time", _html)
