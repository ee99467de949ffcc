"""An endpoint with all that a load process has at hand for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.servers import OpenEndpoint, Servers
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.loadtest.engine.scenario.arrivals import Arrival
from tailrate.loadtest.engine.workers.input.dialogue import Turn
from tailrate.loadtest.engine.workers.input.requests import DataRequests, FileInputs, ReadyRequest
from tailrate.loadtest.engine.workers.input.tokenizer import Tokenizer
from tailrate.loadtest.engine.workers.sessions import place


@dataclass(frozen=True, slots=True)
class Ready:
    """An endpoint that this process can send to at once, with the requests that were made for it."""

    to: OpenEndpoint
    drawn: Sequence[ReadyRequest]
    data: DataRequests | None
    """Where requests carry rows of a file: what makes them."""
    tokenizer: Tokenizer | None
    """What counts the tokens of answers, where their server doesn't."""

    def of(self, arrival: Arrival) -> ReadyRequest:
        """Its request."""
        if isinstance(arrival, Turn):
            return arrival.request
        if self.data is None:
            return self.drawn[arrival.seq % len(self.drawn)]
        return self.data.of(arrival.step, arrival.seq)

    def read(self, answer: EndpointAnswer, fields: Mapping[str, str], bad: Counter[str]) -> dict[str, Any]:
        """Columns of its row."""
        found = self.to.protocol.read(answer, fields, bad)
        if self.tokenizer and (events := found.get("events")) and "tokens_out" not in found:
            texts = self.to.protocol.texts(answer)
            if len(texts) == events:  # else there is more in it than text
                found |= self.tokenizer.columns(texts)
        return found

    def place(self, arrival: Arrival) -> dict[str, Any]:
        """Of its row, where sessions have several turns."""
        if self.data is None or self.data.dialogue is None:
            return {}
        session, turn = place(arrival, self.data)
        return {"session": session, "turn": turn}


def opened(servers: Servers, endpoint: Endpoint, inputs: Inputs) -> Ready:
    to = servers.open(endpoint)
    made = to.protocol.payloads(endpoint, inputs)
    requests = [*map(ReadyRequest, made.bodies, made.headers, made.rows)]
    if not isinstance(inputs, FileInputs):
        return Ready(to, requests, None, None)
    return Ready(to, requests, inputs.requests(to), inputs.tokenizer)
