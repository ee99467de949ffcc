"""A run against a server that streams as planned: every stream is a row, and its row is what the server wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from metronome import metronome
from waiting import PATIENCE_S, clock_step_ns, until

from tailrate.analysis import load

pytestmark = pytest.mark.live

STALL_S = 0.5
SCENARIO = '''
import itertools
import json
import numpy as np
from tailrate.loadtest.engine.user import EndpointUser

KINDS = json.loads("""KINDS""")


NUMBERS = itertools.count()


class Planned(EndpointUser):
    protocol = "openai-chat"
    pool_size = len(KINDS)

    def payload(self, rng, rows):
        kind = KINDS[next(NUMBERS) % len(KINDS)]
        return {"prompt": np.array([json.dumps(kind)], object)}
'''
ALL_KINDS: list[dict[str, int]] = [
    {"tokens": 30, "gap_ms": 5}, {"tokens": 1}, {"tokens": 20, "stall_at": 10, "stall_ms": 300},
    {"tokens": 20, "cut_at": 12}, {"tokens": 5, "cut_at": 0},
]  # fmt: skip


def command(folder: Path, url: str, kinds: list[dict[str, int]], *more: str) -> list[str]:
    (folder / "planned.py").write_text(SCENARIO.replace('KINDS"""', f'{json.dumps(kinds)}"""'))
    return [
        sys.executable, "-m", "tailrate", "run", f"{folder / 'planned.py'}", "--host", url, "--idle-seconds=0",
        "--self-check=off", "--seed=3", f"--run-dir={folder}", "--run-id=it", *more,
    ]  # fmt: skip


def test_every_stream_is_a_row_with_what_the_server_wrote(tmp_path: Path) -> None:
    with metronome(tmp_path) as server:
        asked = (
            "--rates=20,40",
            "--step-seconds=3",
            "--settle-seconds=0.5",
            "--slo=p99 ttft<200ms, p99 tpot<50ms, goodput>50%",
        )
        it = command(tmp_path, server.url, ALL_KINDS, *asked)
        done = subprocess.run(it, capture_output=True, text=True, check=False, timeout=PATIENCE_S * 3)
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    run = load(tmp_path / "it")
    assert [(entry["name"], entry["protocol"], entry["streams"]) for entry in run.manifest.endpoints] == [
        ("m", "openai-chat", True)
    ]
    # it says 200 and lists its models, whatever it is asked
    assert any("sends no device samples" in event.get("sentence", "") for event in run.events)
    rows = run.requests()
    written = server.written()
    to_wall, coarse_ns = time.time_ns() - time.monotonic_ns(), clock_step_ns()
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
            assert row.first_ns - to_wall > true[0] - 1_000_000 - coarse_ns
            assert row.last_ns - to_wall > true[-1] - 1_000_000 - coarse_ns
            assert row.intended_ns <= row.sent_ns <= row.first_ns <= row.last_ns <= row.done_ns
    report = json.loads((tmp_path / "it" / "report.json").read_text())
    for step in report["steps"]:
        assert step["ttft_p50_ms"] >= 20 - coarse_ns / 1e6
        assert step["stall_p99_ms"] >= 300 - coarse_ns / 1e6
        assert step["tokens_out_rps"] > 0
    assert any("ttft" in sentence for step in report["steps"] for sentence in step["reasons"])


def test_a_load_process_that_stood_still_is_seen_from_the_intended_instant_and_not_from_the_send(
    tmp_path: Path,
) -> None:
    """Five hundred arrivals, of which those of half a second go out late."""
    with metronome(tmp_path) as server:
        it = command(
            tmp_path, server.url, [{"tokens": 4, "gap_ms": 5}], "--rates=50", "--step-seconds=10", "--settle-seconds=0"
        )
        with subprocess.Popen(it, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
            begun = until(lambda: [one for one in events_of(tmp_path / "it") if one["event"] == "step_start"])
            time.sleep(max(0.0, begun[0]["time_ns"] / 1e9 + 4 - time.time()))
            sender = int(json.loads((tmp_path / "it" / "run.json").read_text())["pid"])
            os.kill(sender, signal.SIGSTOP)
            stopped_ns = time.time_ns()
            time.sleep(STALL_S)
            went_on_ns = time.time_ns()
            os.kill(sender, signal.SIGCONT)
            said, _ = started.communicate(timeout=PATIENCE_S)
    assert started.returncode in (0, 3), said
    run = load(tmp_path / "it")
    (step,) = run.steps.to_dict("records")
    assert step["errors"] == 0
    rows = run.requests()
    # 25 of 500 were due in it, evenly: one in a hundred waited for four fifths of it or longer
    held = rows[rows["intended_ns"].between(stopped_ns + 20e6, went_on_ns)]
    assert len(held) > 20
    assert (held["sent_ns"] > went_on_ns - clock_step_ns()).all()
    assert step["ttft_p99_ms"] > 0.7 * 1e3 * STALL_S
    for figure, since in ("ttft_p99_ms", "intended_ns"), ("ttft_sent_p99_ms", "sent_ns"):
        true_ms = np.quantile(rows["first_ns"] - rows[since], 0.99, method="inverted_cdf") / 1e6
        assert step[figure] == pytest.approx(true_ms, rel=1e-3)
    assert np.median(rows["first_ns"] - rows["sent_ns"]) < 0.3e9 * STALL_S  # a pause of the server's makes few late
    written, to_wall = server.written(), time.time_ns() - time.monotonic_ns()
    for row in rows.itertuples():
        assert row.sent_ns - to_wall < written[f"{row.step}-{row.seq}"][0] + 1_000_000 + clock_step_ns()
    assert not step["trusted"]
    assert any("the load generator was late" in reason for reason in step["reasons"])


def events_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
