"""A fleet simulated the plain way, as an oracle for `simulator.simulate`: one heap of all events, lists of requests.

Written for reading and slow: some ten thousand requests a second. It shares no code with the compiled one, not even
the random numbers, and holds what waits and what a batcher has in its hand as lists.
"""

from __future__ import annotations

import heapq
import math
from itertools import chain, count
from typing import Any

WORD = 0xFFFFFFFF
DONE, TIMER, RISE, FALL, ARRIVAL = range(5)


class Sfc32:
    def __init__(self, seed: int) -> None:
        self.a, self.b, self.c, self.counter = 0, seed, 0, 1
        for _ in range(12):
            self()

    def __call__(self) -> int:
        out = (self.a + self.b + self.counter) & WORD
        self.counter = (self.counter + 1) & WORD
        self.a = self.b ^ (self.b >> 9)
        self.b = (self.c + (self.c << 3)) & WORD
        self.c = (((self.c << 21) | (self.c >> 11)) + out) & WORD
        return out

    def below(self, n: int) -> int:
        return self() * n >> 32


def mixed(seed: int, index: int) -> int:
    x = (index + seed * 0x9E3779B9) & WORD
    x = (x ^ x >> 16) * 0x85EBCA6B & WORD
    x = (x ^ x >> 13) * 0xC2B2AE35 & WORD
    return x ^ x >> 16


class Replica:
    """Of `tailrate serve`, or one that waits for more whenever its batch is not full."""

    def __init__(self, fleet: Heaped) -> None:
        self.fleet = fleet
        self.outages = 0
        self.queue: list[int] = []
        self.running: list[int] = []
        self.told_s = -math.inf
        self.until_s: float | None = None
        self.current = self.alarm = -1
        """Numbers of the batch that runs and of the timer that counts; others are void."""
        self.changed = next(fleet.numbers)
        """Rank in time of the last change in how many it holds."""

    @property
    def waiting(self) -> list[int]:
        return self.queue

    @property
    def holds(self) -> int:
        return len(self.waiting) + len(self.running)

    def wait_until(self, at_s: float) -> None:
        self.until_s, self.alarm = at_s, next(self.fleet.numbers)
        self.fleet.push(at_s, TIMER, self, self.alarm)

    def over(self, now_s: float) -> bool:
        return self.until_s is not None and now_s >= self.until_s

    def take(self, most: int) -> list[int]:
        batch, self.queue = self.queue[:most], self.queue[most:]
        return batch

    def run(self, now_s: float, batch: list[int]) -> None:
        service = self.fleet.service
        grid = service.spread[service.spread_class[len(batch)]]
        seconds = service.mean_s[len(batch)] * grid[mixed(self.fleet.seed, batch[0]) % len(grid)]
        idle_s, (from_s, full_s, extra_s) = now_s - self.told_s, service.waking
        seconds += (
            max(0.0, -idle_s)
            - self.fleet.telling_s[len(batch)]
            + (extra_s if max(0.0, idle_s) >= full_s else extra_s * max(0.0, (idle_s - from_s) / (full_s - from_s)))
        )
        seconds = max(0.0, seconds)
        self.running, self.current = batch, next(self.fleet.numbers)
        self.fleet.batches[len(batch)] += 1
        self.fleet.push(now_s + seconds, DONE, self, self.current)

    def forget(self) -> None:
        self.queue, self.running, self.until_s = [], [], None
        self.told_s = -math.inf

    # what happens to it

    def arrive(self, now_s: float, request: int) -> None:
        self.queue.append(request)
        if self.running or self.fleet.wait_s or not self.fleet.service.wake_s or len(self.queue) >= self.fleet.most:
            self.turn(now_s)
        elif self.until_s is None:
            self.wait_until(now_s + self.fleet.service.wake_s)

    def free(self, now_s: float) -> None:
        self.turn(now_s)

    def turn(self, now_s: float) -> None:
        if self.running or not self.queue:
            return
        most = self.fleet.most
        enough = min(2, most) if self.fleet.rule == "company" else most
        if self.until_s is None:
            self.wait_until(now_s + self.fleet.wait_s)
        if len(self.queue) >= enough or self.over(now_s):
            self.until_s = None
            self.run(now_s, self.take(most))


class Awaiting(Replica):
    """`@serve.batch` while its method awaits: the batcher never stops."""

    def __init__(self, fleet: Heaped) -> None:
        super().__init__(fleet)
        self.hand: list[int] = []
        """In the batch that is being made."""
        self.closed: list[list[int]] = []

    @property
    def waiting(self) -> list[int]:
        return [*chain.from_iterable(self.closed), *self.hand]

    def forget(self) -> None:
        super().forget()
        self.hand, self.closed = [], []

    def arrive(self, now_s: float, request: int) -> None:
        if not self.hand:
            self.wait_until(now_s + self.fleet.wait_s)
        self.hand.append(request)
        self.turn(now_s)

    def turn(self, now_s: float) -> None:
        if self.hand and (len(self.hand) == self.fleet.most or self.over(now_s)):
            self.closed.append(self.hand)
            self.hand, self.until_s = [], None
        if self.closed and not self.running:
            self.run(now_s, self.closed.pop(0))


class Blocking(Replica):
    """`@serve.batch` while its method keeps the event loop from turning."""

    def __init__(self, fleet: Heaped) -> None:
        super().__init__(fleet)
        self.inbox: list[int] = []
        """What arrived while the loop stood still."""
        self.hand: list[int] = []
        self.early = False
        """The batcher took the first into its hand before the loop stood still, and has its turn before the inbox."""

    @property
    def waiting(self) -> list[int]:
        return self.hand + self.queue + self.inbox

    def forget(self) -> None:
        super().forget()
        self.hand, self.inbox, self.early = [], [], False

    def arrive(self, now_s: float, request: int) -> None:
        if self.running:
            self.inbox.append(request)
        else:
            self.queue.append(request)
            self.turn(now_s)

    def grasp(self, now_s: float) -> None:
        """The first of the next batch, if there is one."""
        self.hand = self.take(1)
        if self.hand:
            self.wait_until(now_s + self.fleet.wait_s)

    def close(self, now_s: float) -> list[int]:
        """The batch in hand, if it is full or its time is over."""
        self.hand += self.take(self.fleet.most - len(self.hand))
        if not self.hand or (len(self.hand) < self.fleet.most and not self.over(now_s)):
            return []
        batch = self.hand
        self.grasp(now_s)
        self.early = bool(self.hand)
        return batch

    def free(self, now_s: float) -> None:
        early, self.early = self.early, False
        batch = self.close(now_s) if early else []
        self.queue += self.inbox
        self.inbox = []
        if batch:
            if not self.hand:
                self.grasp(now_s)
            self.run(now_s, batch)
        else:
            self.turn(now_s)

    def turn(self, now_s: float) -> None:
        if self.running:
            return
        if not self.hand:
            self.grasp(now_s)
        batch = self.close(now_s)
        if batch:
            self.run(now_s, batch)


class Heaped:
    """A fleet as `tailrate.analysis.planning.simulator.fleet.Fleet` says it, without autoscaling."""

    def __init__(self, fleet: Any, seed: int = 1) -> None:
        self.service, self.rule, self.routing = fleet.service, str(fleet.rule), str(fleet.routing)
        self.most, self.wait_s, self.room = fleet.max_batch, fleet.batch_wait_s, fleet.queue or math.inf
        self.telling_s = [0.0] * (self.most + 1) if fleet.service.telling_s is None else fleet.service.telling_s
        self.outages, self.seed = fleet.outages, seed
        self.numbers = count()
        self.events: list[tuple[float, int, int, Any, Any]] = []
        self.batches = [0] * (self.most + 1)
        self.stream, self.turns = Sfc32(seed), 0
        self.refused = self.lost = 0
        kind = {"awaiting": Awaiting, "blocking": Blocking}.get(self.rule, Replica)
        self.replicas = [kind(self) for _ in range(fleet.replicas)]

    def push(self, at_s: float, what: int, who: Any = None, which: Any = None) -> None:
        heapq.heappush(self.events, (at_s, what, next(self.numbers), who, which))

    def choose(self) -> Replica | None:
        up = [replica for replica in self.replicas if not replica.outages]
        if not up:
            return None
        if self.routing == "least":
            return min(up, key=lambda replica: (replica.holds, replica.changed))
        if self.routing == "round_robin":
            self.turns = self.turns + 1 if self.turns < len(up) else 1
            return up[self.turns - 1]
        if len(up) == 1:
            return up[0]
        first = self.stream.below(len(up))
        if self.routing == "random":
            return up[first]
        second = self.stream.below(len(up) - 1)
        second += second >= first
        return up[second] if up[second].holds < up[first].holds else up[first]

    def latencies(self, arrivals_s: list[float]) -> list[float]:
        found = [math.inf] * len(arrivals_s)
        for i, at_s in enumerate(arrivals_s):
            self.push(at_s, ARRIVAL, which=i)
        for outage in self.outages:
            self.push(outage.from_s, FALL, self.replicas[outage.replica])
            self.push(outage.to_s, RISE, self.replicas[outage.replica])
        while self.events and self.events[0][0] < math.inf:
            now_s, what, _, replica, which = heapq.heappop(self.events)
            if what == ARRIVAL:
                replica = self.choose()
                if replica is not None:  # one that refuses has been given a request, too
                    replica.changed = next(self.numbers)
                if replica is None or len(replica.waiting) >= self.room:
                    self.refused += 1
                else:
                    replica.arrive(now_s, which)
            elif what == FALL:
                self.lost += replica.holds
                replica.outages += 1
                replica.current = replica.alarm = -1
                replica.forget()
            elif what == RISE:
                replica.outages, replica.changed = replica.outages - 1, next(self.numbers)
            elif what == DONE and which == replica.current:
                for request in replica.running:
                    found[request] = now_s - arrivals_s[request]
                replica.told_s = now_s + self.telling_s[len(replica.running)]
                replica.running, replica.changed = [], next(self.numbers)
                replica.free(now_s)
            elif what == TIMER and which == replica.alarm:
                replica.turn(now_s)
        return found
