"""How many replicas Ray Serve asks for, by the requests that are in the system: its default policy, in virtual time.

As in Ray 2.60 each replica notes its requests every fifth of the look-back (at most `interval_s`) and sends what it
noted in the look-back every `interval_s`; ten times a second the controller takes the mean of the sum over that time,
the last note counting until now, and wants that many ÷ `target_ongoing` replicas. The mean begins when the youngest
replica that is up made its first note, so it is short after each change. What is wanted for the whole of a delay is
done. Here all replicas note and send at the same instants, from 0 on; in Ray each does so from its own start.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from tailrate.analysis.planning.simulator.fleet import Autoscaling
from tailrate.analysis.stats.array_types import Ints

CONTROL_S = 0.1
NOTE_SHARE = 0.2
CLOSE_S = 1e-6
"""By so much a delay may fall short."""


class Autoscaler:
    """Told what the replicas hold, it says how many there should be."""

    def __init__(self, setting: Autoscaling) -> None:
        self.setting = setting
        self.target = setting.min_replicas if setting.initial is None else setting.initial
        self.note_s = min(NOTE_SHARE * setting.look_back_s, setting.interval_s)
        self._notes: deque[tuple[float, Ints]] = deque()
        self._sent: list[tuple[float, Ints]] = []
        self._up: Ints | None = None
        """Of whom `_sums` are."""
        self._sums = (0.0, 0.0, 0.0, 0.0)
        """Request-seconds until the last note, requests at that, when it was, and when the first was."""
        self._wants = 0
        """More (1) or fewer (−1), …"""
        self._since_s = 0.0
        """… since then."""

    def note(self, now_s: float, held: Ints) -> None:
        """Requests in each replica, −1 where it is not up."""
        self._notes.append((now_s, held))

    def send(self, now_s: float) -> None:
        """The controller learns what was noted."""
        while self._notes and self._notes[0][0] <= now_s - self.setting.look_back_s:
            self._notes.popleft()
        self._sent, self._up = list(self._notes), None

    def ongoing(self, now_s: float, up: Ints) -> float:
        """The mean of the requests in those that are up, as far as the controller knows."""
        if up is not self._up:
            self._up, self._sums = up, self._sum(up)
        total, last, last_s, first_s = self._sums
        now_s = max(now_s, last_s + 1e-3)
        return (total + last * (now_s - last_s)) / (now_s - first_s)

    def _sum(self, up: Ints) -> tuple[float, float, float, float]:
        if not self._sent or not len(up):
            return 0.0, 0.0, 0.0, 0.0
        times = np.array([at for at, _ in self._sent])
        held = np.array([of[up] for _, of in self._sent])
        missing = held < 0
        begins = np.where(missing.any(axis=0), len(times) - missing[::-1].argmax(axis=0), 0)
        known = begins < len(times)
        begin = int(begins[known].max(initial=0))
        totals = held[begin:, known].sum(axis=1)
        return float(totals[:-1] @ np.diff(times[begin:])), float(totals[-1]), float(times[-1]), float(times[begin])

    def decide(self, now_s: float, up: Ints) -> int:
        """How many replicas there should be from now on."""
        setting, there = self.setting, len(up)
        if there:
            wanted = self.ongoing(now_s, up) / setting.target_ongoing
            factor = setting.upscaling_factor if wanted > there else setting.downscaling_factor
            asked = math.ceil(there + factor * (wanted - there))
            if math.ceil(wanted) < there == asked:  # a small factor would never get there
                asked -= 1
            self._consider(now_s, max(1, asked))
        return self.target

    def _consider(self, now_s: float, asked: int) -> None:
        setting, wants = self.setting, (asked > self.target) - (asked < self.target)
        if wants != self._wants:
            self._wants, self._since_s = wants, now_s
        delay_s = setting.upscale_delay_s if wants > 0 else setting.downscale_delay_s
        if wants and now_s - self._since_s + CLOSE_S >= delay_s:
            self._wants = 0
            self.target = min(max(asked, setting.min_replicas), setting.max_replicas)
