import ast
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrate.serve.telemetry.statistics import (
    BOUNDS_S,
    EVENTS,
    LE,
    REFUSED,
    Counters,
    add,
    as_prometheus,
    as_statistics,
    zero,
)
from tailrate.serve.wire import BUSY, REASONS

SERVE = Path(__file__).parents[3] / "serve"
STAGES_NS = {"batch": 1_000, "h2d": 2_000, "compute": 3_000_000, "d2h": 4_000}


def busy() -> Counters:
    """Three batches of four requests in five rows, and how they were answered."""
    counters = Counters()
    counters.batch(1, STAGES_NS, [50_000])
    counters.batch(3, STAGES_NS, iter([100_000, 200_000]))
    counters.batch(1, STAGES_NS, [20_000_000_000])
    for ns in (3_000_000, 5_000_000, 5_000_001):
        counters.answer(ns)
    counters.answer(1_000, "queue_full")
    return counters


def report(counters: Counters, **more: Any) -> dict[str, Any]:
    named = {"model": "bert", "variant": "eager", "replica": "r1", "state": "READY", "waiting": 2}
    return named | more | {"counts": counters.snapshot()}


def samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By sample name and the labels that are not the replica's own."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            rest = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ("model", "variant", "replica")))
            found.setdefault(sample.name, {})[rest] = sample.value
    return found


def test_batches_and_answers_in_tritons_form() -> None:
    found = as_statistics("bert", "eager", busy().snapshot())
    assert (found["name"], found["version"]) == ("bert", "eager")
    assert (found["inference_count"], found["execution_count"]) == (5, 3)
    stats = found["inference_stats"]
    assert stats["success"] == {"count": 3, "ns": 13_000_001}
    assert stats["fail"] == {"count": 1, "ns": 1_000}
    assert stats["queue"] == {"count": 4, "ns": 20_000_350_000}
    assert stats["compute_input"] == {"count": 4, "ns": 4 * 3_000}
    assert stats["compute_infer"] == {"count": 4, "ns": 4 * 3_000_000}
    assert stats["compute_output"] == {"count": 4, "ns": 4 * 4_000}
    assert stats["cache_hit"] == stats["cache_miss"] == {"count": 0, "ns": 0}
    assert [(b["batch_size"], b["compute_infer"]) for b in found["batch_stats"]] == [
        (1, {"count": 2, "ns": 6_000_000}),
        (3, {"count": 1, "ns": 3_000_000}),
    ]


def test_our_own_stages_stand_apart_where_tritons_add_two_up() -> None:
    stages = as_statistics("bert", "eager", busy().snapshot())["stages"]
    assert {name: stages[name]["ns"] for name in STAGES_NS} == {name: 4 * ns for name, ns in STAGES_NS.items()}
    assert stages["queue"] == {"count": 4, "ns": 20_000_350_000}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refusal_is_counted_by_its_reason(reason: str) -> None:
    counters = Counters()
    counters.answer(1, reason)
    found = counters.snapshot()
    assert {why: n for why, n in found["refused"].items() if n} == {reason: 1}
    assert (found["inference_stats"]["success"]["count"], found["inference_stats"]["fail"]["count"]) == (0, 1)


def test_every_status_that_an_error_may_have_has_a_word_and_every_word_a_counter() -> None:
    """Of all errors that are raised anywhere in the server, read from its code."""
    raised = [
        found
        for path in sorted(SERVE.rglob("*.py"))
        for found in re.findall(r"WireError\(\s*(\d{3})", path.read_text())
    ]
    assert len(raised) > 50
    assert {int(status) for status in raised} <= set(REASONS)
    words = [
        keyword.value
        for path in sorted(SERVE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "WireError" and len(node.args) > 2
        for keyword in node.args[2:]
        if isinstance(keyword, ast.Constant)
    ]
    assert set(words) == set(BUSY)
    assert len(set(REFUSED)) == len(REFUSED) == len(REASONS) + len(BUSY)


def test_requests_that_waited_for_the_compiler_are_counted_beside_its_work() -> None:
    counters = Counters()
    counters.compiled("recompile", 3)
    counters.compiled("first_hit", 1)
    counters.compiled("fallback", 1)
    counters.event("out_of_memory")
    found = {name: n for name, n in counters.snapshot()["events"].items() if n}
    assert found == {"recompiles": 1, "first_hits": 1, "fallbacks": 1, "recompiled_requests": 5, "out_of_memory": 1}


def test_replicas_add_up_whatever_they_have_seen() -> None:
    one, other = busy(), Counters()
    other.batch(8, STAGES_NS, [1])
    other.answer(1)
    total = add(add(zero(), one.snapshot()), other.snapshot())
    assert total["inference_count"] == 13
    assert set(total["batch_stats"]) == {"1", "3", "8"}
    assert total["inference_stats"]["success"]["count"] == 4
    assert total["histograms"]["request"]["success"]["sizes"]["0.0001"] == 1
    assert total["last_inference"] == max(one.snapshot()["last_inference"], other.snapshot()["last_inference"])
    assert add(zero(), one.snapshot()) == one.snapshot()


def test_counting_from_two_threads_loses_nothing() -> None:
    counters = Counters()

    def run_batches() -> None:
        for _ in range(2000):
            counters.batch(2, STAGES_NS, [1, 2])
            counters.event("parity_samples")

    device = threading.Thread(target=run_batches)
    device.start()
    for _ in range(2000):
        counters.answer(1)
        counters.event("parity_samples")
        counters.snapshot()
    device.join()
    found = counters.snapshot()
    assert found["execution_count"] == 2000
    assert found["inference_stats"]["success"]["count"] == 2000
    assert found["inference_stats"]["queue"]["count"] == 4000
    assert found["events"]["parity_samples"] == 4000


def test_prometheus_reads_every_sample_and_every_name_has_help_type_and_a_unit() -> None:
    text = as_prometheus([report(busy()), report(Counters(), replica="r2", state="LOADING")])
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.name.startswith("tailrate_")
        assert family.documentation.endswith(".")
        assert family.type in ("counter", "gauge", "histogram")
        assert (family.type == "histogram") == family.name.endswith("_seconds")
        assert {sample.labels["replica"] for sample in family.samples} == {"r1", "r2"}
    found = samples(as_prometheus([report(busy())]))
    assert found["tailrate_requests_total"] == {(("outcome", "success"),): 3, (("outcome", "fail"),): 1}
    assert found["tailrate_refused_total"][(("reason", "queue_full"),)] == 1
    assert found["tailrate_ready"][()] == 1
    assert found["tailrate_waiting"][()] == 2
    assert {f"tailrate_{name}_total" for name in EVENTS} <= set(found)


def test_histograms_are_cumulative_and_end_with_everything() -> None:
    found = samples(as_prometheus([report(busy())]))
    buckets = {dict(labels)["le"]: n for labels, n in found["tailrate_request_seconds_bucket"].items()
               if dict(labels)["outcome"] == "success"}  # fmt: skip
    assert list(buckets) == list(LE)
    assert (buckets["0.0025"], buckets["0.005"], buckets["0.01"], buckets["+Inf"]) == (0, 2, 3, 3)
    assert found["tailrate_request_seconds_count"][(("outcome", "success"),)] == 3
    assert found["tailrate_request_seconds_sum"][(("outcome", "success"),)] == pytest.approx(0.013000001)
    queue = {dict(labels)["le"]: n for labels, n in found["tailrate_stage_seconds_bucket"].items()
             if dict(labels)["stage"] == "queue"}  # fmt: skip
    assert (queue["0.0001"], queue["0.00025"], queue["10"], queue["+Inf"]) == (2, 3, 3, 4)
    assert BOUNDS_S[-1] == 10


def test_labels_are_escaped() -> None:
    awkward = 'a "quoted" \\ name\nof two lines'
    (family, *_) = text_string_to_metric_families(as_prometheus([report(Counters(), model=awkward)]))
    assert family.samples[0].labels["model"] == awkward


def test_a_reader_sees_all_of_a_batch_or_nothing_of_it() -> None:
    counters, found = Counters(), list[dict[str, Any]]()
    reader = threading.Thread(target=lambda: found.append(counters.snapshot()))

    def queued_ns() -> Iterator[int]:
        yield 1
        reader.start()
        reader.join(0.2)  # it waits until the batch is counted
        yield 2

    counters.batch(2, STAGES_NS, queued_ns())
    reader.join()
    assert found == [counters.snapshot()]
