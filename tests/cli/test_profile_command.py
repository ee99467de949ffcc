"""`tailrate profile`: where the time of a batch goes, bare; `test_deploy.py` has a live server's next batches."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tailrate.cli.main import main


def profile(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrate", "profile", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def traced(said: str) -> set[str]:
    """Names of what the traces hold."""
    paths = [Path(line.removeprefix("trace: ")) for line in said.splitlines() if line.startswith("trace: ")]
    return {event["name"] for path in paths for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}


@pytest.mark.live
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


@pytest.mark.computes
def test_what_cannot_be_is_said_in_a_sentence(tmp_path: Path) -> None:
    for words, sentence in (
        (("mlp", "--variant", "tensorrt", "--device", "cpu"), "needs cuda"),
        (("mpl",), "unknown model 'mpl'"),
        (("mlp", "--host", "http://127.0.0.1:9", "--variant", "eager"), "127.0.0.1:9"),
    ):
        done = CliRunner().invoke(main, ["profile", *words, "--out", str(tmp_path)])
        assert done.exit_code == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
        assert isinstance(done.exception, SystemExit)
