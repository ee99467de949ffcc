"""What the servers' metrics prove about a limit or a doubt: a queue that grows, a full cache, a count that differs.

Sentences without capital and full stop, as reasons are. Owns the thresholds; who quotes them is the capacity and the
risks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tailrate.analysis.server_metrics.tracks import MetricTrack
from tailrate.analysis.stats.trend import mann_kendall, segments
from tailrate.analysis.text.words import count, significant

FULL = 0.95
"""Share of a cache in use from which on requests wait for room in it."""
MOST_WAITING = 1.0
"""Requests in the mean that may wait at a server which is not the limit; …"""
GREW = 2.0
"""… and times as many as at the rate that kept the objective."""
SURE = 0.01
LEAST_LOOKS = 10
"""Within a window, for a trend to be told from chance."""
LEAST_RISE = 3.0
"""Requests by which a queue must have grown to be spoken of."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of an endpoint's requests here, to hold the server's count against."""

    ok: int
    unsure: int
    """Sent and no success here: the server may have counted them all the same."""
    first_ns: int
    last_ns: int


def level(track: MetricTrack, span: Span) -> float | None:
    """How much of it there was in the mean."""
    if track.is_gauge:
        values = track.inside(*span)
        return float(values.mean()) if len(values) else None
    return track.quotient(*span)


def limits(
    tracks: Sequence[MetricTrack], endpoint: str, low: tuple[str, Span] | None, high: tuple[str, Span]
) -> list[str]:
    """What gave way at the server between the load that kept the objective and the one that missed it."""
    found = []
    for track in tracks:
        if not track.is_of(endpoint) or (after := level(track, high[1])) is None:
            continue
        if track.role == "cache" and after >= FULL:
            found.append(f"a full KV cache ({100 * after:.0f} % in use by {track.name})")
        elif track.role == "queue" and after > MOST_WAITING:
            before = level(track, low[1]) if low else None
            if before is None:
                found.append(f"a queue at the server ({significant(after, 2)} by {track.name} at {high[0]})")
            elif after > GREW * before:
                grew = f"{significant(before, 2)} at {low[0] if low else ''}, {significant(after, 2)} at {high[0]}"
                found.append(f"a queue at the server ({grew} by {track.name})")
    return found


def grows(track: MetricTrack, span: Span) -> tuple[float, float] | None:
    """A queue's length in the first and the last tenth of a window in which it rose; None where it did not."""
    if track.role != "queue" or not track.is_gauge or len(values := track.inside(*span)) < LEAST_LOOKS:
        return None
    means = segments(values, LEAST_LOOKS)
    _, p_value = mann_kendall(means)
    rose = float(means[-1] - means[0])
    return (float(means[0]), float(means[-1])) if p_value < SURE and rose > max(LEAST_RISE, means[0]) else None


def fullest(track: MetricTrack, span: Span) -> float | None:
    """The share of a cache in use in the mean, where it was full."""
    share = level(track, span) if track.role == "cache" else None
    return share if share is not None and share >= FULL else None


def counters(tracks: Sequence[MetricTrack]) -> dict[tuple[str, str], list[MetricTrack]]:
    """Tracks of requests by name and endpoint: pages of one endpoint, its replicas, add up."""
    found: dict[tuple[str, str], list[MetricTrack]] = defaultdict(list)
    for track in tracks:
        if track.role == "requests" and not track.is_quotient:
            found[track.name, track.endpoint].append(track)
    return dict(found)


def counts_apart(tracks: Sequence[MetricTrack], answered: Mapping[str, Answered]) -> Iterator[tuple[str, float]]:
    """Where the servers' own counts of requests differ from ours over the whole run, and by how much.

    Only where a look before the first request and one behind the last answer bound the run, and no counter began anew.
    A request that was no success here may have been one to the server.
    """
    for (name, endpoint), pages in counters(tracks).items():
        ours = [one for which, one in answered.items() if endpoint in ("", which)]
        if not ours or any(track.resets for track in pages):
            continue
        first, last = min(one.first_ns for one in ours), max(one.last_ns for one in ours)
        if any(track.time_ns[0] > first or track.time_ns[-1] < last for track in pages):
            continue
        theirs = round(sum(float(track.values[-1] - track.values[0]) for track in pages))
        least = sum(one.ok for one in ours)
        most = least + sum(one.unsure for one in ours)
        if not least <= theirs <= most:
            more = theirs - (most if theirs > most else least)
            whose = f" of {endpoint}" if endpoint else ""
            why = "somebody else uses it, too" if more > 0 else "answers came from elsewhere, or it counts late"
            said = f"the server counted {count(theirs)} requests{whose} ({name}), and {count(least)} were answered here"
            yield f"{said}: {why}", more


def step_apart(pages: Sequence[MetricTrack], span: Span, answered: int, unsure: int) -> tuple[float, float] | None:
    """(the server's count, by how much it is unsure) where it differs from ours by more than the window's ends allow.

    Between two looks a count may have risen at any instant: each end is as unsure as the largest jump.
    """
    told = [track.increase(*span) for track in pages]
    known = [increase for increase in told if increase is not None]
    if len(known) < len(pages):
        return None
    theirs, slack = sum(known), 1 + 2 * sum(track.largest_jump(*span) for track in pages)
    return (theirs, slack) if not answered - slack <= theirs <= answered + unsure + slack else None
