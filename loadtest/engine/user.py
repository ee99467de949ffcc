"""The Locust user that a scenario subclasses: attributes are the defaults of the options, `payload` makes inputs.

There is one such user per load process. It is no browser that clicks and waits: it holds the process's
`Driver`, which sends arrivals by rate, whatever the responses do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from locust import User, events, task

from tailrate.loadtest.engine import session
from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.scenario.scenario import DataPlan, ScenarioError
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    from tailrate.loadtest.engine.workers.input.requests import FileInputs
    from tailrate.loadtest.engine.workers.input.tokenizer import Tokenizer

POOL_BYTES = 64 << 20
SAMPLE = 4
MOST_PROMPTS = 1 << 40


class EndpointUser(User):
    """Subclass it with a `model` and a `payload`; see loadtest/bert.py."""

    abstract = True

    model: ClassVar[str] = ""
    """The model's name in the endpoint's paths; empty: the only one that the server lists, where its protocol asks."""
    outputs: ClassVar[Sequence[str]] = ()
    """Outputs to ask for; empty: all that the model has."""
    pool_size: ClassVar[int] = 32
    """Distinct request bodies, made before the start."""
    inputs: ClassVar[Mapping[str, str]] = {}
    """The model's inputs and their types, such as {"x": "float32"}, for rows of a file; empty: its columns."""

    # any option of scenario.OPTIONS may stand here as an attribute: rates = "50:400:50", slo = "p99<50ms"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.abstract:
            session.attach(cls)

    def payload(self, rng: np.random.Generator, rows: int) -> dict[str, Array]:
        """Named input tensors of one request, drawn from `rng` alone."""
        raise NotImplementedError

    def from_row(self, row: Mapping[str, Any]) -> dict[str, Array]:
        """Named input tensors, their first dimension 1, of a row of `--data`: its texts, bytes, numbers and arrays.

        Who does not define it has each column as the input of its name.
        """
        raise NotImplementedError

    def check(self, answer: EndpointAnswer) -> str | None:
        """What is wrong with a result, in a few words, or None. Called for each, beside the load: so make it short.

        `answer.outputs()` are its tensors by name, `answer.body` its bytes. Who does not define it pays nothing for it.
        """
        return None

    @property
    def checker(self) -> Callable[[EndpointAnswer], str | None] | None:
        return None if type(self).check is EndpointUser.check else self.check

    def draw(self, seed: int, rows: Sequence[int], data: DataPlan | None = None) -> Inputs:
        """Of the requests: the same for the same seed, on every worker and for every endpoint; each draws its rows."""
        if data is not None:
            return self._of_file(seed, rows, data)
        tensors: list[Mapping[str, Array]] = []
        sizes: list[int] = []
        size, draw = 0, np.random.default_rng([seed])
        while len(tensors) < self.pool_size and size < POOL_BYTES:
            sizes.append(int(draw.choice(rows)))
            tensors.append(self.payload(np.random.default_rng([seed, len(tensors)]), sizes[-1]))
            size += sum(map(_bytes, tensors[-1].values()))
        return Inputs(tuple(tensors), tuple(sizes), tuple(self.outputs))

    def _of_file(self, seed: int, rows: Sequence[int], plan: DataPlan) -> FileInputs:
        """The first few requests of the file's rows, and what makes the others when their arrivals are known."""
        from tailrate.loadtest.engine.workers.input import foretold, inputs  # which take pyarrow
        from tailrate.loadtest.engine.workers.input.deal import Deal
        from tailrate.loadtest.engine.workers.input.requests import FileInputs

        own = type(self).from_row is not EndpointUser.from_row
        found = inputs.open_data(plan, self.inputs, self.from_row if own else None)
        deal = Deal(found.rows.count, plan.drawn, plan.unique, seed, tuple(rows))
        if not (many := min(foretold.SAMPLE, deal.rows if deal.most is None else deal.most)):
            few = f"it has {deal.rows} rows, too few for one request of {max(rows)}"
            raise ScenarioError(f"--data {plan.path}: {few}")
        sample = [deal.of(number) for number in range(many)]
        tensors, counts = tuple(map(found.inputs, sample)), tuple(map(len, sample))
        return FileInputs(tensors, counts, tuple(self.outputs), found.file, data=found, deal=deal)

    @task
    def drive(self) -> None:
        """Runs for as long as the test does."""
        session.work(self)


class PromptUser(EndpointUser):
    """For prompts to a language model, each of which is drawn, and none sent twice; see loadtest/chat.py.

    Options of its own say how long prompts and answers are; attributes of the scenario are their defaults.
    """

    abstract = True

    prompt_tokens: ClassVar[str] = "512"
    output_tokens: ClassVar[str] = "128"
    shared_prefix: ClassVar[int] = 0
    turns: ClassVar[str] = "1"
    think: ClassVar[str] = "0"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

        def options(parser: Any, **_: Any) -> None:
            lengths = "512, uniform:100:900, normal:512:128 or lognormal:512:0.6"
            parser.add_argument("--prompt-tokens", default=cls.prompt_tokens, help=f"words of a prompt: {lengths}")
            parser.add_argument("--output-tokens", default=cls.output_tokens, help=f"tokens of an answer: {lengths}")
            parser.add_argument(
                "--shared-prefix", type=int, default=cls.shared_prefix, help="words that all prompts begin with"
            )
            parser.add_argument(
                "--tokenizer",
                default="",
                help="tokenizer.json, or its folder: prompts have tokens, not words; answers too that no server counts",
            )
            several = "such as 4 or uniform:1:8, each with all that was said before"
            parser.add_argument("--turns", default=cls.turns, help=f"turns of a session, {several}")
            parser.add_argument(
                "--think", default=cls.think, help="seconds from an answer to the next turn, such as 2 or lognormal:5:1"
            )
            kinds = "Mooncake's JSONL, Azure's or BurstGPT's CSV, ShareGPT's JSON"
            parser.add_argument(
                "--lengths", default="", help=f"prompts and answers as long as those of a trace: {kinds}"
            )

        events.init_command_line_parser.add_listener(options)

    def draw(self, seed: int, rows: Sequence[int], data: DataPlan | None = None) -> Inputs:
        """Prompts of a file where there is one: its column `prompt`, and `max_tokens` if it has that."""
        options = self.environment.parsed_options
        tokenizer = self._tokenizer(options.tokenizer)
        if data is not None:
            return replace(self._of_file(seed, rows, data), tokenizer=tokenizer)
        if rows != (1,):
            raise ScenarioError("--rows is for tensors: a request carries one prompt")
        from tailrate.loadtest.engine.workers.input.deal import Deal
        from tailrate.loadtest.engine.workers.input.dialogue import Dialogue
        from tailrate.loadtest.engine.workers.input.lengths import Lengths
        from tailrate.loadtest.engine.workers.input.prompts import Prompts
        from tailrate.loadtest.engine.workers.input.request_trace import RequestTrace
        from tailrate.loadtest.engine.workers.input.requests import FileInputs

        lengths = (
            Lengths.parse(options.prompt_tokens, "--prompt-tokens"),
            Lengths.parse(options.output_tokens, "--output-tokens"),
        )
        recorded = RequestTrace.read(Path(options.lengths)) if options.lengths else None
        turns, think_s = Lengths.parse(options.turns, "--turns"), Lengths.parse(options.think, "--think", 0.0)
        dialogue = Dialogue(seed, turns, think_s) if str(turns) != "1" else None
        if dialogue and recorded:
            raise ScenarioError("--turns and --lengths: a trace says nothing of sessions; leave out one of them")
        if not dialogue and str(think_s) != "0":
            raise ScenarioError("--think is the time before a session's next turn: say how many it has with --turns")
        found = Prompts(seed, *lengths, options.shared_prefix, recorded, dialogue, tokenizer)
        tensors = tuple(found.inputs([number]) for number in range(SAMPLE))
        deal = Deal(MOST_PROMPTS, False, False, seed)
        drawn = FileInputs(tensors, (1,) * SAMPLE, (), found.file, data=found, deal=deal)
        return replace(drawn, dialogue=dialogue, tokenizer=tokenizer)

    @staticmethod
    def _tokenizer(path: str) -> Tokenizer | None:
        from tailrate.loadtest.engine.workers.input.tokenizer import Tokenizer

        return Tokenizer(Path(path)) if path else None

    def payload(self, rng: np.random.Generator, rows: int) -> dict[str, Array]:
        raise NotImplementedError  # `draw` makes them


def _bytes(tensor: Array) -> int:
    """Of a tensor in a request's body, about."""
    return sum(map(len, tensor.reshape(-1))) if tensor.dtype.kind == "O" else tensor.nbytes
