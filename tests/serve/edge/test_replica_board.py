from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrate.serve.edge.replica_board import MOST_GONE, NOBODY, SILENT_S, ReplicaBoard
from tailrate.serve.telemetry.statistics import zero

ENDPOINT = ("bert", "eager")


NUMBERS = count()


def report(
    replica: str, state: str = "READY", reason: str = "", inferred: int = 0, number: int | None = None
) -> dict[str, Any]:
    counts = zero() | {"inference_count": inferred}
    return {
        "model": "bert", "variant": "eager", "replica": replica, "state": state, "reason": reason, "waiting": 0,
        "counts": counts, "number": next(NUMBERS) if number is None else number, "ended": False,
    }  # fmt: skip


def inferred(board: ReplicaBoard, now_s: float) -> int:
    found: int = board.statistics([ENDPOINT], now_s)[0]["inference_count"]
    return found


def test_ready_only_when_every_replica_is() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=2)
    assert board.state(ENDPOINT, 0) == ("LOADING", "starting (0 of 2 there)")
    board.put(report("a"), 0)
    assert board.ready([ENDPOINT], 0) == "bert/eager is loading: starting (1 of 2 there)"
    board.put(report("b", "LOADING", "warming bucket 1 of 3, 2 s"), 0)
    assert board.ready([ENDPOINT], 0) == "bert/eager is loading: warming bucket 1 of 3, 2 s"
    board.put(report("b"), 1)
    assert board.ready([ENDPOINT], 1) is None


def test_one_that_loads_again_is_no_reason_to_send_the_others_nothing() -> None:
    other = ("null", "eager")
    board = ReplicaBoard([ENDPOINT, other], replicas=2)
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
    board = ReplicaBoard([ENDPOINT], replicas=1)
    board.put(report("a"), 0)
    board.put(report("b", "LOADING", "loading torch"), 1)
    assert board.ready([ENDPOINT], 1) is None
    assert board.ready([ENDPOINT], SILENT_S + 0.5) == "bert/eager is loading: loading torch"


def test_a_replica_that_cannot_load_makes_the_endpoint_unavailable() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=2)
    board.put(report("a", "LOADING", "loading torch"), 0)
    board.put(report("b", "UNAVAILABLE", "the weights do not fit"), 0)
    assert board.state(ENDPOINT, 0) == ("UNAVAILABLE", "the weights do not fit")


def test_a_silent_replica_is_forgotten_but_not_what_it_counted() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=1)
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
    board = ReplicaBoard([ENDPOINT, ("null", "eager")], replicas=2)
    board.put(report("a"), 0)
    board.put(report("b"), 0)
    told = board.metrics(0).splitlines()
    assert 'tailrate_endpoint_ready{model="bert",variant="eager"} 1' in told
    assert 'tailrate_endpoint_ready{model="null",variant="eager"} 0' in told
    assert 'tailrate_endpoint_ready{model="bert",variant="eager"} 0' in board.metrics(SILENT_S + 1).splitlines()
    assert "# TYPE tailrate_endpoint_ready gauge" in told


def test_statistics_add_up_over_replicas() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=2)
    for replica, inferred in (("a", 1), ("b", 2), ("a", 3)):  # the latest of each counts
        board.put(report(replica, inferred=inferred), 0)
    assert board.statistics([ENDPOINT], 0)[0]["inference_count"] == 5


def test_a_replica_that_was_silent_and_comes_back_is_counted_once() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=1)
    found = []
    for now_s, had in ((0, 10), (SILENT_S + 1, None), (SILENT_S + 2, 11), (2 * SILENT_S + 4, None), (40, 12)):
        if had is not None:
            board.put(report("a", inferred=had), now_s)
        found.append(inferred(board, now_s))
    assert found == [10, 10, 11, 11, 12]


def test_a_report_that_was_overtaken_takes_nothing_back() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=1)
    board.put(report("a", inferred=7, number=3), 0)
    board.put(report("a", inferred=5, number=2), 0.1)
    assert inferred(board, 0.1) == 7
    assert inferred(board, SILENT_S + 1) == 7
    board.put(report("a", inferred=6, number=2), SILENT_S + 2)  # and now it is silent
    assert inferred(board, SILENT_S + 2) == 7
    assert not board.reports(ENDPOINT, SILENT_S + 2)


def test_one_that_says_that_it_ends_is_gone_at_once_and_what_it_counted_stays() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=1)
    board.put(report("a", inferred=5, number=0), 0)
    board.put(report("a", inferred=8, number=2) | {"ended": True}, 1)
    assert board.serving(1) == "no endpoint has a ready replica"
    assert board.ready([ENDPOINT], 1) == "bert/eager is loading: replacing a lost replica (0 of 1 there)"
    assert board.heard([ENDPOINT], 2, 2)  # nobody waits for it
    board.put(report("a", inferred=7, number=1), 2)  # overtaken by its last one
    assert not board.reports(ENDPOINT, 2)
    assert inferred(board, 2) == 8


@given(st.lists(st.tuples(st.integers(0, MOST_GONE + 20), st.floats(0, 9), st.booleans()), max_size=300))
@settings(max_examples=60, derandomize=True, database=None)
def test_totals_never_fall_and_are_the_sum_of_what_each_counted(reports: list[tuple[int, float, bool]]) -> None:
    """Whoever reports, goes silent, comes back, or is overtaken by itself."""
    board = ReplicaBoard([ENDPOINT], replicas=1)
    truth: dict[int, int] = {}
    made: dict[int, int] = {}
    now_s, before = 0.0, 0
    for replica, pause_s, late in reports:
        now_s += pause_s
        made[replica] = made.get(replica, 0) + 1
        if not late:
            truth[replica] = truth.get(replica, 0) + replica + 1
        number = made[replica] if not late else 0
        board.put(report(f"r{replica}", inferred=truth.get(replica, 0) if not late else 0, number=number), now_s)
        total = inferred(board, now_s)
        assert total >= before
        assert total == sum(truth.values())
        before = total


def test_of_very_many_that_are_gone_the_oldest_are_dead_and_still_counted() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=1)
    for replica in range(MOST_GONE + 5):
        board.put(report(f"r{replica}", inferred=1), replica * (SILENT_S + 1))
    later = (MOST_GONE + 6) * (SILENT_S + 1)
    assert inferred(board, later) == MOST_GONE + 5
    board.put(report("r0", inferred=9), later)  # nobody comes back from there
    assert inferred(board, later) == MOST_GONE + 5
    assert not board.reports(ENDPOINT, later)


def test_what_no_replica_had_is_counted_for_its_endpoint_or_for_nobody() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=1, since_ns=5_000_000)
    board.refused(ENDPOINT, "not_ready", 10)
    board.refused(NOBODY, "not_found", 10)
    (found,) = board.statistics([ENDPOINT], 0)
    assert {why: n for why, n in found["refused"].items() if n} == {"not_ready": 1}
    assert found["since"] == 5
    assert {why: n for why, n in board.nobody().items() if n} == {"not_found": 1}
    told = board.metrics(0).splitlines()
    assert 'tailrate_edge_refused_total{model="bert",variant="eager",reason="not_ready"} 1' in told
    assert 'tailrate_edge_refused_total{model="",variant="",reason="not_found"} 1' in told


def test_all_are_heard_when_none_that_is_there_has_not_reported_since() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=2)
    board.put(report("a"), 1)
    board.put(report("b"), 2)
    assert not board.heard([ENDPOINT], 1.5, 2)
    board.put(report("a"), 3)
    assert board.heard([ENDPOINT], 1.5, 3)
    assert board.heard([ENDPOINT], SILENT_S + 9, SILENT_S + 10)  # none is there


def test_a_server_that_stops_is_not_ready() -> None:
    board = ReplicaBoard([ENDPOINT], replicas=1)
    board.put(report("a"), 0)
    board.stop_at_s = 5.0
    assert board.ready([ENDPOINT], 0) == board.serving(0) == "the server is stopping"
