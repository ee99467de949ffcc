"""Risks that the servers' own metrics show: (kind, severity, sentence, figure) of each, as `risks` takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrate.analysis.server_metrics.evidence import (
    Answered,
    counters,
    counts_apart,
    fullest,
    grows,
    level,
    step_apart,
)
from tailrate.analysis.server_metrics.tracks import seen_share
from tailrate.analysis.text import words

if TYPE_CHECKING:
    from tailrate.analysis.server_metrics.tracks import MetricTrack
    from tailrate.analysis.steps.measure import MeasuredStep
    from tailrate.analysis.verdicts.run import Run

Found = tuple[str, str, str, float | None]

MOST_UNSEEN = 0.1
"""Share of the looks that may find no page without its being said."""
ONE_ROW = 1.5
"""Rows of a batch over those of a request, below which hardly anything was batched."""


def metric_risks(run: Run) -> Iterator[Found]:
    if not run.metric_tracks:
        return
    for look in (_counts, _begun_anew, _queues, _caches, _batches, _unseen):
        yield from look(run)


def _counts(run: Run) -> Iterator[Found]:
    found = list(counts_apart(run.metric_tracks, _answered(run)))
    for sentence, more in found[:1]:
        yield "server_count", "doubt", sentence + _more(len(found)), more
    if not found:
        yield from _step_counts(run)


def _answered(run: Run) -> dict[str, Answered]:
    tallies = run.tallies
    if tallies.first_ns is None or tallies.last_ns is None:
        return {}
    found: dict[str, Answered] = {}
    for (_, endpoint), tally in tallies.groups.items():
        had = found.get(endpoint) or Answered(0, 0, tallies.first_ns, tallies.last_ns)
        sent = sum(tally.statuses.values()) - tally.statuses["dropped"]
        ok, unsure = had.ok + tally.succeeded, had.unsure + sent - tally.succeeded
        found[endpoint] = Answered(ok, unsure, had.first_ns, had.last_ns)
    return found


def _step_counts(run: Run) -> Iterator[Found]:
    found = []
    for step in run.measured:
        alone = not any(_meet(step, other) for other in run.measured if other is not step)
        statuses, span = step.tally.statuses, (step.start_ns, step.end_ns)
        unsure = sum(statuses.values()) - statuses["dropped"] - step.tally.succeeded
        done = round((step.summary.achieved_rps or 0.0) * (step.end_ns - step.start_ns) / 1e9)
        for (name, endpoint), pages in counters(run.metric_tracks).items():
            mine = endpoint == step.summary.endpoint or (not endpoint and alone)
            if mine and (apart := step_apart(pages, span, done, unsure)):
                found.append((step, name, done, *apart))
    if found:
        step, name, done, theirs, slack = max(found, key=lambda one: abs(one[3] - one[2]))
        ours = f"{words.count(done)} were answered here (its looks leave {words.count(round(slack))} open)"
        said = f"{_where(step)} the server counted {words.count(round(theirs))} requests ({name}), and {ours}"
        yield "server_count", "doubt", said + _more(len(found)), theirs - done


def _meet(one: MeasuredStep, other: MeasuredStep) -> bool:
    return one.start_ns < other.end_ns and other.start_ns < one.end_ns


def _begun_anew(run: Run) -> Iterator[Found]:
    found = [track for track in run.metric_tracks if track.resets]
    if found:
        track = max(found, key=lambda track: track.resets)
        said = f"counters of {track.source} began anew during the run ({track.name}): a server was started again"
        yield "counter_reset", "doubt", said, track.resets


def _queues(run: Run) -> Iterator[Found]:
    found = [(step, track, grew) for step, track in _pairs(run) if (grew := grows(track, (step.start_ns, step.end_ns)))]
    if found:
        step, track, (first, last) = max(found, key=lambda one: one[2][1] - one[2][0])
        ends = f"from {words.significant(first, 2)} to {words.significant(last, 2)} requests"
        said = f"{_where(step)} the queue at the server grew {ends} ({track.name})"
        yield "server_queue", "doubt", said + _more(len(found)), last


def _caches(run: Run) -> Iterator[Found]:
    found = [
        (step, track, share)
        for step, track in _pairs(run)
        if (share := fullest(track, (step.start_ns, step.end_ns))) is not None
    ]
    if found:
        step, track, share = max(found, key=lambda one: one[2])
        said = f"{_where(step)} the server's KV cache was full ({100 * share:.0f} % in use by {track.name})"
        yield "cache_full", "doubt", f"{said}: requests waited for room in it{_more(len(found))}", 100 * share


def _batches(run: Run) -> Iterator[Found]:
    """Where answers don't say in what batch they were."""
    if any(step.summary.batch_rows_mean is not None for step in run.measured):
        return
    rows = run.manifest.scenario.get("rows")
    each = rows if isinstance(rows, int) and rows > 0 else 1
    found = [
        mean
        for step, track in _pairs(run)
        if track.role == "batch" and (mean := level(track, (step.start_ns, step.end_ns))) is not None
    ]
    if found and max(found) < ONE_ROW * each:
        most = words.significant(max(found), 2)
        said = f"by the server's own count batches held {most} at most: what batching brings is not in these figures"
        yield "no_batching", "limit", said, max(found)


def _unseen(run: Run) -> Iterator[Found]:
    missed = {
        name: (seen, looks) for name, (seen, looks) in seen_share(run).items() if seen < (1 - MOST_UNSEEN) * looks
    }
    if missed:
        name, (seen, looks) = min(missed.items(), key=lambda item: item[1][0] / item[1][1])
        said = f"the metrics of {name} were there at {words.count(seen)} of {words.count(looks)} looks only"
        yield "metrics_unseen", "doubt", said + _more(len(missed)), seen / looks


def _pairs(run: Run) -> Iterator[tuple[MeasuredStep, MetricTrack]]:
    for step in run.measured:
        for track in run.metric_tracks:
            if track.is_of(step.summary.endpoint):
                yield step, track


def _where(step: MeasuredStep) -> str:
    return f"{step.summary.endpoint} at {step.asked}:"


def _more(found: int) -> str:
    return f" (and {found - 1} more)" if found > 1 else ""
