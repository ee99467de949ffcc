"""One endpoint that writes text, in the form of OpenAI's API: an answer whole, or its tokens as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from tailrate.serve import wire
from tailrate.serve.asgi import LEFT, HttpAnswer, Request, as_error, as_json, only, reason
from tailrate.serve.edge import openai
from tailrate.serve.edge.endpoint import Endpoint, deadline_ns
from tailrate.serve.edge.openai import text_api
from tailrate.serve.engine.language.generator import Piece
from tailrate.serve.engine.language.messages import Served
from tailrate.serve.engine.language.remote import RemoteGenerator
from tailrate.serve.engine.language.writing import Token, Writing
from tailrate.serve.models._text import Telling, TextTokens
from tailrate.serve.wire import WireError

LONG_BYTES = 16 << 10
"""A request from which on its prompt is made into tokens in another thread."""


class Inbox:
    """What has come of an answer and was not told yet."""

    def __init__(self) -> None:
        self._pieces: list[Token | None] = []
        self._waiting: asyncio.Future[None] | None = None

    def put(self, piece: Token | None) -> None:
        self._pieces.append(piece)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> list[Token | None]:
        """All that is there, at least one."""
        if not self._pieces:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        found, self._pieces = self._pieces, []
        return found


class Progress:
    """How far an answer is told."""

    def __init__(self, writing: Writing, text: Telling) -> None:
        self._writing, self._text = writing, text
        self.finish: str | None = None
        """Why it ended, once it has."""

    def more(self, pieces: Sequence[Token | None]) -> Iterator[tuple[str, str | None, list[text_api.Placed]]]:
        """Of each step the text that it brings, why the answer ends, where it does, and what was likely in its place,
        where that is asked."""
        for piece in map(partial(_known, self._writing), pieces):
            begin = self._text.length
            told = self._text.add(piece.number)
            self.finish = "stop" if self._text.stopped else piece.finish
            likely = [(begin, piece.likely)] if piece.likely else []
            yield told + (self._text.rest() if self.finish else ""), self.finish, likely
            if self.finish:
                return


class LanguageEndpoint(Endpoint):
    inferring = text_api.TAILS
    engine: RemoteGenerator

    def _engine_and_watch(self) -> tuple[RemoteGenerator, RemoteGenerator]:
        assert self._spec.language is not None
        self._reading = self._decoders.submit(self._spec.language.tokens)  # imports a library
        served = Served(self._options, self.model, self.variant, self._name)
        engine = RemoteGenerator(served, self._deliver_pieces, max_queue=self._options.max_queue)
        return engine, engine

    async def answer(self, request: Request, tail: str) -> HttpAnswer:
        if tail in ("", "stats"):
            await self.engine.fresh()
        if tail == "v1/models":  # for clients whose base is the endpoint's own path
            only(request, "GET")
            return as_json(openai.listed([self.model, self._info.name]))
        if tail == "infer":
            self._spec.prepare({})  # says where to ask
        return await super().answer(request, tail)

    async def _result(self, request: Request, tail: str) -> HttpAnswer:
        with ExitStack() as stack:
            account = stack.enter_context(self._accounted(request))
            try:
                only(request, "POST")
                if self._stopping:
                    raise WireError(503, wire.STOPPING, "stopping")
                asked = await self._asked(request, tail)
                inbox = self._submitted(asked.writing)
                telling = text_api.Telling(asked, self._tokens, _request_id(request))
                if asked.stream:
                    first = await self._first(asked.writing, inbox)
                    pieces = self._told(asked, telling, first, inbox, stack.pop_all(), account)
                    return HttpAnswer(200, b"", text_api.STREAM | self._headers(request), pieces)
                body = await self._whole(asked, telling, inbox)
                account.append("")
                return HttpAnswer(200, body, {"content-type": "application/json"} | self._headers(request))
            except asyncio.CancelledError:
                if (problem := self._stopped_by_us()) is None:
                    raise
            except WireError as found:
                problem = found
            account.append(problem.reason)
            return openai.refusal(as_error(problem, **self._headers(request)))

    @contextmanager
    def _accounted(self, request: Request) -> Iterator[list[str]]:
        """Counts the request when all of it is over, by the last word that is said of it."""
        said: list[str] = []
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            yield said
        except Exception as problem:
            said.append(reason(problem))
            raise
        finally:
            self._tasks.discard(task)
            self.engine.counters.answer(time.perf_counter_ns() - request.received_ns, said[-1] if said else LEFT)

    def _stopped_by_us(self) -> WireError | None:
        """What to say where our task was cancelled since the server ends; None: its client has gone."""
        task = asyncio.current_task()
        if not self._given_up or task is None or task.uncancel():
            return None
        return WireError(503, wire.STOPPING, "stopping")

    @property
    def _tokens(self) -> TextTokens:
        found: TextTokens = self._reading.result()
        return found

    async def _asked(self, request: Request, tail: str) -> text_api.Asked:
        self.engine.ready_runner()  # before anything is done for it
        if not self._reading.done():
            await asyncio.wrap_future(self._reading)
        assert self._spec.language is not None
        names = (self.model, self._info.name)
        how = (request.body, tail == openai.CHAT, names, self._tokens, self._spec.language.context)
        if len(request.body) > LONG_BYTES:
            asked = await asyncio.wrap_future(self._decoders.submit(text_api.read, *how))
        else:
            asked = text_api.read(*how)
        asked.writing.received_ns = request.received_ns
        asked.writing.deadline_ns = deadline_ns(request)
        asked.writing.gone = request.gone
        return asked

    def _submitted(self, writing: Writing) -> Inbox:
        writing.waiter = inbox = Inbox()
        self.engine.submit(writing)
        return inbox

    def _deliver_pieces(self, pieces: Sequence[Piece]) -> None:
        """What one step made."""
        for writing, piece in pieces:
            writing.waiter.put(piece)

    async def fresh_report(self) -> dict[str, Any]:
        await self.engine.fresh()
        return self.report()

    def report(self) -> dict[str, Any]:
        return super().report() | {"slots": self._slots(), "slots_used": self.engine.written}

    def _slots(self) -> int:
        runner = self.engine.runner
        return runner.slots if runner else 0

    # ---- telling

    async def _first(self, writing: Writing, inbox: Inbox) -> list[Token | None]:
        """Its beginning, so that who gets none has a status of its own."""
        try:
            found = await inbox.take()
        except asyncio.CancelledError:
            self.engine.withdraw(writing)
            raise
        _known(writing, found[0])
        return found

    async def _whole(self, asked: text_api.Asked, telling: text_api.Telling, inbox: Inbox) -> bytes:
        writing = asked.writing
        answer = Progress(writing, self._tokens.telling(asked.stops, writing.least))
        told = ""
        likely: list[text_api.Placed] = []
        pieces = await self._first(writing, inbox)
        try:
            while not answer.finish:
                for more, _, of_it in answer.more(pieces):
                    told += more
                    likely += of_it
                pieces = [] if answer.finish else await inbox.take()
        finally:
            self.engine.withdraw(writing)
        return telling.whole(told, answer.finish, likely, text_api.usage(writing, self._said(writing)))

    async def _told(
        self,
        asked: text_api.Asked,
        telling: text_api.Telling,
        pieces: list[Token | None],
        inbox: Inbox,
        over: ExitStack,
        account: list[str],
    ) -> AsyncGenerator[bytes]:
        """Events, one for each step; what several made while nobody could send goes together."""
        writing = asked.writing
        answer = Progress(writing, self._tokens.telling(asked.stops, writing.least))
        with over:
            try:
                while not answer.finish:
                    if events := [telling.event(*step) for step in answer.more(pieces) if any(step)]:
                        yield b"".join(events)
                    pieces = [] if answer.finish else await inbox.take()
                if asked.usage:
                    yield telling.usage_event(text_api.usage(writing, self._said(writing)))
                yield text_api.DONE
                account.append("")
            except asyncio.CancelledError:
                if (problem := self._stopped_by_us()) is None:
                    raise
                account.append(problem.reason)
                yield text_api.error_event(problem)
            except WireError as problem:
                account.append(problem.reason)
                yield text_api.error_event(problem)
            finally:
                self.engine.withdraw(writing)

    def _said(self, writing: Writing) -> dict[str, Any]:
        """Where its time went, in ms, and where it was written."""
        now_ns = time.perf_counter_ns()
        done_ns = writing.done_ns or now_ns
        runner = self.engine.runner
        engine_ns = done_ns - writing.begun_ns
        prefill_ns = min(writing.prefill_ns, engine_ns)  # a step's time ends a moment after its last token is known
        decode_ns = min(writing.decode_ns, engine_ns - prefill_ns)
        spent_ns = (
            writing.begun_ns - writing.received_ns, prefill_ns, engine_ns - prefill_ns - decode_ns, decode_ns,
            now_ns - done_ns,
        )  # fmt: skip
        return {
            **{f"{stage}_ms": _ms(ns) for stage, ns in zip(wire.TEXT_STAGES, spent_ns, strict=True)},
            "first_ms": _ms(writing.first_ns - writing.received_ns),
            "total_ms": _ms(now_ns - writing.received_ns),
            "compiled": writing.compiled,
            "replica": self.replica,
            "device": self._device(runner) if runner else "",
        }


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)


def _known(writing: Writing, piece: Token | None) -> Token:
    """The token, or why there is none; as another error, as the writing would hold its own traceback."""
    if piece is None:
        assert writing.error is not None
        raise WireError(writing.error.status, writing.error.sentence, writing.error.reason)
    return piece


def _request_id(request: Request) -> str:
    return (request.header(b"x-request-id") or f"{request.received_wall_ns:x}")[:128]
