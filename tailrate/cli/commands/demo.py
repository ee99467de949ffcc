"""`tailrate demo`."""

from __future__ import annotations

import math
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tailrate.cli.drive import drive
from tailrate.cli.misuse import refuse
from tailrate.cli.options import scenario_file
from tailrate.cli.processes import serving, terminate_is_ctrl_c, threads_beside

if TYPE_CHECKING:
    from tailrate.analysis.steps.step_summary import StepSummary
    from tailrate.analysis.verdicts.run import Run

DEMO_SHARES = (0.3, 0.6, 0.9, 1.3)
"""Of what eager answers flat out."""
AT_ONCE = {"custom_cnn": 32, "tiny_llama": 8}
"""Requests that keep it busy."""
DEMO_N = 150
"""Arrivals of the lowest step: P90 takes 44 independent ones."""


@click.command()
@click.option("--run-dir", default="runs", show_default=True, help="folder that holds run folders")
@click.option("--model", type=click.Choice(["custom_cnn", "tiny_llama"]), default="custom_cnn", show_default=True)
def demo(run_dir: str, model: str) -> None:
    """Serves a model eager and compiled on this machine, drives rising rates at both, and reports."""
    from tailrate.analysis.verdicts.verdict import EXIT_CODES

    terminate_is_ctrl_c()
    with serving(model, ("eager", "compiled"), {"threads": threads_beside(1)}) as url:
        flat_out_rps, slo = _flat_out(url, model)
        rates = [_short(share * flat_out_rps) for share in DEMO_SHARES]
        given = {
            "run_dir": run_dir,
            "rates": ",".join(rates),
            "step_seconds": min(max(13.0, math.ceil(1 + DEMO_N / float(rates[0]))), 30.0),
            "settle_seconds": 1.0,
            "slo": slo,
        }
        code = drive(model, url, 1, (), given)
    # the verdict is about this machine, not about whether the demo worked
    raise SystemExit(0 if code in EXIT_CODES.values() else code)


def _flat_out(url: str, model: str) -> tuple[float, str]:
    """What eager answers flat out, in requests per second, and what a user of it would ask for: see `_objective`."""
    from tailrate import analysis
    from tailrate.loadtest.engine import child_python

    with tempfile.TemporaryDirectory() as scratch:
        words = ["--mode", "closed", "--concurrency", f"1,{AT_ONCE[model]}", "--variants", "eager"]
        words += ["--step-seconds", "2", "--settle-seconds", "0", "--idle-seconds", "0"]
        words += ["--run-dir", scratch, "--run-id", "flat-out"]
        command = child_python.locust("-f", str(scenario_file(model)), "--headless", "--host", url)
        done = subprocess.run([*command, "--only-summary", *words], capture_output=True, text=True)
        if not (Path(scratch) / "flat-out").exists():
            refuse(f"the endpoint could not be tried: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
        run = analysis.load(Path(scratch) / "flat-out")
        lone, busy = run.measured
        if not busy.summary.achieved_rps or lone.summary.p50_ms is None:
            refuse("the endpoint answered nothing within two seconds")
        flat_out_rps = busy.summary.achieved_rps
        click.echo(f"eager answers {flat_out_rps:.3g} requests/s flat out, a lone one in {lone.summary.p50_ms:.3g} ms")
        return flat_out_rps, _objective(run, lone.summary, busy.summary)


def _objective(run: Run, lone: StepSummary, busy: StepSummary) -> str:
    """Four times what a lone request takes, and the longest batch; of tokens four times the first's and the next's."""
    if lone.ttft_p50_ms is not None and lone.tpot_p50_ms is not None:
        return f"p90 ttft<{_short(4 * lone.ttft_p50_ms)}ms, p90 tpot<{_short(4 * lone.tpot_p50_ms)}ms"
    batches = run.requests(step=busy.index, columns=["compute_ms"])["compute_ms"]
    return f"p90<{_short(4 * (lone.p50_ms or 0.0) + float(batches.max()))}ms"


def _short(number: float) -> str:
    return f"{float(f'{number:.2g}'):g}"
