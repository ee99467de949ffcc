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

from tailrate.cli.main import main
from tailrate.cli.options import scenarios
from tailrate.serve import wire
from tailrate.serve.deploy import doctor, probe

ROOT = Path(__file__).parents[2]
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
        files = [each for each in path.rglob("*") if each.is_file() or each.is_symlink()] if path.is_dir() else [path]
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
    sent = {place for file in context() for place in (file, file.parent)}
    for words in of(path, "COPY"):
        *sources, _ = [word for word in words.split() if not word.startswith("--")]
        if "--from=" not in words:
            assert all((ROOT / source) in sent or source == "." for source in sources), words
    names = {file.relative_to(ROOT).parts[0] for file in context()}
    packages = {"tailrate", "serve", "loadtest", "analysis"}
    assert packages | {"pyproject.toml", "README.md", "LICENSE", "docker"} == names
    extras = set(PROJECT["project"]["optional-dependencies"])
    for default in re.findall(r"^ARG EXTRAS=(\S+)$", path.read_text(), re.M):
        assert set(default.split(",")) <= extras
    for named in re.findall(r"^# More than serve: (.*)$", path.read_text(), re.M):
        assert set(named.split(", ")) | {"agent", "serve", "dev", "bench", "mlflow", "wandb"} == extras


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_images_run_as_a_user_of_a_known_number(path: Path) -> None:
    steps = instructions(path)
    (user,) = [number for number, (name, words) in enumerate(steps) if (name, words) == ("USER", "tailrate")]
    assert any("useradd" in words and "--uid 10001" in words for name, words in steps[:user] if name == "RUN")
    assert not any(name == "COPY" for name, _ in steps[user:])


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_a_change_of_code_fetches_nothing_again(path: Path) -> None:
    """Whatever fetches is a layer before that of the code, and gets none of it; what comes after fetches nothing."""
    steps = instructions(path)
    code = steps.index(("COPY", ". /src"))
    fetching = [
        number
        for number, (name, words) in enumerate(steps)
        if name == "RUN" and re.search(r"apt-get|pip install(?!.*--no-deps --no-build-isolation)", words)
    ]
    assert fetching
    assert max(fetching) < code
    copied = [words for name, words in steps[:code] if name == "COPY"]
    assert (
        copied
        == {
            "agent": ["pyproject.toml docker/dependencies.py docker/constraints/common.txt /src/"],
            "load": ["pyproject.toml docker/dependencies.py docker/constraints/common.txt /src/"],
            "serve": [
                "docker/constraints /opt/constraints",
                "pyproject.toml docker/dependencies.py /src/",
            ],  # torch, others
        }[path.stem]
    )


def test_what_is_installed_before_the_code_is_what_the_code_needs() -> None:
    def printed(*extras: str) -> list[str]:
        words = [sys.executable, DOCKER / "dependencies.py", ROOT / "pyproject.toml", *extras]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()

    needed, extras = PROJECT["project"]["dependencies"], PROJECT["project"]["optional-dependencies"]
    build = PROJECT["build-system"]["requires"]  # since the code is installed without fetching that
    assert printed() == [*build, *needed]
    assert printed("serve,onnx") == [*build, *needed, *extras["serve"], *extras["onnx"]]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_no_index_and_no_password_stays_in_an_image(path: Path) -> None:
    """What ARG and ENV say is in the image's history; a secret is there for a step alone."""
    for name in ("ARG", "ENV"):
        assert not [words for words in of(path, name) if re.search(r"INDEX|PASSWORD|TOKEN|PIP_", words)]
    for words in of(path, "RUN"):
        fetches = re.search(r"pip install(?!.*--no-deps)", words) is not None
        assert fetches == words.startswith("--mount=type=secret,id=pip_conf,target=/etc/pip.conf "), words


def test_composes_builds_are_told_of_indexes_by_a_secret_alone() -> None:
    for environment in ({}, {"PIP_CONF": "/mine"}):
        made = interpolated(COMPOSE, environment)
        built = [service["build"] for service in made["services"].values() if "build" in service]
        assert all(build["secrets"] == ["pip_conf"] for build in built)
        assert made["secrets"] == {"pip_conf": {"file": environment.get("PIP_CONF", "./no-pip.conf")}}
    lines = (DOCKER / "no-pip.conf").read_text().splitlines()
    assert all(line.startswith("#") for line in lines)


# ---- torch


def pinned(name: str) -> dict[str, str]:
    lines = (DOCKER / "constraints" / f"{name}.txt").read_text().splitlines()
    return dict(re.fullmatch(r"(\w+)(={2,3}\S+)", line).groups() for line in lines if not line.startswith("#"))


def test_torch_is_one_exact_pair_that_we_support_in_each_image() -> None:
    """`==2.13.0` would also take 2.13.0+cpu, where pip was given an index that has it; `===` is that text alone."""
    cpu, cuda = pinned("cpu"), pinned("cuda")
    assert set(cpu) == set(cuda) == {"torch", "torchvision"}
    needed = {
        each.name: each.specifier for each in map(Requirement, PROJECT["project"]["optional-dependencies"]["serve"])
    }
    for name, version_ in cuda.items():
        assert version_.startswith("===")
        assert version_[3:] in needed[name]
        assert cpu[name] == f"=={version_[3:]}+cpu"


def test_the_cuda_of_torch_is_that_of_the_base_and_names_its_driver() -> None:
    """Of each major of CUDA the least driver, as NVIDIA says it and `tailrate doctor` repeats it."""
    (cuda,) = re.findall(r"CUDA (\d+\.\d+)", (DOCKER / "constraints" / "cuda.txt").read_text())
    base = services()["serve-gpu"]["build"]["args"]["BASE"]
    assert base.startswith(f"nvidia/cuda:{cuda}.")
    driver = doctor.LEAST_DRIVER[cuda.split(".")[0]]
    (label,) = of(DOCKER / "serve.Dockerfile", "LABEL")
    assert label == f'tailrate.nvidia-driver=">={driver}"'
    for text in ((DOCKER / "serve.Dockerfile").read_text(), page := (ROOT / "docs" / "deploy.md").read_text()):
        assert set(re.findall(r"nvidia/cuda:\S+", text)) == {base}
    assert f"driver {driver}" in page


@pytest.mark.parametrize(
    ("asked", "has_cpu", "installed"),
    [("auto", True, "cpu"), ("auto", False, "cuda"), ("cpu", True, "cpu"), ("cpu", False, ""), ("cuda", True, "cuda")],
)
def test_which_torch_a_build_gets(tmp_path: Path, asked: str, has_cpu: bool, installed: str) -> None:
    """The step itself, with a pip that has, or has not, what the file for the CPU wants."""
    (step,) = [words for words in of(DOCKER / "serve.Dockerfile", "RUN") if "install_torch" in words]
    step = step.partition("pip.conf ")[2].replace("/opt/", f"{tmp_path}/")
    shutil.copytree(DOCKER / "constraints", tmp_path / "constraints")
    binaries = tmp_path / "tailrate" / "bin"
    binaries.mkdir(parents=True)
    refuses = "" if has_cpu else f"! grep -q +cpu {tmp_path}/tailrate/constraints.txt"
    for name, text in {"python3": "", "pip": refuses}.items():
        (binaries / name).write_text(f"#!/bin/sh\n{text}\n")
        (binaries / name).chmod(0o755)
    environment = os.environ | {"TORCH": asked, "PATH": f"{binaries}:{os.environ['PATH']}"}
    done = subprocess.run(["/bin/sh", "-c", step], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == bool(installed), done.stderr
    if installed:
        found = (tmp_path / "tailrate" / "constraints.txt").read_text()
        torch = (DOCKER / "constraints" / f"{installed}.txt").read_text()
        others = (DOCKER / "constraints" / "common.txt").read_text().splitlines()
        assert found.startswith(torch)
        assert found.removeprefix(torch).splitlines() == [line for line in others if not line.startswith("torch")]
    assert ("gigabytes" in done.stdout) == (asked == "auto" and not has_cpu)


# ---- what is baked


def test_what_is_baked_lies_where_no_volume_hides_it_and_is_roots() -> None:
    path = DOCKER / "serve.Dockerfile"
    found = dict(pair.split("=", 1) for pair in " ".join(of(path, "ENV")).split())
    baked, cache = Path(found["TAILRATE_BAKED"]), Path(found["TAILRATE_CACHE"])
    (step,) = [words for words in of(path, "RUN") if "WARM" in words]
    assert f"TAILRATE_CACHE={baked} " in step
    assert step.endswith(f"chown -R root:root {baked} && chmod -R go=rX {baked}")
    mounted = {Path(mount.split(":")[1]) for service in services().values() for mount in service["volumes"]}
    for manifest in DOCKER.glob("k8s/**/*.yaml"):
        mounted |= {Path(place) for place in re.findall(r"mountPath: (\S+)", manifest.read_text())}
    assert cache in mounted
    assert not mounted & {baked, *baked.parents}


def test_the_server_is_healthy_when_it_is_ready_and_its_defaults_are_options() -> None:
    path = DOCKER / "serve.Dockerfile"
    (check,) = of(path, "HEALTHCHECK")
    assert json.loads(check[check.index("CMD ") + 4 :]) == ["python", "-m", "tailrate.serve.deploy.probe"]
    assert (probe.READY, probe.STOP) == (wire.READY, wire.STOP)
    (entry,), (command,) = of(path, "ENTRYPOINT"), of(path, "CMD")
    assert json.loads(entry)[-1] == "tailrate"
    assert json.loads(command)[0] in main.commands
    for pair in " ".join(of(path, "ENV")).split():
        name = pair.partition("=")[0]
        assert name in ("PATH", "TAILRATE_CACHE", "TAILRATE_BAKED") or name in serve_variables(), name


def serve_variables() -> set[str]:
    return {f"TAILRATE_SERVE_{str(option.name).upper()}" for option in main.commands["serve"].params}


@pytest.mark.live
def test_what_a_build_gets_makes_a_whole_wheel(tmp_path: Path) -> None:
    """Of the context alone, as in an image: every module, locustfile, page and schema is in what gets installed."""
    for file in context():
        place = tmp_path / "src" / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place, follow_symlinks=False)
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check"]
    (needed,) = map(Requirement, PROJECT["build-system"]["requires"])
    if needed.specifier.contains(version(needed.name)):
        words.append("--no-build-isolation")  # which installs what is here already
    subprocess.run([*words, "-w", tmp_path, tmp_path / "src"], check=True)
    (wheel,) = tmp_path.glob("tailrate-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    suffixes = (".py", ".css", ".js", ".html", ".txt", ".json")
    names = [file.relative_to(ROOT) for file in context() if file.suffix in suffixes and DOCKER not in file.parents]
    wanted = {str(name if name.parts[0] == "tailrate" else Path("tailrate", name)) for name in names}
    assert wanted <= packed


# ---- compose


def resolved(text: str, environment: dict[str, str]) -> str:
    """As compose does it: `$$`, and the forms `${NAME:-…}` and `${NAME:+…}` within one another.

    No `:?`: compose resolves what is in a form whether or not it is used, so one within another always refuses.
    """
    done = ""
    while "$" in text:
        before, _, text = text.partition("$")
        done += before
        if text.startswith("$"):
            done, text = done + "$", text[1:]
            continue
        end = next(at for at in range(len(text)) if text[: at + 1].count("{") == text[: at + 1].count("}"))
        found = re.fullmatch(r"\{(\w+):([-+])(.*)\}", text[: end + 1])
        assert found, f"{text} is not understood"
        (name, how, rest), text = found.groups(), text[end + 1 :]
        given, other = environment.get(name, ""), resolved(rest, environment)
        done += given or other if how == "-" else given and other
    return done + text


def interpolated(value: Any, environment: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: interpolated(each, environment) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, environment) for each in value]
    return resolved(value, environment) if isinstance(value, str) else value


def services(**environment: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = interpolated(SERVICES, environment)
    return found


def test_it_is_what_compose_takes() -> None:
    schema = json.loads((resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
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
            assert set(service["environment"]) <= serve_variables() | {"TORCH_LOGS", "HF_TOKEN", "TAILRATE_TOKEN"}
        elif words[:1] == ["tailrate"]:
            known = {name for option in main.commands[words[1]].params for name in option.opts}
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
            assert words[2] in scenarios()
            assert set(service["environment"]) == {"TAILRATE_TOKEN"}
        elif words:
            assert Path(words[2]).stem in scenarios()
            assert set(service["environment"]) <= of_locust() | {"TAILRATE_TOKEN", "TAILRATE_WEB_PASSWORD"}


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
    words = [sys.executable, "-m", "tailrate", *service["command"], "--config"]
    done = subprocess.run(words, env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, check=True)
    (first, *_) = yaml.safe_load(done.stdout)["applications"]
    assert first["args"].get("variants", "eager,compiled") == served
    assert (first["args"]["max_batch"], first["args"]["device"]) == ("2", "cpu")
    assert "weights" not in first["args"]  # set, but empty


def opened(**environment: str) -> set[str]:
    """Services that machines other than this one reach."""
    found = {name: service.get("ports", []) for name, service in services(**environment).items()}
    return {name for name, ports in found.items() if not all(port.startswith("127.0.0.1:") for port in ports)}


OPENERS = {
    "BIND_SERVE": ({"serve", "serve-gpu"}, "TAILRATE_TOKEN", "TAILRATE_TOKEN"),
    "BIND_LOAD": ({"master"}, "TAILRATE_WEB_PASSWORD", "TAILRATE_WEB_PASSWORD"),
    "BIND_GRAFANA": ({"grafana"}, "GRAFANA_PASSWORD", "GF_SECURITY_ADMIN_PASSWORD"),
}
"""By variable: what it opens, the secret without which that does not start, and as what the container has it."""
SECRET = "0123456789abcdef"
ATTACHED = """
import argparse, sys
from flask import Flask
from tailrate.loadtest.engine.live import same_origin as gate
gate.attach(argparse.Namespace(host=sys.argv[1], web_login=False, app=Flask("page")))
"""


def test_only_this_machine_reaches_what_is_published() -> None:
    assert opened() == opened(BIND="0.0.0.0") == set()
    published = {name for name, service in SERVICES.items() if "ports" in service}
    assert published == set.union(*(names for names, *_ in OPENERS.values())) | {"prometheus"}


@pytest.mark.parametrize("variable", OPENERS)
def test_each_port_is_opened_by_itself_and_its_container_has_the_secret(variable: str) -> None:
    names, secret, inside = OPENERS[variable]
    given = {variable: "192.0.2.7", secret: SECRET}
    assert opened(**given) == names
    for name in names:
        service = services(**given)[name]
        assert service["environment"][inside] == services(**{secret: SECRET})[name]["environment"][inside] == SECRET
        assert service["ports"][0].startswith("192.0.2.7:")


def started(name: str, command: list[str], **environment: str) -> tuple[int, str]:
    """What a container of this service says for an error, as far as our own part of its start goes."""
    given = {key: value for key, value in services(**environment)[name]["environment"].items() if value is not None}
    done = subprocess.run(command, env=os.environ | given, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_a_server_that_others_reach_does_not_start_without_a_token() -> None:
    (image,) = [word for word in of(DOCKER / "serve.Dockerfile", "ENV") if "TAILRATE_SERVE_HOST=0.0.0.0" in word]
    words = ["env", *image.split(), sys.executable, "-m", "tailrate", "serve", "custom_cnn", "--config"]
    code, said = started("serve", words, BIND_SERVE="0.0.0.0")
    assert (code, len(said.splitlines())) == (2, 1)
    assert "TAILRATE_TOKEN must hold a token of 16 characters or more" in said
    assert started("serve", words, BIND_SERVE="0.0.0.0", TAILRATE_TOKEN=SECRET)[0] == 0
    assert started("serve", words)[0] == 0  # for this machine alone, as it was


def test_the_page_of_locust_does_not_start_without_a_password_whoever_reaches_it() -> None:
    """Docker reaches it from outside of the container, so to Locust all are from elsewhere."""
    master = services(BIND_LOAD="0.0.0.0")["master"]["environment"]
    assert master == services()["master"]["environment"]
    words = [sys.executable, "-c", ATTACHED, master["LOCUST_WEB_HOST"]]
    code, said = started("master", words)
    assert code != 0
    assert "set TAILRATE_WEB_PASSWORD, or leave the page on loopback" in said
    assert started("master", words, TAILRATE_WEB_PASSWORD=SECRET) == (0, "")


def test_nothing_opens_prometheus_which_asks_nobody_who_they_are() -> None:
    everything = dict.fromkeys(OPENERS, "0.0.0.0") | {secret: SECRET for _, secret, _ in OPENERS.values()}
    assert opened(**everything) == {"serve", "serve-gpu", "master", "grafana"}
    assert services(**everything)["prometheus"]["ports"] == ["127.0.0.1:9090:9090"]


def test_grafana_has_no_administrator_whose_password_is_known_and_none_of_an_earlier_start() -> None:
    """What is in Grafana's database counts more than its environment, so that must not outlive a container."""
    *shell, script = services()["grafana"]["entrypoint"]
    script = script.replace("exec /run.sh", "exec env")

    def found(**environment: str) -> tuple[int, dict[str, str]]:
        given = services(**environment)["grafana"]["environment"]
        done = subprocess.run([*shell, script], env=given, capture_output=True, text=True, check=False)
        assert ("GRAFANA_PASSWORD must have 12 characters or more" in done.stderr) == (done.returncode == 2)
        return done.returncode, dict(line.split("=", 1) for line in done.stdout.splitlines())

    code, made = found()
    assert (code, made["GF_AUTH_ANONYMOUS_ENABLED"]) == (0, "true")
    assert len(made["GF_SECURITY_ADMIN_PASSWORD"]) == 36
    assert found()[1]["GF_SECURITY_ADMIN_PASSWORD"] != made["GF_SECURITY_ADMIN_PASSWORD"]
    for bind in ({}, {"BIND_GRAFANA": "0.0.0.0"}):
        code, asked = found(GRAFANA_PASSWORD=SECRET, **bind)
        assert (code, asked["GF_SECURITY_ADMIN_PASSWORD"]) == (0, SECRET)
        assert "GF_AUTH_ANONYMOUS_ENABLED" not in asked
        assert found(GRAFANA_PASSWORD="admin", **bind) == (2, {})
    assert found(BIND_GRAFANA="0.0.0.0") == (2, {})
    assert services()["grafana"]["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert "GF_AUTH_ANONYMOUS_ENABLED" not in services()["grafana"]["environment"]
    assert services()["grafana"]["tmpfs"] == "/var/lib/grafana"


def test_a_token_is_for_whoever_serves_or_asks_and_is_written_nowhere() -> None:
    ours = {name for name, service in services().items() if "TAILRATE_TOKEN" in service.get("environment", {})}
    assert ours == set(SERVICES) - {"grafana"}
    assert all(not services()[name]["environment"]["TAILRATE_TOKEN"] for name in ours)  # from compose's own


def test_a_folder_with_a_certificate_makes_it_https() -> None:
    service = services(TLS="/etc/ours")["serve"]
    assert "/etc/ours:/tls:ro" in service["volumes"]
    assert service["environment"]["TAILRATE_SERVE_TLS_CERT"] == "/tls/tls.crt"  # as a TLS secret of Kubernetes has it
    assert service["environment"]["TAILRATE_SERVE_TLS_KEY"] == "/tls/tls.key"
    assert services()["serve"]["environment"]["TAILRATE_SERVE_TLS_CERT"] == ""


def test_workers_can_be_scaled_and_rows_come_to_the_master() -> None:
    worker, master = SERVICES["worker"], SERVICES["master"]
    assert not {"ports", "container_name"} & set(worker)
    assert "--master-host=master" in worker["command"]
    assert "runs:/tailrate/runs" in services()["master"]["volumes"]
    assert master["command"][:3] == worker["command"][:3]


def test_gpus_are_reserved_where_they_are_meant() -> None:
    reserved = {name for name, service in SERVICES.items() if "deploy" in service}
    assert reserved == {"serve-gpu"}
    service = services()["serve-gpu"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert service["build"]["args"]["BASE"].startswith("nvidia/cuda:")
    assert service["environment"]["TAILRATE_SERVE_DEVICE"] == "cuda"
    assert service["networks"]["default"]["aliases"] == ["serve"]  # where load and Prometheus look for it


# ---- no hosts


def test_no_registry_is_named() -> None:
    paths = [*DOCKERFILES, *DOCKER.rglob("*.y*ml"), ROOT / "docs" / "deploy.md"]
    for path in paths:
        found = re.findall(r"\b(?:[\w-]+\.)+(?:io|com|org|dev)/[\w-]+", path.read_text())
        allowed = ("kubernetes.io/", "ray.io/", "nvidia.com/", "k8s.io/", "coreos.com/")
        assert [name for name in found if not any(part in name for part in allowed)] == [], path
