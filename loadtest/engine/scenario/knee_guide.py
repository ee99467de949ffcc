"""Where a knee search goes when a model of the endpoint guides it: two short probes to make the model, three near the
knee that it says, and the answer is the model's, corrected by what those three showed.

A model is fitted and asked by the analysis, of which the load side knows nothing but its answer: a program of its own
reads the run folder, as far as it is written, and prints a line (`planning.knee_guess`). Where it has no model, is off
by more than a plan may be, or where the probes speak against its answer, the ordinary search goes on from all that
was seen, with a sentence that says why. Pure but for `ask_about`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailrate.analysis.judging.knee_guess import KneeGuess
from tailrate.loadtest.engine import child_python

RISE = 2.0
"""Rates rise by so much at most, as a model says little of loads far above those it was fitted to."""
NEAR = (1.0, 0.955, 1.045)
"""Shares of the model's knee that are probed, in turn."""
PROBES = 7
"""Near the knee, before it is given up."""
MOST_ERROR = 0.05
"""Of the rate: a model that was further off is not to be believed."""
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Advice:
    """The next probe, whether it takes the whole time or that of a probe of the rise; or else the interval."""

    rate: float = 0.0
    whole: bool = True
    interval: tuple[float, float] | None = None


class Guide:
    """Of one search; `sentence` says in the end how the answer was come by."""

    def __init__(self, ask: Callable[[], KneeGuess], width: float) -> None:
        self.sentence: str | None = None
        self._ask = ask
        self._width = width
        """Of the interval, at most: upper end ÷ lower end − 1."""
        self._tried = 0
        """Probes near the knee."""

    def advise(self, rates: Sequence[float], most_rps: float) -> Advice | None:
        """After probes at these rates; None: the ordinary search is to go on."""
        guess = self._ask()
        knee, error = guess.knee_rps, guess.error
        if why := self._unfit(guess, most_rps):
            self.sentence = f"by trying, since the model did not fit: {why}"
        if why or not knee:
            return None
        narrow = guess.low_rps and guess.high_rps and guess.high_rps / guess.low_rps - 1 <= self._width
        if narrow and guess.near >= len(NEAR):
            off = "" if error is None else f", by {100 * error:+.1f} %"
            self.sentence = f"by a model that {guess.near} probes near the knee corrected{off}"
            return Advice(interval=(guess.low_rps or 0.0, guess.high_rps or 0.0))
        reach = RISE * max(rates)
        if not self._tried and (knee > reach or len(rates) < 2):
            return Advice(min(0.9 * knee, reach), whole=False)
        share = NEAR[self._tried % len(NEAR)]
        self._tried += 1
        return Advice(share * knee)

    def _unfit(self, guess: KneeGuess, most_rps: float) -> str | None:
        if guess.reason or not guess.knee_rps:
            return guess.reason or "it names no rate"
        if guess.error is not None and abs(guess.error) > MOST_ERROR and guess.near >= len(NEAR):
            return f"it was off by {100 * abs(guess.error):.1f} % of the rate"
        if max(NEAR) * guess.knee_rps > most_rps:
            return f"its knee, {guess.knee_rps:.4g}/s, is too near to the highest rate to be tried, or above it"
        return f"after {PROBES} probes near the knee it was not sure enough" if self._tried >= PROBES else None

    def contradicted(self, rate: float, kept: bool) -> None:
        """The probes say otherwise than its interval."""
        did = "kept" if kept else "missed"
        self.sentence = f"by trying, since the objective was {did} at {rate:.4g}/s, where the model said otherwise"


def ask_about(folder: Path, endpoint: str, slo: str) -> KneeGuess:
    """In a process of its own, while nothing is sent: pandas and numba have no place in a load process."""
    from gevent import subprocess  # only here: the command line reads the modes' options, and has no use for gevent

    words = (str(folder), "--endpoint", endpoint, "--slo", slo)
    try:
        done = subprocess.run(
            child_python.command("tailrate.analysis.planning.knee_guess", *words),
            env=child_python.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        return KneeGuess.from_line(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, TypeError, IndexError) as problem:
        return KneeGuess(reason=f"it could not be asked ({type(problem).__name__})")
