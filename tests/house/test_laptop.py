"""A laptop has no torch and no ray: everything but serving must import and run there."""

import os
import subprocess
import sys
import venv
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from endpoint import endpoint
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


@cache
def beyond_the_base_install():
    """Top-level modules of what is installed here and what `pip install .` would not bring."""
    brought, waiting = set(), [("tailrate", "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in brought:
            continue
        brought.add((name, extra))
        for requirement in map(Requirement, requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    names = {name for name, _ in brought}
    return {
        module
        for module, distributions in packages_distributions().items()
        if not names & set(map(canonicalize_name, distributions))
    }


BLOCK = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not on a laptop", name=name)
sys.meta_path.insert(0, Blocked())
"""


def modules():
    for package in ("analysis", "loadtest", "serve/faults", "tailrate"):
        for path in sorted((ROOT / package).rglob("*.py")):
            words = ("tailrate", *path.relative_to(ROOT).with_suffix("").parts)[package == "tailrate" :]
            if words != ("tailrate", "__main__"):
                yield ".".join(words).removesuffix(".__init__")
    yield from (
        "tailrate.serve.wire",
        "tailrate.serve.body.request",
        "tailrate.serve.body.result",
        "tailrate.serve.options",
        "tailrate.serve.deploy.doctor",
        "tailrate.serve.runner.cache_folders",
    )


def run_blocked(code, *words):
    return subprocess.run(
        [sys.executable, "-c", f"BLOCKED = {beyond_the_base_install()!r}{BLOCK}{code}", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        check=False,
    )


IMPORTS = """
import gc, importlib, sys, traceback
import locust  # not ours; before all else, as it patches the standard library
gc.set_threshold(100_000)  # what is dropped is in cycles, and looking for them would take a fifth of the time
each_first, *modules = sys.argv[1:]
for module in modules:
    if each_first == "True" or module.rpartition(".")[0] == "tailrate.loadtest":  # of scenarios, a process has one
        for name in [name for name in sys.modules if name.split(".")[0] == "tailrate"]:
            del sys.modules[name]
    try:
        importlib.import_module(module)
        print(module, "imported")
    except BaseException:
        print(module, "failed")
        traceback.print_exc()
"""


@pytest.mark.live
@pytest.mark.parametrize("each_first", [False, pytest.param(True, marks=pytest.mark.long)])
def test_every_module_imports_without_torch_and_ray(each_first):
    """Also as the first of ours, so that none leans on what another has imported; what is not ours stays loaded."""
    wanted = list(modules())
    done = run_blocked(IMPORTS, str(each_first), *wanted)
    assert done.stdout.splitlines() == [f"{module} imported" for module in wanted], done.stderr


def test_the_block_blocks():
    assert {"torch", "torchvision", "ray", "transformers", "pynvml"} <= beyond_the_base_install()
    assert "is not on a laptop" in run_blocked("import torch").stderr


SCENARIOS = sorted(path.stem for path in (ROOT / "loadtest").glob("[a-z]*.py"))
PAYLOADS = """
import json, os, sys, traceback
from locust.argument_parser import parse_options
from locust.util.load_locustfile import load_locustfile
from locust.env import Environment
import numpy, requests

def payloads_of(scenario):
    users, _ = load_locustfile(f"loadtest/{scenario}.py")
    (user,) = users.values()
    options = parse_options(["--host", "http://127.0.0.1:9"])
    environment = Environment(user_classes=[user], parsed_options=options, host=options.host)
    from tailrate.loadtest.engine.endpoint.target import Endpoint
    from tailrate.loadtest.engine.endpoint.protocols import PROTOCOLS
    protocol = PROTOCOLS[getattr(user, "protocol", "oip")]()

    def payloads(seed):
        inputs = user(environment).draw(seed=seed, rows=(1,) if protocol.streams else (2,))
        return protocol.payloads(Endpoint("m", "", "", "m", "", ""), inputs)

    first, again = payloads(1), payloads(1)
    assert first == again, "payloads must follow from the seed"
    assert first != payloads(2)
    assert len(set(first.bodies)) == len(first.bodies) > 1
    from tailrate.serve.body.request import decode_infer
    from tailrate.serve import wire
    for body, headers in zip(first.bodies, first.headers, strict=True):
        if protocol.streams:
            assert json.loads(body)["stream"] is True
            continue
        assert decode_infer(body, int(headers[wire.HEADER_LENGTH])).rows == 2
    print(scenario, "made", len(first.bodies), flush=True)

for scenario in sys.argv[1:]:
    if not os.fork():  # a process of its own, with nothing of ours in it
        try:
            payloads_of(scenario)
        except BaseException:
            print(scenario, "failed", file=sys.stderr)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def payloads():
    return run_blocked(PAYLOADS, *SCENARIOS)


@pytest.mark.live
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_makes_its_payloads(payloads, scenario):
    """The locustfile as Locust loads it, its options parsed, its request bodies made."""
    assert [line for line in payloads.stdout.splitlines() if line.startswith(f"{scenario} made ")], payloads.stderr


@pytest.mark.live
def test_a_run_and_its_report_without_torch_and_ray(tmp_path):
    with endpoint() as url:
        words = ["run", "null", "--host", url, "--run-dir", str(tmp_path), "--run-id", "it", "--rates", "30,60"]
        words += ["--step-seconds", "2", "--settle-seconds", "0.5", "--idle-seconds", "0.2"]
        done = run_blocked("from tailrate.cli.main import main; main()", *words)
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    for name in (
        "run.json",
        "requests.parquet",
        "devices.parquet",
        "report.json",
        "steps.csv",
        "report.md",
        "report.html",
    ):
        assert (tmp_path / "it" / name).stat().st_size > 0


@pytest.fixture(scope="module")
def laptop(tmp_path_factory):
    """A virtual environment with the base install and nothing else."""
    folder = tmp_path_factory.mktemp("laptop") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", ROOT], check=True)
    return folder / "bin"


@pytest.mark.live
@pytest.mark.long
def test_locust_from_a_checkout_with_only_the_base_install(laptop, tmp_path):
    absent = subprocess.run([laptop / "python", "-c", "import torch"], capture_output=True, check=False)
    assert absent.returncode != 0
    assert subprocess.run([laptop / "python", "-c", "import ray"], capture_output=True, check=False).returncode != 0
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = ["--headless", "--only-summary", "--rates", "40", "--step-seconds", "2", "--settle-seconds", "0.5"]
    with endpoint(model="bert") as url:
        command = [laptop / "locust", "-f", "loadtest/bert.py", "--host", url, "--run-dir", tmp_path, "--run-id", "it"]
        subprocess.run([*command, *words], cwd=ROOT, env=environment, check=True, timeout=PATIENCE_S)
    done = subprocess.run(
        [laptop / "tailrate", "report", tmp_path / "it"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1, 3), done.stderr
    assert "bert/compiled" in done.stdout
    assert (tmp_path / "it" / "report.html").exists()
