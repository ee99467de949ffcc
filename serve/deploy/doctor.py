"""What a machine needs to serve models and to send load, whether it is there, and what to do where it is not.

Runs in any install: what is missing is a finding, never a crash.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tailrate.serve import machine
from tailrate.serve.deploy.listing import NVIDIA
from tailrate.serve.edge import auth
from tailrate.serve.models._code_digest import installed
from tailrate.serve.spec import ServeError, install
from tailrate.serve.telemetry.nvml import NvmlSource

Check = tuple[str, str, str, str]

TO_SERVE = f"{install('serve')} to serve models here; driving others' does without"
LOCUST_PAGE, LOCUST_MASTER = 8089, 5557
LEAST_DRIVER = {"12": "525.60.13", "13": "580.65.06"}
"""NVIDIA's for Linux, by the major version of the CUDA that torch was built for."""


def checks(port: int, host: str | None) -> Iterator[Check]:
    """(what, ok|note|bad, what was found, what to do) for each thing that runs have been seen to fail on."""
    yield _check_python()
    yield from _check_torch()
    yield _check_driver()
    yield _check_compiler()
    yield _check_package("ray", TO_SERVE)
    yield _check_package("locust", install("serve"))
    yield _check_ports(port)
    yield _check_files()
    yield _check_disk()
    yield _check_clock()
    yield _check_cores()
    yield _check_token()
    if host:
        yield _check_endpoint(host)


def _check_python() -> Check:
    return "python", "ok", platform.python_version(), ""


def _check_torch() -> Iterator[Check]:
    try:
        import torch
    except ImportError:
        yield "torch", "note", "not installed", TO_SERVE
        return
    yield "torch", "ok", str(torch.__version__), ""
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        yield "cuda", "ok", f"{torch.version.cuda}: {names}", ""
    else:
        yield "cuda", "note", "no GPU that torch can use", _advice(torch.version.cuda, NVIDIA)


def _advice(cuda: str | None, driver: Path) -> str:
    """What to do where torch, built for this CUDA, can use no GPU."""
    if not driver.exists():
        return "models run on the CPU; on a GPU host check the driver below"
    if cuda is None:
        return "this torch was built for the CPU alone: install the one that was built for CUDA"
    found = re.search(r"\b\d{3,}(\.\d+)+", driver.read_text())
    least = LEAST_DRIVER.get(cuda.split(".")[0])
    if found and least and _numbers(found[0]) < _numbers(least):
        return f"torch was built for CUDA {cuda}, which wants NVIDIA's driver {least} or newer: here is {found[0]}"
    return "the driver is new enough: are a GPU's devices open to this process (nvidia-smi)?"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _check_driver() -> Check:
    try:
        found = NvmlSource().read()
        return "nvml", "ok", f"{len(found)} GPU: {', '.join(str(sample['device']) for sample in found)}", ""
    except ImportError:
        return "nvml", "note", "nvidia-ml-py is not installed", "only the endpoint's host needs it"
    except Exception as problem:  # NVML's own error type exists only once its import went well
        return "nvml", "note", f"no NVIDIA driver ({problem})", "device samples will be the host's CPU and memory"


def _check_compiler() -> Check:
    if found := shutil.which("g++") or shutil.which("clang++"):
        return "compiler", "ok", found, ""
    return "compiler", "note", "no g++", "apt-get install g++: torch.compile on a CPU needs it"


def _check_package(name: str, advice: str) -> Check:
    found = installed(name)
    return (name, "ok", found, "") if found else (name, "note", "not installed", advice)


def _check_ports(port: int) -> Check:
    taken = [number for number in (port, LOCUST_PAGE, LOCUST_MASTER) if _is_taken(number)]
    if taken:
        advice = "choose others: tailrate serve --port, locust --web-port and --master-bind-port"
        return "ports", "note", f"{', '.join(map(str, taken))} taken", advice
    return "ports", "ok", f"{port}, {LOCUST_PAGE} and {LOCUST_MASTER} are free", ""


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _check_files() -> Check:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= 4096:
        return "files", "ok", f"{soft} open files allowed", ""
    return "files", "note", f"{soft} open files allowed", f"ulimit -n {min(hard, 65536)}: each request in flight is one"


def _check_disk() -> Check:
    free = shutil.disk_usage(".").free / 2**30
    state, advice = (
        ("ok", "") if free > 2 else ("note", "a million requests take about 50 MB; --run-dir puts them elsewhere")
    )
    return "disk", state, f"{free:.0f} GiB free here", advice


def _check_clock() -> Check:
    """How late a timer fires here: what a schedule can be kept to."""
    late_ms = []
    for _ in range(50):
        due = time.perf_counter() + 0.002
        time.sleep(0.002)
        late_ms.append((time.perf_counter() - due) * 1e3)
    worst = sorted(late_ms)[-2]
    state, advice = ("ok", "") if worst < 2 else ("note", "this machine is busy or throttled; arrivals will be late")
    return "timer", state, f"fires {worst:.2f} ms late at worst of 50", advice


def _check_cores() -> Check:
    cores = machine.cores()
    if cores >= 4:
        return "cores", "ok", str(cores), ""
    return (
        "cores",
        "note",
        str(cores),
        "a model and its load on so few cores take time from each other; the report says so",
    )


def _check_token() -> Check:
    try:
        found = auth.tokens()
    except ServeError as problem:
        return "token", "note", str(problem), "load can be sent with it, but no server here starts"
    if not found:
        advice = f"fine on loopback; a server that others reach should have {auth.TOKEN} set"
        return "token", "note", "none, so whoever reaches a server may use it", advice
    path = os.environ.get(auth.FILE)
    if path and Path(path).stat().st_mode & 0o077:
        return "token", "note", f"set, but other users may read {path}", f"chmod 600 {path}"
    return "token", "ok", "set", ""


def _check_endpoint(host: str) -> Check:
    request = urllib.request.Request(f"{host.rstrip('/')}/v2")  # noqa: S310
    try:
        for name, value in auth.authorization().items():
            request.add_unredirected_header(name, value)
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            name = json.load(answer).get("name", "a server without a name")
        return "endpoint", "ok", f"{name} at {host}", ""
    except (OSError, ValueError, AttributeError, ServeError) as problem:
        return (
            "endpoint",
            "bad",
            f"{host}: {problem}",
            "is the endpoint up, and does it speak the Open Inference Protocol?",
        )
