"""How long the prompts and answers of a recorded trace were, request by request, and what their prompts shared.

Knows the traces that are published: Mooncake's JSONL (with the hashes of the prompts' blocks), Azure's and BurstGPT's
CSV (counts alone), ShareGPT's JSON (the texts themselves). Rows are taken in the order of the file.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrate.analysis.text.words import count
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.workers.input.lengths import MOST

PROMPT = ("input_length", "ContextTokens", "Request tokens", "prompt_tokens")
ANSWER = ("output_length", "GeneratedTokens", "Response tokens", "output_tokens")
BLOCKS = "hash_ids"
BLOCK = 512
"""Tokens of one of Mooncake's."""
MOST_ROWS = 2_000_000


@dataclass(frozen=True)
class Recorded:
    """One request."""

    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Equal ones hold the same part of a prompt."""
    text: str = ""
    """The prompt itself, where the trace has it."""


@dataclass(frozen=True)
class RequestTrace:
    path: Path
    requests: Sequence[Recorded]

    @classmethod
    def read(cls, path: Path) -> RequestTrace:
        """`ScenarioError` for what cannot be read."""
        try:
            found = list(_read(path))
        except OSError as problem:
            raise _wrong(path, f"it cannot be read: {problem.strerror or problem}") from None
        except UnicodeDecodeError:
            raise _wrong(path, "it is no UTF-8 text") from None
        except (csv.Error, json.JSONDecodeError, RecursionError) as problem:
            raise _wrong(path, f"it cannot be read: {problem}") from None
        if not 0 < len(found) <= MOST_ROWS:
            raise _wrong(path, f"it holds {count(len(found))} requests; from 1 to {count(MOST_ROWS)} can be taken")
        return cls(path, found)

    def __str__(self) -> str:
        return f"{self.path.name}, {count(len(self.requests))} requests"


def _wrong(path: Path, why: str) -> ScenarioError:
    return ScenarioError(f"--lengths {path}: {why}")


def _read(path: Path) -> Iterator[Recorded]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        match path.suffix:
            case ".jsonl":
                rows: Iterator[Any] = (json.loads(line) for line in file if line.strip())
                yield from (_counted(path, number, row) for number, row in enumerate(rows, start=1))
            case ".csv":
                yield from (_counted(path, number, row) for number, row in enumerate(csv.DictReader(file), start=1))
            case ".json":
                yield from _conversations(path, json.load(file))
            case _:
                raise _wrong(path, "it is none of .jsonl (Mooncake), .csv (Azure, BurstGPT) or .json (ShareGPT)")


def _counted(path: Path, number: int, row: Any) -> Recorded:
    if not isinstance(row, dict):
        raise _wrong(path, f"row {number} is no object")
    prompt, answer = (_length(path, number, row, names) for names in (PROMPT, ANSWER))
    blocks = row.get(BLOCKS) or ()
    if not all(isinstance(block, int) for block in blocks):
        raise _wrong(path, f"row {number} has {BLOCKS} that are no whole numbers")
    return Recorded(prompt, answer, tuple(blocks))


def _length(path: Path, number: int, row: Mapping[str, Any], names: Sequence[str]) -> int:
    name = next((one for one in names if one in row), None)
    if name is None:
        raise _wrong(path, f"row {number} has none of {', '.join(names)}")
    try:
        found = int(row[name])
    except (TypeError, ValueError):
        found = -1
    if not 0 <= found <= MOST:
        raise _wrong(path, f"row {number} has {row[name]!r} as {name}, where a number of tokens is wanted")
    return max(1, found)


def _conversations(path: Path, found: Any) -> Iterator[Recorded]:
    """The first turn of each and its answer; a conversation that has none of these is passed over, as others do."""
    if not isinstance(found, list):
        raise _wrong(path, "it holds no list of conversations")
    for one in found:
        turns = one.get("conversations") if isinstance(one, dict) else None
        said = [turn for turn in turns or () if isinstance(turn, dict) and isinstance(turn.get("value"), str)]
        if len(said) >= 2 and said[0].get("from") in ("human", "user"):
            prompt, answer = said[0]["value"], said[1]["value"]
            if prompt.strip() and answer.strip():
                yield Recorded(len(prompt.split()), len(answer.split()), text=prompt)
