"""What strangers meet first: workflows that run what people run, versions that hold together, files that exist."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = dict(re.findall(r"^([a-z-]+):[^#\n]*?##\s*(.+)$", (ROOT / "Makefile").read_text(), re.M))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {"tested": ROOT / "docker" / "constraints" / "common.txt", "lowest": ROOT / ".ci" / "lowest.txt"}
TRIGGERS = True
"""How YAML 1.1 reads the key `on`."""


def module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def steps(path):
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


# ---- workflows


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_people_run(path):
    for step in steps(path):
        if command := step.get("run"):
            words = command.split()
            if words[0] == "make":
                assert words[1] in TARGETS, command
            elif words[0] == "apt-get":
                assert words[-1] == "git", command  # what checking out takes
            elif words[0] == "git":
                assert words[1:-1] == ["config", "--global", "--add", "safe.directory"], command
            else:
                assert (ROOT / words[0]).is_file(), command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_no_more_than_it_says(path):
    found = yaml.safe_load(path.read_text())
    assert found["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in found[TRIGGERS]
    for name, job in found["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 120, name
        for step in job["steps"]:
            if used := step.get("uses"):
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", used), used
                if used.startswith("actions/checkout@"):
                    assert step["with"] == {"persist-credentials": False}, "what is run has no key to the repository"
        trusted = any(step.get("run", "").startswith("git config") for step in job["steps"])
        assert trusted == ("container" in job), "a container's root is told that the files are its own"
    writes = {name for name, job in found["jobs"].items() if "write" in str(job.get("permissions"))}
    assert writes == ({"build", "publish"} if path.stem == "release" else set())


def test_each_change_is_tested_on_every_python_that_we_name():
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["check"]["strategy"]["matrix"]
    assert matrix["python"][0] == PROJECT["requires-python"].removeprefix(">=")
    assert matrix["python"] == ["3.11", "3.12", "3.13"]
    weekly = yaml.safe_load((ROOT / ".github/workflows/versions.yml").read_text())["jobs"]["test"]
    assert {way["versions"] for way in weekly["strategy"]["matrix"]["include"]} == {"lowest", "newest"}
    assert weekly["env"] == {"VERSIONS": "${{ matrix.versions }}"}


def test_the_action_for_others_is_one_and_takes_what_its_page_gives_it():
    action = ROOT / ".github" / "actions" / "gate" / "action.yml"
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", action]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = yaml.safe_load(action.read_text())
    page = (ROOT / "docs/how-to/gate-a-pull-request.md").read_text()
    (job,) = yaml.safe_load(page.partition('title="load-test.yml"\n')[2].partition("```")[0])["jobs"].values()
    given = job["steps"][-1]["with"]
    assert set(given) <= set(found["inputs"])
    assert {name for name, about in found["inputs"].items() if about.get("required")} <= set(given)
    scripts = "".join(step.get("run", "") for step in found["runs"]["steps"])
    assert "${{" not in scripts, "what is given is no part of a script"
    (gitlab,) = yaml.safe_load(page.partition('title="gitlab-ci.yml"\n')[2].partition("```")[0]).values()
    for line in gitlab["script"][2:]:
        assert line.split()[1] in ("run", "report", "compare")
    runs = [scripts, *gitlab["script"]]
    assert all(("--export" in each or "--mode ab" in each) == ("|| test $? -ne 2" in each) for each in runs)
    assert scripts.count("|| test $? -ne 2") == 2  # `compare` decides, also where the run's own verdict is worse


# ---- versions


def pinned(which):
    found = {}
    for line in PINS[which].read_text().splitlines():
        if not line.startswith("#"):
            name, version = re.fullmatch(r"([a-z0-9.-]+)==(\S+?)(?: ; .+)?", line).groups()
            assert name not in found
            found[name] = Version(version)
    return found


def needed(*extras):
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    found = list(map(Requirement, texts))
    return [*found, *(each for one in found if one.name == "tailrate" for each in needed(*one.extras))]


@pytest.mark.parametrize("which", PINS)
def test_all_that_we_ask_for_is_pinned_within_its_range(which):
    pins = pinned(which)
    for one in needed("serve", "agent", "dev"):
        if one.name != "tailrate":
            name = canonicalize_name(one.name)
            assert name in pins, one
            assert pins[name] in one.specifier, one


def test_the_lowest_are_the_lowest_that_are_allowed():
    pins = pinned("lowest")
    for one in needed("serve"):
        (least,) = [each.version for each in one.specifier if each.operator == ">="]
        name = canonicalize_name(one.name)
        # there may be none of just that number
        assert pins[name].release[: len(Version(least).release)] == Version(least).release, one


def test_what_leans_on_private_parts_has_a_cap_and_nothing_else_has():
    capped = {one.name for one in needed("serve", "dev") if any(each.operator == "<" for each in one.specifier)}
    assert capped == {"ray"}


# ---- releases


@pytest.mark.parametrize(
    ("tag", "changelog", "said"),
    [
        ("v1.2", "## 1.2.3 — 2026-12-01", "the tag is v1.2, but pyproject.toml says 1.2.3"),
        ("v1.2.3", "## 1.2.3 — unreleased", "CHANGELOG.md has no line"),
        ("v1.2.3", "## 11.2.3 — 2026-12-01", "CHANGELOG.md has no line"),
    ],
)
def test_a_release_that_is_not_ready_is_refused(tag, changelog, said):
    dist = module("dist")
    with pytest.raises(SystemExit, match=re.escape(said)):
        dist.check_release(tag, "1.2.3", changelog)
    dist.check_release("v1.2.3", "1.2.3", "# Changelog\n\n## 1.2.3 — 2026-12-01\n")


def test_no_link_of_the_readme_is_lost_on_a_package_s_page():
    shown = module("dist").elsewhere((ROOT / "README.md").read_text(), "https://it", "v1")
    links = re.findall(r'(?:\]\(|(?:src|srcset)=")([^)"\s]+)', shown)
    assert len(links) > 10
    for link in links:
        where = re.fullmatch(r"https?://\S+|#\S+", link)
        assert where, link
        if link.startswith("https://it/"):
            kind, path = re.fullmatch(r"https://it/(raw|blob)/v1/([^#]+)(?:#.*)?", link).groups()
            assert (ROOT / path).exists(), link
            assert (kind == "raw") == (Path(path).suffix == ".png"), link


# ---- words


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/releasing.md", "CODE_OF_CONDUCT.md"])
def test_what_contributors_are_told_of_is_there(name):
    text = (ROOT / name).read_text()
    for path in re.findall(r"`([\w./-]+/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert target in TARGETS, target
    for page in re.findall(r"\b((?:docs/)?[\w-]+\.md)\b", text):
        assert (ROOT / page).is_file(), page


def test_forms_of_issues_are_whole():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) == 4
    for form in forms:
        found = yaml.safe_load(form.read_text())
        if form.stem != "config":
            assert {"name", "description", "body"} <= set(found)
            assert all(part["attributes"]["label"] for part in found["body"])
