"""`headroom profile`: where the time of a batch goes, bare and of a live server's next batches."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from serving import served

from serve import wire

TOKEN = "let-me-in-if-you-can"


def profile(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headroom", "profile", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def traced(said: str) -> set[str]:
    """Names of what the traces hold."""
    paths = [Path(line.removeprefix("trace: ")) for line in said.splitlines() if line.startswith("trace: ")]
    return {event["name"] for path in paths for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}


def test_bare(tmp_path: Path) -> None:
    words = ("mlp", "--variant", "eager", "--device", "cpu", "--batches", "1,8", "--calls", "3", "--out", str(tmp_path))
    done = profile(*words)
    assert done.returncode == 0, done.stderr
    assert "mlp/eager, batches of 1" in done.stdout
    assert "mlp/eager, batches of 8" in done.stdout
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("aten::addmm"))
    layers = float(row[1])
    assert layers == int(layers) >= 2  # of one call, not of three
    assert "aten::addmm" in traced(done.stdout)


def test_what_cannot_be_is_said_in_a_sentence(tmp_path: Path) -> None:
    for words, sentence in (
        (("mlp", "--variant", "tensorrt", "--device", "cpu"), "needs cuda"),
        (("mpl",), "unknown model 'mpl'"),
        (("mlp", "--host", "http://127.0.0.1:9", "--variant", "eager"), "127.0.0.1:9"),
    ):
        done = profile(*words, "--out", str(tmp_path))
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


@contextmanager
def traffic(url: str) -> Iterator[None]:
    body, headers = wire.encode_infer({"x": np.zeros((1, 64), np.float32)})
    headers["Authorization"] = f"Bearer {TOKEN}"
    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            with urllib.request.urlopen(urllib.request.Request(url + wire.infer_path("mlp", "eager"), body, headers)):
                pass

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.served
def test_of_a_live_server(tmp_path: Path) -> None:
    token = {"HEADROOM_TOKEN": TOKEN}
    with served(tmp_path, environment=token, models=("mlp",), variants=("eager",), profile=True) as server:
        words = ("mlp", "--variant", "eager", "--host", server.url, "--calls", "5")
        refused = profile(*words)
        assert refused.returncode == 2
        assert "token" in refused.stderr
        with traffic(server.url):
            done = profile(*words, environment=os.environ | token)
        assert done.returncode == 0, done.stderr
        assert "mlp/eager, the next 5 batches" in done.stdout
        assert "aten::addmm" in traced(done.stdout)
