"""What a stream of OpenAI's events is read as: the content events, their instants, what the server counted."""

import json

import pytest

from tailrate.loadtest.engine.endpoint.protocols._token_stream import TokenStream, token_stream


def event(choices=(), **more):
    return b"data: " + json.dumps({"id": "x", "choices": list(choices)} | more).encode() + b"\n\n"


def delta(finish=None, **fields):
    return {"index": 0, "delta": fields, "finish_reason": finish}


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
USUAL = [
    event([delta(role="assistant", content="")]),
    event([delta(content="a")]),
    event([delta(content="b")]),
    event([delta(content="c")]),
    event([delta("length")]),
    event(usage=USAGE),
    DONE,
]


def read(pieces, every_ns=1_000_000):
    """Each piece comes so much later than the one before it."""
    size, arrivals = 0, []
    for number, piece in enumerate(pieces):
        size += len(piece)
        arrivals.append((number * every_ns, size))
    return token_stream(b"".join(pieces), arrivals)


def test_a_usual_stream():
    assert {name: (list(value) if name == "gaps_us" else value) for name, value in read(USUAL).columns().items()} == {
        "first_ns": 1_000_000, "last_ns": 3_000_000, "plain_ns": 1_000_000, "events": 3, "gaps_us": [1000, 1000],
        "tokens_in": 7, "tokens_out": 3, "finish": "length",
    }  # fmt: skip
    assert "".join(read(USUAL).text) == "abc"
    assert read(USUAL).flaw == ""


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_it_is_the_same_wherever_the_network_splits_it(size):
    """And an event has come when its line has ended, not before."""
    body = b"".join(USUAL)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    found = read(pieces, 1)
    ends, at = [], 0
    for piece in USUAL:
        ends.append(at + len(piece) - 2)  # the last byte of its line, counted from zero
        at += len(piece)
    assert found.content_ns == [ends[number] // size for number in (1, 2, 3)]
    assert found.usage == USAGE


@pytest.mark.parametrize(
    ("events", "instants", "plain", "finish"),
    [
        ([event([delta(reasoning="x")]), event([delta(reasoning_content="y")]), event([delta(content="z")])], [0, 1, 2],
         2, ""),
        ([event([delta(tool_calls=[{"index": 0}])]), event([delta("tool_calls")])], [0], 0, "stop"),
        ([event([{"index": 0, "text": "a"}]), event([{"index": 0, "text": "b", "finish_reason": "stop"}])], [0, 1],
         0, "stop"),
        ([b'data: {"choices": null}\n\n', event([delta(content="a")])], [1], 1, ""),
        ([event([delta("stop", content="a")], usage=USAGE)], [0], 0, "stop"),  # all of it in one event
        ([event([delta("content_filter", content="a")])], [0], 0, "error"),
        ([event([None, 3, delta(content=None)]), event([{"delta": None}])], [], None, ""),
    ],
)  # fmt: skip
def test_what_counts_as_content(events, instants, plain, finish):
    found = read(events, 1)
    assert (found.content_ns, found.plain_ns, found.finish) == (instants, plain, finish)


@pytest.mark.parametrize(
    ("piece", "flaw"),
    [
        (b'event: error\ndata: {"message": "full"}\n\n', "holds an error"),
        (b'data: {"error": {"message": "full"}}\n\n', "holds an error"),
        (b'data: {"object": "error", "message": "full", "code": 400}\n\n', "holds an error"),
        (event([delta("abort")]), "finish_reason is abort"),
        (event([delta("error", content="")]), "finish_reason is error"),
        (b'data: {"choices": [\n\n', "no JSON object"),
        (b"data: 3\n\n", "no JSON object"),
        (b"data: \xff\xfe\n\n", "no JSON object"),
    ],
)
def test_what_is_wrong_is_said_and_what_came_stays(piece, flaw):
    found = read([USUAL[1], piece, USUAL[2]], 1)
    assert flaw in found.flaw
    assert found.content_ns == [0, 2]


def test_tokens_of_the_first_event_are_known_where_the_server_counts_as_it_goes():
    events = [
        event([delta(content="abc")], usage=USAGE | {"completion_tokens": 3}),
        event(usage=USAGE | {"completion_tokens": 9}),
    ]
    columns = read(events).columns()
    assert (columns["first_tokens"], columns["tokens_out"]) == (3, 9)


def test_tokens_of_the_first_event_are_its_own():
    """Not what was counted before it, nor what comes behind it."""
    role = event([delta(role="assistant", content="")], usage=USAGE | {"completion_tokens": 0})
    columns = read([role, *USUAL[1:]]).columns()
    assert "first_tokens" not in columns
    assert columns["tokens_out"] == 3


@pytest.mark.parametrize("late", [{}, None, [], 3])
def test_counts_stay_known_whatever_comes_behind_them(late):
    assert read([*USUAL[:-1], event(usage=late), DONE]).columns()["tokens_out"] == 3


def test_an_event_without_data_says_nothing():
    beats = [b"data:\n\n", b"event: ping\ndata: \n\n", b"data\ndata\n\n"]
    found = read([*USUAL[:2], *beats, *USUAL[2:]], 1)
    assert (found.flaw, found.content_ns, found.text) == ("", [1, 5, 6], ["a", "b", "c"])


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        ([USUAL[1], DONE], True),
        ([USUAL[1], event([delta("stop")])], True),
        ([event([{"index": 0, "text": "a", "finish_reason": "length"}])], True),
        ([USUAL[1], event([delta("")]), event(usage=USAGE)], False),
        ([USUAL[1]], False),
    ],
)
def test_its_end_is_a_reason_or_a_word(events, ended):
    assert read(events).ended is ended


@pytest.mark.parametrize(("end", "said"), [(b"", "the stream broke off in an event"), (b"\n", "no JSON object")])
def test_an_event_that_stops_within_its_line_is_no_garbage(end, said):
    found = read([*USUAL[:2], USUAL[2][:-20] + end])
    assert said in found.flaw
    assert len(found.content_ns) == 1


@pytest.mark.parametrize(
    ("events", "instants", "text"),
    [
        ([["a", 0.5], [b"b", 0], ["", 0], [b"", 1]], [0, 1], ["a", "b"]),
        ([["a", 0.5], [0.5], []], [0], ["a"]),  # figures behind the text
        ([[1, 2], [], [0]], [0, 2], []),
        ([[""], ["\xe4"], [b"\xff"]], [1, 2], ["\xe4", "\ufffd"]),
    ],
)
def test_where_any_output_is_text_text_alone_is_content(events, instants, text):
    found = TokenStream()
    for at_ns, values in enumerate(events):
        found.outputs(values, at_ns)
    assert (found.content_ns, found.text) == (instants, text)


@pytest.mark.parametrize("wrong", [-1, True, "3", 1.5, None, 1 << 40, {}])
def test_counts_that_cannot_be_meant_are_left_out(wrong):
    columns = read(
        [event([delta(content="a")], usage={"completion_tokens": wrong, "prompt_tokens_details": wrong})]
    ).columns()
    assert not {"tokens_out", "cached_tokens"} & set(columns)
