"""Each page of docs/how-to as somebody follows it: every command as it stands, in an empty folder, from a wheel."""

import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from waiting import PATIENCE_S, until

from tailrate.serve.deploy.haproxy import free_port

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
PORTS = ("8000", "9000")
LEFT_OUT = (".git", ".venv*", ".peers", ".*_cache", "__pycache__", "runs", "build", "dist", "site", "*.egg-info")
READY = re.compile(r"^ready", re.M)


def blocks(page):
    """(kind, title, text) of each: a file by its name, or commands of "one terminal" or "another"."""
    return [(kind, title, text) for kind, title, text in BLOCK.findall(page.read_text()) if title]


def commands(text):
    """Those behind a `$`, with the lines that they go on in."""
    return [f"{line}\n" for line in re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)$", text, re.M)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_stands_there_can_be_followed(page):
    titles = [title for _, title, _ in blocks(page)]
    assert titles.count("one terminal") <= 1
    for kind, title, text in blocks(page):
        if title in ("one terminal", "another"):
            assert kind == "console"
            assert "".join(f"$ {line}" for line in commands(text)) == text, "only commands"
            assert max(map(len, text.splitlines())) <= 96, "what is read without scrolling"
        else:
            assert Path(title).name == title


# ---- in an environment that has nothing but the wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder of the programs. What else is installed here is seen too, so that torch need not be fetched."""
    folder = tmp_path_factory.mktemp("env")
    source = shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    quietly = ("-q", "--no-deps", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "wheel", *quietly, "-w", folder, source], check=True)
    (wheel,) = folder.glob("tailrate-*.whl")
    venv.create(folder / "venv", with_pip=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", *quietly, wheel], check=True)
    (packages / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return python.parent


@contextmanager
def terminal(script, folder, environment, log):
    """What runs there until it is closed, with all that it started."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-ec", script], cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.long
@pytest.mark.served
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_followed_to_the_letter(page, installed, tmp_path):
    ports = {port: str(free_port()) for port in PORTS}

    def here(text):
        return re.sub("|".join(PORTS), lambda found: ports[found[0]], text)

    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"PATH": f"{installed}:{os.environ['PATH']}", "TAILRATE_CACHE": str(tmp_path / "cache")}
    environment["BROWSER"] = "true"
    folder = tmp_path / "here"
    folder.mkdir()
    served, rest = "", []
    for _, title, text in blocks(page):
        if title == "one terminal":
            served = here("".join(commands(text)))
        elif title == "another":
            rest += commands(text)
        else:
            (folder / title).write_text(here(text))
    with terminal(served or "sleep 1000", folder, environment, tmp_path / "served") as process:
        if served:
            until(lambda: READY.search((tmp_path / "served").read_text()) or process.poll() is not None)
            assert process.poll() is None, (tmp_path / "served").read_text()
        for number, line in enumerate(rest):
            log = tmp_path / f"{number}"
            with terminal(here(line), folder, environment, log) as command:
                code = command.wait(PATIENCE_S * 3)
            said = log.read_text()
            assert code in (0, 3), f"{line}ended with {code}:\n{said}"
            assert "Traceback" not in said, said
    assert (folder / "runs").is_dir() or not any("tailrate run" in line for line in rest)
    shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.served
def test_the_action_for_github_does_what_its_page_says(installed, tmp_path):
    """Its scripts as they stand, but for the first, which installs."""
    action = yaml.safe_load((ROOT / ".github" / "actions" / "gate" / "action.yml").read_text())
    port = free_port()
    same = f"http://127.0.0.1:{port}#null/eager"
    inputs = {name: str(about.get("default", "")) for name, about in action["inputs"].items()}
    inputs |= {"base": same, "new": same, "scenario": "null", "rates": "40", "fail-on": "p50>50%,p99>200%"}
    inputs |= {"step-seconds": "4", "run-options": "--settle-seconds 1"}
    (tmp_path / "tailrate").symlink_to(installed.parent)
    summary = tmp_path / "summary.md"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(summary)}
    environment["PATH"] = f"{installed}:{os.environ['PATH']}"
    serve = f"exec tailrate serve null --variants eager --port {port}"
    with terminal(serve, tmp_path, environment, tmp_path / "served") as process:
        until(lambda: READY.search((tmp_path / "served").read_text()) or process.poll() is not None)
        _, *steps = [step for step in action["runs"]["steps"] if "run" in step]
        assert [step["name"] for step in steps] == ["drive both", "report", "compare"]
        for step in steps:
            given = {key: re.sub(r"\${{ inputs\.([\w-]+) }}", lambda found: inputs[found[1]], value)
                     for key, value in step.get("env", {}).items()}  # fmt: skip
            with terminal(step["run"], tmp_path, environment | given, tmp_path / step["name"]) as command:
                assert command.wait(PATIENCE_S * 3) in (0, 3), (tmp_path / step["name"]).read_text()
    assert "load test of" in summary.read_text()
    assert "new ÷ base" in (tmp_path / "compare").read_text()
    assert {"report.html", "junit.xml"} <= {path.name for path in (tmp_path / "runs" / "gate").iterdir()}
