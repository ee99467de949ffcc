"""A run against a server that streams as planned: every stream is a row, and its row is what the server wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from metronome import metronome
from waiting import PATIENCE_S

from tailrate.analysis import load

pytestmark = pytest.mark.live

SCENARIO = """
import itertools
import json
import numpy as np
from tailrate.loadtest.engine.user import EndpointUser

KINDS = [
    {"tokens": 30, "gap_ms": 5}, {"tokens": 1}, {"tokens": 20, "stall_at": 10, "stall_ms": 300},
    {"tokens": 20, "cut_at": 12}, {"tokens": 5, "cut_at": 0},
]


NUMBERS = itertools.count()


class Planned(EndpointUser):
    protocol = "openai-chat"
    pool_size = 5

    def payload(self, rng, rows):
        kind = KINDS[next(NUMBERS) % len(KINDS)]
        return {"prompt": np.array([json.dumps(kind)], object)}
"""


def test_every_stream_is_a_row_with_what_the_server_wrote(tmp_path: Path) -> None:
    (tmp_path / "planned.py").write_text(SCENARIO)
    with metronome(tmp_path) as server:
        command = [
            sys.executable, "-m", "tailrate", "run", str(tmp_path / "planned.py"), "--host", server.url,
            "--rates=20,40",
            "--step-seconds=3", "--settle-seconds=0.5", "--idle-seconds=0", "--self-check=off", "--seed=3",
            "--slo=p99 ttft<200ms, p99 tpot<50ms, goodput>50%", f"--run-dir={tmp_path}", "--run-id=it",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S * 3)
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    run = load(tmp_path / "it")
    assert [(entry["name"], entry["protocol"], entry["streams"]) for entry in run.manifest.endpoints] == [
        ("m", "openai-chat", True)
    ]
    # it says 200 and lists its models, whatever it is asked
    assert any("sends no device samples" in event.get("sentence", "") for event in run.events)
    rows = run.requests()
    written = server.written()
    to_wall = time.time_ns() - time.monotonic_ns()
    assert run.manifest.totals["scheduled"] == len(rows) > 100
    assert set(rows["status"]) == {"200", "cut"}
    for row in rows.itertuples():
        true = written[f"{row.step}-{row.seq}"]
        assert row.events == len(true)
        if row.status == "200":
            assert (row.tokens_out, row.tokens_in, row.finish) == (len(true), 7, "length")
        else:
            assert row.finish == "cut"
            assert pd.isna(row.tokens_out)
        if len(true):
            gaps = np.asarray(row.gaps_us, np.int64)
            assert len(gaps) == len(true) - 1
            assert abs((row.last_ns - row.first_ns) // 1000 - gaps.sum()) <= 1
            # nothing comes before it was written; the clocks of both are this machine's
            assert row.first_ns - to_wall > true[0] - 1_000_000
            assert row.last_ns - to_wall > true[-1] - 1_000_000
            assert row.intended_ns <= row.sent_ns <= row.first_ns <= row.last_ns <= row.done_ns
    report = json.loads((tmp_path / "it" / "report.json").read_text())
    for step in report["steps"]:
        assert step["ttft_p50_ms"] >= 20
        assert step["stall_p99_ms"] >= 300
        assert step["tokens_out_rps"] > 0
    assert any("ttft" in sentence for step in report["steps"] for sentence in step["reasons"])
