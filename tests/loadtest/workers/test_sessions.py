"""Sessions in virtual time: a closed form says when each turn is due."""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.protocols.openai_chat import OpenAiChat
from tailrate.loadtest.engine.endpoint.protocols.openai_completions import OpenAiCompletions
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.loadtest.engine.scenario.arrivals import Arrival
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.scenario.steps import LoadStep
from tailrate.loadtest.engine.workers import sessions
from tailrate.loadtest.engine.workers.input.deal import Deal
from tailrate.loadtest.engine.workers.input.dialogue import Dialogue, Turn
from tailrate.loadtest.engine.workers.input.lengths import Lengths
from tailrate.loadtest.engine.workers.input.prompts import Prompts
from tailrate.loadtest.engine.workers.input.requests import DataRequests
from tailrate.loadtest.engine.workers.sessions import Sessions, place

S = 1_000_000_000
STEP = LoadStep(0, "m", 1.0, 20.0, 0.0, 0, 1, sessions=True)


class Clock:
    """Stands for the alarm and for the clock; what is to happen meanwhile is a heap."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100 * S
        self._numbers = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        monkeypatch.setattr(sessions.time, "monotonic_ns", lambda: self.now)

    def at(self, when: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def sleep_until(self, due: int) -> None:
        if self._events and self._events[0][0] <= due:
            when, _, what = heapq.heappop(self._events)
            self.now = max(self.now, when)
            what()
        else:
            assert due < 1 << 60, "it waits for nothing"
            self.now = max(self.now, due)

    def ring(self) -> None:
        pass


def requests(turns: str, think_s: str) -> DataRequests:
    dialogue = Dialogue(7, Lengths.parse(turns, "--turns"), Lengths.parse(think_s, "--think", 0.0))
    lengths = Lengths.parse("5", "x"), Lengths.parse("uniform:3:9", "x")
    protocol = OpenAiChat()
    end = Endpoint("m", "http://h", "openai-chat", "m", "", "/")
    prompts = Prompts(7, *lengths, dialogue=dialogue)
    return DataRequests(prompts, Deal(1 << 40, False, False, 7), lambda t: protocol.write(end, t, ()), dialogue)


def drive(
    clock: Clock,
    data: DataRequests,
    begins_s: list[float],
    answer_s: float,
    fails: Callable[[Arrival], bool],
    stopping: Callable[[], bool] = lambda: False,
) -> list[tuple[int, int, float, Arrival]]:
    """Session, turn, when it was due, and what it was."""
    start = clock.now
    numbers = {0: itertools.count(len(begins_s))}
    under_test = Sessions({0: STEP}, numbers, start, clock, stopping)  # type: ignore[arg-type]
    scheduled = iter([Arrival(k, 0, round(s * S)) for k, s in enumerate(begins_s)])
    found = []
    for arrival in under_test.between(scheduled):
        assert clock.now >= start + arrival.offset_ns
        found.append((*place(arrival, data), arrival.offset_ns / S, arrival))

        def over(arrival: Arrival = arrival) -> None:
            status = "503" if fails(arrival) else "200"
            answer = EndpointAnswer(status, 0, clock.now)
            answer.read = _Said(f"answer {place(arrival, data)}")
            under_test.answered(arrival, data, answer, OpenAiChat())

        clock.at(clock.now + round(answer_s * S), over)
    return found


class _Said:
    def __init__(self, text: str) -> None:
        self.text = [text]


def test_each_turn_is_due_a_think_time_after_the_answer_before(monkeypatch: pytest.MonkeyPatch) -> None:
    data = requests("3", "2")
    begins = [0.0, 0.5, 4.0]
    found = drive(Clock(monkeypatch), data, begins, 1.0, lambda _: False)
    expected = sorted((begin + 3.0 * turn, session, turn) for session, begin in enumerate(begins) for turn in range(3))
    assert [(due, session, turn) for session, turn, due, _ in found] == expected
    assert sorted(arrival.seq for *_, arrival in found) == list(range(9))
    assert [arrival.offset_ns for *_, arrival in found] == sorted(arrival.offset_ns for *_, arrival in found)


def test_a_turn_says_all_that_was_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    data = requests("3", "0")
    bodies: dict[int, list[dict[str, Any]]] = {}
    for session, turn, _, arrival in drive(Clock(monkeypatch), data, [0.0, 0.1], 1.0, lambda _: False):
        request = arrival.request if isinstance(arrival, Turn) else data.request(session)
        messages = json.loads(request.body)["messages"]
        assert [each["role"] for each in messages] == ["user", "assistant"] * turn + ["user"]
        assert [each["content"] for each in messages[1::2]] == [f"answer {(session, k)}" for k in range(turn)]
        bodies.setdefault(session, []).append(messages)
    for session, turns in bodies.items():
        own = [messages[-1]["content"] for messages in turns]
        assert len(set(own)) == 3
        assert [each["content"] for each in turns[-1][::2]] == own, session
    assert not {m[-1]["content"] for m in bodies[0]} & {m[-1]["content"] for m in bodies[1]}


def test_who_fails_says_no_more_and_nothing_begins_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    data = requests("1000", "1.5")
    found = drive(Clock(monkeypatch), data, [0.0, 1.0], 0.5, lambda it: place(it, data) == (1, 3))
    of = {session: [turn for number, turn, *_ in found if number == session] for session in (0, 1)}
    assert of == {0: list(range(10)), 1: list(range(4))}  # every 2 s below 20; and four


def test_how_many_turns_and_how_long_a_thought_is_the_same_for_the_same_seed() -> None:
    one, same, other = (
        Dialogue(seed, Lengths.parse("uniform:1:8", "t"), Lengths.parse("lognormal:5:1", "t")) for seed in (1, 1, 2)
    )
    counts = [[each.count(session) for session in range(2000)] for each in (one, same, other)]
    assert counts[0] == counts[1] != counts[2]
    assert np.mean(counts[0]) == pytest.approx(4.5, abs=0.2)
    assert set(counts[0]) == set(range(1, 9))
    thoughts = [one.think(session, 1) for session in range(4000)]
    assert np.median(thoughts) == pytest.approx(5, rel=0.1)
    assert np.std(np.log(thoughts)) == pytest.approx(1, rel=0.05)


def test_only_what_talks_has_sessions() -> None:
    from tailrate.loadtest.engine.endpoint.protocols.oip import Oip

    assert OpenAiCompletions().continued(("a", "b"), "c") == "a\nb\nc"
    with pytest.raises(ScenarioError, match="leave --turns at 1"):
        Oip().continued((), "")


def test_who_is_stopped_while_everybody_thinks_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stopped = Clock(monkeypatch), False

    def stop() -> None:
        nonlocal stopped
        stopped = True

    clock.at(clock.now + 3 * S, stop)
    begun = clock.now
    found = drive(clock, requests("3", "60"), [0.0, 1.0, 50.0], 0.5, lambda _: False, lambda: stopped)
    assert [due for *_, due, _ in found] == [0.0, 1.0]
    assert clock.now - begun == 3 * S
