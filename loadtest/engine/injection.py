"""Faults as they happen: each at its instant, in a greenlet of its own, and what became of it as events.

The server is asked for its own at `wire.FAULTS`, and does them only where it was started with --allow-faults; those of
the load side are contexts. What could not be done is an event too, and the run goes on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import gevent

from tailrate.loadtest.engine.endpoint.answer import OK, error_sentence
from tailrate.loadtest.engine.endpoint.client import Client
from tailrate.loadtest.engine.faults import Endpoint, LoadFault, LoadSide, RefusedError, kinds
from tailrate.loadtest.engine.scenario.fault_plan import Fault, Plan
from tailrate.serve import wire

ASK_S = 90.0
"""To take memory of a GPU, the server first has to open it."""

say = logging.getLogger("tailrate")


class FaultInjection:
    """One run's; `event(kind, **what)` writes it down and `now()` is the run's time in ns."""

    def __init__(
        self,
        plan: Plan,
        here: LoadSide,
        event: Callable[..., None],
        now: Callable[[], int],
        total_s: float | None = None,
        began_ns: int | None = None,
        others: Mapping[str, Endpoint] | None = None,
    ) -> None:
        """`total_s` is the run's planned length, where it has one; `began_ns`, when a run that goes on first began.

        `others` are the clients of endpoints by name, for faults that name one.
        """
        self._plan = plan
        self._kinds = kinds()
        self._here = here
        self._others = others or {}
        self._clients: dict[str, Client] = {}
        self._event = event
        self._now = now
        self._total_s = total_s
        self._began_ns = began_ns
        self._greenlets: list[gevent.Greenlet[..., None]] = []

    def start(self) -> None:
        """What was due in an earlier life of the run does not happen again."""
        past_s = (self._now() - self._began_ns) / 1e9 if self._began_ns else 0.0
        for number, fault in enumerate(self._plan):
            if (left_s := fault.due_s(self._total_s) - past_s) >= 0:
                self._greenlets.append(gevent.spawn_later(left_s, self._happen, number, fault))

    def stop(self) -> None:
        """What is under way ends now and says so; what is still to come does not happen."""
        gevent.killall(self._greenlets)
        self._greenlets = []
        for client in self._clients.values():
            client.close()

    def _happen(self, number: int, fault: Fault) -> None:
        start_ns = self._now()
        known = {"fault": fault.fault, "id": number, "target": fault.target, "start_ns": start_ns}
        known |= {"endpoint": fault.endpoint} if fault.endpoint else {}
        until_s = time.monotonic() + fault.seconds
        kind, sentence = self._kinds[fault.fault], None
        here = replace(self._here, client=self._others[fault.endpoint]) if fault.endpoint else self._here
        try:
            lasting = kind.lasting(here, fault.target, fault.seconds) if isinstance(kind, LoadFault) else None
            with self._asked(fault, here.client) if lasting is None else lasting as sentence:
                self._event("fault", time_ns=start_ns, **known, end_ns=None, phase="begin", sentence=sentence)
                say.info("fault %s: %s", fault.fault, sentence)
                gevent.sleep(max(0.0, until_s - time.monotonic()))
        except (RefusedError, OSError, ValueError) as problem:
            say.warning("fault %s: %s", fault.fault, problem)
            if sentence is None:
                self._event("fault", **known, end_ns=start_ns, phase="refused", sentence=str(problem))
                return
        finally:  # also when the run is stopped in the middle of it
            if sentence is not None:
                say.info("fault %s: it is over", fault.fault)
                self._event("fault", **known, end_ns=self._now(), phase="end", sentence="it is over")

    @contextmanager
    def _asked(self, fault: Fault, at: Endpoint) -> Iterator[str]:
        wanted = {"fault": fault.fault, "target": fault.target, "seconds": fault.seconds}
        headers = {"content-type": "application/json"}
        if fault.endpoint not in self._clients:
            self._clients[fault.endpoint] = Client(at.url + at.prefix, ASK_S, at.access)
        client = self._clients[fault.endpoint]
        answer = client.send("POST", client.prefix + wire.FAULTS, json.dumps(wanted).encode(), headers)
        if answer.status != OK:
            why = answer.error or error_sentence(answer.body)
            raise RefusedError(f"the server did not do it ({answer.status}): {why}")
        yield str(json.loads(answer.body).get("sentence", "the server did it"))
