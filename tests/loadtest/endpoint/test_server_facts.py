"""What the server counts is asked before and after a run; where it can't be read, that is said."""

from typing import Any

import pytest

from tailrate.analysis.records.manifest import Manifest
from tailrate.loadtest.engine.endpoint import server_facts
from tailrate.loadtest.engine.endpoint.protocols.oip import Oip
from tailrate.loadtest.engine.endpoint.servers import OpenEndpoint
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve import wire

SERVER: dict[str, Any] = {"extensions": ["statistics"]}
URL = "http://h"
STATS = wire.model_path("m", "eager") + "/stats"


class Client:
    """Answers from a script; what is no answer is raised."""

    url = URL

    def __init__(self, *stats: Any) -> None:
        self.stats = list(stats)

    def get_json(self, path: str) -> Any:
        if path != STATS:
            return {"parameters": {}}
        found = self.stats.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def told(server: dict[str, Any], *stats: Any) -> dict[str, Any]:
    manifest = Manifest("r", "running", {})
    manifest.endpoints = [{"model": "m", "variant": "eager"}]
    client: Any = Client(*stats)
    endpoints = [OpenEndpoint(Endpoint("m/eager", URL, "oip", "m", "eager", "/infer"), Oip(), client)]
    server_facts.before(endpoints, manifest, {URL: server})
    server_facts.after(endpoints, manifest)
    return {key: manifest.endpoints[0].get(key) for key in ("events", "events_before", "events_unread")}


def stats(since: int | None = 1, **events: int) -> dict[str, Any]:
    return {"model_stats": [{"events": events} | ({} if since is None else {"since": since})]}


def nothing(**more: Any) -> dict[str, Any]:
    return {"events": None, "events_before": None, "events_unread": None} | more


BROKEN = ScenarioError("http://h answered 500: the server failed on this request")


@pytest.mark.parametrize(
    ("server", "given", "found"),
    [
        (SERVER, [stats(recompiles=2), stats(recompiles=5)], nothing(events={"recompiles": 3})),
        (SERVER, [stats(None, recompiles=2), stats(None, recompiles=5)], nothing(events={"recompiles": 3})),
        (SERVER, [BROKEN], nothing(events_unread=str(BROKEN))),
        (SERVER, [stats(recompiles=2), BROKEN], nothing(events_unread=str(BROKEN))),
        ({}, [BROKEN], nothing()),  # it never said that it has any
        (SERVER, [{"model_stats": [{"inference_count": 1}]}], nothing()),  # Triton counts other things
        (
            SERVER,
            [stats(1, recompiles=2), stats(9, recompiles=5)],
            nothing(events={"recompiles": 5}, events_unread="its counts began anew during the run"),
        ),
    ],
)
def test_counts_of_the_run_or_why_there_are_none(server: dict[str, Any], given: list[Any], found: Any) -> None:
    assert told(server, *given) == found
