"""Alert rules, by Prometheus' own promtool: each fires for what it is about and for nothing else.

Each case is an hour that is well in every respect, with one thing changed. promtool evaluates all the rules over it as
Prometheus would, and what fires at its end must be that one alert, or none.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailrate.analysis.run.device_tracks import THROTTLED
from tailrate.serve.edge.replica_board import ReplicaBoard
from tailrate.serve.telemetry import prometheus_text
from tailrate.serve.telemetry.statistics import LE, REFUSED, zero
from tailrate.serve.wire import SAMPLE_FIELDS

DOCKER = Path(__file__).parents[2] / "docker"
RULES = DOCKER / "k8s" / "watch" / "rules.yaml"
ALERTS = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["spec"]["groups"][0]["rules"]}
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is not installed (Debian: apt-get install prometheus)",
)


def prepared(folder: Path, **environment: str) -> list[str]:
    """What compose has Prometheus' container make at its start, in this folder; returns the command that follows."""
    service = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["prometheus"]
    mounts = {inside: source for source, inside, *_ in (mount.split(":") for mount in service["volumes"])}
    *shell, script = service["entrypoint"]
    assert script.count("/dev/shm/") == 2
    script = script.replace("/dev/shm/", f"{folder}/").replace("exec /bin/prometheus", "exec echo")
    rules = "/etc/prometheus/rules.yaml"
    script = script.replace(rules, str(DOCKER / mounts[rules]))
    return subprocess.run([*shell, script], env=environment, capture_output=True, text=True, check=True).stdout.split()


# ---- what they ask of


def exported() -> str:
    """What /metrics has of an endpoint with one replica, a GPU and a host."""
    board = ReplicaBoard([("bert", "eager")], 1)
    own = {"model": "bert", "variant": "eager", "replica": "r1"}
    board.put(own | {"state": "READY", "reason": "", "waiting": 0, "number": 0, "counts": zero(), "ended": False}, 0.0)
    return board.metrics(0.0) + prometheus_text.of_devices([[0, "h", "cpu", 0] + [0] * (len(SAMPLE_FIELDS) - 4)])


def test_they_ask_for_metrics_and_labels_that_the_server_exports() -> None:
    samples = re.findall(r"^(tailrate_\w+)\{(.*)\} ", exported(), re.M)
    known = {name: set(re.findall(r'(\w+)="', labels)) for name, labels in samples}
    for rule in ALERTS.values():
        asked = re.findall(r"(tailrate_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert asked
        for name, matchers in asked:
            assert set(re.findall(r"(\w+)=", matchers)) <= known[name]
            for reasons in re.findall(r'reason=~?"([^"]*)"', matchers):
                assert set(reasons.split("|")) <= set(REFUSED)
        (by,) = {*re.findall(r"by \(([^)]*)\)", rule["expr"])} or {""}
        labels = set(by.split(", ")) - {"le", ""}
        assert all(labels <= known[name] for name, _ in asked)
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels


def test_a_threshold_of_p99_is_the_end_of_a_bucket() -> None:
    """Between two, the quantile would be a guess."""
    assert ALERTS["TailrateSlow"]["expr"].split("> ")[-1] in LE


@needs_prometheus
def test_promtool_takes_them(tmp_path: Path) -> None:
    prepared(tmp_path)
    done = subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


# ---- when they fire

OWN = 'model="bert",variant="eager",replica="r1"'
GPU, HOST = 'host="h",device="GPU-1",index="0"', 'host="h",device="cpu",index="0"'
TAKEN = {le: 0 if le in LE[: LE.index("0.025")] else 300 for le in LE}
"""Of 300 requests that are answered in a half-minute, by the upper end of their bucket: all take 10 to 25 ms."""
SLOW = {le: 0 if le in LE[: LE.index("0.025")] else 290 if le in LE[: LE.index("1")] else 300 for le in LE}


def still(value: float, n: int = 120) -> str:
    return f"{value}x{n}"


def grows(by: float, n: int = 120, start: float = 0) -> str:
    return f"{start}{by:+}x{n}"


def well() -> dict[str, str]:
    """An hour by half-minutes: ten requests a second, of which one in two hundred fails and one in fifty is bad."""
    series = {
        'tailrate_endpoint_ready{model="bert",variant="eager"}': still(1),
        f"tailrate_waiting{{{OWN}}}": "0 3 1 0 12 2 " * 20,
        f'tailrate_requests_total{{{OWN},outcome="success"}}': grows(300),
        f'tailrate_requests_total{{{OWN},outcome="fail"}}': grows(7.5),
        f"tailrate_recompiled_requests_total{{{OWN}}}": still(40),  # of long ago
        f"tailrate_out_of_memory_total{{{OWN}}}": still(2),
        f"tailrate_device_throttle_bits{{{GPU}}}": still(0x1 + 0x2 + 0x10 + 0x100),  # idle, set clocks, sync boost
        f"tailrate_device_mem_util_pct{{{GPU}}}": still(99),  # of a GPU that is how busy its memory is
        f"tailrate_device_mem_util_pct{{{HOST}}}": still(60),
    }
    refused = dict.fromkeys(REFUSED, 0.0) | {"failed": 1.5, "bad_input": 6}
    series |= {f'tailrate_refused_total{{{OWN},reason="{why}"}}': grows(by) for why, by in refused.items()}
    return series | taken(TAKEN)


def taken(by: dict[str, int]) -> dict[str, str]:
    name = "tailrate_request_seconds_bucket"
    return {f'{name}{{{OWN},outcome="success",le="{le}"}}': grows(count) for le, count in by.items()}


def refused(why: str, values: str) -> dict[str, str]:
    return {f'tailrate_refused_total{{{OWN},reason="{why}"}}': values}


def throttled(bits: int) -> dict[str, str]:
    return {f"tailrate_device_throttle_bits{{{GPU}}}": still(bits)}


READY = 'tailrate_endpoint_ready{model="bert",variant="eager"}'
WAITING = f"tailrate_waiting{{{OWN}}}"
RECOMPILED, HALVED = (f"tailrate_{name}_total{{{OWN}}}" for name in ("recompiled_requests", "out_of_memory"))
HOST_MEMORY = f"tailrate_device_mem_util_pct{{{HOST}}}"
CASES: dict[str, tuple[dict[str, str], str]] = {
    "all is well": ({}, ""),
    "nobody asks for anything": ({name: still(5) for name in well() if "_total" in name or "_bucket" in name}, ""),
    "not ready for six minutes": ({READY: "1x107 0x12"}, "TailrateNotReady"),
    "not ready for two": ({READY: "1x115 0x4"}, ""),
    "one of two servers loads": ({READY: still(1), READY.replace("}", ',pod="b"}'): still(0)}, ""),
    "nothing told for a quarter of an hour": (dict.fromkeys(well(), "1x90"), "TailrateSilent"),
    "one in fifty fails": (refused("failed", grows(6)), "TailrateErrors"),
    "one in fifty is too late": (refused("deadline", grows(6)), "TailrateErrors"),
    "one in fifty comes too early": (refused("not_ready", grows(6)), "TailrateErrors"),
    "every second request is bad": (refused("bad_input", grows(300)), ""),
    "one in thirty takes a second": (taken(SLOW), "TailrateSlow"),
    "a queue that grows by 30 in ten minutes": ({WAITING: grows(1.5)}, "TailrateQueueGrows"),
    "a queue of 100 that stays": ({WAITING: still(100)}, ""),
    "a queue that fell": ({WAITING: grows(-0.5, start=100)}, ""),
    "refused for the last six minutes": (refused("queue_full", "0x107 0+1x12"), "TailrateRefuses"),
    "no room for bodies for the last six minutes": (refused("no_room", "0x107 0+1x12"), "TailrateRefuses"),
    "one in fifty finds no memory": (refused("no_memory", grows(6)), "TailrateErrors"),
    "one in fifty is lost with its replica": (refused("lost", grows(6)), "TailrateErrors"),
    "refused once, two minutes ago": (refused("queue_full", "0x115 50x4"), ""),
    "compiled under load just now": ({RECOMPILED: "40x115 43x4"}, "TailrateRecompiles"),
    "compiled under load half an hour ago": ({RECOMPILED: "0x60 40x59"}, ""),
    "a batch that did not fit": ({HALVED: "2x110 3x9"}, "TailrateDeviceMemoryFull"),
    "a host with 95 % of its memory in use": ({HOST_MEMORY: still(95)}, "TailrateHostMemoryNearlyFull"),
    "the same for two minutes": ({HOST_MEMORY: "60x115 95x4"}, ""),
    "the same of another host": (
        {HOST_MEMORY.replace('"cpu"', '"cpu:two"'): still(95)},
        "TailrateHostMemoryNearlyFull",
    ),
    "throttled for two minutes": ({f"tailrate_device_throttle_bits{{{GPU}}}": "0x115 64x4"}, ""),
}
CASES |= {
    f"clocks held down by {1 << bit:#x}": (throttled(1 << bit), "TailrateThrottled" if THROTTLED >> bit & 1 else "")
    for bit in range(12)
}


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    assert {alert for _, alert in CASES.values()} - {""} == set(ALERTS)


@pytest.mark.live
@needs_prometheus
def test_each_alert_fires_for_what_it_is_about_and_for_nothing_else(tmp_path: Path) -> None:
    def case(name: str, changed: dict[str, str], alert: str) -> dict[str, Any]:
        count = "count by (alertname) (ALERTS{alertstate='firing'})"
        fires = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
        return {
            "name": name,
            "interval": "30s",
            "input_series": [{"series": key, "values": values} for key, values in (well() | changed).items()],
            "promql_expr_test": [{"expr": count, "eval_time": "59m30s", "exp_samples": fires}],
        }

    def tested(cases: dict[str, tuple[dict[str, str], str]]) -> str:
        written = {"rule_files": ["rules.yml"], "evaluation_interval": "30s"}
        written["tests"] = [case(name, *one) for name, one in cases.items()]
        (tmp_path / "cases.yml").write_text(yaml.safe_dump(written))
        words = ["promtool", "test", "rules", tmp_path / "cases.yml"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    prepared(tmp_path)
    assert tested(CASES) == ""
    assert "TailrateNotReady" in tested({"a case that is wrong": (CASES["not ready for six minutes"][0], "")})
