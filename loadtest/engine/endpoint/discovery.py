"""From what was asked for to endpoints that are known to answer: which protocol, which versions, which form of body."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tailrate.analysis.records.objective import Slo
from tailrate.analysis.records.rows import is_success
from tailrate.loadtest.engine.endpoint.answer import SHUT, EndpointAnswer, error_sentence
from tailrate.loadtest.engine.endpoint.payloads import Inputs, Payloads
from tailrate.loadtest.engine.endpoint.protocol import KNOWN, Protocol, named, protocol_of
from tailrate.loadtest.engine.endpoint.servers import OpenEndpoint, Servers
from tailrate.loadtest.engine.endpoint.target import Endpoint, Settings, Target
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve import wire

UNREACHED = ("timeout", "connect", *SHUT)
say = logging.getLogger("tailrate")


@dataclass(frozen=True, slots=True)
class Tried:
    """An endpoint that has answered a request of this scenario."""

    to: OpenEndpoint
    payloads: Payloads
    answer: EndpointAnswer


def discover(servers: Servers, targets: Sequence[Target], settings: Mapping[str, Settings]) -> list[Endpoint]:
    """The endpoints that are meant, or one sentence that says what is wrong and what is known.

    `settings` are those of each protocol, for endpoints that have none of their own.
    """
    servers.keys.check({target.name: servers.client(target).url for target in targets})
    found: list[Endpoint] = []
    taken: set[str] = set()
    for target in targets:
        protocol = _protocol(servers, target, settings)
        several = protocol.find(servers.client(target, protocol.name), target)
        if target.name and len(several) > 1:
            several = [replace(each, name=f"{target.name}/{each.version}") for each in several]
        found += [named(each, taken) for each in several]
    return found


def check_objectives(slos: Sequence[Slo], endpoints: Sequence[Endpoint]) -> None:
    """`ScenarioError` where an objective is of tokens, and an endpoint answers all at once."""
    for slo in slos:
        for endpoint in endpoints if slo.ttft or slo.tpot else ():
            if not KNOWN[endpoint.protocol].streams:
                speaks = ", ".join(name for name, kind in KNOWN.items() if kind.streams)
                raise ScenarioError(
                    f"--slo '{slo}' is of tokens, and {endpoint.name} answers all at once by {endpoint.protocol}; "
                    f"what streams is {speaks}"
                )


def _protocol(servers: Servers, target: Target, settings: Mapping[str, Settings]) -> Protocol:
    """The one that was named, or that the server turns out to speak."""
    if target.protocol:
        return protocol_of(target.protocol, {**settings.get(target.protocol, {}), **target.settings})
    for name, kind in KNOWN.items():
        if server := kind.spoken(servers.client(target, name)):
            say.info("%s speaks %s: it calls itself %s", target.url, name, server)
            return protocol_of(name, {**settings.get(name, {}), **target.settings})
    client = servers.client(target)
    answer = client.send("GET", f"{client.prefix}{wire.SERVER}")
    if answer.status in UNREACHED:
        client.get_json(wire.SERVER)  # says what is wrong
    raise ScenarioError(
        f"{client.url} answers HTTP ({wire.SERVER}: {answer.status}), but no protocol that is recognised by itself; "
        f"name the one that it speaks with --protocol: {', '.join(KNOWN)}"
    )


def try_out(servers: Servers, endpoint: Endpoint, inputs: Inputs) -> Tried:
    """Sends one request, in the first form of body that the server takes; what it says of the last is the sentence."""
    protocol = protocol_of(endpoint.protocol, endpoint.settings)
    client = servers.client(endpoint)
    first = replace(inputs, tensors=inputs.tensors[:1], rows=inputs.rows[:1])
    for each in (protocol, *protocol.others()):
        trial = replace(endpoint, settings=each.settings())
        made = each.payloads(trial, first)
        answer = client.send(each.method, trial.path, made.bodies[0], dict(made.headers[0]))
        if is_success(answer.status) and (flaw := each.flaw(answer, answer.headers())) is None:
            return Tried(servers.open(trial), made, answer)
        if answer.status in SHUT:
            break
        client.close()  # MLServer says no word of it, but hangs up a moment after a body that it could not read
    if not is_success(answer.status):
        why = answer.error or error_sentence(answer.body)
        refused = f"{endpoint.name} does not take this scenario's request ({answer.status}): {why}"
        raise ScenarioError(client.shut(answer) or refused)
    raise ScenarioError(f"{endpoint.name} answers {answer.status}, but with no result: {flaw}")
