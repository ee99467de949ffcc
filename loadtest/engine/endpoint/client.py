"""One HTTP connection pool to a server: sends ready-made bodies, and asks it for JSON.

Failures of `send` are results, never exceptions: whoever sends a request wants a row. What `get_json` does not get is
a `ScenarioError`.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tailrate.analysis.records.rows import CUT, is_success
from tailrate.loadtest.engine.endpoint.answer import OK, SHUT, EndpointAnswer, error_sentence, parse_json
from tailrate.loadtest.engine.endpoint.credentials import ANYBODY, TOKEN, Access, address
from tailrate.loadtest.engine.endpoint.deadlines import Deadlines
from tailrate.loadtest.engine.endpoint.http1.pool import MOST_BODY, Incoming, Pool
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

UNTRUSTED = "its certificate proves nothing"
OTHER_NAME = (62, 64)
"""OpenSSL's numbers for a certificate of another host, or of another address."""


class Client:
    """Any number of requests at once, each with one deadline for the whole exchange."""

    def __init__(self, host: str, timeout_s: float, access: Access = ANYBODY, most_body: int = MOST_BODY) -> None:
        parts = address(host)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.prefix = parts.path.rstrip("/")
        self.access = access
        self._deadlines = Deadlines(timeout_s)
        tls = access.tls() if parts.scheme == "https" else None
        self._pool = self._pool_of()(parts, timeout_s, tls, access.line, most_body)

    @staticmethod
    def _pool_of() -> type[Pool]:
        return Pool

    @property
    def fields(self) -> bytes:
        """For who speaks to the endpoint past this client: what each request's header begins with."""
        return self._pool.fields

    def send(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> EndpointAnswer:
        answer = EndpointAnswer("", time.monotonic_ns(), 0)
        deadline = self._deadlines.begin()
        try:
            self._exchange(method, path, body, headers or {}, answer)
        except TimeoutError as problem:
            answer.status, answer.error = "timeout", str(problem) or "timed out"
        except ssl.SSLError as problem:
            answer.status, answer.error = "connect", _insecure(problem)
        except OSError as problem:
            answer.status, answer.error = "connect", str(problem) or type(problem).__name__
        finally:
            self._deadlines.end(deadline)
        answer.done_ns = answer.done_ns or time.monotonic_ns()
        return answer

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str], answer: EndpointAnswer) -> None:
        """Fills in status, header fields, body and what is wrong; an `OSError` where there is no whole answer."""
        found = Incoming()
        self._pool.exchange(method, path, headers, body, found)
        self._fill(answer, found)

    def _fill(self, answer: EndpointAnswer, found: Incoming) -> None:
        answer.status, answer.fields, answer.body = str(found.status), found.head, b"".join(found.pieces)
        if found.status >= 400:
            answer.body = self.access.masked(answer.body)

    def get_json(self, path: str, method: str = "GET", body: bytes = b"") -> Any:
        """The parsed answer; `ScenarioError` where there is none."""
        answer = self.send(method, self.prefix + path, body, {"content-type": "application/json"} if body else None)
        if answer.status in ("timeout", "connect"):
            raise ScenarioError(self.unreached(answer, "nothing"))
        if answer.status != OK:
            said = f"{self.url}{path} answered {answer.status}: {error_sentence(answer.body)}"
            raise ScenarioError(self.shut(answer) or said)
        try:
            return parse_json(answer.body)
        except ValueError:
            raise ScenarioError(f"{self.url}{path} did not answer with JSON") from None

    def unreached(self, answer: EndpointAnswer, who: str) -> str:
        """The sentence about an answer that did not come: who does not answer, or why nobody is asked."""
        why = answer.error or ""
        if why.startswith(UNTRUSTED):
            return f"{self.url} is not to be trusted: {why}"
        return f"{who} answers at {self.url}: {why}; is the endpoint up?"

    def shut(self, answer: EndpointAnswer) -> str | None:
        """The sentence about an answer that lets nobody in, or not us."""
        if answer.status not in SHUT:
            return None
        wants = f"does not take the token of {self.access.source}" if self.access.token else "wants a token"
        advice = "" if self.access.token else f": set {TOKEN}, or name the file that holds it with --token-file"
        return f"{self.url} {wants}{advice} ({answer.status}: {error_sentence(answer.body)})"

    def close(self) -> None:
        self._pool.close()


class StreamClient(Client):
    """One whose answers may come in pieces, each with its instant."""

    @staticmethod
    def _pool_of() -> type[Pool]:
        from tailrate.loadtest.engine.endpoint.http1.stream_pool import StreamPool  # numba, which no other client needs

        return StreamPool

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str], answer: EndpointAnswer) -> None:
        from tailrate.loadtest.engine.endpoint.http1.stream_pool import Stream

        found = Stream()

        def fill() -> None:
            self._fill(answer, found)
            answer.arrivals = found.pieces.arrivals

        with breaking_off(answer, fill):
            self._pool.exchange(method, path, headers, body, found)
            answer.done_ns = found.at_ns


@contextmanager
def breaking_off(answer: EndpointAnswer, fill: Callable[[], None]) -> Iterator[None]:
    """What had come of an answer is filled in, whatever ended it; a success that breaks off is `CUT`."""
    try:
        yield
    except TimeoutError:
        fill()
        raise
    except OSError as problem:
        fill()
        if not is_success(answer.status):
            raise
        answer.status, answer.error = CUT, str(problem) or type(problem).__name__
    else:
        fill()


def _insecure(problem: ssl.SSLError) -> str:
    """What is wrong, in a sentence."""
    if not isinstance(problem, ssl.SSLCertVerificationError):
        return f"TLS failed ({(problem.reason or str(problem)).lower().replace('_', ' ')})"
    advice = "use the name in it" if problem.verify_code in OTHER_NAME else "name its CA with --ca-file"
    return f"{UNTRUSTED} ({problem.verify_message.rstrip('.')}); {advice}"
