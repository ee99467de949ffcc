"""The manifests: overlays resolve, are what Kubernetes takes, refer to what exists, and serve what is said."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click.testing
import kubernetes_validate
import kustomize
import pytest
import yaml
from variables import of_locust

from tailrate.cli.main import main
from tailrate.cli.options import scenarios
from tailrate.serve import wire
from tailrate.serve.deploy import probe as health_probe
from tailrate.serve.deploy.cluster import GIVEN_UP_S
from tailrate.serve.options import ServeOptions

ROOT = Path(__file__).parents[2]
K8S = ROOT / "docker" / "k8s"
OVERLAYS = ("cpu", "gpu", "plain-cpu", "plain-gpu")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
KUBERNETES = ("1.29", "1.37")
OWN_KINDS = {"RayService", "ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds that operators bring, for which Kubernetes itself has no schema."""
SERVE = "tailrate-serve-svc"
WATCH = K8S / "watch" / "kustomization.yaml"
HEALTH = ["python", "-m", "tailrate.serve.deploy.probe"]
AS_RAY_READS = """
import sys, yaml
from ray.serve.schema import ServeDeploySchema
for document in yaml.safe_load_all(sys.stdin):
    found = ServeDeploySchema.model_validate(document)
    print(found.http_options.host, *(each.args["device"] for each in found.applications))
"""

# what the fields of those kinds may be called, as their operators' APIs have them
RAY_SERVICE = {"serveConfigV2", "rayClusterConfig", "serveService", "upgradeStrategy", "excludeHeadPodFromServeSvc"}
RAY_CLUSTER = {"rayVersion", "enableInTreeAutoscaling", "autoscalerOptions", "headGroupSpec", "workerGroupSpecs"}
HEAD_GROUP = {"rayStartParams", "template", "headService", "serviceType", "enableIngress"}
WORKER_GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template"}
AUTOSCALER = {"idleTimeoutSeconds", "upscalingMode", "resources", "env", "image"}
SCALED = {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "cooldownPeriod", "pollingInterval", "triggers"}
SCALED |= {"fallback"}
ENDPOINT = {"port", "path", "interval", "scrapeTimeout", "scheme", "authorization"}


@pytest.fixture(scope="module", params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> list[kustomize.Resource]:
    return kustomize.build(K8S / request.param)


def of_kind(resources: list[kustomize.Resource], kind: str) -> list[kustomize.Resource]:
    return [one for one in resources if one["kind"] == kind]


def containers(resources: list[kustomize.Resource]) -> list[tuple[kustomize.Resource, kustomize.Resource]]:
    return [pair for one in resources for pair in kustomize.containers(one)]


def test_every_folder_is_part_of_an_overlay_or_one() -> None:
    used = {path.parent.name for path in K8S.glob("*/kustomization.yaml")}
    text = "".join(path.read_text() for path in K8S.glob("*/kustomization.yaml"))
    assert used == {*OVERLAYS, "agent"} | set(re.findall(r"^ +- \.\./(\w+)$", text, re.M))


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_them(overlay: list[kustomize.Resource], version: str) -> None:
    for one in overlay:
        if one["kind"] not in OWN_KINDS:
            kubernetes_validate.validate(one, version, strict=True)
        for pod in kustomize.pods(one):
            as_pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod["spec"]}
            kubernetes_validate.validate(as_pod, version, strict=True)


def test_the_schema_can_say_no(overlay: list[kustomize.Resource]) -> None:
    (policy, *_) = of_kind(overlay, "NetworkPolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(policy | {"spec": policy["spec"] | {"ingres": []}}, KUBERNETES[0], strict=True)


def test_operators_take_the_rest(overlay: list[kustomize.Resource]) -> None:
    for one in of_kind(overlay, "RayService"):
        cluster = one["spec"]["rayClusterConfig"]
        assert one["apiVersion"] == "ray.io/v1"
        assert set(one["spec"]) <= RAY_SERVICE
        assert set(cluster) <= RAY_CLUSTER
        assert set(cluster.get("autoscalerOptions", {})) <= AUTOSCALER
        assert set(cluster["headGroupSpec"]) <= HEAD_GROUP
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        for group in cluster["workerGroupSpecs"]:
            assert set(group) <= WORKER_GROUP
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
            assert cluster["enableInTreeAutoscaling"] or group["minReplicas"] == group["maxReplicas"]
    for one in of_kind(overlay, "ScaledObject"):
        assert one["apiVersion"] == "keda.sh/v1alpha1"
        assert set(one["spec"]) <= SCALED
        for trigger in one["spec"]["triggers"]:
            assert trigger["type"] == "prometheus"
            assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold"}
            assert float(trigger["metadata"]["threshold"]) > 0
        # without it KEDA would keep to what it saw last, or to one
        assert one["spec"]["fallback"] == {"failureThreshold": 3, "replicas": one["spec"]["maxReplicaCount"]}
        target = one["spec"]["scaleTargetRef"]["name"]
        (deployment,) = kustomize.selected(overlay, "Deployment", target)
        assert "replicas" not in deployment["spec"]  # each `kubectl apply` would undo what KEDA decided
    for kind, key in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")):
        for one in of_kind(overlay, kind):
            assert one["apiVersion"] == "monitoring.coreos.com/v1"
            assert set(one["spec"]) == {"selector", key}
            assert all(set(endpoint) <= ENDPOINT for endpoint in one["spec"][key])
    for one in of_kind(overlay, "PrometheusRule"):  # promtool has looked at what is in a group
        assert one["apiVersion"] == "monitoring.coreos.com/v1"
        assert set(one["spec"]) == {"groups"}
        assert all(set(group) == {"name", "rules"} for group in one["spec"]["groups"])


def test_prometheus_selects_monitors_and_rules_by_a_label_that_is_set_in_one_place(
    overlay: list[kustomize.Resource],
) -> None:
    watched = [one for one in overlay if one["apiVersion"].startswith("monitoring.coreos.com/")]
    assert {one["kind"] for one in watched} == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert all(one["metadata"]["labels"] == {"release": "prometheus"} for one in watched)
    assert [path for path in K8S.rglob("*.yaml") if "release:" in path.read_text()] == [WATCH]
    assert WATCH.read_text().count("release:") == 1
    assert str(WATCH.relative_to(ROOT)) in (ROOT / "docs" / "deploy.md").read_text()


def kustomizes() -> bool:
    if shutil.which("kubectl") is None:
        return False
    words = ["kubectl", "version", "--client", "--output=json"]
    found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return str(found.get("kustomizeVersion", "")).startswith("v5.")


@pytest.mark.skipif(not kustomizes(), reason="there is no kubectl with kustomize 5")
@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_itself_makes_the_same_of_them(name: str) -> None:
    done = subprocess.run(["kubectl", "kustomize", K8S / name], capture_output=True, check=True)
    ours = {(one["kind"], one["metadata"]["name"]): one for one in kustomize.build(K8S / name)}
    assert {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)} == ours


def test_ray_is_the_version_in_the_image() -> None:
    (service,) = of_kind(kustomize.build(K8S / "cpu"), "RayService")
    installed = (ROOT / "docker/constraints/common.txt").read_text().splitlines()
    assert f"ray=={service['spec']['rayClusterConfig']['rayVersion']}" in installed


def test_what_kuberay_serves_is_what_tailrate_serve_prints() -> None:
    documents = []
    for name in ("cpu", "gpu"):
        said = re.search(r"^# serve.yaml: tailrate (.*)$", (K8S / name / "kustomization.yaml").read_text(), re.M)
        assert said is not None
        printed = click.testing.CliRunner().invoke(main, shlex.split(said[1]), catch_exceptions=False)
        assert printed.exit_code == 0, printed.output
        (service,) = of_kind(kustomize.build(K8S / name), "RayService")
        assert service["spec"]["serveConfigV2"] == printed.output
        documents.append(printed.output)
    words = [sys.executable, "-c", AS_RAY_READS]
    checked = subprocess.run(words, input="\n---\n".join(documents), capture_output=True, text=True)
    assert checked.stdout.splitlines() == ["0.0.0.0 cpu cpu cpu", "0.0.0.0 cuda cuda cuda"], checked.stderr


def test_gpus_are_asked_for_where_they_are_meant(overlay: list[kustomize.Resource], request: Any) -> None:
    limits = [container["resources"]["limits"].get("nvidia.com/gpu") for _, container in containers(overlay)]
    gpu = "gpu" in request.node.callspec.id
    assert [limit for limit in limits if limit] == ([1] if gpu else [])
    for spec, container in containers(overlay):
        if container["resources"]["limits"].get("nvidia.com/gpu"):
            assert container["image"].endswith("-cuda")
            assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_the_shares_of_a_gpu_add_up_to_one() -> None:
    (service,) = of_kind(kustomize.build(K8S / "gpu"), "RayService")
    endpoints = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][1:]
    assert sum(float(endpoint["args"]["num_gpus"]) for endpoint in endpoints) == 1
    (workers,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert {int(endpoint["args"]["max_replicas"]) for endpoint in endpoints} == {workers["maxReplicas"]}


def test_threads_are_the_cores_that_a_pod_may_use(overlay: list[kustomize.Resource]) -> None:
    """What torch sees is all cores of the machine; more threads than may run at once are slower than fewer."""
    found = []
    for one in overlay:
        for _, container in kustomize.containers(one):
            if container["name"] == "ray-worker":
                args = yaml.safe_load(one["spec"]["serveConfigV2"])["applications"][0]["args"]
                found.append((args["threads"], container["resources"]["limits"]["cpu"]))
            elif container.get("args", [""])[0] == "serve":
                words = container["args"]
                found.append((words[words.index("--threads") + 1], container["resources"]["limits"]["cpu"]))
    assert found
    assert all(threads == cores for threads, cores in found)


def test_no_container_is_root_or_without_bounds(overlay: list[kustomize.Resource]) -> None:
    for spec, container in containers(overlay):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 10001
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


def test_no_pod_is_told_of_services_by_its_environment(overlay: list[kustomize.Resource]) -> None:
    """Of one named tailrate-serve, by TAILRATE_SERVE_PORT=tcp://…, which is an option of ours."""
    found = [pod["spec"] for one in overlay for pod in kustomize.pods(one)]
    assert len(found) >= 4
    assert all(spec["enableServiceLinks"] is False for spec in found)


def test_images_are_ours_and_of_this_version(overlay: list[kustomize.Resource]) -> None:
    for _, container in containers(overlay):
        assert re.fullmatch(rf"tailrate-(serve|load):{re.escape(VERSION)}(-cuda)?", container["image"])


def test_what_is_referred_to_exists(overlay: list[kustomize.Resource]) -> None:
    services = {one["metadata"]["name"] for one in of_kind(overlay, "Service")}
    services |= {f"{one['metadata']['name']}-serve-svc" for one in of_kind(overlay, "RayService")}  # KubeRay makes it
    claims = {one["metadata"]["name"] for one in of_kind(overlay, "PersistentVolumeClaim")}
    for spec, container in containers(overlay):
        text = shlex.join([*container.get("command", []), *container.get("args", [])])
        assert set(re.findall(r"http://([\w-]+):8000", text)) <= {SERVE}
        assert set(re.findall(r"--master-host (\S+)", text)) <= services
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        assert {mount["name"] for mount in container.get("volumeMounts", [])} == set(volumes)
        for volume in volumes.values():
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in claims | {None}
    assert SERVE in services
    assert all(one["metadata"].get("namespace") == "tailrate" for one in overlay if one["kind"] != "Namespace")


def test_services_find_pods_and_ports(overlay: list[kustomize.Resource]) -> None:
    templates = [pod for one in overlay for pod in kustomize.pods(one)]
    for service in of_kind(overlay, "Service"):
        wanted = service["spec"]["selector"].items()
        (chosen,) = [pod for pod in templates if wanted <= pod["metadata"]["labels"].items()]
        ports = {port["name"] for container in chosen["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_prometheus_asks_each_server_once(overlay: list[kustomize.Resource]) -> None:
    (monitor,) = of_kind(overlay, "ServiceMonitor")
    label = monitor["spec"]["selector"]["matchLabels"].items()
    services = of_kind(overlay, "Service")
    heads = [one["spec"]["rayClusterConfig"]["headGroupSpec"] for one in of_kind(overlay, "RayService")]
    services += [head["headService"] for head in heads]
    (_,) = [one for one in services if label <= one["metadata"].get("labels", {}).items()]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["path"] == wire.METRICS
    plain = [one for one in of_kind(overlay, "Deployment") if one["metadata"]["name"] == "tailrate-serve"]
    serving = heads[0]["template"] if heads else plain[0]["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in serving["spec"]["containers"][0]["ports"]}
    assert ports[endpoint["port"]] == 8000


def test_pods_that_serve_may_take_as_long_as_a_drain_does(overlay: list[kustomize.Resource]) -> None:
    """Until their Service sends nobody more, then for what is under way, then for Ray to end."""
    plain = [one for one in of_kind(overlay, "Deployment") if one["metadata"]["name"] == "tailrate-serve"]
    for pod in (one["spec"]["template"]["spec"] for one in plain):
        (words,) = (one["lifecycle"]["preStop"]["exec"]["command"] for one in pod["containers"])
        assert words[0] == "sleep"
        least_s = int(words[1]) + ServeOptions(("null",)).drain_s + GIVEN_UP_S
        assert pod["terminationGracePeriodSeconds"] >= least_s + 10


def test_probes_ask_for_what_is_answered(overlay: list[kustomize.Resource]) -> None:
    known = {"/", "/api/gcs_healthz", "/api/local_raylet_healthz"}
    serving = 0
    for _, container in containers(overlay):
        for probe in (container[name] for name in container if name.endswith("Probe")):
            if "exec" in probe:  # what is behind the token
                assert probe["exec"]["command"] in (HEALTH, [*HEALTH, wire.LIVE], [*HEALTH, wire.SERVING])
                assert probe["timeoutSeconds"] > health_probe.TIMEOUT_S
                continue
            handler = probe.get("httpGet") or probe["tcpSocket"]
            assert handler["port"] in {port["name"] for port in container["ports"]}
            assert handler.get("path", "/") in known
        asked = [container.get(f"{when}Probe", {}).get("exec", {}).get("command") for when in ("startup", "readiness")]
        serving += asked == [HEALTH, [*HEALTH, wire.SERVING]]
    assert serving == 1


def test_whoever_serves_or_asks_has_a_token_of_a_secret_that_must_be_there(overlay: list[kustomize.Resource]) -> None:
    reference = {"secretKeyRef": {"name": "tailrate-token", "key": "token"}}
    for _, container in containers(overlay):
        assert {"name": "TAILRATE_TOKEN", "valueFrom": reference} in container["env"]
    (monitor,) = of_kind(overlay, "ServiceMonitor")
    for endpoint in monitor["spec"]["endpoints"]:
        assert endpoint["authorization"] == {"credentials": {"name": "tailrate-token", "key": "token"}}
    said = "create secret generic tailrate-token --from-literal=token="
    assert said in (ROOT / "docs" / "deploy.md").read_text()


def test_commands_are_ones_that_there_are(overlay: list[kustomize.Resource]) -> None:
    checked = 0
    for _, container in containers(overlay):
        words = container.get("command") or ["tailrate", *container["args"]]
        if words[0] == "tailrate":
            command = main.commands[words[1]]
            options = {name for option in command.params for name in option.opts}
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options
            checked += 1
        elif words[0] == "locust":
            assert Path(words[2]).stem in scenarios()
            assert {"--master", "--worker"} & set(words)
            checked += 1
        else:
            (script,) = container["args"]
            assert words == ["/bin/bash", "-c", "--"]
            assert script.endswith("exec $KUBERAY_GEN_RAY_START_CMD")
        assert {variable["name"] for variable in container["env"]} <= of_locust() | {"TAILRATE_TOKEN"}
    assert checked >= 3


# ---- who reaches what


def allowed(
    overlay: list[kustomize.Resource], to: dict[str, str], labels: dict[str, str], space: str, port: int
) -> bool:
    """Whether the policies let a pod of a namespace, with these labels, reach a port of one with the labels `to`."""
    held = [one["spec"] for one in of_kind(overlay, "NetworkPolicy") if matches(one["spec"]["podSelector"], to)]
    rules = [rule for spec in held for rule in spec["ingress"]]
    return not held or any(
        any(is_peer(peer, labels, space) for peer in rule["from"])
        and port in [each["port"] for each in rule.get("ports", [{"port": port}])]
        for rule in rules
    )


def is_peer(peer: dict[str, Any], labels: dict[str, str], space: str) -> bool:
    if "namespaceSelector" not in peer:
        return space == "tailrate" and matches(peer["podSelector"], labels)
    named = {"kubernetes.io/metadata.name": space}
    return matches(peer["namespaceSelector"], named) and matches(peer.get("podSelector", {}), labels)


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    chosen = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in chosen)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in chosen
    )


def test_only_what_must_reaches_the_servers(overlay: list[kustomize.Resource]) -> None:
    component = "app.kubernetes.io/component"
    (*_, serving) = [pod["metadata"]["labels"] for one in overlay for pod in kustomize.pods(one)
                     if pod["metadata"]["labels"][component] == "serve"]  # fmt: skip
    ray_ports = (6379, 8265, 10001, 30000, 52365)
    load, soak = {component: "load"}, {component: "soak"}
    assert all(allowed(overlay, serving, serving, "tailrate", port) for port in (8000, *ray_ports))
    for whoever, space in ((load, "tailrate"), (soak, "tailrate"), ({}, "monitoring")):
        assert allowed(overlay, serving, whoever, space, 8000)
        assert not any(allowed(overlay, serving, whoever, space, port) for port in ray_ports)
    for whoever, space in (({}, "tailrate"), (serving, "elsewhere"), (load, "elsewhere")):
        assert not any(allowed(overlay, serving, whoever, space, port) for port in (8000, 8080, *ray_ports))
    operator = {"app.kubernetes.io/name": "kuberay-operator"}
    reached = [port for port in ray_ports if allowed(overlay, serving, operator, "ray-system", port)]
    assert reached == [8265, 52365]
    for whoever, space in ((operator, "anywhere"), (operator, "tailrate"), ({}, "ray-system")):
        assert not any(allowed(overlay, serving, whoever, space, port) for port in (8000, *ray_ports))
    assert allowed(overlay, serving, {}, "monitoring", 8080)


def test_locust_s_page_and_port_are_for_its_workers_and_for_port_forward(overlay: list[kustomize.Resource]) -> None:
    (master,) = kustomize.pods(kustomize.selected(overlay, "Deployment", "locust-master")[0])
    (worker,) = kustomize.pods(kustomize.selected(overlay, "Deployment", "locust-worker")[0])
    to = master["metadata"]["labels"]
    assert allowed(overlay, to, worker["metadata"]["labels"], "tailrate", 5557)
    assert not allowed(overlay, to, worker["metadata"]["labels"], "tailrate", 8089)
    assert not allowed(overlay, to, {}, "tailrate", 5557)


def test_a_policy_names_the_namespace_of_everyone_from_another_and_the_page_says_which() -> None:
    policies = (K8S / "base" / "network.yaml").read_text()
    peers = [
        peer
        for policy in yaml.safe_load_all(policies)
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
        if "namespaceSelector" in peer
    ]
    named = [peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for peer in peers]
    assert named == ["ray-system", "monitoring"]
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert all(f"`{name}`" in page for name in named)


# ---- what goes on while nodes are drained and versions change


def test_a_drain_takes_one_of_several_pods(overlay: list[kustomize.Resource]) -> None:
    budgets = [one["spec"] for one in of_kind(overlay, "PodDisruptionBudget")]

    def held(pod: kustomize.Resource) -> list[dict[str, Any]]:
        return [budget for budget in budgets if matches(budget["selector"], pod["metadata"]["labels"])]

    scaled = {one["spec"]["scaleTargetRef"]["name"] for one in of_kind(overlay, "ScaledObject")}
    for one in of_kind(overlay, "Deployment"):
        several = one["metadata"]["name"] in scaled or one["spec"]["replicas"] > 1
        (pod,) = kustomize.pods(one)
        assert [budget["maxUnavailable"] for budget in held(pod)] == ([1] if several else [])
    for one in of_kind(overlay, "RayService"):
        cluster = one["spec"]["rayClusterConfig"]
        (workers,) = cluster["workerGroupSpecs"]
        # Kubernetes takes a number that must stay, and nothing else, for pods that an operator owns
        budget = [budget["minAvailable"] for budget in held(workers["template"])]
        assert budget == ([1] if workers["maxReplicas"] > 1 else [])
        assert held(cluster["headGroupSpec"]["template"]) == []


def test_an_upgrade_waits_for_no_gpu_that_the_pod_it_replaces_has() -> None:
    for name, surge in (("plain-cpu", 1), ("plain-gpu", 0)):
        (server,) = kustomize.selected(kustomize.build(K8S / name), "Deployment", "tailrate-serve")
        assert server["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": surge, "maxUnavailable": 1 - surge}
        (container,) = server["spec"]["template"]["spec"]["containers"]
        probe = container["startupProbe"]
        assert server["spec"]["progressDeadlineSeconds"] > probe["failureThreshold"] * probe["periodSeconds"]
