"""Calls over many runs: seldom wrong where nothing changed, seldom late where something did."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from histories import calls, judged, noisy, run_of
from often import at_least, at_most, counts

from tailrate.analysis.history.figure_series import KINDS, lineages
from tailrate.analysis.history.log import key_of
from tailrate.analysis.history.regression import (
    ACCEPTED,
    BETTER,
    LEAST,
    MOST,
    SAME,
    UNKNOWN,
    WORSE,
    far,
    usual,
)
from tailrate.analysis.history.run_summary import Entry, SustainedRate
from tailrate.analysis.stats.level_shifts import shifts

pytestmark = pytest.mark.computes

LATENCY = ("p50", "p99", "capacity")


# ---- the calls


@pytest.mark.parametrize("runs", [LEAST, 12, pytest.param(30, marks=pytest.mark.long)])
def test_no_change_raises_at_most_five_false_alarms_in_a_hundred(runs: int) -> None:
    found = [set(calls(noisy(seed, runs)).values()) for seed in range(200)]
    assert sum(WORSE in one for one in found) <= 10
    assert sum(BETTER in one for one in found) <= 16  # as rare, but chance has its say in 200


@counts(70, 200)
def test_a_tenth_slower_is_found_in_nine_of_ten(seeds: int) -> None:
    found = [set(calls(noisy(seed, 20, worse=LATENCY)).values()) for seed in range(seeds)]
    assert sum(WORSE in one for one in found) >= 0.9 * seeds


@counts(70, 200)
def test_one_figure_that_is_asked_for_alone_is_found_in_nine_of_ten(seeds: int) -> None:
    found = [calls(noisy(seed, 30, worse=["p99"]), figures=["p99"])["p99"] for seed in range(seeds)]
    assert found.count(WORSE) >= at_least(0.9, seeds)


@counts(40, 100)
def test_what_lasts_becomes_a_change_of_level_with_its_first_run(seeds: int) -> None:
    at = []
    for seed in range(seeds):
        one = judged(noisy(seed, 20, worse=["p99"], last=5))["p99"]
        at += [shift.place for shift in one.shifts[-1:] if shift.call == WORSE]
    assert len(at) >= 0.85 * seeds
    assert np.mean([abs(place - 20) <= 1 for place in at]) > 0.9


def test_after_a_change_only_the_new_level_counts_once_five_runs_know_it() -> None:
    entries = noisy(1, 20, worse=["p50", "p99"], times=1.5, last=9)
    early, late = judged(entries[:23])["p99"], judged(entries)["p99"]
    assert (early.call, early.against) == (WORSE, "20 earlier runs before run-020")
    assert (late.call, late.against) == (SAME, "8 runs since run-020")
    (shift,) = late.shifts
    assert (shift.place, shift.call) == (20, WORSE)
    assert shift.ratio == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize("runs", [5, 10, *(pytest.param(n, marks=pytest.mark.long) for n in (7, 9, 12, 16, 25))])
def test_one_more_run_is_as_far_off_as_is_said(runs: int) -> None:
    """By drawing runs of no change: so often it is farther, as runs are set aside."""
    rng = np.random.default_rng(runs)
    for chance in (0.02, 0.007):
        beyond = 0
        for row in rng.standard_normal((6000, runs + 1)):
            known = usual(row[:runs], chance)
            beyond += row[runs] - known.centre > known.reach
        assert at_least(0.85 * chance, 6000) <= beyond <= at_most(1.1 * chance, 6000)


def test_how_far_off_one_more_run_may_be_is_computed_once_for_all() -> None:
    """It takes half a millisecond, and a thousand runs with a dozen figures ask for it 12,000 times."""
    far.cache_clear()
    judged([run_of(day) for day in range(100)])
    assert 0 < far.cache_info().misses < MOST < far.cache_info().hits


@counts(4, 200)
def test_a_regression_is_not_learned(seeds: int) -> None:
    """P99 is 15 % worse for good, of runs that differ by 1 %: red in the first five runs, from five earlier ones on."""
    for before in range(LEAST, 13):
        red = np.zeros(6)
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            by = np.exp(0.01 * rng.normal(size=before + 6)) * np.where(np.arange(before + 6) < before, 1, 1.15)
            runs = [run_of(day, by={"p99": float(one)}) for day, one in enumerate(by)]
            red += [judged(runs[: before + k])["p99"].call == WORSE for k in range(1, 7)]
        assert red[:5].min() >= 0.95 * seeds, (before, red / seeds)
        assert red[5] <= 0.05 * seeds  # that is the level now, and said to be


def test_what_lasts_and_is_learned_is_said_with_its_first_run() -> None:
    runs = noisy(4, 5, worse=["p99"], times=1.5, last=6)
    (shift,) = judged(runs)["p99"].shifts
    assert (shift.place, shift.call, shift.ratio) == (5, WORSE, pytest.approx(1.5, rel=0.1))
    assert judged(runs)["p99"].against == "5 runs since run-005"
    assert judged(runs[:-1])["p99"].against == "5 earlier runs, 4 worse ones left out"


def test_who_accepts_a_regression_has_its_level_and_the_noise_of_before() -> None:
    runs = [*noisy(5, 12), *(run_of(day, by={"p99": 1.3}) for day in range(13, 16))]
    accepted = {key_of(runs[14]): None}
    assert [judged(runs[:n], accepted=accepted)["p99"].call for n in (14, 15, 16)] == [WORSE, ACCEPTED, SAME]
    worse_still = [*runs, run_of(16, by={"p99": 1.7})]
    assert judged(worse_still, accepted=accepted)["p99"].call == WORSE
    assert judged([*runs, run_of(16)], accepted=accepted)["p99"].call == BETTER


def kept(low: float, high: float | None) -> dict[str, SustainedRate]:
    return {"m/a": SustainedRate(low, high, None, True)}


@pytest.mark.parametrize(
    ("before", "newest", "call"),
    [
        ((800, 820), (400, None), UNKNOWN),  # nothing above was tried
        ((800, None), (400, None), UNKNOWN),
        ((800, 820), (800, None), SAME),
        ((800, 820), (1200, None), BETTER),
        ((800, None), (1200, 1230), SAME),  # than the highest that was tried then
        ((800, None), (400, 410), WORSE),
        ((800, 820), (0, 780), WORSE),  # kept at none, from 780/s on
        ((800, 820), (0, 1600), UNKNOWN),
    ],
)
def test_a_capacity_that_was_not_found_is_a_bound(
    before: tuple[float, float | None], newest: tuple[float, float | None], call: str
) -> None:
    runs = [run_of(day, kept=kept(*before)) for day in range(8)]
    assert judged([*runs, run_of(8, kept=kept(*newest))])["capacity"].call == call


def test_bounds_among_the_earlier_runs_teach_nothing_where_enough_were_found() -> None:
    runs = [run_of(day, kept=kept(400, None) if day % 2 else kept(800, 820)) for day in range(12)]
    assert judged([*runs, run_of(12, kept=kept(600, 615))])["capacity"].call == WORSE


def test_one_bad_run_among_few_hides_nothing() -> None:
    """How bad it was moves nothing."""
    for place in range(5):
        runs = noisy(6, 5, worse=["p99"], times=3)
        expected = []
        for bad in (3.0, 30.0):
            runs[place] = run_of(place, by={"p99": bad})
            found = judged(runs)["p99"]
            assert found.call == WORSE
            expected.append((found.low, found.high))
        assert expected[0] == expected[1]


def test_one_bad_run_among_the_earlier_ones_hides_nothing() -> None:
    entries = noisy(2, 20, worse=["p99"], times=1.25)
    entries[7] = run_of(7, by={"p99": 9.0})
    assert judged(entries)["p99"].call == WORSE


OF_STREAMS = ("ttft", "tpot", "joules_per_token")


@pytest.mark.parametrize(
    ("more", "call"),
    [
        ({"by": {"capacity": 0.7}}, {"capacity": WORSE}),
        ({"by": {"capacity": 1.4}}, {"capacity": BETTER}),
        ({"by": {"p50": 0.5, "joules": 2}}, {"p50": BETTER, "joules": WORSE}),
        ({"by": {"start": 1.4}}, {"start": WORSE}),
        ({"by": {"parity": 3}}, {"parity": WORSE}),
        ({"by": {"parity": 1.05}}, {"parity": SAME}),  # sure, but of no account
        ({"errors": 60}, {"errors": WORSE}),
        ({"by": {"p99": math.inf}}, {"p99": WORSE}),
    ],
)
def test_every_figure_has_its_good_side(more: dict[str, Any], call: dict[str, str]) -> None:
    found = calls([*noisy(3, 20)[:-1], run_of(20, **more)])
    assert found == {key: SAME for key in KINDS if key not in OF_STREAMS} | call


def test_a_figure_that_a_run_lost_is_worse_where_it_was_never_lost() -> None:
    over = run_of(9)
    over = replace(over, levels=[replace(over.levels[0], overloaded=True, doubtful=True)])
    found = judged([*(run_of(day) for day in range(8)), over])
    assert (found["p99"].call, found["p99"].why) == (
        WORSE,
        "it is overloaded, or so much fails that it is infinite, and was not in any earlier run",
    )
    again = judged([*(run_of(day) for day in range(8)), over, replace(over, name="later", time_ns=over.time_ns + 1)])
    assert again["p99"].call == UNKNOWN
    assert again["p99"].why.endswith("as in 1 of the earlier runs")
    none = replace(run_of(9), kept={"m/a": SustainedRate(None, 400.0, None, True)})
    assert judged([*(run_of(day) for day in range(8)), none])["capacity"].call == WORSE


def test_with_fewer_than_five_earlier_runs_it_cannot_be_judged_but_two_runs_are_compared() -> None:
    found = judged([run_of(0), run_of(1), run_of(2, by={"p99": 2.0})])["p99"]
    assert found.call == UNKNOWN
    assert found.why == "there are 2 of the 5 earlier runs that it takes"
    assert found.against == "the run before, run-001"
    assert found.ratio == pytest.approx(2)
    reach = 1.96 * math.sqrt(2) * math.log(1.03 / 0.97) / (2 * 1.96)
    assert found.ratio_low == pytest.approx(2 * math.exp(-reach))
    alone = judged([run_of(0)])["p99"]
    assert (alone.call, alone.why) == (UNKNOWN, "there is no earlier run of the 5 that it takes")
    lost = replace(run_of(2), levels=[replace(run_of(2).levels[0], doubtful=True)])
    assert judged([run_of(0), run_of(1), lost])["p99"].why == "run-002 has none that can be trusted"


def test_a_pinned_run_stands_for_those_before_with_their_noise() -> None:
    entries = [*noisy(4, 20)[:-1], run_of(20, by={"p99": 1.5})]
    pin = run_of(5, "good", by={"p99": 1.45})
    found = judged(entries, pinned=("main", pin))
    assert (found["p99"].call, found["p99"].against) == (SAME, "main (good)")
    assert judged(entries, pinned=("main", run_of(5, "good")))["p99"].call == WORSE
    assert judged(entries, pinned=("main", entries[-1]))["p99"].why == "it is main itself"
    assert judged(entries, pinned=("main", run_of(5, rate=7)))["p99"].why == "main has no such figure"


def test_the_common_load_is_the_highest_that_most_runs_can_speak_of() -> None:
    def at(day: int, *rates: float) -> Entry:
        run = run_of(day)
        return replace(run, levels=[replace(run.levels[0], rate=rate) for rate in rates])

    def asked(*entries: Entry) -> str:
        return judged(entries)["p99"].track.title

    assert asked(at(0, 100, 200), at(1, 100, 200), at(2, 100, 200, 400)) == "P99 at 200/s"
    assert asked(at(0, 100, 200), at(1, 100, 200), at(2, 400)) == "P99 at 400/s"


# ---- change points


def test_shifts_are_where_they_were_put() -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate([np.full(20, 1.0), np.full(15, 1.3), np.full(25, 0.9)]) + 0.05 * rng.normal(size=60)
    assert shifts(values) == [20, 35]
    values[10] = 9
    assert shifts(values) == [20, 35]  # one bad run is none
    assert shifts(np.full(40, 2.0)) == []
    assert shifts(np.arange(5.0)) == []


def test_shifts_are_rare_where_there_are_none() -> None:
    rng = np.random.default_rng(2)
    found = [bool(shifts(rng.normal(size=size))) for size in (10, 30, 100) for _ in range(200)]
    assert np.mean(found) <= 0.01


# ---- lineages


@pytest.mark.parametrize(
    ("fact", "values"),
    [
        (("m/a", "device name"), ("NVIDIA A100", "NVIDIA H200")),
        (("m/a", "torch"), ("2.10.0", "2.11.0")),
        (("m/a", "precision"), ("fp32", "bf16")),
        (("version", "driver"), ("560", "580")),
        (("setting", "rows"), ("1", "8")),
        (("setting", "objective"), ("p99<50ms", "p99<100ms")),
        (("host", "load cpus"), ("2", "64")),
    ],
)
def test_another_environment_is_another_lineage(fact: tuple[str, str], values: tuple[str, str]) -> None:
    found = lineages([run_of(day, facts={fact: values[day > 2]}) for day in range(6)])
    assert [len(one.entries) for one in found] == [3, 3]
    assert found[-1].newest.name == "run-005"


@pytest.mark.parametrize(
    "fact",
    [("version", "git"), ("version", "tailrate"), ("version", "numpy"), ("setting", "rates"), ("setting", "seed"),
     ("m/a", "device"), ("m/a", "weights"), ("host", "load os"), ("m/b", "torch"), ("setting", "keep gb")],
)  # fmt: skip
def test_what_is_followed_is_no_other_environment(fact: tuple[str, str]) -> None:
    assert len(lineages([run_of(day, facts={fact: str(day)}) for day in range(3)])) == 1


def test_the_steps_of_a_search_are_as_long_as_it_needs() -> None:
    fact = ("setting", "step length")
    assert len(lineages([run_of(day, facts={fact: f"{day} s"}) for day in range(3)])) == 1
    assert len(lineages([run_of(day, facts={fact: f"{day} s"}, mode="ramp") for day in range(3)])) == 3
