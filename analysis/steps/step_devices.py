"""The devices that served one endpoint in one step: what they did, and what of their energy is the endpoint's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tailrate.analysis.counting.counts import Key, Tally
from tailrate.analysis.records.manifest import endpoint_name
from tailrate.analysis.run.device_tracks import MOST_HOLE, DeviceFigures, DeviceTrack, over
from tailrate.analysis.text import words

if TYPE_CHECKING:
    from tailrate.analysis.steps.measured_run import MeasuredRun


@dataclass(frozen=True, slots=True)
class Energy:
    """What the devices of a step used, as far as it is this endpoint's; None where that is not known."""

    joules: float | None = None
    net_joules: float | None = None
    """Above what they draw without load."""
    idle_w: float | None = None
    """What they draw without load, whoever else they served."""
    remark: str = ""


@dataclass(frozen=True, eq=False)
class StepDevices:
    """Each figure is worked out when it is first asked for."""

    run: MeasuredRun
    plan: Mapping[str, Any]
    """The step in the manifest."""
    endpoint: str
    tally: Tally
    idle: Sequence[tuple[int, int]]
    """Windows of the run without load."""
    among: Sequence[StepDevices]
    """All steps of the run."""

    @property
    def key(self) -> Key:
        return int(self.plan["index"]), self.endpoint

    @property
    def span(self) -> tuple[int, int]:
        """The window, settle time excluded; as long as the run lasted."""
        return self.tally.grid.start_ns, self.tally.grid.end_ns

    @property
    def seconds(self) -> float:
        return self.tally.grid.seconds

    @cached_property
    def tracks(self) -> list[DeviceTrack]:
        """Of the devices that the answers name, else of the one that the manifest names for the endpoint."""
        return [track for name, track in self.run.tracks.items() if name in self._device_names]

    @cached_property
    def _device_names(self) -> set[str]:
        entries = self.run.manifest.endpoints
        return self.tally.devices or {str(e.get("device")) for e in entries if endpoint_name(e) == self.endpoint}

    @cached_property
    def device(self) -> DeviceFigures:
        return over(self.tracks, *self.span, self.idle)

    @cached_property
    def unsampled(self) -> str:
        """Why the energy is not known, where some of it was sampled."""
        for track in reversed(self.tracks):
            hole_s = track.hole_s(*self.span)
            if hole_s > MOST_HOLE * self.seconds:
                seconds = words.significant(hole_s, 2)
                return f"{track.device} has no samples for {seconds} s of this step: its energy is not known"
        silent = sorted(self._device_names - {track.device for track in self.tracks})
        if not self.tracks or not silent:
            return ""
        return f"{' and '.join(silent)} answered, too, and has no samples: the energy of this step is not known"

    @cached_property
    def energy(self) -> Energy:
        if not self.tally.n:
            return Energy()
        joules, net_joules = self.device.joules, self.device.net_joules
        if joules is None or self.unsampled:
            return Energy()
        idle_w = None if net_joules is None else (joules - net_joules) / self.seconds
        if not (others := self._beside()):
            return Energy(joules, net_joules, idle_w)
        share, remark = self._share(others)
        if share is None:
            return Energy(idle_w=idle_w, remark=remark)
        return Energy(joules * share, None if net_joules is None else net_joules * share, idle_w, remark)

    @property
    def added_w(self) -> float | None:
        """What serving the endpoint added to what the devices draw without load."""
        net_joules = self.energy.net_joules
        return None if net_joules is None else net_joules / self.seconds

    def _beside(self) -> list[StepDevices]:
        """Those that load one of its devices at the same time."""
        mine = {track.device for track in self.tracks}
        return [
            other
            for other in self.among
            if other is not self
            and other.plan["start_ns"] < self.plan["end_ns"]
            and self.plan["start_ns"] < other.plan["end_ns"]
            and {track.device for track in other.tracks} & mine
        ]

    def _share(self, others: Sequence[StepDevices]) -> tuple[float | None, str]:
        """Of the energy of devices that served several endpoints at once, by the time for which they computed."""
        names = ", ".join(other.endpoint for other in others)
        mine = {track.device for track in self.tracks}
        if any({track.device for track in other.tracks} != mine for other in others):
            return None, f"it shares only some of its devices with {names}, so its energy cannot be told apart"
        spent = [each.tally.computed_ms(*self.span) for each in (self, *others)]
        own, all_of_them = spent[0], sum(spent)
        if not own or not all(spent):
            return None, f"its device also served {names}, so its energy cannot be told apart"
        share = own / all_of_them
        remark = f"its device also served {names}: its energy is an estimate, {share:.0%} of all by compute time"
        return share, remark.replace("%", " %")
