"""What a language model's replica has run: steps, by how many answers each wrote, and prompts, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tailrate.serve.telemetry.prometheus_text import Labels, Sample, family

KEY = "tokens"
"""Under which a replica's counts hold these."""


class TokenCounts:
    """The engine's thread writes, any may read."""

    def __init__(self) -> None:
        self._steps: dict[int, list[int]] = {}
        self._prompts = [0, 0, 0, 0]

    def wrote(self, answers: int, ns: int) -> None:
        """One step: a token more for each of so many answers."""
        found = self._steps.setdefault(answers, [0, 0])
        found[0] += 1
        found[1] += ns

    def read(self, tokens: int, ns: int, last: bool) -> None:
        """A piece of a prompt; the last one brings a token."""
        for place, more in enumerate((1, tokens, ns, last)):
            self._prompts[place] += more

    def snapshot(self) -> dict[str, Any]:
        steps = {
            str(answers): dict(zip(("count", "ns"), found, strict=True)) for answers, found in [*self._steps.items()]
        }
        return {
            KEY: {"steps": steps, "prompts": dict(zip(("count", "tokens", "ns", "whole"), self._prompts, strict=True))}
        }


def families(found: Iterable[tuple[Labels, Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    """Of replicas (labels, report, counts), those that write text."""
    ours = [(own, report, counts[KEY]) for own, report, counts in found if KEY in counts]
    if not ours:
        return []

    def of(name: str, kind: str, what: str, value: Any) -> list[str]:
        samples: list[Sample] = [("", own, value(report, counts)) for own, report, counts in ours]
        return family(name, kind, what, samples)

    def summed(counts: Mapping[str, Any], weigh: Any) -> float:
        return float(sum(weigh(int(answers), step) for answers, step in counts["steps"].items()))

    return [
        *of("slots", "gauge", "Answers that can be written at once.", lambda report, _: report["slots"]),
        *of("slots_used", "gauge", "Answers that are being written.", lambda report, _: report["slots_used"]),
        *of("tokens_written_total", "counter", "Tokens of answers.",
            lambda _, counts: counts["prompts"]["whole"] + summed(counts, lambda rows, step: rows * step["count"])),
        *of("steps_total", "counter", "Steps that wrote a token more for every answer.",
            lambda _, counts: summed(counts, lambda _, step: step["count"])),
        *of("step_seconds_total", "counter", "Time of these steps.",
            lambda _, counts: summed(counts, lambda _, step: step["ns"]) / 1e9),
        *of("prompt_tokens_total", "counter", "Tokens of prompts read.", lambda _, counts: counts["prompts"]["tokens"]),
        *of("prompt_seconds_total", "counter", "Time in which prompts were read.",
            lambda _, counts: counts["prompts"]["ns"] / 1e9),
    ]  # fmt: skip
