"""Server-sent events: however a server writes them and wherever lines are split, the same events come out."""

import random

import pytest

from tailrate.loadtest.engine.endpoint.protocols._sse import events


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"data: a\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"data:a\r\n\r\ndata: b\r\r", [(b"", b"a"), (b"", b"b")]),
        (b": a comment\n\ndata: a\n\n:\n\n", [(b"", b"a")]),
        (b"id: 7\nretry: 10\ndata: a\nevent: error\n\n", [(b"error", b"a")]),
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b"data: a\n\ndata: b", [(b"", b"a"), (b"", b"b")]),  # no empty line at the end
        (b"data\n\ndata: \n\n", [(b"", b""), (b"", b"")]),
        (b"event: x\n\ndata: a\n\n", [(b"", b"a")]),  # a name without data is no event, and is forgotten
        (b"dataset: a\n\n", []),
        (b"data:  a\n\n", [(b"", b" a")]),  # one space goes, no more
        (b"\n\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [(b"", b"a")]),  # a mark of byte order, at the beginning
        (b"", []),
    ],
)
def test_events_are_what_the_standard_says(body, found):
    assert [(event.name, event.data) for event in events(body)] == found


def test_an_events_end_is_where_its_last_line_ends():
    body = b": hi\n\ndata: a\n\nevent: x\ndata: bb\r\ndata: c\r\n\r\n"
    for begun in (body, b"\xef\xbb\xbf" + body):
        assert [begun[: event.end].splitlines()[-1] for event in events(begun)] == [b"data: a", b"data: c"]


def test_any_line_ends_give_the_same_events():
    rng = random.Random(3)
    for _ in range(200):
        lines = rng.choices(
            [b"data: a", b"data:b", b": c", b"event: error", b"", b"id: 3", b"data"], k=rng.randrange(1, 12)
        )
        made = [
            [(event.name, event.data) for event in events(b"".join(line + end for line in lines))]
            for end in (b"\n", b"\r\n", b"\r")
        ]
        assert made[0] == made[1] == made[2]
