"""The rules BLOCKING and AWAITING, and the autoscaler, against Ray Serve's own code: kept for when Ray changes."""

import importlib.util
from itertools import islice

import numpy as np
import pytest
from virtual_ray import WAITS_WITHOUT_A_TASK, asked

from tailrate.analysis.planning.simulator.autoscaler import CONTROL_S, Autoscaler
from tailrate.analysis.planning.simulator.fleet import Autoscaling
from tailrate.analysis.planning.simulator.simulate import Fleet, Routing, Rule, Service, simulate

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")

BATCHERS = {  # fixed and per request, in seconds; largest batch; wait
    "slow": (0.020, 0.002, 16, 0.010),
    "patient": (0.004, 0.0005, 8, 0.020),
    "hasty": (0.005, 0.0005, 8, 0.0),
}
RATES = {
    (Rule.BLOCKING, "slow"): (60, 120, 180, 220, 260, 290),
    (Rule.BLOCKING, "patient"): (50, 200, 400, 700, 900),
    (Rule.BLOCKING, "hasty"): (100, 400, 700, 800),
    (Rule.AWAITING, "slow"): (30, 60, 70),
    (Rule.AWAITING, "patient"): (50, 200, 400, 700, 900),
    (Rule.AWAITING, "hasty"): (50, 100, 150),
}


def due(rate):
    return np.cumsum(np.random.default_rng(rate).exponential(1 / rate, 4000))


def mean_s(batcher):
    fixed_s, each_s, most, _ = BATCHERS[batcher]
    return fixed_s + each_s * np.arange(most + 1)


@pytest.fixture(scope="module")
def rays(tmp_path_factory):
    """What Ray's queue does at all these rates, asked at once as each process imports Ray."""
    cases = [
        {"arrivals_s": due(rate).tolist(), "mean_s": mean_s(batcher).tolist(), "max_batch": BATCHERS[batcher][2],
         "wait_s": BATCHERS[batcher][3], "blocking": rule == Rule.BLOCKING}
        for (rule, batcher), rates in RATES.items() for rate in rates
    ]  # fmt: skip
    found = iter(asked(tmp_path_factory.mktemp("home"), what="batched", cases=cases))
    return {key: list(islice(found, len(rates))) for key, rates in RATES.items()}


@pytest.mark.live
@pytest.mark.parametrize(("rule", "batcher"), RATES, ids=lambda value: str(value))
def test_batches_are_made_as_rays_batch_queue_makes_them(rule, batcher, rays):
    _, _, most, wait_s = BATCHERS[batcher]
    nearly = WAITS_WITHOUT_A_TASK and rule is Rule.BLOCKING and wait_s > 0
    ours_is, within = (Rule.OPPORTUNISTIC, 0.04) if nearly else (rule, 0.01)
    fleet = Fleet(Service.steady(mean_s(batcher)), 1, most, wait_s, ours_is, Routing.LEAST)
    for real, rate in zip(rays[rule, batcher], RATES[rule, batcher], strict=True):
        at = due(rate)
        ours = simulate(at, fleet)
        wanted = np.quantile(real["latency_s"], [0.5, 0.9, 0.99], method="higher")
        assert [ours.quantile(percent, 0) for percent in (50, 90, 99)] == pytest.approx(wanted, rel=within), rate
        assert ours.mean_batch == pytest.approx(np.mean(real["sizes"]), rel=within), rate


def test_the_autoscaler_decides_as_rays_policy_does(tmp_path):
    rng = np.random.default_rng(3)
    totals = np.repeat(np.exp(rng.normal(2, 1, 60)), 25)
    settings = [
        {"target_ongoing_requests": 2, "min_replicas": 1, "max_replicas": 12, "upscale_delay_s": 3,
         "downscale_delay_s": 6, "upscaling_factor": up, "downscaling_factor": down}
        for up, down in ((1.0, 1.0), (0.5, 0.3), (2.0, 0.1))
    ]  # fmt: skip
    cases = [{"setting": setting, "totals": totals.tolist(), "period_s": CONTROL_S} for setting in settings]
    for setting, wanted in zip(settings, asked(tmp_path, what="decided", cases=cases), strict=True):
        renamed = {"target_ongoing": setting["target_ongoing_requests"]}
        scaler = Autoscaler(Autoscaling(**renamed | {k: v for k, v in setting.items() if k[:6] != "target"}))
        found = []
        for look, total in enumerate(totals):
            scaler.ongoing = lambda now_s, up, total=total: total
            found.append(scaler.decide(look * CONTROL_S, np.arange(scaler.target)))
        assert found == wanted
        assert len(set(found)) > 4


def test_the_autoscaler_takes_the_mean_that_rays_controller_takes(tmp_path):
    scaler = Autoscaler(Autoscaling(2, 1, 4))
    rng = np.random.default_rng(4)
    since = np.array([0.0, 0.0, 14.0, 31.0])  # the third and the fourth came later
    cases, found = [], []
    for at in np.arange(0, 60, 2.0):
        if at % 10 == 0:
            scaler.send(at)
            sent = [(when, held) for when, held in scaler._notes]
        if at % 6 == 0:
            scaler.note(at, np.where(since <= at, rng.integers(0, 30, 4), -1))
        up = np.flatnonzero(since <= at)
        series = [[(when, int(held[r])) for when, held in sent if held[r] >= 0] for r in up]
        cases.append({"series": series, "now_s": at + 0.05})
        found.append(scaler.ongoing(at + 0.05, up))
    assert found == pytest.approx(asked(tmp_path, what="averaged", cases=cases))
    assert min(found[10:]) > 0
