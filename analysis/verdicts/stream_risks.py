"""Risks of endpoints that answer token by token: (kind, severity, sentence, figure) of each, as `risks` takes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrate.analysis.judging.share import percent
from tailrate.analysis.text.words import duration, significant

if TYPE_CHECKING:
    from tailrate.analysis.counting.counts import Key
    from tailrate.analysis.counting.stream_tally import StreamTally
    from tailrate.analysis.verdicts.run import Run

Found = tuple[str, str, str, float | None]

MUCH_CACHED = 0.1
"""Of the prompts' tokens, from which on a cache of prefixes has done work that a fresh prompt would have cost."""
BUNDLED = 1.5
"""Tokens in an event, from which on gaps between events are not those between tokens."""
UNFORCED = "no"
UNSAID = (
    ("uncounted", "tokens_uncounted", "doubt", "each event counts as one"),
    ("counted_here", "tokens_counted_here", "limit", "they were counted here, by the run's own tokenizer"),
)
"""What a tally counts of answers without a number of tokens, and what is said of it."""
SHORT = 0.1
"""Of a window, in which what is not so yet makes no difference."""


def stream_risks(run: Run) -> Iterator[Found]:
    tallies = {key: found.tally for key, found in run.streams.items()}
    for look in (_cached, _uncounted, _bundled, _not_filled):
        yield from look(tallies)
    yield from _unforced(run)


def _cached(tallies: dict[Key, StreamTally]) -> Iterator[Found]:
    shares = {key: tally.cached_tokens / tally.prompt_tokens for key, tally in tallies.items() if tally.prompt_tokens}
    if shares and (most := max(shares.values())) >= MUCH_CACHED:
        (_, endpoint) = max(shares, key=lambda key: shares[key])
        yield (
            "prefix_cache", "doubt",
            f"{endpoint} had read {percent(most)} of the prompts' tokens before: its cache of prefixes did that work, "
            "which prompts of their own would have cost", most,
        )  # fmt: skip


def _uncounted(tallies: dict[Key, StreamTally]) -> Iterator[Found]:
    for endpoint in sorted({endpoint for _, endpoint in tallies}):
        mine = [tally for (_, name), tally in tallies.items() if name == endpoint]
        ok = sum(tally.ok for tally in mine)
        for name, kind, severity, instead in UNSAID:
            if some := sum(getattr(tally, name) for tally in mine):
                unsaid = f"{endpoint} did not say how many tokens {percent(some / ok)} of its answers have"
                yield kind, severity, f"{unsaid}: {instead}", some / ok


def _bundled(tallies: dict[Key, StreamTally]) -> Iterator[Found]:
    for endpoint in sorted({endpoint for _, endpoint in tallies}):
        mine = [tally for (_, name), tally in tallies.items() if name == endpoint]
        tokens, events = (sum(getattr(tally, name) for tally in mine) for name in ("tokens_out", "events"))
        if events and tokens / events >= BUNDLED:
            yield (
                "tokens_bundled", "limit",
                f"{endpoint} sends {significant(tokens / events)} tokens in an event: a gap is between events, "
                "not between tokens", tokens / events,
            )  # fmt: skip


def _unforced(run: Run) -> Iterator[Found]:
    """Answers that end when a model likes are other work for each variant."""
    for entry in run.manifest.endpoints:
        if (entry.get("settings") or {}).get("force") == UNFORCED:
            yield (
                "length_unforced", "doubt",
                f"{entry['name']} was not made to answer at full length, so that answers may be shorter at one "
                "variant than at another", None,
            )  # fmt: skip


def _not_filled(tallies: dict[Key, StreamTally]) -> Iterator[Found]:
    """A step whose window begins before as much is under way as its rate makes."""
    short: dict[str, float] = {}
    for (_, endpoint), tally in tallies.items():
        settle_s = (tally.grid.start_ns - tally.grid.begin_ns) / 1e9
        if tally.filled_s > max(settle_s, SHORT * tally.grid.seconds):
            short[endpoint] = max(tally.filled_s, short.get(endpoint, 0.0))
    for endpoint, filled_s in short.items():
        yield (
            "not_filled", "doubt",
            f"answers of {endpoint} stream for up to {duration(filled_s)}, and its steps are measured before as "
            "many are under way as their rate makes: "
            f"--settle-seconds {math.ceil(filled_s)} would wait for that", filled_s,
        )  # fmt: skip
