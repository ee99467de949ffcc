import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from folders import Latency, Load, constant, lognormal, make_run, queue, rewrite
from often import at_most, counts

from tailrate import analysis
from tailrate.analysis.steps.variant_pairs import Pair, pairs


def _pairs(folder: Path, loads: list[Load], seed: int = 1) -> list[Pair]:
    return pairs(analysis.load(make_run(folder, loads, seed=seed).folder))


def test_the_ratio_is_a_over_b_with_eager_as_a(tmp_path: Path) -> None:
    loads = [Load("m/compiled", 200, lognormal(10)), Load("m/eager", 200, lognormal(15)), Load("n/eager", 200)]
    run = analysis.load(make_run(tmp_path / "run", loads).folder)
    (pair,) = pairs(run)
    assert (pair.a, pair.b, pair.rate, pair.rounds, pair.note) == ("m/eager", "m/compiled", 200, 1, None)
    by_endpoint = run.steps.set_index("endpoint")
    for ratio, column in ((pair.p50_ratio, "p50_ms"), (pair.p99_ratio, "p99_ms")):
        assert ratio == pytest.approx(by_endpoint.loc["m/eager", column] / by_endpoint.loc["m/compiled", column])
    assert pair.ratio_low is not None
    assert pair.ratio_high is not None
    assert pair.ratio_low < 1.5 < pair.ratio_high
    assert pair.differs


def test_each_two_variants_at_each_rate_they_share(tmp_path: Path) -> None:
    loads = [Load(f"m/{name}", rate) for rate in (60, 80) for name in ("int8", "eager", "compiled")]
    found = _pairs(tmp_path / "run", [*loads, Load("m/eager", 90)])
    assert [(pair.a, pair.b, pair.rate) for pair in found] == [
        ("m/eager", "m/int8", 60),
        ("m/eager", "m/int8", 80),
        ("m/eager", "m/compiled", 60),
        ("m/eager", "m/compiled", 80),
        ("m/int8", "m/compiled", 60),
        ("m/int8", "m/compiled", 80),
    ]


@pytest.mark.parametrize("eager_ms", [0, -2])
def test_a_latency_of_nothing_or_less_has_no_ratio(tmp_path: Path, eager_ms: float) -> None:
    """As a clock that moves in steps may have it."""
    run = analysis.load(make_run(tmp_path / "run", [Load("m/eager", 200), Load("m/compiled", 200)]).folder)
    rows = run.requests().copy()
    eager = rows["endpoint"] == "m/eager"
    rows.loc[eager, "sent_ns"] = rows.loc[eager, "done_ns"] = rows.loc[eager, "intended_ns"] + int(eager_ms * 1e6)
    rewrite(run.folder, rows)
    (pair,) = pairs(analysis.load(run.folder))
    assert (pair.p50_ratio, pair.p99_ratio, pair.differs) == (None, None, None)


@counts(20, 60)
def test_equal_variants_are_called_different_as_rarely_as_promised(tmp_path: Path, seeds: int) -> None:
    called = 0
    for seed in range(seeds):
        (pair,) = _pairs(tmp_path / str(seed), [Load("m/eager", 300), Load("m/compiled", 300)], seed)
        called += bool(pair.differs)
    assert called <= at_most(0.05, seeds)


def test_a_true_difference_is_called(tmp_path: Path) -> None:
    for seed in range(8):
        loads = [Load("m/eager", 300, lognormal(13)), Load("m/compiled", 300, lognormal(10))]
        (pair,) = _pairs(tmp_path / str(seed), loads, seed)
        assert pair.differs
        assert pair.smallest_visible is not None
        assert pair.smallest_visible < 0.3


def test_rounds_are_paired_in_order(tmp_path: Path) -> None:
    scale = [1.0, 1.3, 0.8, 1.1]
    loads = [
        Load(f"m/{name}", 100, constant(ms * factor), block=block)
        for block, factor in enumerate(scale)
        for name, ms in (("eager", 20 + block), ("compiled", 10))
    ]
    (pair,) = _pairs(tmp_path / "run", loads)
    logs = np.log([2.0, 2.1, 2.2, 2.3])  # what the rounds have in common cancels
    assert pair.rounds == 4
    assert pair.p99_ratio == pytest.approx(math.exp(logs.mean()))
    assert pair.ratio_low is not None
    assert pair.ratio_high is not None
    # rounds that are sure of themselves: what is left is what they differ by, as Student's t for three has it
    reach = 3.182446 * logs.std(ddof=1) / 2
    assert math.log(pair.ratio_high / pair.ratio_low) / 2 == pytest.approx(reach, rel=0.1)


def test_a_round_with_a_late_step_is_left_out(tmp_path: Path) -> None:
    """A B, B A, and each step a block of its own, as `--mode ab` plans them."""
    order = [("eager", 20), ("compiled", 10), ("compiled", 10), ("eager", 30)]
    loads = [
        Load(f"m/{name}", 100, constant(ms), block=block, late_ms=5 if block == 2 else 0)
        for block, (name, ms) in enumerate(order)
    ]
    (pair,) = _pairs(tmp_path / "run", loads)
    assert (pair.rounds, pair.p99_ratio) == (1, pytest.approx(2))
    (pair,) = _pairs(tmp_path / "whole", [replace(load, late_ms=0) for load in loads])
    assert (pair.rounds, pair.p99_ratio) == (2, pytest.approx(math.sqrt(2 * 3)))


def test_an_overloaded_step_or_one_that_cannot_be_trusted_is_not_compared(tmp_path: Path) -> None:
    loads = [Load("m/eager", 100, queue(20)), Load("m/compiled", 100, lognormal(10), dropped=0.04)]
    (pair,) = _pairs(tmp_path / "run", loads)
    assert (pair.p50_ratio, pair.p99_ratio, pair.ratio_low, pair.differs) == (None, None, None, None)
    assert pair.note == "m/eager was overloaded; m/compiled cannot be trusted"


def test_a_late_load_generator_leaves_a_ratio_with_an_interval_that_allows_for_it(tmp_path: Path) -> None:
    def compared(name: str, eager_ms: float, late_ms: float) -> Pair:
        """What takes `eager_ms` once it is sent, against 10 ms; both are sent late."""
        loads = [
            Load(f"m/{variant}", 200, lognormal(ms), seconds=30, late_ms=late_ms)
            for variant, ms in (("eager", eager_ms), ("compiled", 10.0))
        ]
        (pair,) = _pairs(tmp_path / name, [replace(load, latency=_plus(load.latency, late_ms)) for load in loads])
        return pair

    calm, late = compared("calm", 20, 0.1), compared("late", 20, 4)
    assert calm.note is None
    assert late.note == "the load generator was late (P99 4 ms), which the interval allows for"
    # what is late in both makes the ratio look smaller than the 2 that it is, and the interval holds that
    assert late.p99_ratio and late.ratio_low and late.ratio_high  # noqa: PT018 - for the types
    assert late.p99_ratio < 1.9
    assert late.ratio_low < late.p99_ratio < 2 < late.ratio_high
    assert late.differs is True
    # a difference that the lateness may have made is none
    (unequal,) = _pairs(
        tmp_path / "unequal",
        [
            Load("m/eager", 200, _plus(lognormal(10), 5), seconds=30, late_ms=5),
            Load("m/compiled", 200, lognormal(10), seconds=30),
        ],
    )
    assert unequal.p99_ratio and unequal.ratio_low  # noqa: PT018 - for the types
    assert unequal.p99_ratio > 1.2
    assert unequal.ratio_low <= 1
    assert unequal.differs is False


def _plus(latency: Latency, late_ms: float) -> Latency:
    return lambda rng, at_s: latency(rng, at_s) + late_ms


def test_a_small_sample_gives_a_ratio_without_interval(tmp_path: Path) -> None:
    (pair,) = _pairs(tmp_path / "run", [Load("m/eager", 1.5, constant(30)), Load("m/compiled", 1.5, constant(10))])
    assert pair.p99_ratio == pytest.approx(3)
    assert pair.ratio_low is pair.ratio_high is None
    assert pair.note == "there are too few independent arrivals for an interval"


def test_an_infinite_p99_has_no_ratio(tmp_path: Path) -> None:
    (pair,) = _pairs(tmp_path / "run", [Load("m/eager", 200, failed=0.1), Load("m/compiled", 200)])
    assert pair.p99_ratio is None
    assert pair.p50_ratio == pytest.approx(1, abs=0.2)
    assert pair.note == "so many arrivals failed that P99 is infinite"


def test_one_endpoint_has_no_partner(tmp_path: Path) -> None:
    assert _pairs(tmp_path / "run", [Load("m/eager", 100), Load("other/compiled", 100)]) == []
