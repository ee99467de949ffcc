"""A tokenizer from a file, for prompts of just so many tokens, and for answers whose tokens no server counts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrate.loadtest.engine.scenario.scenario import ScenarioError

FILE = "tokenizer.json"


class Tokenizer:
    """`path`: the file, or the folder of a model that holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path / FILE if path.is_dir() else path
        try:
            from tokenizers import Tokenizer as Read
        except ImportError:
            raise ScenarioError("--tokenizer takes the package of that name: pip install tokenizers") from None
        try:
            held = self.path.read_bytes()
            self._read: Any = Read.from_buffer(held)
        except Exception as problem:  # it raises what Rust said
            raise ScenarioError(f"--tokenizer {path}: {str(problem).splitlines()[0]}") from None
        self._digest = hashlib.blake2b(held, digest_size=6).hexdigest()

    def __repr__(self) -> str:
        """Its contents: load processes that read the same have it in common."""
        return f"Tokenizer({self._digest})"

    def columns(self, texts: Sequence[str]) -> dict[str, int]:
        """Of an answer's row: of all of its text, and of its first piece."""
        return {"text_tokens": self._count("".join(texts)), "first_tokens": self._count(texts[0])}

    def _count(self, text: str) -> int:
        return len(self._read.encode(text, add_special_tokens=False))

    def cut(self, text: str, tokens: int) -> str:
        """The beginning that has so many."""
        found = self._read.encode(text, add_special_tokens=False)
        return text[: found.offsets[tokens - 1][1]] if len(found) > tokens else text
