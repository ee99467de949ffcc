"""Which replicas of a simulated fleet take requests: outages, and autoscaling with its cold starts.

Serves a `World` from one change to the next. At one instant a replica that comes back precedes one that falls, then
requests are counted for the autoscaler, then it decides.
"""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np

from tailrate.analysis.planning.simulator import event_loop as kernel
from tailrate.analysis.planning.simulator.autoscaler import CONTROL_S, Autoscaler
from tailrate.analysis.planning.simulator.fleet import Fleet

RISE, FALL, READY, SEND, NOTE, DECIDE = range(6)


class ReplicaStates:
    """Of one simulation."""

    def __init__(self, fleet: Fleet, world: kernel.SimState) -> None:
        scaling, slots = fleet.autoscaling, fleet.slots
        self.sizes: list[tuple[float, int]] = []
        """When the number of replicas that are up changed, and to what."""
        self.lost = 0
        """Requests, with their replicas."""
        self._world = world
        self._routed = 0
        self._scaler = None if scaling is None else Autoscaler(scaling)
        self._cold_start_s = 0.0 if scaling is None else scaling.cold_start_s
        self._ready_s = np.full(slots, np.inf)
        self._ready_s[: slots if self._scaler is None else self._scaler.target] = -np.inf
        """From when on each takes requests; inf where it wasn't asked for."""
        self._outages = np.zeros(slots, dtype=np.int64)
        """How many of them each is in."""
        self._up = np.empty(0, dtype=np.int64)
        self._there: list[tuple[float, int]] = []
        """When the number that was asked for and is in no outage changed, and to what."""
        self._agenda = [(0.0, what, 0) for what in (SEND, NOTE, DECIDE) if scaling is not None]
        for outage in fleet.outages:
            if 0 <= outage.replica < slots:
                self._agenda += [(outage.from_s, FALL, outage.replica), (outage.to_s, RISE, outage.replica)]
        heapq.heapify(self._agenda)

    def serve(self) -> None:
        """Until all arrivals were routed, and all batches are done."""
        arrivals_s = self._world.arrivals_s
        self._renew(min(0.0, float(arrivals_s[0])))
        while self._agenda and self._agenda[0][0] < np.inf:
            now_s, what, which = heapq.heappop(self._agenda)
            if what in (FALL, RISE):
                self._outage(now_s, which, fallen=what == FALL)
            elif what == READY:
                self._renew(now_s)
            elif self._scaler is not None:
                next_s = (which + 1) * self._scale(self._scaler, now_s, what)
                if next_s <= arrivals_s[-1]:
                    heapq.heappush(self._agenda, (next_s, what, which + 1))
        if self._world.routing == kernel.ONE_QUEUE:
            kernel.share(self._world)
            return
        kernel.route(self._world, self._up, self._routed, len(arrivals_s))
        kernel.settle(self._world, kernel.FOREVER_S)

    def replica_s(self, last_s: float) -> float:
        """Sum over the replicas of the time, from the first arrival until then, for which each was there to be paid."""
        first_s = float(self._world.arrivals_s[0])
        spans = pairwise([*self._there, (np.inf, 0)])
        return sum(count * max(0.0, min(to_s, last_s) - max(from_s, first_s)) for (from_s, count), (to_s, _) in spans)

    def _outage(self, now_s: float, replica: int, fallen: bool) -> None:
        if fallen and not self._outages[replica]:
            self._bring(now_s)
            self.lost += int(kernel.fail(self._world, replica, now_s))
        self._outages[replica] += 1 if fallen else -1
        self._renew(now_s)

    def _scale(self, scaler: Autoscaler, now_s: float, what: int) -> float:
        """Seconds until it is due again."""
        if what == SEND:
            scaler.send(now_s)
            return scaler.setting.interval_s
        if what == NOTE:
            self._bring(now_s)
            replicas = self._world.replicas
            held = np.full(len(replicas), -1)
            held[self._up] = (replicas["waiting"] + replicas["running"])[self._up]
            scaler.note(now_s, held)
            return scaler.note_s
        before = scaler.target
        after = scaler.decide(now_s, self._up)
        if after != before:
            there = np.flatnonzero(self._ready_s < np.inf)
            # those that were asked for last go first, and finish what they hold
            self._ready_s[there[np.lexsort((there, self._ready_s[there]))][after:]] = np.inf
            ready_s = now_s + self._cold_start_s
            self._ready_s[np.flatnonzero(self._ready_s == np.inf)[: max(0, after - before)]] = ready_s
            heapq.heappush(self._agenda, (ready_s, READY, 0))
            self._renew(now_s)
        return CONTROL_S

    def _bring(self, now_s: float) -> None:
        """The world to an instant, with the replicas that are up so far."""
        before, self._routed = self._routed, int(np.searchsorted(self._world.arrivals_s, now_s))
        kernel.route(self._world, self._up, before, self._routed)
        kernel.settle(self._world, now_s)

    def _renew(self, now_s: float) -> None:
        """Who is up from now on."""
        self._bring(now_s)
        there = (self._ready_s < np.inf) & (self._outages == 0)
        ready = there & (self._ready_s <= now_s)
        up = np.flatnonzero(ready)
        if self._world.routing == kernel.LEAST:
            for replica in np.setxor1d(up, self._up) if self.sizes else range(len(ready)):
                kernel.weigh(self._world, replica, bool(ready[replica]))
        if not self.sizes or len(up) != len(self._up):
            self.sizes.append((now_s, len(up)))
        self._there.append((now_s, int(there.sum())))
        self._up = up
