from typing import Any

from serve.board import SILENT_S, Board
from serve.counters import zero

ENDPOINT = ("bert", "eager")


def report(replica: str, state: str = "READY", reason: str = "", inferred: int = 0) -> dict[str, Any]:
    counts = zero() | {"inference_count": inferred}
    return {
        "model": "bert", "variant": "eager", "replica": replica, "state": state, "reason": reason, "waiting": 0,
        "counts": counts,
    }  # fmt: skip


def test_ready_only_when_every_replica_is() -> None:
    board = Board([ENDPOINT], replicas=2)
    assert board.state(ENDPOINT, 0) == ("LOADING", "starting (0 of 2 there)")
    board.put(report("a"), 0)
    assert board.ready([ENDPOINT], 0) == "bert/eager is loading: replacing a lost replica (1 of 2 there)"
    board.put(report("b", "LOADING", "warming bucket 1 of 3, 2 s"), 0)
    assert board.ready([ENDPOINT], 0) == "bert/eager is loading: warming bucket 1 of 3, 2 s"
    board.put(report("b"), 1)
    assert board.ready([ENDPOINT], 1) is None


def test_one_that_loads_again_is_no_reason_to_send_the_others_nothing() -> None:
    other = ("null", "eager")
    board = Board([ENDPOINT, other], replicas=2)
    assert board.serving(0) == "no endpoint has a ready replica"
    board.put(report("a"), 0)
    board.put(report("b", "LOADING", "loading torch"), 0)
    assert board.serving(0) is None
    assert board.ready(board.endpoints, 0) == "bert/eager is loading: loading torch"
    board.put(report("a", "LOADING", "loading torch"), 1)  # a reload
    assert board.serving(1) == "no endpoint has a ready replica"
    board.put(report("c") | {"model": "null"}, 1)
    assert board.serving(1) is None
    assert board.serving(SILENT_S + 2) == "no endpoint has a ready replica"


def test_an_endpoint_stays_ready_while_one_more_replica_loads() -> None:
    board = Board([ENDPOINT], replicas=1)
    board.put(report("a"), 0)
    board.put(report("b", "LOADING", "loading torch"), 1)
    assert board.ready([ENDPOINT], 1) is None
    assert board.ready([ENDPOINT], SILENT_S + 0.5) == "bert/eager is loading: loading torch"


def test_a_replica_that_cannot_load_makes_the_endpoint_unavailable() -> None:
    board = Board([ENDPOINT], replicas=2)
    board.put(report("a", "LOADING", "loading torch"), 0)
    board.put(report("b", "UNAVAILABLE", "the weights do not fit"), 0)
    assert board.state(ENDPOINT, 0) == ("UNAVAILABLE", "the weights do not fit")


def test_a_silent_replica_is_forgotten_but_not_what_it_counted() -> None:
    board = Board([ENDPOINT], replicas=1)
    assert not board.was_ready(ENDPOINT)
    board.put(report("a", inferred=5), 0)
    assert board.ready([ENDPOINT], SILENT_S) is None
    later = SILENT_S + 1
    assert board.ready([ENDPOINT], later) == "bert/eager is loading: replacing a lost replica (0 of 1 there)"
    assert board.was_ready(ENDPOINT)
    board.put(report("b", inferred=2), later)
    assert board.ready([ENDPOINT], later) is None
    assert [entry["replicas"] for entry in board.index(later)] == [["b"]]
    assert board.statistics([ENDPOINT], later)[0]["inference_count"] == 7


def test_prometheus_is_told_of_an_endpoint_that_no_replica_tells_of() -> None:
    """Such as one whose replicas found no room: its own metrics are not there to be looked at."""
    board = Board([ENDPOINT, ("null", "eager")], replicas=2)
    board.put(report("a"), 0)
    board.put(report("b"), 0)
    told = board.metrics(0).splitlines()
    assert 'headroom_endpoint_ready{model="bert",variant="eager"} 1' in told
    assert 'headroom_endpoint_ready{model="null",variant="eager"} 0' in told
    assert 'headroom_endpoint_ready{model="bert",variant="eager"} 0' in board.metrics(SILENT_S + 1).splitlines()
    assert "# TYPE headroom_endpoint_ready gauge" in told


def test_statistics_add_up_over_replicas() -> None:
    board = Board([ENDPOINT], replicas=2)
    for replica, inferred in (("a", 1), ("b", 2), ("a", 3)):  # the latest of each counts
        board.put(report(replica, inferred=inferred), 0)
    assert board.statistics([ENDPOINT], 0)[0]["inference_count"] == 5
