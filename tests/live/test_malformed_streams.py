"""Streams that are wrong, each in a way of its own: a row each, nobody else waits for it, and it fills no memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from malformed import KINDS, malformed
from waiting import PATIENCE_S

from tailrate.analysis import load

pytestmark = pytest.mark.live

SCENARIO = """
import itertools
import numpy as np
from tailrate.loadtest.engine.user import EndpointUser

NAMES = {names}
NUMBERS = itertools.count()


class Wrong(EndpointUser):
    protocol = "openai-chat"
    pool_size = {count}

    def payload(self, rng, rows):
        return {{"prompt": np.array([NAMES[next(NUMBERS) % len(NAMES)]], object)}}
"""
MOST_MEMORY_KB = 1_200_000


def test_each_malformed_stream_is_one_row(tmp_path: Path) -> None:
    names = list(KINDS)
    assert len(names) >= 40
    (tmp_path / "wrong.py").write_text(SCENARIO.format(names=names, count=len(names)))
    with malformed() as url:
        command = [
            sys.executable, "-m", "tailrate", "run", str(tmp_path / "wrong.py"), "--host", url, "--rates=30",
            "--arrivals=constant", f"--step-seconds={2 * len(names) / 30}", "--settle-seconds=0", "--idle-seconds=0",
            "--self-check=off", "--timeout=20", f"--run-dir={tmp_path}", "--run-id=it",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S * 3)
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    run = load(tmp_path / "it")
    rows = run.requests().sort_values("seq")
    assert run.manifest.totals["scheduled"] == len(rows) >= 2 * len(names) - 2
    assert run.manifest.totals["lost"] == 0
    for row in rows.itertuples():
        name = names[row.seq % len(names)]
        _, status, events = KINDS[name]
        assert (row.status, 0 if np.isnan(row.events) else row.events) == (status, events), (name, row.error)
