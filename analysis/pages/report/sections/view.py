"""A run and its report, ready to be shown: rows with their infinities back, and the frames of the time line.

Owns the colour (series number) of each endpoint; writes no markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrate.analysis.pages.report.charts.time_slices import notable
from tailrate.analysis.records.infinities import restored
from tailrate.analysis.records.manifest import endpoint_name
from tailrate.analysis.run.time_axis import Timeline
from tailrate.analysis.steps.latency_breakdown import STAGES
from tailrate.analysis.text.words import significant

if TYPE_CHECKING:
    from tailrate.analysis.run.device_tracks import DeviceTrack
    from tailrate.analysis.verdicts.run import Run

STAGE_NAMES = tuple(name.removesuffix("_ms") for name in STAGES)


@dataclass(frozen=True, slots=True)
class Stages:
    """Where the time of the requests around a percentile of a step went, in ms."""

    endpoint: str
    asked: str
    percentile: float
    parts: dict[str, float]
    grew: str
    """What grew most since the next lower rate, in words."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class View:
    """What page and Markdown are made from."""

    run: Run
    report: Mapping[str, Any]
    steps: list[dict[str, Any]]
    """The report's rows, infinities restored, each with the `rate` asked for and whether it was `overloaded`."""
    series: dict[str, int]
    """Endpoint → number of its colour, in the order of the manifest."""

    @classmethod
    def of(cls, run: Run, report: Mapping[str, Any]) -> View:
        measured = {(step.summary.index, step.summary.endpoint): step for step in run.measured}
        steps = []
        for row in report["steps"]:
            step = measured[row["index"], row["endpoint"]]
            steps.append(restored(row) | {"rate": step.rate, "asked": step.asked, "overloaded": step.overloaded})
        known = [endpoint_name(entry) for entry in run.manifest.endpoints]
        used = {str(row["endpoint"]) for row in steps}
        order = [name for name in known if name in used] + sorted(used - set(known))
        return cls(run, report, steps, {name: number for number, name in enumerate(order)})

    @property
    def drawn(self) -> list[dict[str, Any]]:
        """The steps that have arrivals, so that there is something to draw."""
        return [row for row in self.steps if row["offered_rps"] is not None]

    @property
    def unfinished(self) -> str | None:
        """The sentence to put on top where the run did not come to its end."""
        return {
            "aborted": "This run was aborted: what is shown is what had been recorded until then.",
            "running": "This run has not ended: what is shown is what had been recorded until now.",
        }.get(self.run.manifest.status)

    def seconds(self) -> float | None:
        """How long the run took, by its manifest or else by its last row."""
        m = self.run.manifest
        if m.started_ns and m.finished_ns > m.started_ns:
            return (m.finished_ns - m.started_ns) / 1e9
        line = self.line()
        return line.seconds if line else None

    def line(self) -> Timeline | None:
        """The time axis; None for a run in which nothing was sent."""
        return Timeline.of(self.run) if self.run.tallies.rows else None

    def begun(self, line: Timeline) -> list[dict[str, Any]]:
        """The scenario's steps that lie on the time axis; an aborted run never came to the others."""
        return [
            step
            for step in self.run.manifest.scenario["steps"]
            if (step["end_ns"] or 0) > (step["start_ns"] or 0) and 0 <= line.at(step["start_ns"]) < line.seconds
        ]

    def tracks(self) -> list[DeviceTrack]:
        """The devices to show: those that served requests, else the GPUs, else all."""
        found = list(self.run.tracks.values())
        served = {device for step in self.run.measured for device in step.tally.devices}
        return (
            [track for track in found if track.device in served]
            or [track for track in found if not track.is_cpu]
            or found
        )

    def has_gpu(self) -> bool:
        return any(not track.is_cpu for track in self.tracks())

    def events(self) -> list[Mapping[str, Any]]:
        return notable(self.run.events)

    def stages(self) -> list[Stages]:
        """The breakdown of steps whose server tells its stages: the usual requests, and the slow ones."""
        asked = {row["index"]: row["asked"] for row in self.steps}
        found = []
        for row in self.report["breakdown"]:
            known = {name: row[f"{name}_ms"] for name in STAGE_NAMES if row[f"{name}_ms"] is not None}
            told = row["compute_ms"] is not None or row["decode_ms"] is not None
            if row["percentile"] in (50, 99) and told:
                grew = f"{row['grew']} +{significant(row['grew_by_ms'])}" if row["grew"] else ""
                found.append(Stages(row["endpoint"], str(asked[row["index"]]), row["percentile"], known, grew))
        return found
