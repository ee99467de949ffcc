"""Prometheus and Grafana: each query of each dashboard gets data from a server under load, by the real Prometheus.

The same server then loses a replica, cores and its proxy, and its users are told of it.
"""

import csv
import json
import math
import re
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import kustomize
import numpy as np
import pytest
import yaml
from serving import Served, served
from test_fault_api import post
from test_rules import needs_prometheus, prepared
from test_run import assert_ledger_closes, nothing_left_running, read, said, start  # noqa: F401
from waiting import PATIENCE_S, until

from tailrate import analysis
from tailrate.analysis.records.folder import read_events
from tailrate.analysis.steps.fault_effects import faults
from tailrate.serve import wire
from tailrate.serve.body.request import encode_infer
from tailrate.serve.deploy.haproxy import free_port

DOCKER = Path(__file__).parents[2] / "docker"
GRAFANA = DOCKER / "grafana"
CONFIG = DOCKER / "prometheus" / "prometheus.yml"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))}
QUERIES = [
    pytest.param(target["expr"], id=f"{name}: {panel['title']} {target['refId']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    for target in panel["targets"]
]
SCALING = [
    trigger["metadata"]["query"]
    for resource in kustomize.build(DOCKER / "k8s" / "plain-cpu")
    if resource["kind"] == "ScaledObject"
    for trigger in resource["spec"]["triggers"]
]
TARGET = "serve:8000"
TOKEN_FILE = "/dev/shm/token"
TOKEN = "watched-0123456789abcdef"


def configuration() -> str:
    """Prometheus' own, with what is made at its start in the same folder."""
    text = CONFIG.read_text()
    assert text.count("/dev/shm/") == 2
    return text.replace("/dev/shm/", "")


def plain(query: str) -> str:
    """What Grafana makes of it before it asks."""
    return query.replace("$__rate_interval", "30s")


# ---- what Grafana reads


def test_dashboards_find_their_source_and_grafana_finds_them() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/tailrate.yaml").read_text())["providers"]
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    mounts = dict(mount.split(":")[:2] for mount in services["grafana"]["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    assert source["url"] == "http://prometheus:9090"
    assert "./prometheus/prometheus.yml:/etc/prometheus/prometheus.yml:ro" in services["prometheus"]["volumes"]
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS) == 3
    for dashboard in DASHBOARDS.values():
        for panel in dashboard["panels"]:
            for named in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
                assert named == {"type": source["type"], "uid": source["uid"]}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_a_number_a_title_a_unit_and_a_place_of_their_own(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        at = panel["gridPos"]
        place = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in place) < 24
        assert not taken & place
        taken |= place
        for target in panel["targets"]:
            by = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            if grouped := re.search(r"sum by \(([^)]*)\)", target["expr"]):
                assert by <= set(grouped[1].split(", ")), "a legend names what was summed over"


# ---- what Prometheus reads


def test_it_shows_the_token_that_compose_gives_it(tmp_path: Path) -> None:
    """Which comes in a variable, while Prometheus takes one from a file."""
    service = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["prometheus"]
    assert "TAILRATE_TOKEN" in service["environment"]
    assert CONFIG.read_text().count(TOKEN_FILE) == 1
    for given, shown in ({}, ""), ({"TAILRATE_TOKEN": f"{TOKEN},other"}, TOKEN):
        words = prepared(tmp_path, **given)
        assert (tmp_path / "token").read_text().strip() == shown
        assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    mounts = dict(mount.split(":")[:2] for mount in service["volumes"])
    assert f"--config.file={mounts['./prometheus/prometheus.yml']}" in words
    assert f"--storage.tsdb.path={mounts['prometheus']}" in words


@needs_prometheus
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    prepared(tmp_path)  # without a token
    (tmp_path / "prometheus.yml").write_text(configuration())
    words = ["promtool", "check", "config", tmp_path / "prometheus.yml"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_every_query_is_one(tmp_path: Path) -> None:
    def checked(queries: list[str]) -> int:
        rules = [{"record": f"q:{number}", "expr": plain(query)} for number, query in enumerate(queries)]
        (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
        words = ["promtool", "check", "rules", tmp_path / "rules.yml"]
        return subprocess.run(words, capture_output=True, check=False).returncode

    assert checked([str(query.values[0]) for query in QUERIES] + SCALING) == 0
    assert checked(["sum(rate(tailrate_requests_total[10s])"]) != 0


# ---- live


class Watch:
    """A Prometheus of our own that reads a live server by the configuration of docker/."""

    def __init__(self, server: Served, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        prepared(folder, TAILRATE_TOKEN=TOKEN)
        text = configuration()
        assert text.count(TARGET) == 2
        text = text.replace(TARGET, server.netloc)
        text = re.sub(r"(scrape_interval|scrape_timeout|evaluation_interval): \d+s", r"\1: 2s", text)
        (folder / "prometheus.yml").write_text(text)
        words = ["--config.file", folder / "prometheus.yml", "--storage.tsdb.path", folder / "data", "--log.level=warn"]
        self.process = subprocess.Popen(
            ["prometheus", *words, f"--web.listen-address={self.url.removeprefix('http://')}"]
        )

    def __call__(self, query: str) -> list[float]:
        """The values of an instant query, NaN left out."""
        asked = urllib.parse.urlencode({"query": plain(query)})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{asked}", timeout=PATIENCE_S) as answer:
            found = json.load(answer)["data"]["result"]
        return [value for one in found if not math.isnan(value := float(one["value"][1]))]

    def waited(self, query: str) -> list[float]:
        def found() -> list[float]:
            with suppress(urllib.error.URLError, ConnectionError):  # it is starting
                return self(query)
            return []

        return until(found, every_s=0.5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options: dict[str, Any] = {"models": ["null"], "variants": ["eager"], "replicas": 2, "allow_faults": True}
    options["device_trace"] = str(trace(tmp_path_factory.mktemp("trace")))
    with served(tmp_path_factory.mktemp("cache"), environment={"TAILRATE_TOKEN": TOKEN}, **options) as made:
        yield made


def trace(folder: Path) -> Path:
    """A second of a GPU that can tell everything and of its host."""
    path = folder / "trace.csv"
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, wire.SAMPLE_FIELDS)
        out.writeheader()
        gpu = {field: 50 for field in wire.SAMPLE_FIELDS if not field.startswith("net_")}
        host = {"util_pct": 20, "mem_util_pct": 30, "mem_bytes": 1 << 30, "net_in_bps": 1000, "net_out_bps": 2000}
        for tenth in range(10):
            at = {"time_ns": tenth * 100_000_000}
            out.writerow(gpu | at | {"host": "h", "device": "GPU-1", "index": 0, "energy_j": 100 + 30 * tenth})
            out.writerow(host | at | {"host": "h", "device": "cpu", "index": 0})
    return path


def drive(server: Served, stop: threading.Event) -> None:
    """About thirty requests a second, one in ten of them wrong."""
    path = server.url + wire.infer_path("null", "eager")
    body, headers = encode_infer({"x": np.zeros((1, 4), np.uint8)})
    headers["Authorization"] = f"Bearer {TOKEN}"
    number = 0
    while not stop.wait(0.03):
        number += 1
        request = urllib.request.Request(path, b"{" if number % 10 == 0 else body, headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                answer.read()
        except urllib.error.HTTPError as problem:
            problem.close()


@pytest.fixture(scope="class")
def watch(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    stop = threading.Event()
    driving = threading.Thread(target=drive, args=(server, stop))
    driving.start()
    found = Watch(server, tmp_path_factory.mktemp("watch"))
    try:
        yield found
    finally:
        found.process.terminate()
        found.process.wait(PATIENCE_S)
        stop.set()
        driving.join()


@pytest.mark.served
@needs_prometheus
class TestWatched:
    """A class, for the load to be over with it."""

    @pytest.mark.parametrize("query", QUERIES)
    def test_every_query_of_a_dashboard_gets_data(self, watch: Watch, query: str) -> None:
        assert watch.waited(query)

    def test_both_ways_of_a_server_are_up(self, watch: Watch) -> None:
        assert watch.waited("count(up == 1) == 2") == [2]

    def test_rules_are_read_and_evaluated_and_nothing_is_alarming(self, watch: Watch) -> None:
        def rules() -> list[dict[str, Any]]:
            with urllib.request.urlopen(f"{watch.url}/api/v1/rules", timeout=PATIENCE_S) as answer:
                (group,) = json.load(answer)["data"]["groups"]
            found: list[dict[str, Any]] = group["rules"]
            return [] if any(rule["health"] == "unknown" for rule in found) else found

        assert watch.waited("tailrate_endpoint_ready") == [1]
        found = until(rules, every_s=0.5)
        assert {rule["health"] for rule in found} == {"ok"}
        assert {rule["name"] for rule in found if rule["state"] == "firing"} == set()

    def test_the_figures_are_those_of_the_load(self, watch: Watch) -> None:
        rate = 'rate(tailrate_requests_total{outcome="%s"}[30s])'
        assert watch.waited(f"sum({rate % 'success'}) > 3 * sum({rate % 'fail'}) > 0")
        assert watch.waited('tailrate_device_power_w{device="GPU-1"}') == [50]
        assert watch.waited('tailrate_device_util_pct{device="cpu"}') == [20]
        for query in SCALING:  # here no operator adds the namespace
            assert watch.waited(query.replace('namespace="tailrate",', "").replace('{namespace="tailrate"}', ""))


# ---- struck


@pytest.mark.served
def test_a_server_says_what_it_cannot_do(server: Served) -> None:
    assert post(server.url, fault="meteor")[0] == 401
    assert post(server.url, TOKEN, fault="meteor")[0] == 400
    status, answer = post(server.url, TOKEN, fault="node_killed")
    assert status == 409
    assert "beside the head's" in answer["error"]


def driven(server: Served, folder: Path, plan: str, seconds: float) -> tuple[Any, list[dict[str, Any]], list[Any]]:
    """A run with this plan of faults: its manifest, its rows, and what users saw."""
    (folder / "plan.csv").write_text(f"at_s,fault,target,seconds\n{plan}")
    words = ["--headless", "--host", server.url, "--rates", "100", f"--step-seconds={seconds}", "--timeout=5"]
    process = start(folder, *words, "--faults", str(folder / "plan.csv"), env={"TAILRATE_TOKEN": TOKEN})
    assert process.wait(timeout=seconds + 120) in (0, 1), said(folder)
    manifest, rows = read(folder / "it")
    assert manifest.status == "complete"
    assert_ledger_closes(manifest, rows)
    assert manifest.totals["scheduled"] == len(rows)
    return manifest, rows, faults(analysis.load(folder / "it"))


@pytest.mark.served
@pytest.mark.long
def test_users_of_a_server_that_loses_a_replica_and_cores_are_told_of(server: Served, tmp_path: Path) -> None:
    _, rows, effects = driven(server, tmp_path, "5,replica_killed,null/eager,\n14,cpu_taken,1,4\n", 24)
    replica, cpu = effects
    assert replica.injected
    assert replica.said.startswith("replica ")
    gone = replica.said.split()[1]
    assert gone in {row["replica"] for row in rows}
    assert replica.closes
    assert replica.errors < max(1, replica.n)  # the other replica goes on; perhaps nothing was under way
    killed_ns = next(e["end_ns"] for e in read_events(tmp_path / "it") if e["event"] == "fault" and e["phase"] == "end")
    since = sorted((row["sent_ns"], row["replica"] == gone) for row in rows if (row["sent_ns"] or 0) > killed_ns)
    # Ray sends its kill without waiting for it: it may answer a few more, of half of them if it lived
    assert sum(by_it for _, by_it in since) < len(since) / 10
    assert not any(by_it for _, by_it in since[len(since) // 2 :])
    assert (cpu.injected, cpu.closes, cpu.errors) == (True, True, 0)
    assert cpu.seconds is not None
    assert cpu.seconds >= 4


@pytest.mark.served
@pytest.mark.long
def test_the_way_in_is_lost_and_comes_back(server: Served, tmp_path: Path) -> None:
    """Serve's controller takes half a minute to see that its proxy is gone, which need not be waited for under load."""
    _, _, (effect,) = driven(server, tmp_path, "4,ingress_restarted,,\n", 8)
    assert effect.injected
    assert effect.closes
    assert effect.statuses.get("connect", 0) > 0
    until(lambda: up(server.url))


def up(url: str) -> bool:
    asked = urllib.request.Request(url + wire.READY, headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return bool(json.loads(answer.read())["ready"])
    except (OSError, ValueError):
        return False
