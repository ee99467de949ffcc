"""The conclusion, word by word, of runs with a known truth."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from folders import Load, Waveform, constant, lognormal, make_run, queue

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.records.folder import append_event
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.steps.capacity import Capacity
from tailrate.analysis.steps.variant_pairs import Pair
from tailrate.analysis.verdicts.conclusion import (
    less_energy,
    on_one_machine,
    place,
    plus_minus,
    rates_ratio,
    three,
    to_uncertainty,
)

FAST, SLOW = constant(10), constant(90)
SLO = ["p99<50ms"]
H200 = {"device_name": "NVIDIA H200", "torch": "2.11.0+cu130"}


def concluded(
    folder: Path, loads: list[Load], knees: dict[str, Any] | None = None, parameters: Any = H200, **more: Any
) -> str:
    written = make_run(folder, loads, **more)
    for entry in written.manifest.endpoints:
        if parameters is None:
            entry["device"] = None
        entry["parameters"] = dict(parameters or {})
    for number, (level, step) in enumerate(zip(loads, written.manifest.scenario["steps"], strict=True)):
        if more.get("mode") == "closed":
            step |= {"rate": 0.0, "concurrency": 2 * level.block}
        step["twin"] = more.get("mode") == "ab" and number % 4 == 1
    written.manifest.write(folder)
    for endpoint, (low, high, reason) in (knees or {}).items():
        append_event(folder, "knee", endpoint=endpoint, low_rps=low, high_rps=high, reason=reason)
    return str(report_of(analysis.load(folder))["conclusion"])


def ramp(endpoint: str, *latencies: Any, **more: Any) -> list[Load]:
    return [Load(endpoint, 100.0 * (number + 1), latency, **more) for number, latency in enumerate(latencies)]


class Thrifty(Waveform):
    """A device that draws half as much."""

    def power_w(self, at_s: Any) -> Any:
        return super().power_w(at_s) / 2

    def energy_j(self, at_s: Any) -> Any:
        return super().energy_j(at_s) / 2


BETTER = [*ramp("m/eager", FAST, SLOW), *ramp("m/compiled", constant(5), constant(5), FAST, SLOW)]
KNEE = [Load(f"m/{name}", rate, constant(ms)) for name, rate, ms in (
    ("eager", 150, 10), ("eager", 200, 40), ("eager", 220, 90),
    ("compiled", 200, 20), ("compiled", 412, 40), ("compiled", 450, 90),
)]  # fmt: skip

GOLDEN: dict[str, tuple[list[Load], dict[str, Any], str]] = {
    "compiled takes more": (
        BETTER,
        {"slo": SLO},
        "On one H200 (torch 2.11), m/compiled sustains between 300 and 400 requests/s at P99 ≤ 50 ms, 1.5 to 4 times "
        "the rate of eager; m/eager sustains between 100 and 200; both are limited by waiting for the replica. "
        "At 200 requests/s, compiled is 18× faster at P99 than eager (18–18).",
    ),
    "compiled takes less": (
        [*ramp("m/eager", constant(5), constant(5), FAST, SLOW), *ramp("m/compiled", FAST, SLOW)],
        {"slo": SLO},
        "On one H200 (torch 2.11), m/compiled sustains between 100 and 200 requests/s at P99 ≤ 50 ms, 0.25 to 0.667 "
        "times the rate of eager; m/eager sustains between 300 and 400; both are limited by waiting for the replica. "
        "At 200 requests/s, compiled is 18× slower at P99 than eager (18–18).",
    ),
    "no difference": (
        [*ramp("m/eager", lognormal(10), lognormal(60)), *ramp("m/compiled", lognormal(10), lognormal(60))],
        {"slo": SLO},
        "On one H200 (torch 2.11), m/compiled sustains between 100 and 200 requests/s at P99 ≤ 50 ms, not told "
        "apart from the rate of eager (0.5–2×); m/eager sustains between 100 and 200; both are limited by waiting "
        "for the replica. At 200 requests/s, no difference between compiled and eager shown at P99 (0.89–1.2); one"
        " under 24 % would not have shown.",
    ),
    "the smallest visible change": (
        [Load("m/eager", 300), Load("m/compiled", 300)],
        {},
        "On one H200 (torch 2.11), m/eager answered 300 requests/s with a P99 of 20.0 ms (18.8–21.5); m/compiled "
        "answered 300 requests/s with a P99 of 19.9 ms (18.6–21.3); no objective was set. At 300 requests/s, no "
        "difference between compiled and eager shown at P99 (0.94–1.1); one under 13 % would not have shown.",
    ),
    "too few for an interval": (
        [Load("m/eager", 1.5, constant(21)), Load("m/compiled", 1.5, FAST)],
        {},
        "On one H200 (torch 2.11), m/eager answered 1.5 requests/s with a P99 of 21 ms; m/compiled answered 1.5 "
        "requests/s with a P99 of 10 ms; no objective was set. At 1.5 requests/s, compiled seems 2.1× faster at P99 "
        "than eager, but there are too few independent arrivals for an interval.",
    ),
    "fail": (
        ramp("m/a", SLOW, SLOW),
        {"slo": SLO},
        "On one H200 (torch 2.11), m/a misses P99 ≤ 50 ms already at 100 requests/s.",
    ),
    "too few to say": (
        [Load("m/a", 20, FAST)],
        {"slo": SLO},
        "This run cannot say whether the objective is met: m/a: at 20/s p99<50ms cannot be said: 0 % of 200 arrivals "
        "took longer than 50 ms or failed, where 1 % may, which leaves 0 % to 2.3 % of all; 13 s more would settle it.",
    ),
    "one cannot be trusted": (
        [Load("m/a", 100, FAST, late_ms=3), Load("m/b", 100, FAST)],
        {},
        "This run cannot say what the endpoints can take: step 0, m/a at 100/s, cannot be trusted: the load generator "
        "was late: P99 3 ms, where 1 ms would do no harm. On one H200 (torch 2.11), m/b answered 99.9 requests/s with "
        "a P99 of 10 ms; no objective was set. At 100 requests/s, no difference between b and a shown at P99 "
        "(0.70–1.0); one under 43 % would not have shown; the load generator was late (P99 3 ms), which the interval "
        "allows for.",
    ),
    "not tried so high": (
        ramp("m/a", FAST, FAST),
        {"slo": ["p99<50ms, rate>=300"]},
        "This run cannot say whether the objective is met: m/a: rate>=300 cannot be said: at most 200/s were asked "
        "for. On one H200 (torch 2.11), m/a sustains at least 200 requests/s at P99 ≤ 50 ms, the highest rate tried, "
        "where 300 were asked for.",
    ),
    "the load generator gave up": (
        [*ramp("m/a", FAST), Load("m/a", 200, SLOW, late_ms=3)],
        {"slo": SLO},
        "On one H200 (torch 2.11), m/a sustains at least 100 requests/s at P99 ≤ 50 ms, above which the load "
        "generator gave up first.",
    ),
    "short of the rate": (
        ramp("m/a", FAST, SLOW),
        {"slo": ["p99<50ms, errors<1%, rate>=150"]},
        "This run cannot say whether the objective is met: m/a: rate>=150 cannot be said: at 200/s p99<50ms is missed: "
        "100 % of 2,000 arrivals took longer than 50 ms or failed, where 1 % may. On one H200 (torch 2.11), m/a "
        "sustains between 100 and 200 requests/s at P99 ≤ 50 ms and errors ≤ 1 %, where 150 were asked for, limited by "
        "waiting for the replica.",
    ),
    "one variant": (
        ramp("m/a", FAST, FAST),
        {"slo": SLO},
        "On one H200 (torch 2.11), m/a sustains at least 200 requests/s at P99 ≤ 50 ms, the highest rate tried.",
    ),
    "device data": (
        BETTER,
        {"slo": SLO, "devices": [Waveform(util_pct=95)]},
        "On one H200 (torch 2.11), m/compiled sustains between 300 and 400 requests/s at P99 ≤ 50 ms, 1.5 to 4 times "
        "the rate of eager, with about the same energy a request at equal load; m/eager sustains between 100 and 200; "
        "both are limited by the GPU and waiting for the replica. "
        "At 200 requests/s, compiled is 18× faster at P99 than eager (18–18).",
    ),
    "less energy": (
        [Load("m/eager", 300), Load("m/compiled", 300, device="GPU-2")],
        {"devices": [Waveform(), Thrifty("GPU-2")]},
        "On two H200s (torch 2.11), m/eager answered 300 requests/s with a P99 of 20.0 ms (18.8–21.5); m/compiled "
        "answered 300 requests/s with a P99 of 19.9 ms (18.6–21.3), with about 50 % less energy a request than "
        "eager at equal load; no objective was set. At 300 requests/s, no difference between compiled and eager "
        "shown at P99 (0.94–1.1); one under 13 % would not have shown.",
    ),
    "devices without energy": (
        BETTER,
        {"slo": SLO, "devices": [Waveform("cpu", util_pct=95, counter=False, power=False)], "parameters": {}},
        "On one GPU, m/compiled sustains between 300 and 400 requests/s at P99 ≤ 50 ms, 1.5 to 4 times the rate of "
        "eager; m/eager sustains between 100 and 200; both are limited by the host's CPU and waiting for the replica. "
        "At 200 requests/s, compiled is 18× faster at P99 than eager (18–18).",
    ),
    "foreign server": (
        BETTER,
        {"slo": SLO, "foreign": True, "parameters": None},
        "m/compiled sustains between 300 and 400 requests/s at P99 ≤ 50 ms, 1.5 to 4 times the rate of eager; m/eager "
        "sustains between 100 and 200. At 200 requests/s, compiled is 18× faster at P99 than eager (18–18).",
    ),
    "aborted": (
        ramp("m/a", FAST, FAST),
        {"slo": SLO, "status": "aborted", "stopped_s": 15},
        "This run cannot say what the endpoints can take: the run was aborted after 1 of 2 steps.",
    ),
    "held, met": (
        [Load("m/a", 100, FAST)],
        {"slo": ["p99<50ms", "errors<1%"], "mode": "hold", "foreign": True, "parameters": None},
        "Every step met P99 ≤ 50 ms and errors ≤ 1 %: m/a answered 99.9 requests/s with a P99 of 10 ms.",
    ),
    "held, missed": (
        [Load("m/a", 100, SLOW)],
        {"slo": SLO, "mode": "hold"},
        "On one H200 (torch 2.11), the objective P99 ≤ 50 ms was missed (m/a: at 100/s p99<50ms is missed: "
        "100 % of 1,000 arrivals took longer than 50 ms or failed, where 1 % may); m/a answered 99.1 requests/s with a "
        "P99 of 90 ms.",
    ),
    "closed loop": (
        [
            Load(f"m/{name}", rate, constant(ms), block=block)
            for block, rate in ((2, 100), (4, 200))
            for name, ms in (("eager", 12), ("b", 6))
        ],
        {"mode": "closed"},
        "On one H200 (torch 2.11), m/eager answered 200 requests/s with 8 under way and a P99 of 12 ms; m/b "
        "answered 200 requests/s with 8 under way and a P99 of 6 ms; no objective was set. At 8 under way, b is 2×"
        " faster at P99 than eager (2.0–2.0).",
    ),
    "knees": (
        KNEE,
        {"slo": SLO, "mode": "knee", "knees": {"m/eager": (191.2, 201.8, None), "m/compiled": (403.1, 421.6, None)}},
        "On one H200 (torch 2.11), m/compiled sustains 412 ± 9 requests/s at P99 ≤ 50 ms, 2.10× (2.00–2.21) the "
        "rate of eager; m/eager sustains 196 ± 5; both are limited by waiting for the replica. At 200 requests/s, "
        "compiled is 2× faster at P99 than eager (2.0–2.0).",
    ),
    "a knee that was not found": (
        KNEE[:3],
        {"slo": SLO, "mode": "knee", "knees": {"m/eager": (150.0, 225.5, "the budget of 60 s is spent")}},
        "On one H200 (torch 2.11), m/eager sustains between 150 and 226 requests/s at P99 ≤ 50 ms.",
    ),
    "a knee that the load generator left open": (
        KNEE[:3],
        {"slo": SLO, "mode": "knee", "knees": {"m/eager": (214.0, None, "client-limited at 230/s: it was late")}},
        "On one H200 (torch 2.11), m/eager sustains at least 199 requests/s at P99 ≤ 50 ms, above which the load "
        "generator gave up first.",
    ),
    "rounds": (
        [
            Load(f"m/{name}", 300, lognormal(ms), seconds=20, block=block)
            for block, name, ms in (
                (0, "eager", 20),
                (0, "eager", 20),
                (0, "compiled", 10),
                (1, "compiled", 10),
                (1, "eager", 20),
                (1, "eager", 20),
                (2, "eager", 20),
                (2, "compiled", 10),
            )
        ],
        {"mode": "ab", "devices": [Waveform()]},
        "On one H200 (torch 2.11), m/eager answered 300 requests/s with a P99 of 39.9 ms (38.4–41.1); m/compiled "
        "answered 300 requests/s with a P99 of 19.9 ms (19.2–20.4), with no difference in energy a request shown; "
        "no objective was set. At 300 requests/s, compiled is 2.0× faster at P99 than eager (1.9–2.1).",
    ),
    "three variants": (
        [
            *ramp("m/eager", FAST, SLOW),
            *ramp("m/compiled", constant(5), constant(5), FAST, SLOW),
            *ramp("m/onnx", constant(8), FAST, FAST),
        ],
        {"slo": SLO},
        "On one H200 (torch 2.11), m/compiled sustains between 300 and 400 requests/s at P99 ≤ 50 ms, 1.5 to 4 "
        "times the rate of eager, limited by waiting for the replica; m/onnx sustains at least 300, the highest "
        "rate tried, at least 1.5 times the rate of eager; m/eager sustains between 100 and 200, limited by "
        "waiting for the replica. At 200 requests/s, compiled is 18× faster at P99 than eager (18–18). At 200 "
        "requests/s, onnx is 9× faster at P99 than eager (9.0–9.0).",
    ),
    "failures": (
        [Load("m/a", 100, FAST, failed=0.02), Load("m/b", 100, FAST, failed=1)],
        {},
        "This run cannot say what the endpoints can take: not one request to m/b succeeded. On one H200 (torch 2.11), "
        "m/a answered 98.3 requests/s with no finite P99, as 1.6 % of the arrivals failed; m/b answered 0 requests/s "
        "with no finite P99, as 100 % of the arrivals failed; no objective was set.",
    ),
    "overloaded from the first rate on": (
        [Load("m/a", 100, queue(20)), Load("m/a", 200, queue(20))],
        {"slo": SLO},
        "On one H200 (torch 2.11), m/a misses P99 ≤ 50 ms already at 100 requests/s, "
        "limited by a queue at the endpoint that grows without bound.",
    ),
    "a rate alone, and overloaded": (
        [*ramp("m/a", FAST, queue(20)), *ramp("m/b", queue(20), queue(20))],
        {"slo": ["rate>=100"]},
        "On one H200 (torch 2.11), m/b does not sustain even 100 requests/s, where 100 were asked for, limited "
        "by a queue at the endpoint that grows without bound; m/a sustains between 100 and 200, limited by waiting"
        " for the replica.",
    ),
    "a rate alone, and half of it fails": (
        [Load("m/a", 100, FAST), Load("m/a", 200, FAST, failed=0.5)],
        {"slo": ["rate>=200"]},
        "On one H200 (torch 2.11), m/a sustains between 100 and 200 requests/s, where 200 were asked for, limited by "
        "errors.",
    ),
    "held at a rate": (
        [Load("m/a", 100, FAST)],
        {"slo": ["rate>=50", "p99<50ms, rate>=80"], "mode": "hold"},
        "On one H200 (torch 2.11), every step met ≥ 50 requests/s, P99 ≤ 50 ms and ≥ 80 requests/s: m/a answered "
        "99.9 requests/s with a P99 of 10 ms.",
    ),
    "two objectives": (
        [*ramp("m/a", FAST, SLOW), *ramp("m/b", FAST, FAST, constant(30), SLOW)],
        {"slo": ["p50<20ms", "p99<50ms"]},
        "On one H200 (torch 2.11), m/b sustains between 200 and 300 requests/s at P50 ≤ 20 ms, 1 to 3 times the "
        "rate of a; m/a sustains between 100 and 200; both are limited by waiting for the replica. At 200 "
        "requests/s, b is 9× faster at P99 than a (9.0–9.0).",
    ),
    "two models": (
        [Load(f"{model}/{name}", 300, constant(ms)) for model in "mn" for name, ms in (("eager", 12), ("b", 6))],
        {},
        "On one H200 (torch 2.11), m/eager answered 300 requests/s with a P99 of 12 ms; m/b answered 300 "
        "requests/s with a P99 of 6 ms; n/eager answered 300 requests/s with a P99 of 12 ms; n/b answered 300 "
        "requests/s with a P99 of 6 ms; no objective was set. For m at 300 requests/s, b is 2× faster at P99 than "
        "eager (2.0–2.0). For n at 300 requests/s, b is 2× faster at P99 than eager (2.0–2.0).",
    ),
    "overloaded without an objective": (
        [*ramp("m/a", FAST, FAST), Load("m/a", 300, queue(20)), Load("m/b", 300, queue(20))],
        {},
        "On one H200 (torch 2.11), m/a answered 200 requests/s with a P99 of 10 ms; m/b kept up with no rate that was "
        "tried; no objective was set.",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_sentence_of(tmp_path: Path, name: str) -> None:
    loads, more, sentence = GOLDEN[name]
    assert concluded(tmp_path / "run", loads, **more) == sentence


def test_a_run_that_still_goes_on(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", ramp("m/a", FAST), slo=SLO, status="running", sealed=False)
    written.manifest.extra |= {"pid": os.getpid(), "host": socket.gethostname()}
    written.manifest.write(written.folder)
    report = report_of(analysis.load(written.folder))
    assert report["conclusion"] == "This run cannot say what the endpoints can take: the run is still going on."


# ---- its parts


def placed(folder: Path, devices: list[str], names: list[str], hosts: list[dict[str, Any]], torch: str = "") -> str:
    loads = [Load(f"m/{number}", 50, FAST, seconds=1, device=device) for number, device in enumerate(devices)]
    written = make_run(folder, loads)
    for entry, name in zip(written.manifest.endpoints, names, strict=True):
        entry["parameters"] = {"device_name": name}
    written.manifest.hosts = hosts
    written.manifest.versions = {"torch": torch}
    written.manifest.write(folder)
    return place(analysis.load(folder))


HERE = [{"role": "server", "host": "a"}, {"role": "load", "host": "a"}]
THERE = [{"role": "server", "host": "b", "url": "http://127.0.0.1:1"}, {"role": "load", "host": "a"}]


@pytest.mark.parametrize(
    ("devices", "names", "hosts", "torch", "said"),
    [
        (["g0", "g1"], ["NVIDIA H200", "NVIDIA H200"], THERE, "2.11.0", "two H200s (torch 2.11)"),
        (["g0", "g0"], ["NVIDIA H200", "NVIDIA H200"], [], "", "one H200"),
        (["g0", "g1"], ["NVIDIA H200", "Tesla T4"], [], "nightly", "one H200 and one Tesla T4"),
        (["cpu"], ["cpu"], HERE, "2.15.0+cu132", "this machine's CPU (torch 2.15)"),
        (["cpu"], ["cpu"], THERE, "", "the server's CPU"),
        (["g0"], ["An\n accelerator " + 100 * "x"], [], "", "one An accelerator " + 45 * "x"),
    ],
)
def test_where_it_ran(
    tmp_path: Path, devices: list[str], names: list[str], hosts: list[dict[str, Any]], torch: str, said: str
) -> None:
    assert placed(tmp_path / "run", devices, names, hosts, torch) == said


@pytest.mark.parametrize(
    ("hosts", "one"),
    [
        (HERE, True),
        (THERE, False),
        ([{"role": "server", "url": "http://127.0.0.1:8000"}, {"role": "load", "host": "a"}], True),
        ([{"role": "server", "url": "http://[::1]:8000"}], True),
        ([{"role": "server", "url": "http://10.0.0.7:8000"}], False),
        ([{"role": "server", "url": "http://[broken"}], False),
        ([], False),
    ],
)
def test_whether_load_generator_and_server_are_one_machine(hosts: list[dict[str, Any]], one: bool) -> None:
    assert on_one_machine(Manifest("r", "complete", {"steps": []}, hosts=hosts)) is one


def a_pair(ratio: float | None, low: float | None = None, high: float | None = None) -> Pair:
    more = {"joules_ratio": ratio, "joules_low": low, "joules_high": high}
    return Pair("m/eager", "m/compiled", 100, 1, 1, None, None, None, 1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (a_pair(None), ""),
        (a_pair(1.6), "with about 38 % less energy a request at equal load"),
        (a_pair(0.8), "with about 25 % more energy a request at equal load"),
        (a_pair(1.01), "with about the same energy a request at equal load"),
        (a_pair(1.6, 1.54, 1.7), "with 38 % (35–41) less energy a request at equal load"),
        (a_pair(0.8, 0.78, 0.82), "with 25 % (22–28) more energy a request at equal load"),
        (a_pair(1.02, 0.98, 1.06), "with no difference in energy a request shown"),
    ],
)
def test_energy_in_words(pair: Pair, said: str) -> None:
    assert less_energy(pair, alone=False) == said
    than = less_energy(pair, alone=True)
    assert than in (said, said.replace(" at", " than eager at"), said.replace(" at", " as eager at"))


def a_limit(low: float | None, high: float | None) -> Capacity:
    return Capacity("m/eager", "p99<50ms", low, low, high, None, low is not None and high is not None)


@pytest.mark.parametrize(
    ("one", "other", "searched", "said"),
    [
        ((100, 200), (300, 400), False, "1.5 to 4 times the rate of eager"),
        ((100, 200), (150, 400), False, "not told apart from the rate of eager (0.75–4×)"),
        ((190, 202), (403, 421), True, "2.10× (2.00–2.22) the rate of eager"),
        ((190, 202), (380, 460), True, "2.1× (1.9–2.4) the rate of eager"),
        ((None, 100), (200, None), False, "at least 2 times the rate of eager"),
        ((100, None), (None, 50), False, "at most 0.5 times the rate of eager"),
        ((100, None), (200, None), False, ""),
        ((None, 100), (50, None), False, ""),
        ((None, None), (50, 100), True, ""),
    ],
)
def test_the_ratio_of_two_limits(one: Any, other: Any, searched: bool, said: str) -> None:
    assert rates_ratio(a_limit(*one), a_limit(*other), searched) == said
    assert rates_ratio(None, a_limit(*other), searched) == ""


def test_numbers_are_rounded_to_what_is_known() -> None:
    assert [three(value) for value in (0.01234, 9.999, 1234.5, 12345.6, None)] == [
        "0.0123", "10", "1,230", "12,300", "–",
    ]  # fmt: skip
    assert plus_minus(403.1, 421.6) == "412 ± 9"
    assert plus_minus(9_000, 12_000) == "10,500 ± 1,500"
    assert plus_minus(411.9, 412.1) == "412"
    assert plus_minus(5.0, 5.0) == "5"
    assert plus_minus(1.234, 1.246) == "1.24 ± 0.01"
    assert to_uncertainty(20.04, 19.11, 21.27) == ("20.0", "19.1", "21.3")
    assert to_uncertainty(20.04, 15.2, 29.9) == ("20", "15", "30")
    assert to_uncertainty(20.04, 20.04, float("inf")) == ("20", "", "")
    assert to_uncertainty(0.0, None, None) == ("0", "", "")
