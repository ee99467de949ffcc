"""The agent's container, unit and DaemonSet: what they run exists, what they are allowed is little."""

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import kustomize
import pytest
from test_images import of
from test_k8s import KUBERNETES, VERSION

from tailrate.cli.main import main
from tailrate.serve.telemetry.agent.agent import AgentOptions

DOCKER = Path(__file__).parents[2] / "docker"
OPTIONS = {name for option in main.commands["agent"].params for name in option.opts}


@pytest.fixture(scope="module")
def daemon() -> dict[str, Any]:
    (found,) = [one for one in kustomize.build(DOCKER / "k8s" / "agent") if one["kind"] == "DaemonSet"]
    return found


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_it(daemon: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(daemon, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemon | {"spec": daemon["spec"] | {"templates": []}}, version, strict=True)


def test_it_may_do_little_and_takes_no_gpu_from_others(daemon: dict[str, Any]) -> None:
    pod = daemon["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert daemon["spec"]["selector"]["matchLabels"] == daemon["spec"]["template"]["metadata"]["labels"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert not any("gpu" in name for each in container["resources"].values() for name in each)
    assert pod["enableServiceLinks"] is False
    reference = {"secretKeyRef": {"name": "tailrate-token", "key": "token"}}
    assert {"name": "TAILRATE_TOKEN", "valueFrom": reference} in container["env"]
    assert container["image"] == f"tailrate-agent:{VERSION}"
    assert [port["containerPort"] for port in container["ports"]] == [AgentOptions().port]


def test_the_image_runs_the_agent_and_names_what_it_takes() -> None:
    path = DOCKER / "agent.Dockerfile"
    assert json.loads(of(path, "ENTRYPOINT")[-1]) == ["tailrate", "agent"]
    assert of(path, "EXPOSE") == [str(AgentOptions().port)]
    variables = {f"TAILRATE_AGENT_{str(option.name).upper()}" for option in main.commands["agent"].params}
    named = {pair.partition("=")[0] for words in of(path, "ENV") for pair in words.split()}
    assert {name for name in named if name.startswith("TAILRATE_")} <= variables


def test_the_unit_runs_a_command_that_there_is_with_a_token_that_no_list_of_processes_shows() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(DOCKER / "tailrate-agent.service")
    service = unit["Service"]
    program, command, *words = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("tailrate", "agent")
    assert {word for word in words if word.startswith("--")} <= OPTIONS
    assert "--token-file" in words
    assert service["DynamicUser"] == "yes"
    assert re.fullmatch(r"token:/etc/\S+", service["LoadCredential"])
    assert unit["Install"]["WantedBy"] == "multi-user.target"
