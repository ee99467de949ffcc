"""`tailrate demo`."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from pathlib import Path

import click

from tailrate.cli.drive import drive
from tailrate.cli.misuse import refuse
from tailrate.cli.options import scenario_file
from tailrate.cli.processes import serving, terminate_is_ctrl_c

DEMO_SHARES = (0.3, 0.6, 0.9, 1.3)
"""Of what eager answers flat out."""
DEMO_N = 150
"""Arrivals of the lowest step: P90 takes 44 independent ones."""


@click.command()
@click.option("--run-dir", default="runs", show_default=True, help="folder that holds run folders")
def demo(run_dir: str) -> None:
    """Serves custom_cnn eager and compiled on this machine, drives rising rates at both, and reports."""
    from tailrate.analysis.verdicts.verdict import EXIT_CODES

    terminate_is_ctrl_c()
    threads = max(1, (os.cpu_count() or 1) - 1)
    with serving("custom_cnn", ("eager", "compiled"), {"threads": threads}) as url:
        flat_out_rps, limit_ms = _flat_out(url)
        rates = [float(f"{share * flat_out_rps:.2g}") for share in DEMO_SHARES]
        given = {
            "run_dir": run_dir,
            "rates": ",".join(f"{rate:g}" for rate in rates),
            "step_seconds": min(max(13.0, math.ceil(1 + DEMO_N / rates[0])), 30.0),
            "settle_seconds": 1.0,
            "slo": f"p90<{limit_ms:g}ms",
        }
        code = drive("custom_cnn", url, 1, (), given)
    # the verdict is about this machine, not about whether the demo worked
    raise SystemExit(0 if code in EXIT_CODES.values() else code)


def _flat_out(url: str) -> tuple[float, float]:
    """What eager answers flat out, in requests per second; four times a lone request's P50 and its longest batch."""
    from tailrate import analysis
    from tailrate.loadtest.engine import child_python

    with tempfile.TemporaryDirectory() as scratch:
        words = ["--mode", "closed", "--concurrency", "1,32", "--step-seconds", "2", "--settle-seconds", "0"]
        words += ["--idle-seconds", "0", "--variants", "eager", "--run-dir", scratch, "--run-id", "flat-out"]
        command = child_python.locust("-f", str(scenario_file("custom_cnn")), "--headless", "--host", url)
        done = subprocess.run([*command, "--only-summary", *words], capture_output=True, text=True)
        if not (Path(scratch) / "flat-out").exists():
            refuse(f"the endpoint could not be tried: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
        run = analysis.load(Path(scratch) / "flat-out")
        lone, busy = run.measured
        batches = run.requests(step=busy.summary.index, columns=["compute_ms"])["compute_ms"]
        if not busy.summary.achieved_rps or lone.summary.p50_ms is None:
            refuse("the endpoint answered nothing within two seconds")
        limit_ms = 4 * lone.summary.p50_ms + float(batches.max())
        flat_out_rps = busy.summary.achieved_rps
        click.echo(f"eager answers {flat_out_rps:.3g} requests/s flat out, a lone one in {lone.summary.p50_ms:.3g} ms")
        return flat_out_rps, float(f"{limit_ms:.2g}")
