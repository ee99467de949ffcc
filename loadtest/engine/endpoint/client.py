"""One HTTP connection pool to an endpoint: sends ready-made bodies, and asks a v2 server what it hosts.

Failures are results here, never exceptions: whoever sends a request wants a row. Misuse before the run
(`discover`) is a `ScenarioError`.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gevent

from tailrate.loadtest.engine.endpoint.credentials import ANYBODY, TOKEN, Access, address
from tailrate.loadtest.engine.endpoint.http import MOST_BODY, Pool
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve import wire
from tailrate.serve.body.result import decode_result

OK = "200"
SHUT = ("401", "403")
UNTRUSTED = "its certificate proves nothing"
OTHER_NAME = (62, 64)
"""OpenSSL's numbers for a certificate of another host, or of another address."""


@dataclass(slots=True)
class EndpointAnswer:
    """What came back: an HTTP status, or what else `status` of a row may be; monotonic send and receive times."""

    status: str
    sent_ns: int
    done_ns: int
    fields: bytes = b""
    """The header as it came, lines apart by CR LF."""
    body: bytes = b""
    error: str | None = None

    def outputs(self) -> dict[str, wire.Array]:
        """Named tensors of a result; `wire.WireError` where it is none."""
        length = self.headers().get(wire.HEADER_LENGTH, "")
        return decode_result(self.body, wire.parse_count(length))

    def headers(self) -> dict[str, str]:
        """By their names in lower case."""
        pairs = (line.partition(":") for line in self.fields.decode("latin-1").split("\r\n"))
        return {name.lower(): value.strip() for name, colon, value in pairs if colon}


class Client:
    """Any number of requests at once, each with one deadline for the whole exchange."""

    def __init__(self, host: str, timeout_s: float, access: Access = ANYBODY, most_body: int = MOST_BODY) -> None:
        parts = address(host)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.prefix = parts.path.rstrip("/")
        self.access = access
        self._timeout_s = timeout_s
        self._pool = Pool(parts, timeout_s, access, most_body)

    @property
    def fields(self) -> bytes:
        """For who speaks to the endpoint past this client: what each request's header begins with."""
        return self._pool.fields

    def send(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> EndpointAnswer:
        sent_ns = time.monotonic_ns()
        deadline = gevent.Timeout.start_new(self._timeout_s, TimeoutError("no whole answer in time"))
        try:
            status, fields, whole = self._pool.exchange(method, path, headers or {}, body)
            if status >= 400:
                whole = self.access.masked(whole)
            return EndpointAnswer(str(status), sent_ns, time.monotonic_ns(), fields, whole)
        except TimeoutError as problem:
            return EndpointAnswer("timeout", sent_ns, time.monotonic_ns(), error=str(problem) or "timed out")
        except ssl.SSLError as problem:
            return EndpointAnswer("connect", sent_ns, time.monotonic_ns(), error=_insecure(problem))
        except OSError as problem:
            reason = str(problem) or type(problem).__name__
            return EndpointAnswer("connect", sent_ns, time.monotonic_ns(), error=reason)
        finally:
            deadline.close()

    def get_json(self, path: str, method: str = "GET") -> Any:
        """The parsed answer; `ScenarioError` where there is none."""
        answer = self.send(method, self.prefix + path)
        if answer.status in ("timeout", "connect"):
            why = answer.error or ""
            if why.startswith(UNTRUSTED):
                raise ScenarioError(f"{self.url} is not to be trusted: {why}")
            raise ScenarioError(f"nothing answers at {self.url}: {why}; is the endpoint up?")
        if answer.status != OK:
            said = f"{self.url}{path} answered {answer.status}: {error_sentence(answer.body)}"
            raise ScenarioError(self.shut(answer) or said)
        try:
            return json.loads(answer.body)
        except ValueError:
            raise ScenarioError(f"{self.url}{path} did not answer with JSON; is it a v2 endpoint?") from None

    def shut(self, answer: EndpointAnswer) -> str | None:
        """The sentence about an answer that lets nobody in, or not us."""
        if answer.status not in SHUT:
            return None
        wants = f"does not take the token of {self.access.source}" if self.access.token else "wants a token"
        advice = "" if self.access.token else f": set {TOKEN}, or name the file that holds it with --token-file"
        return f"{self.url} {wants}{advice} ({answer.status}: {error_sentence(answer.body)})"

    def close(self) -> None:
        self._pool.close()


def _insecure(problem: ssl.SSLError) -> str:
    if not isinstance(problem, ssl.SSLCertVerificationError):
        return f"TLS failed ({(problem.reason or str(problem)).lower().replace('_', ' ')})"
    advice = "use the name in it" if problem.verify_code in OTHER_NAME else "name its CA with --ca-file"
    return f"{UNTRUSTED} ({problem.verify_message.rstrip('.')}); {advice}"


def error_sentence(body: bytes) -> str:
    """The `error` of a v2 error body, or the body's beginning."""
    try:
        found = json.loads(body)
        if isinstance(found, dict) and isinstance(found.get("error"), str):
            return str(found["error"])[:500]
    except ValueError:
        pass
    return body[:200].decode("utf-8", "replace").strip() or "no reason given"


def discover(client: Client, model: str, variants: Sequence[str]) -> list[wire.EndpointInfo]:
    """The endpoints of `model` to drive, or one sentence that says what is wrong and what is known."""
    try:
        server = client.get_json(wire.SERVER)
    except ScenarioError as problem:
        raise ScenarioError(str(problem).replace("; is it a v2 endpoint?", "")) from None
    if not isinstance(server, dict) or "name" not in server:
        raise ScenarioError(f"{client.url} is no v2 endpoint (Open Inference Protocol): {wire.SERVER} names no server")
    hosted = _hosted(client, model)
    if variants:
        if hosted and (unknown := [name for name in variants if name not in hosted]):
            raise ScenarioError(
                f"{client.url} hosts no variant {', '.join(unknown)} of '{model}'; it hosts {', '.join(hosted)}"
            )
    elif not hosted:
        raise ScenarioError(f"{client.url} names no version of '{model}'; name them with --variants")
    chosen = list(variants) or hosted
    found = [wire.EndpointInfo.from_json(client.get_json(wire.model_path(model, name)), name) for name in chosen]
    for name in chosen:
        ready = client.send("GET", f"{client.prefix}{wire.model_path(model, name)}/ready")
        if ready.status != OK:
            raise ScenarioError(f"{model}/{name} at {client.url} is not ready: {error_sentence(ready.body)}")
    return found


def _hosted(client: Client, model: str) -> list[str]:
    """Versions of the model by the repository index, or by its metadata where a server has no index."""
    try:
        index = client.get_json(wire.INDEX, "POST")
    except ScenarioError:
        return [str(name) for name in client.get_json(wire.model_path(model)).get("versions") or []]
    models = [item for item in index if isinstance(item, dict) and "name" in item] if isinstance(index, list) else []
    if not any(item["name"] == model for item in models):
        known = ", ".join(sorted({str(item["name"]) for item in models})) or "none"
        raise ScenarioError(f"{client.url} hosts no model '{model}'; it hosts {known}")
    return [str(item["version"]) for item in models if item["name"] == model and item.get("version")]
