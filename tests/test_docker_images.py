"""Dockerfiles and compose: they name what exists, pin what they build on, and map what is documented onto options."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from variables import of_locust

from headroom import main, scenarios
from serve import health, wire

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, its words) with lines joined and comments left out."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in lines if line.strip()]


def of(path: Path, name: str) -> list[str]:
    return [words for instruction, words in instructions(path) if instruction == name]


def context() -> list[Path]:
    """What .dockerignore, as we write it (everything but some), sends to a build."""
    first, *rest = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert first == "*"
    kept = [line.removeprefix("!") for line in rest if line.startswith("!")]
    dropped = [line.removeprefix("**/") for line in rest if not line.startswith("!")]
    found = []
    for name in kept:
        path = ROOT / name
        assert path.exists(), f".dockerignore keeps {name}, which is not there"
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        found += [each for each in files if not any(fnmatch(part, drop) for part in each.parts for drop in dropped)]
    return found


# ---- Dockerfiles


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_bases_are_pinned_and_named_without_a_host(path: Path) -> None:
    defaults = dict(word.split("=", 1) for word in of(path, "ARG") if "=" in word)
    stages = {words.split(" AS ")[1] for words in of(path, "FROM") if " AS " in words}
    for words in of(path, "FROM"):
        image = re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], words.split(" AS ")[0])
        if image not in stages:
            check_image(image)


def check_image(image: str) -> None:
    name, colon, tag = image.partition(":")
    assert colon, f"{image} is not pinned"
    assert tag != "latest"
    assert re.search(r"\d+\.\d+", tag), f"{image} moves"
    first, slash, _ = name.partition("/")
    assert not slash or "." not in first, f"{image} names a host"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_what_is_copied_is_in_the_context_and_extras_exist(path: Path) -> None:
    for words in of(path, "COPY"):
        *sources, _ = [word for word in words.split() if not word.startswith("--")]
        if "--from=" not in words:
            assert sources == ["."]
    names = {file.relative_to(ROOT).parts[0] for file in context()}
    packages = {package.split(".")[0] for package in PROJECT["tool"]["setuptools"]["packages"]}
    assert packages | {"headroom.py", "pyproject.toml", "README.md", "LICENSE"} == names
    extras = set(PROJECT["project"]["optional-dependencies"])
    for default in re.findall(r"^ARG EXTRAS=(\S+)$", path.read_text(), re.M):
        assert set(default.split(",")) <= extras
    for named in re.findall(r"^# More than serve: (.*)$", path.read_text(), re.M):
        assert set(named.split(", ")) | {"serve", "dev", "bench"} == extras


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_images_run_as_a_user_of_a_known_number(path: Path) -> None:
    steps = instructions(path)
    (user,) = [number for number, (name, words) in enumerate(steps) if (name, words) == ("USER", "headroom")]
    assert any("useradd" in words and "--uid 10001" in words for name, words in steps[:user] if name == "RUN")
    assert not any(name == "COPY" for name, _ in steps[user:])


def test_the_server_is_healthy_when_it_is_ready_and_its_defaults_are_options() -> None:
    path = DOCKER / "serve.Dockerfile"
    (check,) = of(path, "HEALTHCHECK")
    assert json.loads(check[check.index("CMD ") + 4 :]) == ["python", "-m", "serve.health"]
    assert health.READY == wire.READY
    (entry,), (command,) = of(path, "ENTRYPOINT"), of(path, "CMD")
    assert json.loads(entry)[-1] == "headroom"
    assert json.loads(command)[0] in main.commands
    for pair in " ".join(of(path, "ENV")).split():
        name = pair.partition("=")[0]
        assert name in ("PATH", "HEADROOM_CACHE") or name in serve_variables(), name


def serve_variables() -> set[str]:
    return {f"HEADROOM_SERVE_{str(option.name).upper()}" for option in main.commands["serve"].params}


def test_what_a_build_gets_makes_a_whole_wheel(tmp_path: Path) -> None:
    """Of the context alone, as in an image: every module, locustfile, page and schema is in what gets installed."""
    for file in context():
        place = tmp_path / "src" / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check"]
    (needed,) = map(Requirement, PROJECT["build-system"]["requires"])
    if needed.specifier.contains(version(needed.name)):
        words.append("--no-build-isolation")  # which installs what is here already
    subprocess.run([*words, "-w", tmp_path, tmp_path / "src"], check=True)
    (wheel,) = tmp_path.glob("headroom-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(file.relative_to(ROOT)) for file in context() if file.suffix in (".py", ".css", ".js", ".html", ".txt")
    }
    assert wanted <= packed


# ---- compose


def interpolated(value: Any, environment: dict[str, str]) -> Any:
    """As compose does it; forms within forms are not among what we use."""
    if isinstance(value, dict):
        return {key: interpolated(each, environment) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, environment) for each in value]
    if not isinstance(value, str):
        return value

    def chosen(found: re.Match[str]) -> str:
        given = environment.get(found["name"], "")
        return {":-": given or found["rest"], ":+": found["rest"] if given else ""}[found["how"]]

    text = re.sub(r"\$\{(?P<name>\w+)(?P<how>:[-+])(?P<rest>[^${}]*)\}", chosen, value)
    assert "$" not in text, f"{value} is not understood"
    return text


def services(**environment: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = interpolated(SERVICES, environment)
    return found


def test_it_is_what_compose_takes() -> None:
    schema = json.loads((resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    for document in (COMPOSE, interpolated(COMPOSE, {})):
        assert [f"{each.json_path}: {each.message}" for each in validator.iter_errors(document)] == []
    assert not validator.is_valid(COMPOSE | {"services": {"x": {"imagee": "y"}}})


def test_the_profiles_are_those_that_are_documented() -> None:
    found = {profile for service in SERVICES.values() for profile in service["profiles"]}
    assert found == {"cpu", "gpu", "demo", "load", "soak", "watch"}
    text = (ROOT / "docs" / "deploy.md").read_text()
    for line in re.findall(r"^(?:\w+=\S+ )?docker compose .*$", text, re.M):
        assert set(re.findall(r"--profile (\w+)", line)) <= found, line
        assert set(re.findall(r"--scale (\w+)=", line)) <= set(SERVICES), line
        assert set(re.findall(r"--exit-code-from (\w+)", line)) <= set(SERVICES), line


def test_each_variable_is_documented_with_its_default() -> None:
    text = (DOCKER / "compose.yaml").read_text()
    used = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text)) | dict.fromkeys(
        re.findall(r"^ +([A-Z_]+):$", text, re.M), ""
    )
    page = (ROOT / "docs" / "deploy.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \|([^|]*)\|", page.split("### Variables")[1].split("\n## ")[0], re.M)
    documented = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(documented) == set(used)
    for name, default in documented.items():
        if said := re.findall(r"`([^`]+)`", default):
            assert used[name] in said, name


def test_images_are_pinned_and_ours_are_of_this_version() -> None:
    for name, service in services().items():
        check_image(service["image"])
        if "build" in service:
            check_image(service["build"]["args"].get("BASE", service["image"]))
            assert service["image"].split(":")[1].removesuffix("-cuda") == PROJECT["project"]["version"], name


def test_builds_and_mounts_name_what_exists() -> None:
    for service in services().values():
        if "build" in service:
            assert (DOCKER / service["build"]["context"]).resolve() == ROOT
            dockerfile = ROOT / service["build"]["dockerfile"]
            known = {word.partition("=")[0] for word in of(dockerfile, "ARG")}
            assert set(service["build"]["args"]) <= known
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in COMPOSE["volumes"] or (source.startswith("./") and (DOCKER / source).exists()), mount


def test_commands_and_variables_are_options_that_there_are() -> None:
    for service in services(SETTINGS="delay_ms=3").values():
        words = service.get("command", [])
        if words[:1] == ["serve"]:
            assert set(service["environment"]) <= serve_variables() | {"TORCH_LOGS", "HF_TOKEN", "HEADROOM_TOKEN"}
        elif words[:1] == ["headroom"]:
            known = {name for option in main.commands[words[1]].params for name in option.opts}
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
            assert words[2] in scenarios()
            assert set(service["environment"]) == {"HEADROOM_TOKEN"}
        elif words:
            assert Path(words[2]).stem in scenarios()
            assert set(service["environment"]) <= of_locust() | {"HEADROOM_TOKEN", "HEADROOM_WEB_PASSWORD"}


@pytest.mark.parametrize(
    ("given", "served"),
    [
        ({}, "eager,compiled"),
        ({"VARIANTS": "eager,aot"}, "eager,aot"),
        ({"COMPILE_MODE": "max-autotune"}, "eager,compiled-max-autotune"),
    ],
)
def test_variables_become_what_is_served(given: dict[str, str], served: str) -> None:
    """The whole way: compose's variable, the container's, the option, what Ray would serve."""
    service = services(MODEL="custom_cnn", MAX_BATCH="2", SETTINGS="", **given)["serve"]
    environment = {key: value for key, value in service["environment"].items() if value is not None}
    words = [sys.executable, "-m", "headroom", *service["command"], "--config"]
    done = subprocess.run(words, env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, check=True)
    (first, *_) = yaml.safe_load(done.stdout)["applications"]
    assert first["args"].get("variants", "eager,compiled") == served
    assert (first["args"]["max_batch"], first["args"]["device"]) == ("2", "cpu")
    assert "weights" not in first["args"]  # set, but empty


def test_only_this_machine_reaches_what_is_published() -> None:
    for service in services().values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert services(BIND="0.0.0.0")["serve"]["ports"] == ["0.0.0.0:8000:8000"]


def test_a_token_is_for_whoever_serves_or_asks_and_is_written_nowhere() -> None:
    ours = {name for name, service in SERVICES.items() if "HEADROOM_TOKEN" in service.get("environment", {})}
    assert ours == set(SERVICES) - {"grafana"}
    assert all(SERVICES[name]["environment"]["HEADROOM_TOKEN"] is None for name in ours)  # from compose's own


def test_a_folder_with_a_certificate_makes_it_https() -> None:
    service = services(TLS="/etc/ours")["serve"]
    assert "/etc/ours:/tls:ro" in service["volumes"]
    assert service["environment"]["HEADROOM_SERVE_TLS_CERT"] == "/tls/tls.crt"  # as a TLS secret of Kubernetes has it
    assert service["environment"]["HEADROOM_SERVE_TLS_KEY"] == "/tls/tls.key"
    assert services()["serve"]["environment"]["HEADROOM_SERVE_TLS_CERT"] == ""


def test_workers_can_be_scaled_and_rows_come_to_the_master() -> None:
    worker, master = SERVICES["worker"], SERVICES["master"]
    assert not {"ports", "container_name"} & set(worker)
    assert "--master-host=master" in worker["command"]
    assert "runs:/headroom/runs" in services()["master"]["volumes"]
    assert master["command"][:3] == worker["command"][:3]


def test_gpus_are_reserved_where_they_are_meant() -> None:
    reserved = {name for name, service in SERVICES.items() if "deploy" in service}
    assert reserved == {"serve-gpu"}
    service = services()["serve-gpu"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert service["build"]["args"]["BASE"].startswith("nvidia/cuda:")
    assert service["environment"]["HEADROOM_SERVE_DEVICE"] == "cuda"
    assert service["networks"]["default"]["aliases"] == ["serve"]  # where load and Prometheus look for it


# ---- no hosts


def test_no_registry_is_named() -> None:
    paths = [*DOCKERFILES, *DOCKER.rglob("*.y*ml"), ROOT / "docs" / "deploy.md"]
    for path in paths:
        found = re.findall(r"\b(?:[\w-]+\.)+(?:io|com|org|dev)/[\w-]+", path.read_text())
        allowed = ("kubernetes.io/", "ray.io/", "nvidia.com/", "k8s.io/", "coreos.com/")
        assert [name for name in found if not any(part in name for part in allowed)] == [], path
