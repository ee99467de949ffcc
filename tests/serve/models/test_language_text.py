"""Text as it comes, against the whole of it."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("transformers")

from tailrate.serve.models._language import own_tokenizer
from tailrate.serve.models._text import TextTokens

SOME = ["the server answers", "naïve café ☕ 数 𝛼\u200d", "a request, a replica\n\n  and its queue", "ends with é"]


@pytest.fixture(scope="module")
def tokens() -> TextTokens:
    return TextTokens(own_tokenizer())


@pytest.mark.parametrize("text", SOME)
def test_pieces_are_the_text_and_none_is_half_a_character(tokens: TextTokens, text: str) -> None:
    telling = tokens.telling()
    pieces = [telling.add(token) for token in tokens.of(text)]
    assert "".join(pieces) + telling.rest() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_it_stops_before_a_text_however_tokens_split_it(tokens: TextTokens) -> None:
    rng = random.Random(1)
    text = "one stop, two stops, and the end of it all"
    for _ in range(200):
        begin = rng.randrange(len(text))
        stop = text[begin : begin + rng.randrange(1, 9)]
        ids: list[int] = []
        at = 0
        while at < len(text):  # other pieces than the tokenizer would make
            size = rng.randrange(1, 6)
            ids += tokens.of(text[at : at + size])[1:]
            at += size
        telling = tokens.telling([stop, "never there"])
        told = ""
        for token in ids:
            told += telling.add(token)
            assert stop not in told
            assert text.startswith(told)
        told += telling.rest()
        assert told == text[: text.find(stop)]
        assert telling.stopped


def test_it_stops_at_a_text_that_ends_behind_the_first_tokens_alone(tokens: TextTokens) -> None:
    ids = [token for letter in "stop, no stop" for token in tokens.of(letter)[1:]]
    for least in range(len(ids) + 1):
        telling = tokens.telling(["stop"], least)
        told = "".join(telling.add(token) for token in ids) + telling.rest()
        assert told == ("" if least < 4 else "stop, no " if least < len(ids) else "stop, no stop")
        assert telling.stopped == (least < len(ids))


def test_what_looked_like_a_stop_is_told_when_it_was_none(tokens: TextTokens) -> None:
    telling = tokens.telling(["abcX"])
    told = "".join(telling.add(token) for token in tokens.of("zabcabc")[1:])
    assert told == "zabc"
    assert told + telling.rest() == "zabcabc"
    assert not telling.stopped


def test_a_chat_has_each_role_and_what_was_said(tokens: TextTokens) -> None:
    ids = tokens.of_chat([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}])
    text = tokens._read.decode(ids)
    assert text == "<s>user\nhello</s><s>assistant\nyes</s><s>assistant\n"
    assert set(tokens.silent) == {0, 1}


def test_what_is_no_text_is_told_as_that_and_not_held_back_for_ever(tokens: TextTokens) -> None:
    """Half characters one after the other, as a model with random weights writes them."""
    half = next(token for token in range(2, 300) if tokens._read.decode([token]) == "\ufffd")
    telling = tokens.telling()
    pieces = [telling.add(half) for _ in range(20)]
    assert sum(bool(piece) for piece in pieces) == 2
    assert set("".join(pieces) + telling.rest()) == {"\ufffd"}
    after = [telling.add(token) for token in tokens.of("☕ after")[1:]]
    assert "".join(after) + telling.rest() == "☕ after"
