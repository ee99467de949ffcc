"""One replica of one endpoint (model × variant): the protocol on one side, its engine on the other.

Turns requests into jobs and jobs into answers with the headers that say where the time went, and tells
its metadata, configuration, readiness and statistics. Runs in an event loop that it never blocks: the
device belongs to the engine's thread. Knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Protocol

from tailrate.serve import variants, wire
from tailrate.serve.asgi import LEFT, HttpAnswer, Request, as_error, as_json, only, reason
from tailrate.serve.body.request import InferRequest, decode_infer
from tailrate.serve.body.result import encode_result
from tailrate.serve.edge import openai
from tailrate.serve.edge.openai import embeddings
from tailrate.serve.engine import profiling
from tailrate.serve.engine.engine import Engine, Job
from tailrate.serve.engine.job import late
from tailrate.serve.engine.observers import Observers
from tailrate.serve.engine.profiling import Profile
from tailrate.serve.engine.queue import full
from tailrate.serve.options import ServeOptions
from tailrate.serve.runner.open_runner import open_runner
from tailrate.serve.spec import Tensors
from tailrate.serve.telemetry.statistics import as_statistics
from tailrate.serve.wire import EndpointInfo, TensorSpec, WireError

TIMEOUT_HEADERS = (b"x-tailrate-timeout-seconds", b"x-request-timeout-seconds")
"""The first is what our HAProxy makes of the second, empty where there was none."""
LONGEST_TIMEOUT_S = 86_400.0
MOST_BATCHES = 64
"""Of one request, unless `max_rows` says otherwise."""
LARGE_TEXT_BYTES = 4096
"""More BYTES than this are work, whatever the model makes of them: texts come at some two megabytes a second."""
DECODERS = 4
"""Threads that decode images and large texts; they hold the interpreter only in between."""
INFERRING = ("infer", openai.EMBEDDINGS)
"""What follows an endpoint's path where the model is to run."""
HEADER_LENGTH = wire.HEADER_LENGTH.encode()


class Watch(Protocol):
    """What is known of an engine's work beside its counters."""

    def facts(self) -> dict[str, Any]: ...
    def profiled(self, batches: int, timeout_s: float, /) -> Awaitable[Profile]: ...


class Endpoint:
    """Answers every path under `/v2/models/{model}/versions/{variant}`."""

    inferring: tuple[str, ...] = INFERRING

    def __init__(self, options: ServeOptions, model: str, variant: str, replica: str, cpu: str = "cpu") -> None:
        """`cpu` is what samples call the host that this runs on."""
        self.model, self.variant, self.replica = model, variant, replica
        self._cpu = cpu
        self._options = options
        self._spec = options.spec(model)
        self._outputs = {output.name for output in self._spec.outputs}
        self._info = EndpointInfo(model, variant, self._spec.inputs, self._spec.outputs)
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        """Of reports: they may overtake one another."""
        self._preparing = 0
        self._stopping = self._given_up = False
        self._tasks: set[asyncio.Task[Any] | None] = set()
        """Those of requests for inference that are under way."""
        self._decoders = ThreadPoolExecutor(DECODERS, "decode")
        self._name = f"{model}-{variant}-{replica}"
        self._watch: Watch
        self.engine, self._watch = self._engine_and_watch()
        self.engine.start()

    def _engine_and_watch(self) -> tuple[Any, Any]:
        options, variant = self._options, variants.load(self.variant)
        engine = Engine(
            lambda say: open_runner(self._spec, variant, options, say, watch),
            self._deliver,
            max_queue=options.max_queue,
            max_wait_s=options.max_wait_ms / 1e3,
        )
        watch = engine.onlooker = Observers(options, self._spec, self._name, engine.counters)
        return engine, watch

    def answer(self, request: Request, tail: str) -> Awaitable[HttpAnswer]:
        """`tail` is what follows the endpoint's own path: empty, or infer, ready, stats, config or v1/embeddings."""
        return self._result(request, tail) if tail in self.inferring else self._described(request, tail)

    async def _described(self, request: Request, tail: str) -> HttpAnswer:
        """What it is, and how it does."""
        if tail == "profile":
            only(request, "POST")
            if not self._options.profile:
                raise WireError(403, "profiling is off; start the server with --profile to allow it")
            return await profiling.answer(request, self._name, self._watch.profiled)
        if tail in openai.TAILS:
            return openai.refusal(as_error(WireError(404, f"{self.model} does not answer at {tail}")))
        if tail not in ("", "ready", "stats", "config"):
            raise WireError(404, f"unknown path {request.path}; an endpoint has infer, ready, stats and config")
        only(request, "GET")
        if tail == "ready":
            return self._ready()
        if tail == "stats":
            return as_json({"model_stats": [as_statistics(self.model, self.variant, self.engine.counters.snapshot())]})
        return as_json(self._configuration() if tail == "config" else self.metadata())

    def _result(self, request: Request, tail: str) -> Awaitable[HttpAnswer]:
        return self._embedded(request) if tail == openai.EMBEDDINGS else self._infer(request, tail)

    async def _embedded(self, request: Request) -> HttpAnswer:
        return openai.refusal(await self._infer(request, openai.EMBEDDINGS))

    def stop(self, within_s: float) -> None:
        """Takes nothing new from now on; who has no answer by then is told that there will be none."""
        if not self._stopping:
            self._stopping = True
            self._loop.call_later(within_s, self._give_up)

    def _give_up(self) -> None:
        self._given_up = True
        for task in list(self._tasks):
            if task is not None:
                task.cancel()

    def refused(self, tail: str, why: str, ns: int) -> None:
        """Counts a request that ended before it could be answered."""
        if tail in self.inferring:
            self.engine.counters.answer(ns, why)

    def _device(self, runner: Any) -> str:
        return self._cpu if runner.device == "cpu" else runner.device

    async def fresh_report(self) -> dict[str, Any]:
        """As of now."""
        return self.report()

    def report(self) -> dict[str, Any]:
        """What the gateway should know of this replica (see `board`)."""
        return {
            "model": self.model,
            "variant": self.variant,
            "replica": self.replica,
            "number": next(self._numbers),
            "state": self.engine.state,
            "reason": self.engine.reason,
            "waiting": self.engine.waiting,
            "stopping": self._stopping,
            "ended": False,
            "counts": self.engine.counters.snapshot(),
        }

    # ---- what it is

    def metadata(self) -> dict[str, Any]:
        return self._info.as_json(self._options.variants) | {"parameters": self._parameters()}

    def _parameters(self) -> dict[str, Any]:
        runner = self.engine.runner
        return {
            "variant": self.variant,
            "state": self.engine.state,
            "reason": self.engine.reason,
            "replica": self.replica,
            "device": self._device(runner) if runner else None,
            "max_batch": runner.max_batch if runner else self._options.max_batch,
            "max_queue": self._options.max_queue,
            "max_wait_ms": self._options.max_wait_ms,
            "default_outputs": ",".join(self._spec.default_outputs),
            **self._spec.parameters,
            **(runner.parameters() if runner else {}),
            **self._watch.facts(),
        }

    def _configuration(self) -> dict[str, Any]:
        """Triton's model configuration, as far as its tools read it."""

        def tensors(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
            types = {"BYTES": "STRING"}
            return [
                {
                    "name": spec.name,
                    "data_type": f"TYPE_{types.get(spec.datatype, spec.datatype)}",
                    "dims": list(spec.shape[1:]),
                }
                for spec in specs
            ]

        runner = self.engine.runner
        return {
            "name": self.model,
            "platform": "tailrate",
            "backend": "tailrate",
            "max_batch_size": runner.max_batch if runner else self._options.max_batch or 0,
            "input": tensors(self._spec.inputs),
            "output": tensors(self._spec.outputs),
            "dynamic_batching": {"max_queue_delay_microseconds": int(self._options.max_wait_ms * 1e3)},
        }

    def _ready(self) -> HttpAnswer:
        if self.engine.state != "READY":
            raise WireError(503, f"{self._info.name} is {self.engine.state.lower()}: {self.engine.reason}")
        return as_json({"name": self.model, "version": self.variant, "ready": True})

    # ---- inference

    async def _infer(self, request: Request, tail: str) -> HttpAnswer:
        refused = LEFT  # as long as nothing is answered: the client has gone and this task is cancelled
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            only(request, "POST")
            if self._stopping:
                raise WireError(503, wire.STOPPING, "stopping")
            found, refused = await self._infer_or_raise(request, tail), ""
        except asyncio.CancelledError:
            if not self._given_up or task is None or task.uncancel():
                raise
            problem = WireError(503, wire.STOPPING, "stopping")
            found, refused = as_error(problem, **self._headers(request)), problem.reason
        except WireError as problem:
            found, refused = as_error(problem, **self._headers(request)), problem.reason
        except Exception as problem:
            refused = reason(problem)
            raise
        finally:
            self._tasks.discard(task)
            self.engine.counters.answer(time.perf_counter_ns() - request.received_ns, refused)
        return found

    async def _infer_or_raise(self, request: Request, tail: str) -> HttpAnswer:
        until_ns = deadline_ns(request)
        encoding = ""
        if tail == openai.EMBEDDINGS:
            asked, encoding = embeddings.read(self._spec, (self.model, self._info.name), request.body)
        else:
            asked = decode_infer(request.body, _header_length(request))
        self._check(asked)
        aside = self._spec.slow_prepare or _has_large_text(request, asked)
        tensors = await self._prepared(asked.inputs, until_ns) if aside else self._spec.prepare(asked.inputs)
        job = Job(
            tensors,
            rows=asked.rows,
            wanted=frozenset(asked.outputs or self._spec.default_outputs),
            received_ns=time.perf_counter_ns() if aside else request.received_ns,
            deadline_ns=until_ns,
            gone=request.gone,
        )
        job.waiter = self._loop.create_future()
        self.engine.submit(job)
        timer = self._expire_on_time(job)
        try:
            await job.waiter
        except asyncio.CancelledError:
            self.engine.withdraw(job)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if job.error is not None:
            # another one: the job would hold its own traceback, and with it what it was sent and made
            raise WireError(job.error.status, job.error.sentence, job.error.reason)
        assert job.outputs is not None
        binary = asked.outputs or dict.fromkeys(self._spec.default_outputs, asked.binary_default)
        outputs = {name: job.outputs[name] for name in binary}
        if encoding:
            body, headers = embeddings.write(self._info.name, outputs, tensors, encoding)
        else:
            body, headers = encode_result(self._info, outputs, binary=binary, request_id=asked.id)
        decode_ms = (job.received_ns - request.received_ns) / 1e6 if aside else None
        headers |= self._headers(request)
        headers[wire.TIMING] = wire.format_timing(job.stages_ms(time.perf_counter_ns()), decode_ms)
        headers[wire.BATCH] = str(job.batch_rows)
        if job.compiled:
            headers[wire.COMPILE] = "1"
        return HttpAnswer(200, body, headers)

    def _check(self, asked: InferRequest) -> None:
        """What can be refused before any work is done for it."""
        if asked.outputs and (unknown := [name for name in asked.outputs if name not in self._outputs]):
            raise WireError(400, f"unknown output '{unknown[0]}'; the model has {', '.join(sorted(self._outputs))}")
        runner = self.engine.runner
        rows = asked.rows
        most = self._options.max_rows or (MOST_BATCHES * runner.max_batch if runner else rows)
        if rows > most:
            raise WireError(413, f"the request has {rows} rows, but at most {most} are taken")

    async def _prepared(self, inputs: Tensors, deadline_ns: int | None) -> Tensors:
        """Decoded in a thread of its own; what is being decoded counts as waiting, even if nobody waits any more."""
        if self._preparing + self.engine.waiting >= self._options.max_queue:
            raise full(self._options.max_queue)
        self._preparing += 1
        work = self._decoders.submit(self._spec.prepare, inputs)
        work.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._is_prepared))
        left_s = None if deadline_ns is None else (deadline_ns - time.perf_counter_ns()) / 1e9
        try:
            return await asyncio.wait_for(asyncio.wrap_future(work), left_s)
        except TimeoutError:
            raise late("was decoded") from None

    def _is_prepared(self) -> None:
        self._preparing -= 1

    def _expire_on_time(self, job: Job) -> asyncio.TimerHandle | None:
        """Answers 504 at the deadline, rather than when the device gets to it or has done it."""
        if job.deadline_ns is None:
            return None

        def expire() -> None:
            if not job.waiter.done():
                self.engine.withdraw(job)
                job.error = late("ran" if job.reached else "was queued")
                job.waiter.set_result(None)

        return self._loop.call_later((job.deadline_ns - time.perf_counter_ns()) / 1e9, expire)

    def _deliver(self, jobs: Sequence[Job]) -> None:
        """From the engine's thread: wakes all waiters of a batch at once."""

        def wake() -> None:
            for job in jobs:
                if not job.waiter.done():
                    job.waiter.set_result(None)

        self._loop.call_soon_threadsafe(wake)

    def _headers(self, request: Request) -> dict[str, str]:
        # x-request-id is not among them: Ray's ingress echoes it on every path, and twice would be wrong
        runner = self.engine.runner
        return {
            wire.CLOCK_HEADER: f"{request.received_wall_ns},{time.time_ns()}",
            wire.REPLICA: self.replica,
            wire.DEVICE: self._device(runner) if runner else "",
        }


def _has_large_text(request: Request, asked: InferRequest) -> bool:
    return len(request.body) > LARGE_TEXT_BYTES and any(tensor.dtype == object for tensor in asked.inputs.values())


def _header_length(request: Request) -> int | None:
    text = request.headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        shown = text[:64].decode("latin-1")
        raise WireError(400, f"the header {wire.HEADER_LENGTH} must be a number of bytes, not '{shown}'")
    return int(text)


def deadline_ns(request: Request) -> int | None:
    first, second = TIMEOUT_HEADERS
    if not (text := request.headers.get(first) or request.headers.get(second)):
        return None
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = math.nan
    if not math.isfinite(timeout_s):
        shown = text[:64].decode("latin-1")
        raise WireError(400, f"the header x-request-timeout-seconds must be a number of seconds, not '{shown}'")
    if timeout_s <= 0:  # as Ray's ingress reads it
        return None
    return request.received_ns + int(min(timeout_s, LONGEST_TIMEOUT_S) * 1e9)
