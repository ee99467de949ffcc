"""Which rule an endpoint follows, from batches that were made by each of them."""

import importlib.util

import numpy as np
import pytest
from batched import Server, batched_run, linear
from fitted import calibrate
from folders import rewrite
from virtual_ray import WAITS_WITHOUT_A_TASK, asked

from tailrate import analysis
from tailrate.analysis.planning.model import batching_rule
from tailrate.analysis.planning.model.fit import observed
from tailrate.analysis.planning.model.observed_batches import ObservedBatches
from tailrate.analysis.planning.simulator.fleet import Fleet, Routing, Rule, Service
from tailrate.analysis.planning.simulator.queueing_theory import stable_below_rps
from tailrate.analysis.text.words import significant

FIXED_S, EACH_S, LIMIT = 0.004, 0.001, 8 / 0.012


def found(folder, rule, wait_s, shares, said_wait=None):
    server = Server(linear(FIXED_S, EACH_S, 0.1), 8, wait_s, rule, gap_s=0.0002)
    batched_run(folder, server, [LIMIT * share for share in shares], seconds=20)
    run = analysis.load(folder)
    steps = [step for step in observed([run], "m/a") if not step.overloaded]
    return run, batching_rule.find(ObservedBatches.joined([step.batches for step in steps]), 8, said_wait)


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize(
    ("rule", "wait_s", "shares"),
    [
        ("company", 0.0, (0.3, 0.7)),
        ("company", 0.004, (0.3, 0.7)),
        ("opportunistic", 0.004, (0.3, 0.7)),
        ("blocking", 0.004, (0.5, 0.8)),
        ("awaiting", 0.004, (0.2, 0.35)),
        ("awaiting", 0.0, (0.1, 0.2)),
    ],
)
def test_each_rule_is_told_from_its_batches(tmp_path, rule, wait_s, shares, said):
    _, seen = found(tmp_path / "it", rule, wait_s, shares, wait_s if said else None)
    assert seen.rule == rule
    assert seen.wait_s == pytest.approx(wait_s, abs=0.0003)


@pytest.mark.parametrize(("wait_s", "most", "load"), [(0.006, 4, 0.85), (0.02, 16, 0.9), (0.008, 8, 0.85)])
@pytest.mark.parametrize("rule", [Rule.AWAITING, Rule.BLOCKING])
def test_full_batches_do_not_hide_which_rule_leaves_behind(tmp_path, rule, wait_s, most, load):
    service = Service.steady(FIXED_S + 0.0002 + EACH_S * np.arange(most + 1))
    limit = stable_below_rps(Fleet(service, 1, most, wait_s, Rule.AWAITING, Routing.LEAST))
    server = Server(linear(FIXED_S, EACH_S, 0.1), most, wait_s, rule, gap_s=0.0002)
    batched_run(tmp_path / "it", server, [load * limit])
    (step,) = observed([analysis.load(tmp_path / "it")], "m/a")
    assert batching_rule.find(step.batches, most, wait_s).rule is rule


def test_a_wait_is_seen_where_nobody_comes_alone(tmp_path):
    server = Server(linear(FIXED_S, EACH_S, 0.1), 8, 0.02, "opportunistic", gap_s=0.0002)
    batched_run(tmp_path / "it", server, [0.25 * LIMIT, 0.5 * LIMIT])
    found = calibrate([analysis.load(tmp_path / "it")], "m/a")
    assert found.rule is Rule.OPPORTUNISTIC
    assert found.batch_wait_s == pytest.approx(0.02, abs=0.001)


def test_hardly_any_load_tells_nothing(tmp_path):
    _, seen = found(tmp_path / "it", "company", 0.0, (0.01,))
    assert seen.rule is None


@pytest.mark.parametrize("rule", ["company", "opportunistic"])
def test_a_good_rule_is_no_reason_to_warn(tmp_path, rule):
    run, seen = found(tmp_path / "it", rule, 0.004, (0.3, 0.7))
    assert batching_rule.warning("m/a", seen, calibrate([run], "m/a").service) is None


def test_the_trap_is_said_with_what_it_costs(tmp_path):
    run, _ = found(tmp_path / "it", "awaiting", 0.004, (0.2, 0.35))
    model = calibrate([run], "m/a")
    (said,) = [note for note in model.notes if "closes a batch" in note]
    assert "4 ms after its first request although the replica is busy" in said
    assert "method that awaits" in said
    most = stable_below_rps(model.fleet(1))
    assert most < 0.6 * model.service.limit_rps
    assert f"keeps up with {significant(most)}/s" in said


def test_leftovers_that_go_alone_are_said(tmp_path):
    run, _ = found(tmp_path / "it", "blocking", 0.004, (0.5, 0.8))
    assert any("what a full batch left over as a batch of its own" in note for note in calibrate([run], "m/a").notes)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.computes
def test_the_rules_of_rays_own_queue(tmp_path):
    """Ray's code in virtual time: requests go in order, so the sizes tell who was in which batch."""
    mean_s = 0.020 + 0.002 * np.arange(17)
    kinds = [(Rule.BLOCKING, 0.0, 290), (Rule.BLOCKING, 0.010, 260), (Rule.AWAITING, 0.010, 60)]
    due = [np.cumsum(np.random.default_rng(rate).exponential(1 / rate, 8000)) for _, _, rate in kinds]
    cases = [
        {"arrivals_s": at.tolist(), "mean_s": mean_s.tolist(), "max_batch": 16, "wait_s": wait_s,
         "blocking": rule is Rule.BLOCKING} for (rule, wait_s, _), at in zip(kinds, due, strict=True)
    ]  # fmt: skip
    answers = asked(tmp_path, what="batched", cases=cases)
    for (rule, wait_s, _), at, real in zip(kinds, due, answers, strict=True):
        sizes, service = np.array(real["sizes"]), mean_s[real["sizes"]]
        first, last = np.cumsum(sizes) - sizes, np.cumsum(sizes) - 1
        begun = (at + real["latency_s"])[last] - service
        second = np.where(sizes > 1, at[np.minimum(first + 1, len(at) - 1)], np.inf)
        batches = ObservedBatches(
            np.zeros(len(sizes), dtype=np.int64), sizes, begun, service, service, at[first], second, at[last],
            np.ones(len(sizes), dtype=bool),
        )  # fmt: skip
        found = batching_rule.find(batches, 16, wait_s)
        if rule is Rule.BLOCKING and wait_s and WAITS_WITHOUT_A_TASK:
            assert found.left < 0.01 * found.partial
        else:
            assert found.rule is rule


def test_the_limit_of_the_trap_is_the_known_one():
    """α = 20 ms, β = 2 ms, B = 16, W = 10 ms: 74/s, where batches of all that waits would do 308/s."""
    service = Service.steady(0.020 + 0.002 * np.arange(17))
    assert service.limit_rps == pytest.approx(307.7, abs=0.1)
    alpha, beta, wait = 0.020, 0.002, 0.010
    root = ((wait - alpha - beta) ** 2 + 4 * beta * wait) ** 0.5
    exact = ((wait - alpha - beta) + root) / (2 * beta * wait)
    # of batches of the mean size; they vary, which costs more or less
    assert stable_below_rps(Fleet(service, 1, 16, wait, Rule.AWAITING, Routing.LEAST)) == pytest.approx(exact, rel=0.01)
    assert exact == pytest.approx(74, abs=1)


def test_rules_that_are_found_are_the_enum(tmp_path):
    _, seen = found(tmp_path / "it", "company", 0.0, (0.7,))
    assert isinstance(seen.rule, Rule)


def test_a_batch_with_a_missing_answer_had_no_room_left(tmp_path):
    """One of a hundred answers is lost after its batch: that batch looks one smaller than it was."""
    server = Server(linear(FIXED_S, EACH_S, 0.1), 8, 0.0, "company", gap_s=0.0002)
    rows = batched_run(tmp_path / "it", server, [0.9 * LIMIT, 0.95 * LIMIT], seconds=20)
    lost = np.random.default_rng(1).random(len(rows)) < 0.01
    rows.loc[lost, ["status", "done_ns", "queue_ms", "compute_ms", "replica", "batch_rows"]] = ["timeout", *[None] * 5]
    rewrite(tmp_path / "it", rows)
    steps = observed([analysis.load(tmp_path / "it")], "m/a")
    seen = batching_rule.find(ObservedBatches.joined([step.batches for step in steps]), 8, 0.0)
    assert (seen.rule, seen.left) == (Rule.COMPANY, 0)
