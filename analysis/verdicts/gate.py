"""A gate on what changed from a base run to another: which changes fail it, and what else the runs differ in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tailrate.analysis.records.objective import Threshold
from tailrate.analysis.run.environment import origin
from tailrate.analysis.text.words import ABSENT, significant
from tailrate.analysis.verdicts.changes import METRICS, Change
from tailrate.analysis.verdicts.verdict import EXIT_CODES, FAIL, INCONCLUSIVE, PASS, flaws

if TYPE_CHECKING:
    from tailrate.analysis.verdicts.run import Run

CIRCUMSTANCES = "circumstances"
"""Among gates: whether a run may have run on something else than the base."""
MOST_SHOWN = 6
_EACH_TIME = (
    "setting name",
    "setting seed",
    "version git",
    "setting planned",
    "host server url",
    "host server host",
    "host load host",
)
"""What differs between any two runs, or is what they are compared for."""


@dataclass(frozen=True, slots=True)
class Gate:
    """`p99>5%`: fails where P99 rose by more than five percent; `capacity<-5%` where the capacity fell by more."""

    metric: str
    above: bool
    limit: float

    @classmethod
    def parse(cls, text: str) -> Gate:
        known = Threshold.parse(text)
        if known is None or known.figure not in METRICS or known.unit != "%":
            raise ValueError(f"'{text}' is no gate: write for instance p99>5% or capacity<-5% ({', '.join(METRICS)})")
        gate = cls(known.figure, not known.below, 1 + known.value / 100)
        if gate.limit <= 0 or gate.above != (gate.limit >= 1):
            raise ValueError(f"'{text}' would fail where nothing changed: a rise is written >5%, a fall <-5%")
        return gate

    def __str__(self) -> str:
        return f"{self.metric}{'>' if self.above else '<'}{100 * (self.limit - 1):g}%"

    def judge(self, change: Change) -> tuple[bool | None, str]:
        """True: kept, False: broken, None: this comparison cannot say; and why not kept."""
        where = f"{change.metric} of {change.endpoint} at {change.at}"
        if change.worse:
            return False, f"{where}: {change.note}"
        if change.low is change.high is None:
            return None, f"{where} cannot be compared: {change.note or 'there is no interval'}"
        # a fall is the rise of the inverse
        low, high = change.ends
        near, far, limit = (low, high, self.limit) if self.above else (1 / high, _inverse(low), 1 / self.limit)
        if low and math.isfinite(high):
            between = f"{percent(low)} to {percent(high)}"
        else:
            between = f"{percent(low)} or more" if low else f"{percent(high)} or less"
        if change.ratio is None:  # a bound may decide all the same
            said = f"{where} changed by {between}"
            return (False, said) if near > limit else (True, "") if far <= limit else (None, f"{said}: {change.note}")
        value = change.ratio if self.above else 1 / change.ratio
        said = f"{where} changed by {percent(change.ratio)} ({between})"
        if value > limit and near > 1 and change.beyond_noise:
            return False, said
        if far <= limit or (value <= limit and (change.smallest_visible or math.inf) <= limit - 1):
            return True, ""
        return None, f"{said}, too little known to say whether {self}"


def _inverse(end: float) -> float:
    return 1 / end if end else math.inf


def percent(ratio: float) -> str:
    """`+5.1 %`: what a ratio changes by."""
    by = 100 * (ratio - 1)
    return f"{'+' if by >= 0 else ''}{significant(round(by, 2))} %"


def circumstances(base: Run, new: Run) -> dict[str, tuple[str, str]]:
    """What the two runs ran on and how they were asked, where it differs: by name, what it was and is; – if unknown."""
    old, now = ({" ".join(key): said for key, said in origin(run.manifest).items()} for run in (base, new))
    names = [name for name in dict.fromkeys([*old, *now]) if not name.startswith(_EACH_TIME)]
    return {name: (old.get(name, ABSENT), now.get(name, ABSENT)) for name in names if old.get(name) != now.get(name)}


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What the gates say of all changes."""

    verdict: str
    sentences: tuple[str, ...]
    changes: tuple[Change, ...]
    circumstances: dict[str, dict[str, tuple[str, str]]]
    """By run, those that it does not share with the base."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def as_json(self) -> dict[str, object]:
        rows = [asdict(one) for one in self.changes]
        other = self.circumstances
        return {"verdict": self.verdict, "reasons": list(self.sentences), "circumstances": other, "changes": rows}


def judge(gates: Sequence[Gate], found: Sequence[Change], runs: Sequence[Run], *, alike: bool = False) -> GateVerdict:
    """Fail where a gate is broken; inconclusive where one cannot be judged, or a run proves nothing; else pass.

    `alike`: a run that ran on something else than the base breaks a gate, too; else that is only said.
    """
    flawed = [f"{run.manifest.id}: {flaw}" for run in runs for flaw in flaws(run)]
    answers = [gate.judge(one) for gate in gates for one in found if one.metric == gate.metric or one.worse]
    missing = [sentence for gate in gates for sentence in _missing(gate, found)]
    base, *others = runs
    differ = {run.manifest.id: named for run in others if (named := circumstances(base, run))}
    differing = [_differing(base.manifest.id, run, named) for run, named in differ.items()]
    broken = [*(differing if alike else ()), *(said for kept, said in answers if kept is False)]
    open_ = [said for kept, said in answers if kept is None] + missing
    verdict = INCONCLUSIVE if flawed else FAIL if broken else INCONCLUSIVE if open_ else PASS
    said = [*flawed, *broken, *open_, *differing]
    return GateVerdict(verdict, tuple(dict.fromkeys(said)), tuple(found), differ)


def _differing(base: str, run: str, found: Mapping[str, tuple[str, str]]) -> str:
    shown = [f"{name} {old} → {now}" for name, (old, now) in found.items()]
    more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
    return f"{run} ran in other circumstances than {base}: {', '.join(shown[:MOST_SHOWN])}{more}"


def _missing(gate: Gate, found: Sequence[Change]) -> Iterator[str]:
    """Loads at which there is nothing that the gate could be held against."""
    if not any(one.metric == gate.metric for one in found):
        yield f"no {gate.metric} could be compared"
    elif gate.metric != "capacity":
        loads: dict[tuple[str, str, str], list[Change]] = {}
        for one in found:
            if one.metric != "capacity":
                loads.setdefault((one.run, one.endpoint, one.at), []).append(one)
        for (_, endpoint, at_), rows in loads.items():
            if not any(one.metric == gate.metric or one.worse for one in rows):
                why = next((one.note for one in rows if one.ratio is None and one.note), "there are too few arrivals")
                yield f"{gate.metric} of {endpoint} at {at_} cannot be compared: {why}"
