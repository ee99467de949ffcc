"""A language model's text: a prompt as tokens, and tokens as text as they come, up to where it is to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tailrate.serve.spec import ServeError
from tailrate.serve.wire import bad_input

PLAIN = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
"""The template of a model that brings none of its own."""
MOST_SILENT = 8
"""Tokens in a row that may turn out to be parts of one character, which has four bytes at most."""


class TextTokens:
    """A tokenizer of transformers'."""

    def __init__(self, read: Any) -> None:
        self._read, self._fast = read, read.backend_tokenizer
        if read.chat_template is None:
            read.chat_template = PLAIN

    @classmethod
    def of_folder(cls, folder: Path) -> TextTokens:
        from transformers import AutoTokenizer

        try:
            return cls(AutoTokenizer.from_pretrained(folder, local_files_only=True))
        except (OSError, ValueError, AttributeError) as problem:
            reason = str(problem).strip().split("\n", 1)[0]
            raise ServeError(f"{folder} has no tokenizer that can be read: {reason}") from None

    @property
    def known(self) -> int:
        """Tokens are numbers below that."""
        return len(self._read)

    @property
    def silent(self) -> tuple[int, ...]:
        """Tokens that are no text."""
        return tuple(self._read.all_special_ids)

    @property
    def end(self) -> int | None:
        found: int | None = self._read.eos_token_id
        return found

    def of(self, text: str) -> list[int]:
        """As the model's tokenizer takes a text that stands alone."""
        found: list[int] = self._read(text)["input_ids"]
        return found

    def of_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        try:
            text = self._read.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as problem:  # templates are code of the model's, and may want another order of roles
            raise bad_input(f"the model's template refuses the messages: {str(problem)[:200]}") from None
        found: list[int] = self._read(text, add_special_tokens=False)["input_ids"]
        return found

    def one(self, token: int) -> str:
        """A token by itself, as a list of likely ones shows it."""
        text: str = self._read.decode([token])
        return text

    def telling(self, stops: Sequence[str] = (), least: int = 0) -> Telling:
        return Telling(self._fast, stops, least)


class Telling:
    """One answer's text as it becomes known.

    What may still turn out to be part of a character, or of a text at which to stop, is held back. A text at which to
    stop counts where it ends behind the first `least` tokens.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str], least: int) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._stops = tokenizer, [stop for stop in stops if stop]
        self._begin = partial(DecodeStream, skip_special_tokens=True)
        self._stream = self._begin()
        self._silent: list[int] = []
        """The last tokens, which made no text yet."""
        self._held = ""
        self._told_characters = 0
        self._least, self._early = least, 0
        """How many of the tokens to come are among the first ones, and characters of these."""
        self.stopped = False

    @property
    def length(self) -> int:
        """Characters so far, those that are held back too."""
        return self._told_characters + len(self._held)

    def add(self, token: int) -> str:
        """What can be told now."""
        if self.stopped:
            return ""
        if text := self._stream.step(self._tokenizer, token):
            self._silent.clear()
            self._held += text
        else:
            self._silent.append(token)
            if len(self._silent) >= MOST_SILENT:
                self._give_up()
        if self._least > 0:
            self._least -= 1
            self._early = self.length
        return self._told(last=False)

    def _give_up(self) -> None:
        """What made no text is no character; it is shown as that."""
        self._held += self._tokenizer.decode(self._silent, skip_special_tokens=True)
        self._silent.clear()
        self._stream = self._begin()

    def rest(self) -> str:
        """What was held back, now that nothing follows."""
        if self.stopped:
            return ""
        self._give_up()
        return self._told(last=True)

    def _told(self, last: bool) -> str:
        early = self._early - self._told_characters
        places = [place for stop in self._stops if (place := self._held.find(stop, max(0, early + 1 - len(stop)))) >= 0]
        if places:
            self.stopped, told, self._held = True, self._held[: min(places)], ""
        else:
            keep = 0 if last else max((_begun(self._held, stop) for stop in self._stops), default=0)
            cut = len(self._held) - keep
            told, self._held = self._held[:cut], self._held[cut:]
        self._told_characters += len(told)
        return told


def _begun(text: str, stop: str) -> int:
    """How much of the text's end is a beginning of the other.

    >>> _begun("and the", "them")
    3
    """
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
