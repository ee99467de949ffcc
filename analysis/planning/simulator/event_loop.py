"""The loop over the requests of a simulated fleet, compiled: who gets each, and when its batch is done.

There is no list of events to come. What a replica does depends on what was routed to it alone, so it is carried forward
only when the router looks at it; leastconn looks at all of them, so there the next event is kept in a tree of minima.
Waiting requests are linked through one array, so no queue has a size. A latency is known when its batch starts.
Who is up, and what happens when that changes, is decided in `simulate` between two calls.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tailrate.analysis.stats.compiled import compiled

OPPORTUNISTIC, COMPANY, BLOCKING, AWAITING = range(4)
TWO_CHOICES, LEAST, ROUND_ROBIN, RANDOM, ONE_QUEUE = range(5)
REFUSED, TURN, STAMP = range(3)
FOREVER_S = float(np.finfo(np.float64).max)
"""Later than any event, but not than what never happens, which is inf."""
STAMP_BITS = 36
DOWN = 1 << 62
"""More than any load."""

REPLICA = np.dtype(
    [
        ("next_s", "f8"),  # when it changes by itself: a batch is done or closes
        ("done_s", "f8"),
        ("close_s", "f8"),  # until when the batch that is being made waits for more
        ("head", "i4"),  # the oldest that waits
        ("tail", "i4"),
        ("waiting", "i4"),
        ("running", "i4"),
        ("first", "i4"),  # the oldest that runs
        ("open", "i4"),  # AWAITING: in the batch that is being made; BLOCKING: left over when the batch that runs began
        ("opened", "i4"),  # AWAITING: the oldest in the batch that is being made
        ("closed", "i4"),  # AWAITING: batches that wait until the replica is free
        ("told_s", "f8"),  # when the answers of the last batch have been handed out
    ],
    align=True,
)
"""64 bytes: a replica that is looked at costs one line of the cache."""


class SimState(NamedTuple):
    """All that the loop reads and writes; fixed while it runs are the fields without a comment."""

    arrivals_s: Any
    mean_s: Any
    after_s: Any
    waking: Any
    telling_s: Any
    wake_s: Any
    spread: Any
    spread_class: Any
    rule: Any
    routing: Any
    max_batch: Any
    wait_s: Any
    queue: Any
    seed: Any
    latency_s: Any  # written, but where a request is not answered
    link: Any  # written: the request behind each in its queue
    size: Any  # written, AWAITING: of a closed batch, at its oldest request
    replicas: Any  # written
    batches: Any  # written: how many of each size
    busy_s: Any  # written: the sum, and when the last batch is done
    counts: Any  # written: REFUSED, TURN, STAMP
    stream: Any  # written: random numbers for the router
    events: Any  # written, LEAST: `next_s` of all replicas as a tree of minima
    loads: Any  # written, LEAST: requests in each and since when, the same


# ---- random numbers


@compiled
def draw(stream: Any) -> Any:
    """The next 32 bits of an sfc32 generator, whose state is four words."""
    a, b, c, counter = stream
    out = np.uint32(a + b + counter)
    stream[0] = b ^ (b >> 9)
    stream[1] = c + (c << 3)
    stream[2] = ((c << 21) | (c >> 11)) + out
    stream[3] = counter + 1
    return out


def seeded(seed: int) -> Any:
    """sfc32's state for a seed below 2³²: (0, seed, 0, 1), and twelve numbers thrown away."""
    stream = np.array([0, seed, 0, 1], dtype=np.uint32)
    for _ in range(12):
        draw(stream)
    return stream


@compiled
def below(stream: Any, count: int) -> Any:
    return np.int64((np.uint64(draw(stream)) * np.uint64(count)) >> np.uint64(32))


@compiled
def mix(seed: int, index: int) -> Any:
    """32 bits for a request, of (index + seed · 0x9E3779B9) by the last step of MurmurHash3."""
    x = np.uint32(np.uint64(index) + np.uint64(seed) * np.uint64(0x9E3779B9))
    x = np.uint32(np.uint64(x ^ (x >> 16)) * np.uint64(0x85EBCA6B))
    x = np.uint32(np.uint64(x ^ (x >> 13)) * np.uint64(0xC2B2AE35))
    return np.int64(np.uint32(x ^ (x >> 16)))


@compiled
def add_overhead(latency_s: Any, grid: Any, answer_s: float, stream: Any) -> None:
    mask = grid.shape[0] - 1
    for i in range(latency_s.shape[0]):
        latency_s[i] += grid[np.int64(draw(stream)) & mask] + answer_s


# ---- trees of minima: leaf r of k is at [k + r], the minimum of all at [1]


@compiled
def _put(tree: Any, leaf: int, value: Any) -> None:
    at = (tree.shape[0] >> 1) + leaf
    tree[at] = value
    at >>= 1
    while at:
        lower = min(tree[2 * at], tree[2 * at + 1])
        if tree[at] == lower:
            break
        tree[at] = lower
        at >>= 1


@compiled
def _lowest(tree: Any) -> Any:
    """The first leaf that holds the minimum."""
    leaves, at = tree.shape[0] >> 1, 1
    while at < leaves:
        at = 2 * at + (tree[2 * at] != tree[at])
    return at - leaves


@compiled
def weigh(w: SimState, r: int, up: bool) -> None:
    """Leastconn's key: requests in the replica, then who has had so many for longest."""
    w.counts[STAMP] += 1
    x = w.replicas[r]
    load = np.int64(x.waiting + x.running) << STAMP_BITS if up else np.int64(DOWN)
    _put(w.loads, r, load | w.counts[STAMP])


# ---- one replica


@compiled
def _beside_s(w: SimState, idle_s: float, size: int) -> Any:
    """What a batch takes beside its usual time: its replica has to wake, or answers are still being handed out."""
    from_s, full_s, extra_s = w.waking
    beside_s = max(0.0, -idle_s) - w.telling_s[size]
    if max(0.0, idle_s) >= full_s:
        return beside_s + extra_s
    return beside_s + extra_s * max(0.0, (idle_s - from_s) / (full_s - from_s))


@compiled
def _start(w: SimState, r: int, now_s: float, size: int) -> None:
    """The oldest of those that wait run."""
    x = w.replicas[r]
    of = w.spread_class[size]
    busy_s = w.mean_s[size] * w.spread[of, mix(w.seed, x.head) & (w.spread.shape[1] - 1)]
    busy_s = max(0.0, busy_s + _beside_s(w, now_s - x.told_s, size))
    done_s = now_s + busy_s
    i = x.first = x.head
    for _ in range(size):
        w.latency_s[i] = done_s + w.after_s[size] - w.arrivals_s[i]
        i = w.link[i]
    x.head = i
    x.waiting -= size
    x.running = size
    x.done_s, x.close_s = done_s, math.inf
    w.batches[size] += 1
    w.busy_s[0] += busy_s
    w.busy_s[1] = max(w.busy_s[1], done_s)


@compiled
def _blocking(w: SimState, r: int, now_s: float) -> None:
    """A free replica whose event loop stood still while a batch ran.

    What that batch left over was in the batcher's hand before, `open` of them, and closes alone if W has passed since;
    what arrived meanwhile is handed in only then. Without leftovers the batcher finds all that has arrived.
    """
    x, most = w.replicas[r], w.max_batch
    early = x.open > 0 and (x.open >= most or now_s >= x.close_s)
    ready = x.open if early else x.waiting
    if early or ready >= most or now_s >= x.close_s or w.wait_s == 0:
        _start(w, r, now_s, min(ready, most))
        x.open = x.waiting if ready > most else 0
        if x.waiting:
            x.close_s = now_s + w.wait_s
    else:
        x.open = 0
        if x.close_s == math.inf:
            x.close_s = now_s + w.wait_s


@compiled
def _awaiting(w: SimState, r: int, now_s: float) -> None:
    """Batches close whether it is free or not, and then wait in their turn."""
    x = w.replicas[r]
    if x.open and (x.open >= w.max_batch or now_s >= x.close_s):
        w.size[x.opened] = x.open
        x.open = 0
        x.closed += 1
        x.close_s = math.inf
    if x.closed and not x.running:
        close_s = x.close_s
        _start(w, r, now_s, w.size[x.head])
        x.closed -= 1
        x.close_s = close_s


@compiled
def _decide(w: SimState, r: int, now_s: float) -> None:
    """Something has changed: is a batch to be closed, or to be started?"""
    x = w.replicas[r]
    if w.rule == AWAITING:
        _awaiting(w, r, now_s)
        x.next_s = min(x.done_s, x.close_s)
    else:
        if x.waiting:
            if w.rule == BLOCKING:
                _blocking(w, r, now_s)
            else:
                enough = w.max_batch if w.rule == OPPORTUNISTIC else min(2, w.max_batch)
                if x.waiting >= enough or now_s >= x.close_s or w.wait_s == 0:
                    _start(w, r, now_s, min(x.waiting, w.max_batch))
                elif x.close_s == math.inf:
                    x.close_s = now_s + w.wait_s
        x.next_s = x.done_s if x.running else x.close_s


@compiled
def _advance(w: SimState, r: int, until_s: float) -> None:
    x = w.replicas[r]
    while x.next_s <= until_s:
        now_s = x.next_s
        if now_s == x.done_s:
            x.told_s = now_s + w.telling_s[x.running]
            x.running = 0
            x.done_s = math.inf
        _decide(w, r, now_s)


@compiled
def _join(w: SimState, r: int, i: int, now_s: float) -> None:
    x = w.replicas[r]
    if w.queue and x.waiting >= w.queue:
        w.counts[REFUSED] += 1
        return
    if x.waiting:
        w.link[x.tail] = i
    else:
        x.head = i
    x.tail = i
    x.waiting += 1
    if w.rule == AWAITING:
        if x.open == 0:
            x.opened = i
            x.close_s = now_s + w.wait_s
        x.open += 1
        _decide(w, r, now_s)
    elif not x.running:
        if w.wake_s and x.waiting < w.max_batch:
            x.close_s = x.next_s = min(x.close_s, now_s + w.wake_s)
        else:
            _decide(w, r, now_s)


# ---- the fleet


@compiled
def route(w: SimState, up: Any, start: int, end: int) -> None:
    """Gives the arrivals of [start, end) to the replicas that are up."""
    count = up.shape[0]
    for i in range(start, end):
        now_s = w.arrivals_s[i]
        if count == 0:
            w.counts[REFUSED] += 1
            continue
        if w.routing == LEAST:
            settle_due(w, now_s)
            r = _lowest(w.loads)
            _join(w, r, i, now_s)
            _put(w.events, r, w.replicas[r].next_s)
            weigh(w, r, True)
            continue
        at = 0
        if w.routing == ROUND_ROBIN:
            at = w.counts[TURN] if w.counts[TURN] < count else 0
            w.counts[TURN] = at + 1
        elif count > 1:
            at = below(w.stream, count)
        r = up[at]
        _advance(w, r, now_s)
        if w.routing == TWO_CHOICES and count > 1:
            other = below(w.stream, count - 1)
            q = up[other + (other >= at)]
            _advance(w, q, now_s)
            x, y = w.replicas[r], w.replicas[q]
            if y.waiting + y.running < x.waiting + x.running:
                r = q
        _join(w, r, i, now_s)


@compiled
def share(w: SimState) -> None:
    """One queue: whoever has been free for longest, or is free first, takes the oldest. `events`: when each is free."""
    n, i = w.arrivals_s.shape[0], 0
    for r in range(w.replicas.shape[0]):
        _put(w.events, r, -math.inf)
    while i < n:
        r, free_s = _lowest(w.events), w.events[1]
        ready_s = max(free_s, w.arrivals_s[i])
        close_s, size = ready_s + (w.wake_s if w.arrivals_s[i] > free_s else 0.0) + w.wait_s, 1
        while size < w.max_batch and i + size < n and w.arrivals_s[i + size] <= close_s:
            size += 1
        start_s = max(ready_s, w.arrivals_s[i + size - 1]) if size == w.max_batch else close_s
        of = w.spread_class[size]
        busy_s = w.mean_s[size] * w.spread[of, mix(w.seed, i) & (w.spread.shape[1] - 1)]
        x = w.replicas[r]
        busy_s = max(0.0, busy_s + _beside_s(w, start_s - x.told_s, size))
        x.told_s = start_s + busy_s + w.telling_s[size]
        for j in range(i, i + size):
            w.latency_s[j] = start_s + busy_s + w.after_s[size] - w.arrivals_s[j]
        _put(w.events, r, start_s + busy_s)
        i += size
        w.batches[size] += 1
        w.busy_s[0] += busy_s
        w.busy_s[1] = max(w.busy_s[1], start_s + busy_s)


@compiled
def settle_due(w: SimState, until_s: float) -> None:
    """Carries all replicas forward in the order of their events, for leastconn."""
    while w.events[1] <= until_s:
        r = _lowest(w.events)
        x = w.replicas[r]
        before = x.waiting + x.running
        _advance(w, r, x.next_s)
        _put(w.events, r, x.next_s)
        if x.waiting + x.running != before:
            weigh(w, r, w.loads[(w.loads.shape[0] >> 1) + r] < DOWN)


@compiled
def settle(w: SimState, until_s: float) -> None:
    """Carries all replicas forward."""
    if w.routing == LEAST:
        settle_due(w, until_s)
    else:
        for r in range(w.replicas.shape[0]):
            _advance(w, r, until_s)


@compiled
def fail(w: SimState, r: int, now_s: float) -> Any:
    """A replica that was carried forward to now loses what it holds; how many requests that was."""
    x = w.replicas[r]
    lost = np.int64(x.waiting + x.running)
    for first, count in ((x.first, x.running), (x.head, x.waiting)):
        i = first
        for _ in range(count):
            w.latency_s[i] = math.inf
            i = w.link[i]
    if x.running:
        w.busy_s[0] -= x.done_s - now_s
    x.waiting = x.running = x.open = x.closed = 0
    x.next_s = x.done_s = x.close_s = math.inf
    x.told_s = -math.inf
    if w.routing == LEAST:
        _put(w.events, r, math.inf)
    return lost
