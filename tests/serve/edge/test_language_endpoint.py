"""OpenAI's chat and completions before a small language model, without Ray and without sockets."""

from __future__ import annotations

import asyncio
import json
import random
import string
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

import pytest
from test_contract import shape
from waiting import PATIENCE_S

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tailrate.serve import wire
from tailrate.serve.asgi import as_app
from tailrate.serve.edge.contract import SCHEMAS
from tailrate.serve.edge.language_endpoint import Inbox, LanguageEndpoint
from tailrate.serve.edge.openai.text_api import IMPOSSIBLE, Telling, read
from tailrate.serve.engine.language.writing import Token, Writing
from tailrate.serve.options import ServeOptions
from tailrate.serve.telemetry.token_counts import KEY
from tailrate.serve.wire import WireError

CHAT, COMPLETIONS = "v1/chat/completions", "v1/completions"
FORCED = {"ignore_eos": True, "temperature": 0}
OFF = {
    "best_of": 1, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "stop_token_ids": [], "guided_json": None,
    "use_beam_search": False, "echo": False, "presence_penalty": 0, "response_format": {"type": "text"}, "stop": None,
}  # fmt: skip
"""What asks for nothing; vLLM's bench and GuideLLM send some of it."""
SLOTS, QUEUE, CONTEXT = 4, 30, 1024
Found = TypeVar("Found")


class Bench:
    """An endpoint in an event loop of its own, in a thread, for all tests of this file."""

    def __init__(self, cache: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.options = ServeOptions(
            models=("tiny_llama",), variants=("eager",), device="cpu", max_batch=SLOTS, threads=1, max_queue=QUEUE,
            parity_share=0, cache_dir=cache, profile=True,
            settings={"context": f"{CONTEXT}", "prefill_chunk": "64", "layers": "1", "hidden": "64"},
        )  # fmt: skip
        self.endpoint = self.run(self._opened())
        self.app = as_app(lambda request: self.endpoint.answer(request, request.path.strip("/")), 1 << 20)

    async def _opened(self) -> LanguageEndpoint:
        found = LanguageEndpoint(self.options, "tiny_llama", "eager", "r1")
        while found.engine.state == "LOADING":
            await asyncio.sleep(0.01)
        assert found.engine.state == "READY", found.engine.reason
        return found

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S + 60)

    def close(self) -> None:
        self.endpoint.engine.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def messages(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> AsyncIterator[Any]:
        """What the server sends, as it comes; who stops listening has left."""
        method = "GET" if path in ("", "stats") else "POST"
        scope = {
            "type": "http", "method": method, "path": f"/{path}", "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        }  # fmt: skip
        told: asyncio.Queue[Any] = asyncio.Queue()

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        task = asyncio.create_task(self.app(scope, receive, told.put))
        try:
            while True:
                message = await told.get()
                yield message
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    await task
                    return
        finally:
            task.cancel()

    async def raw(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        async with aclosing(self.messages(path, body, headers)) as messages:
            found = [message async for message in messages]
        return found[0]["status"], b"".join(message.get("body", b"") for message in found[1:])

    async def ask(self, path: str, headers: dict[str, str] | None = None, **asked: Any) -> tuple[int, Any]:
        body = json.dumps({"model": "tiny_llama"} | asked).encode()
        status, said = await self.raw(path, body, headers)
        return status, events_of(said) if asked.get("stream") and status == 200 else json.loads(said)

    async def idle(self) -> None:
        while self.endpoint.engine.written or self.endpoint.engine.waiting:
            await asyncio.sleep(0.005)


def events_of(said: bytes) -> list[Any]:
    lines = said.split(b"\n\n")
    assert lines.pop() == b""
    assert all(line.startswith(b"data: ") for line in lines)
    assert lines[-1] in (b"data: [DONE]", lines[-1]), lines[-1]
    return [line if line == b"data: [DONE]" else json.loads(line[6:]) for line in lines]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(str(tmp_path_factory.mktemp("cache")))
    yield found
    found.close()


def asked(path: str, text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}


def text_of(path: str, events: list[Any]) -> str:
    pieces = [event["choices"][0] for event in events if event != b"data: [DONE]" and event["choices"]]
    return "".join(piece["delta"].get("content", "") if path == CHAT else piece["text"] for piece in pieces)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_says_what_the_whole_answer_does(bench: Bench, path: str) -> None:
    async def work() -> None:
        how = asked(path, "a request and its replica") | FORCED | {"max_tokens": 20, "min_tokens": 20}
        status, whole = await bench.ask(path, **how)
        assert status == 200
        choice = whole["choices"][0]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert choice["finish_reason"] == "length"
        _, events = await bench.ask(path, stream=True, stream_options={"include_usage": True}, **how)
        assert events[-1] == b"data: [DONE]"
        assert text_of(path, events) == text
        counts, of_whole = ({**one["usage"], "tailrate": None} for one in (events[-2], whole))
        assert counts == of_whole
        assert counts["completion_tokens"] == 20
        assert counts["completion_tokens_details"] == {"reasoning_tokens": 0}
        assert [event["choices"][0]["finish_reason"] for event in events[:-2]] == [None] * (len(events) - 3) + [
            "length"
        ]
        if path == CHAT:
            assert events[0]["choices"][0]["delta"]["role"] == "assistant"
        said = events[-2]["usage"]["tailrate"]
        assert sum(said[f"{name}_ms"] for name in wire.TEXT_STAGES) == pytest.approx(said["total_ms"], abs=0.01)
        assert min(said[f"{name}_ms"] for name in wire.TEXT_STAGES) >= 0
        assert (said["replica"], said["device"], said["compiled"]) == ("r1", "cpu", False)

    bench.run(work())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_each_step_has_an_event_also_where_several_go_together(
    bench: Bench, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes: list[int] = []
    take = Inbox.take

    async def later(inbox: Inbox) -> list[Token | None]:
        """As a server that is late finds them."""
        found = await take(inbox)
        while len(found) < 3 and found[-1] and not found[-1].finish:
            found += await take(inbox)
        takes.append(len(found))
        return found

    async def work() -> None:
        how = asked(path, "a request and its replica") | FORCED | {"max_tokens": 31, "min_tokens": 31}
        likely = {"logprobs": True} if path == CHAT else {"logprobs": 0}  # so that half a character is told of as well
        _, soon = await bench.ask(path, stream=True, **how, **likely)
        monkeypatch.setattr(Inbox, "take", later)
        _, late = await bench.ask(path, stream=True, **how, **likely)
        told = [[event["choices"][0] for event in events[:-1]] for events in (soon, late)]
        assert told[0] == told[1]
        assert len(told[1]) == sum(takes) == 31
        assert len(takes) < 12
        tokens = "content" if path == CHAT else "tokens"
        assert all(len(one["logprobs"][tokens]) == 1 for one in told[1])

    bench.run(work())


@pytest.mark.parametrize(("path", "name"), [(CHAT, "Chat"), (COMPLETIONS, "Completions")])
def test_asked_and_answered_have_the_shape_that_the_contract_says(bench: Bench, path: str, name: str) -> None:
    async def work() -> None:
        how = asked(path, "a request") | FORCED | {"max_tokens": 2, "logprobs": True if path == CHAT else 1}
        shape(SCHEMAS[f"{name}Request"]).validate({"model": "tiny_llama"} | how)
        status, whole = await bench.ask(path, **how)
        assert status == 200
        shape(SCHEMAS[name]).validate(whole)

    bench.run(work())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_usual_event_is_the_json_of_one(bench: Bench, path: str) -> None:
    head = {"model": "tiny_llama", "stream": True, "stream_options": {"include_usage": True}} | asked(path, "x")
    tokens = bench.endpoint._tokens
    made = read(json.dumps(head).encode(), path == CHAT, ["tiny_llama"], tokens, CONTEXT)
    telling = Telling(made, tokens, "it")
    telling.event("first", None)
    rng = random.Random(1)
    for _ in range(300):
        text = "".join(rng.choice(string.printable + "é☕\x00\u2028") for _ in range(rng.randrange(1, 9)))
        assert telling.event(text, None) == telling._whole_event(text, None, ())


def test_a_token_has_the_place_at_which_its_text_begins(bench: Bench) -> None:
    async def work() -> None:
        how = asked(COMPLETIONS, "a request") | FORCED | {"max_tokens": 40, "min_tokens": 40, "logprobs": 0}
        _, whole = await bench.ask(COMPLETIONS, **how)
        choice = whole["choices"][0]
        tokens, places = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
        for token, place in zip(tokens, places, strict=True):
            half = "\ufffd"  # of a character, which is known as that once another token comes
            assert half in token or choice["text"][place:].lstrip(half).startswith(token)
        assert places == sorted(places)
        assert len(set(places)) > 20
        _, events = await bench.ask(COMPLETIONS, stream=True, **how)
        told = [event["choices"][0]["logprobs"] for event in events[:-1]]
        assert [place for one in told if one for place in one["text_offset"]] == places

    bench.run(work())


def test_a_text_at_which_to_stop_ends_it_before_that(bench: Bench) -> None:
    async def work() -> None:
        how = asked(COMPLETIONS, "a queue of requests") | FORCED | {"max_tokens": 30}
        _, whole = await bench.ask(COMPLETIONS, **how)
        text = whole["choices"][0]["text"]
        stop = text[len(text) // 2 : len(text) // 2 + 3]
        _, cut = await bench.ask(COMPLETIONS, stop=[stop], **how)
        assert cut["choices"][0]["text"] == text[: text.find(stop)]
        assert cut["choices"][0]["finish_reason"] == "stop"
        _, events = await bench.ask(COMPLETIONS, stop=stop, stream=True, **how)
        assert text_of(COMPLETIONS, events) == text[: text.find(stop)]
        await bench.idle()  # its slot is free, though it could have gone on
        _, forced = await bench.ask(COMPLETIONS, stop=stop, min_tokens=30, **how)
        assert forced["choices"][0] == whole["choices"][0]

    bench.run(work())


def test_likely_tokens_are_listed_best_first_with_the_chosen_one(bench: Bench) -> None:
    async def work() -> None:
        how = asked(CHAT, "hello") | FORCED | {"max_tokens": 5, "min_tokens": 5}
        _, whole = await bench.ask(CHAT, logprobs=True, top_logprobs=3, **how)
        content = whole["choices"][0]["logprobs"]["content"]
        assert len(content) == 5
        for entry in content:
            best = [other["logprob"] for other in entry["top_logprobs"]]
            assert best == sorted(best, reverse=True)
            assert entry["logprob"] == best[0] < 0  # greedy
        _, whole = await bench.ask(COMPLETIONS, prompt="hello", logprobs=2, max_tokens=4, min_tokens=4, **FORCED)
        listed = whole["choices"][0]["logprobs"]
        assert len(listed["tokens"]) == len(listed["token_logprobs"]) == len(listed["top_logprobs"]) == 4

    bench.run(work())


@pytest.mark.parametrize(
    ("path", "changed", "status", "sentence"),
    [
        (CHAT, {"messages": []}, 400, "'messages' must be a list"),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "'content' of a message must be"),
        (CHAT, {"messages": [{"content": "x"}]}, 400, "each message has a 'role'"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "must be a text"),
        (COMPLETIONS, {"prompt": ""}, 200, ""),
        (COMPLETIONS, {"prompt": []}, 400, "'prompt' must be one text"),
        (COMPLETIONS, {"prompt": [1 << 40]}, 400, "token ids from 0"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, 400, "'prompt' must be one text"),
        (COMPLETIONS, {"prompt": "\ud800"}, 400, "lone surrogate"),
        (COMPLETIONS, {"prompt": "word " * 1500}, 400, f"and the model reads and writes {CONTEXT}"),
        (COMPLETIONS, {"model": "other"}, 404, "unknown model 'other'"),
        (COMPLETIONS, {"model": 3}, 400, "'model' must name a model"),
        (COMPLETIONS, {"n": 2}, 400, "'n' must be 1"),
        (COMPLETIONS, {"temperature": -1}, 400, "'temperature' must be a number from 0"),
        (COMPLETIONS, {"temperature": "hot"}, 400, "'temperature' must be a number"),
        (COMPLETIONS, {"top_p": 2}, 400, "'top_p' must be"),
        (COMPLETIONS, {"max_tokens": 0}, 400, "'max_tokens' must be a whole number of at least 1"),
        (COMPLETIONS, {"max_tokens": 1.5}, 400, "'max_tokens' must be a whole number"),
        (COMPLETIONS, {"stream": "yes"}, 400, "'stream' must be true or false"),
        (COMPLETIONS, {"stream_options": 3}, 400, "'stream_options' must be an object"),
        (COMPLETIONS, {"stop": [1]}, 400, "'stop' must be a text"),
        (COMPLETIONS, {"logprobs": 99}, 400, "'logprobs' must be a whole number from 0 to 20"),
        (COMPLETIONS, {"echo": True}, 400, "'echo' is not possible here"),
        (CHAT, {"tools": [{}]}, 400, "'tools' is not possible here"),
        (CHAT, {"tool_choice": "required"}, 400, "'tool_choice' is not possible here"),
        (COMPLETIONS, {"best_of": 5}, 400, "'best_of' is not possible here"),
        (COMPLETIONS, {"top_k": 1}, 400, "'top_k' is not possible here"),
        (COMPLETIONS, {"min_p": 0.5}, 400, "'min_p' is not possible here"),
        (COMPLETIONS, {"repetition_penalty": 0}, 400, "'repetition_penalty' is not possible here"),
        (COMPLETIONS, {"stop_token_ids": [3]}, 400, "'stop_token_ids' is not possible here"),
        (COMPLETIONS, {"guided_json": {"type": "object"}}, 400, "'guided_json' is not possible here"),
        (COMPLETIONS, {"use_beam_search": True}, 400, "'use_beam_search' is not possible here"),
        (CHAT, OFF | {"tool_choice": "auto"}, 200, ""),
        (COMPLETIONS, OFF | {"tool_choice": "none", "top_k": 0}, 200, ""),
        (COMPLETIONS, dict.fromkeys(IMPOSSIBLE), 200, ""),
        (COMPLETIONS, {"stop": {}}, 400, "'stop' must be a text"),
        (COMPLETIONS, {"stream_options": []}, 400, "'stream_options' must be an object"),
    ],
)
def test_what_is_wrong_has_a_sentence(
    bench: Bench, path: str, changed: dict[str, Any], status: int, sentence: str
) -> None:
    found, said = bench.run(bench.ask(path, **{"max_tokens": 2} | asked(path, "hello") | changed))
    assert found == status
    if status != 200:
        assert sentence in said["error"]["message"]
        assert said["error"]["code"] == status


def test_a_deadline_is_a_504_or_the_last_event(bench: Bench) -> None:
    async def work() -> None:
        how = asked(COMPLETIONS, "hello") | FORCED | {"max_tokens": 250, "min_tokens": 250}
        late = {"x-request-timeout-seconds": "0.02"}
        status, said = await bench.ask(COMPLETIONS, late, **how)
        assert status == 504
        assert "deadline" in json.dumps(said) or "time" in said["error"]["message"]
        status, events = await bench.ask(COMPLETIONS, late, stream=True, **how)
        assert status in (200, 504)
        if status == 200:
            assert events[-1]["error"]["code"] == 504
        await bench.idle()

    bench.run(work())


def test_more_than_wait_at_most_are_refused_at_once(bench: Bench) -> None:
    async def work() -> None:
        how = asked(COMPLETIONS, "hello") | FORCED | {"max_tokens": 100, "min_tokens": 100}
        found = await asyncio.gather(*(bench.ask(COMPLETIONS, **how) for _ in range(QUEUE + SLOTS + 20)))
        refused = [said for status, said in found if status == 503]
        assert {status for status, _ in found} == {200, 503}
        assert len(refused) >= 10
        assert all(f"{QUEUE} requests wait already" in said["error"]["message"] for said in refused)
        texts = {said["choices"][0]["text"] for status, said in found if status == 200}
        assert len(texts) == 1

    bench.run(work())


@pytest.mark.parametrize("many", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_those_who_leave_in_the_middle_free_their_slots_and_harm_nobody(
    bench: Bench, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them do; the others have what they have alone."""
    rng = random.Random(5)
    texts = ["a slow replica", "two queues and a batch", "the tail of a rate", "steps"]
    engine, submitted = bench.endpoint.engine, []
    submit = engine.submit

    def noted(writing: Writing) -> None:
        submitted.append(writing)
        submit(writing)

    monkeypatch.setattr(engine, "submit", noted)

    async def left(how: dict[str, Any], events: int) -> None:
        body = json.dumps({"model": "tiny_llama", "stream": True} | how).encode()
        async with aclosing(bench.messages(COMPLETIONS, body)) as messages:
            async for message in messages:
                events -= message["type"] == "http.response.body"
                if events <= 0:
                    return

    async def work() -> None:
        alone = {}
        for text in texts:
            how = asked(COMPLETIONS, text) | FORCED | {"max_tokens": 30, "min_tokens": 30}
            alone[text] = (await bench.ask(COMPLETIONS, **how))[1]["choices"][0]["text"]
        gate = asyncio.Semaphore(12)

        async def one(number: int) -> None:
            async with gate:
                text = rng.choice(texts)
                how = asked(COMPLETIONS, text) | FORCED | {"max_tokens": 30, "min_tokens": 30}
                if number % 2:  # long before the end of theirs, also where this process stands still for a while
                    most = CONTEXT - 60
                    await left(how | {"max_tokens": most, "min_tokens": most}, rng.randrange(1, 8))
                    return
                _, events = await bench.ask(COMPLETIONS, stream=True, **how)
                assert text_of(COMPLETIONS, events) == alone[text]

        before = bench.endpoint.engine.counters.snapshot()
        await asyncio.gather(*(one(number) for number in range(many)))
        await bench.idle()
        after = bench.endpoint.engine.counters.snapshot()
        ended = {
            name: after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"]
            for name in ("success", "fail")
        }
        assert sum(ended.values()) == many
        assert after["refused"]["cancelled"] - before["refused"]["cancelled"] == ended["fail"] == many // 2
        assert not bench.endpoint._tasks
        assert len(submitted) == many + len(texts)
        assert all(one.stopped for one in submitted)  # the engine was told, so their slots are free at its next step

    bench.run(work())


@pytest.mark.parametrize("many", [600, pytest.param(10_000, marks=pytest.mark.long)])
def test_malformed_requests_are_refused_and_nothing_hangs(bench: Bench, many: int) -> None:
    rng = random.Random(many)
    values: list[Any] = [
        None, True, False, 0, -1, 1, 3.5, 1e308, 10**40, "", "x", "\u0000", "☕" * 50, [], {}, [None], [[]], {"a": 1},
        ["x"] * 40, [1, 2, 3], [[1, 2]], [{"role": "user", "content": "x"}], [{"role": 1, "content": []}],
    ]  # fmt: skip
    keys = [
        "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p",
        "seed", "stop", "stream", "stream_options", "logprobs", "top_logprobs", "n", "ignore_eos", "tools", "echo",
    ]  # fmt: skip

    def body(path: str) -> bytes:
        whole = {"model": "tiny_llama", "max_tokens": 2} | asked(path, "hello")
        for _ in range(rng.randrange(4)):
            whole[rng.choice(keys)] = rng.choice(values)
        raw = json.dumps(whole).encode()
        kind = rng.randrange(6)
        if kind == 0:
            return raw[: rng.randrange(len(raw))]
        if kind == 1:
            at = rng.randrange(len(raw))
            return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        return raw

    async def work() -> None:
        gate = asyncio.Semaphore(20)

        async def one() -> int:
            path = rng.choice([CHAT, COMPLETIONS])
            async with gate:
                status, said = await asyncio.wait_for(bench.raw(path, body(path)), 60)
            if status != 200:
                assert json.loads(said)["error"]["message"]
            return status

        found = await asyncio.gather(*(one() for _ in range(many)))
        assert set(found) <= {200, 400, 404}
        assert min(found.count(200), found.count(400)) > many / 10
        await bench.idle()

    bench.run(work())


def test_one_whose_client_has_gone_is_written_no_further(bench: Bench) -> None:
    """Where nobody ends its task, the request itself says so."""

    async def work() -> None:
        writing = Writing([5, 6, 7], most=250, gone=lambda: len(writing.tokens) > 3)
        bench.endpoint._submitted(writing)
        while not writing.done_ns:
            await asyncio.sleep(0.005)
        assert 3 < len(writing.tokens) < 250
        assert writing.error is not None
        assert writing.error.status == 499
        await bench.idle()

    bench.run(work())


def test_what_the_engine_counts_and_says_is_as_of_now(bench: Bench) -> None:
    async def work() -> None:
        def steps(counts: Any) -> int:
            return sum(int(rows) * step["count"] for rows, step in counts[KEY]["steps"].items())

        before = await bench.endpoint.fresh_report()
        how = asked(COMPLETIONS, "hello") | FORCED | {"max_tokens": 9, "min_tokens": 9}
        await bench.ask(COMPLETIONS, **how)
        after = await bench.endpoint.fresh_report()
        assert steps(after["counts"]) - steps(before["counts"]) == 8  # the first token is the prompt's
        _, said = await bench.raw("stats", b"")
        (stats,) = json.loads(said)["model_stats"]
        assert steps(stats) == steps(after["counts"])
        _, said = await bench.raw("", b"")
        facts = json.loads(said)["parameters"]
        assert (facts["slots"], facts["context"], facts["threads"], facts["parity_ok"]) == (SLOTS, CONTEXT, 1, True)
        assert facts["device"] == "cpu"
        assert facts["sampled_responses"] == 0

    bench.run(work())


def test_the_engine_s_own_process_is_profiled(bench: Bench) -> None:
    async def work() -> None:
        profile, without_traffic = (
            json.dumps({"batches": 3, "timeout_s": seconds}).encode() for seconds in (3600, 0.01)
        )
        gone = asyncio.create_task(bench.raw("profile", profile))  # which nobody waits for in the end
        while not bench.endpoint.engine._asked:
            await asyncio.sleep(0.001)
        status, said = await bench.raw("profile", profile)
        assert (status, "another profile" in json.loads(said)["error"]) == (409, True)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        how = asked(COMPLETIONS, "hello") | FORCED | {"max_tokens": 2, "min_tokens": 2}
        async with asyncio.timeout(PATIENCE_S):
            while status == 409:  # until the engine has heard of it
                status, said = await bench.raw("profile", without_traffic)
        assert (status, "0 of 3 batches" in json.loads(said)["error"]) == (504, True)
        waiting = asyncio.create_task(bench.raw("profile", profile))
        while not waiting.done():
            await bench.ask(COMPLETIONS, **how)
        status, said = await waiting
        assert status == 200
        assert {row["name"]: row["calls"] for row in json.loads(said)["table"]}["batch"] == 3

    bench.run(work())


def test_a_server_that_ends_says_so_in_the_last_event(bench: Bench) -> None:
    """It takes nothing any more."""

    async def work() -> None:
        how = asked(COMPLETIONS, "hello") | FORCED | {"max_tokens": 250, "min_tokens": 250, "stream": True}
        under_way = asyncio.create_task(bench.ask(COMPLETIONS, **how))
        while not bench.endpoint.engine.written:
            await asyncio.sleep(0.001)
        bench.endpoint.stop(0.02)
        status, said = await bench.ask(COMPLETIONS, prompt="late")
        assert (status, said["error"]["code"]) == (503, 503)
        status, events = await under_way
        assert status == 200
        assert events[-1]["error"]["code"] == 503
        assert 1 < len(events) < 250
        await bench.idle()

    bench.run(work())


def test_an_engine_that_is_killed_is_lost_and_everybody_is_told(bench: Bench) -> None:
    """Last in this file."""
    engine = bench.endpoint.engine

    async def work() -> None:
        assert engine.trouble(1e9) is None
        ones = [Writing([5, 6, 7], most=250) for _ in range(SLOTS + 2)]
        inboxes = [bench.endpoint._submitted(one) for one in ones]
        while engine.written < SLOTS:
            await asyncio.sleep(0.001)
        engine._process.kill()
        for one, inbox in zip(ones, inboxes, strict=True):
            while None not in await asyncio.wait_for(inbox.take(), 60):
                pass
            assert one.error is not None
            assert (one.error.status, one.error.reason) == (503, "lost")
        assert (engine.state, engine.written, engine.waiting) == ("UNAVAILABLE", 0, 0)
        assert engine.trouble(1e9) == engine.reason == "the engine's process was killed by signal 9"
        with pytest.raises(WireError, match="killed by signal 9"):
            engine.submit(Writing([5], most=1))
        await engine.fresh()

    bench.run(work())
