"""What every protocol is: one way to speak to a server of models, in a file of `protocols` each.

Its fields are its settings, which an endpoint may have of its own. A locustfile may define one beside its scenario:
a subclass is known by its name as soon as it exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.credentials import Access
from tailrate.loadtest.engine.endpoint.payloads import Inputs, Payloads
from tailrate.loadtest.engine.endpoint.row_fields import row_fields
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target, called
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client
    from tailrate.loadtest.engine.scenario.options import Option

KNOWN: dict[str, type[Protocol]] = {}
"""By name; `protocols` fills it, and so may a locustfile."""
SINCE = "since"
BROKE_OFF = "the stream broke off"
"""How the flaw of an answer begins that is `cut` by what it holds, though its connection says that it is whole."""


@dataclass(frozen=True)
class Protocol:
    """Four methods make one: `find`, `write`, `flaw`, and where a server says more than headers do, `read`."""

    name: ClassVar[str] = ""
    what: ClassVar[str] = ""
    """Its line in the help."""
    options: ClassVar[tuple[Option, ...]] = ()
    """Of the command line; the field of an option's key, less the protocol's name, gets its value."""
    method: ClassVar[str] = "POST"
    streams: ClassVar[bool] = False
    """Answers come token by token."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.name:
            KNOWN[cls.name] = cls

    @classmethod
    def connect(cls, url: str, timeout_s: float, access: Access) -> Client:
        from tailrate.loadtest.engine.endpoint.client import Client  # gevent, which no help page needs

        return Client(url, timeout_s, access)

    # ---- what there is

    @classmethod
    def spoken(cls, client: Client) -> str:
        """What the server calls itself, where it speaks this protocol; else nothing."""
        return ""

    def find(self, client: Client, target: Target) -> list[Endpoint]:
        """The endpoints that are meant, or `ScenarioError` with what there is instead."""
        raise NotImplementedError

    def endpoint(
        self, client: Client, target: Target, path: str, version: str = "", parameters: Mapping[str, Any] | None = None
    ) -> Endpoint:
        """The target as it is driven at a path; without a name of its own it is called `model/version`."""
        version = version or target.version
        return Endpoint(
            name=target.name or called(target.model, version),
            url=client.url + client.prefix,
            protocol=self.name,
            model=target.model,
            version=version,
            path=path,
            settings=self.settings(),
            parameters=parameters or {},
        )

    def others(self) -> Iterator[Self]:
        """Itself with other settings, to be tried in turn where the server refuses a body that was made with these."""
        return iter(())

    # ---- a request and its answer

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        """The body of a request, and its header fields."""
        raise NotImplementedError

    def continued(self, said: Sequence[str], prompt: str) -> str:
        """The prompt of a session's next turn, after all that its user and the model said in turns."""
        raise ScenarioError(f"{self.name} has no sessions of several turns: leave --turns at 1")

    def flaw(self, answer: EndpointAnswer, header: Mapping[str, str]) -> str | None:
        """Why an answer with a 2xx is no success, in a few words; None of one. Called for each answer: be quick."""
        raise NotImplementedError

    def read(self, answer: EndpointAnswer, header: Mapping[str, str], bad: Counter[str]) -> dict[str, Any]:
        """Columns of the request's row, as far as the answer says something; `bad` counts what cannot be meant."""
        return row_fields(header, bad)

    def texts(self, answer: EndpointAnswer) -> Sequence[str]:
        """Of a stream, that of each event with text in it."""
        return ()

    def outputs(self, answer: EndpointAnswer) -> dict[str, Array]:
        """Named tensors of an answer, for a scenario's own check."""
        raise NotImplementedError

    def replayed(self, answer: EndpointAnswer) -> bytes:
        """The answer as the whole HTTP response of a known length that a null server plays back."""
        return self._head(answer, f"content-length: {len(answer.body)}") + answer.body

    def _head(self, answer: EndpointAnswer, framing: str) -> bytes:
        status, *lines = answer.fields.decode("latin-1").strip().split("\r\n")
        own = ("content-length", "transfer-encoding", "connection", "date")
        kept = [line for line in lines if line.partition(":")[0].lower() not in own]
        return "\r\n".join([status, *kept, framing, "", ""]).encode("latin-1")

    def pace(self, answer: EndpointAnswer) -> tuple[tuple[int, float], ...]:
        """Of an answer that comes in pieces: where each ends in what is played back, and its ms after the request."""
        return ()

    # ---- what a server says of itself, where it does

    def server(self, client: Client) -> dict[str, Any]:
        return {}

    def parameters(self, client: Client, endpoint: Endpoint) -> dict[str, Any]:
        """The endpoint's present state."""
        return {}

    def events(self, client: Client, endpoint: Endpoint) -> dict[str, int] | None:
        """What the server has counted, and under `SINCE` when it began to; None where it counts nothing of the kind."""
        return None

    # ---- settings

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def payloads(self, endpoint: Endpoint, inputs: Inputs) -> Payloads:
        made = [self.write(endpoint, tensors, inputs.outputs) for tensors in inputs.tensors]
        return Payloads(tuple(body for body, _ in made), tuple(header for _, header in made), inputs.rows)


def protocol_of(name: str, settings: Mapping[str, Any]) -> Protocol:
    """With these settings, or `ScenarioError`."""
    if name not in KNOWN:
        raise ScenarioError(f"unknown protocol '{name}'; known are {', '.join(KNOWN)}")
    kind = KNOWN[name]
    known = [each.name for each in fields(kind)]
    if unknown := [key for key in settings if key not in known]:
        has = ", ".join(known) or "none"
        raise ScenarioError(f"protocol {name} has no setting '{unknown[0]}'; it has {has}")
    return kind(**settings)


def named(endpoint: Endpoint, taken: set[str]) -> Endpoint:
    """With a name that nobody else has: a second one of the same model and version is called by its host, too."""
    name = endpoint.name
    if name in taken:
        name = f"{name}@{endpoint.url.partition('//')[2]}"
    if name in taken:
        raise ScenarioError(f"two endpoints are called '{endpoint.name}'; name them: --endpoints a=…,b=…")
    taken.add(name)
    return replace(endpoint, name=name)
