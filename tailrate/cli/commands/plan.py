"""`tailrate plan`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from tailrate.cli.options import out_folder, question_options
from tailrate.cli.questions import loaded, question


@click.command()
@question_options
@click.option("--rate", type=float, help="requests per second that are to be answered")
@click.option(
    "--shape", default="flat", show_default=True, help="how the rate changes: sine:0.5:86400, spike:3:0:600 …"
)
@click.option("--growth", metavar="20%/quarter", help="of the rate, for a table of the next two years")
@click.option("--n-plus", type=int, default=0, show_default=True, help="replicas that may be lost at once")
@click.option("--replicas-per-gpu", type=int, help="replicas that share a device [default: as they were measured]")
@click.option("--max-batch", type=int, help="requests per batch, in place of what was measured")
@click.option("--max-wait-ms", type=float, help="batch wait, in place of what was measured")
@click.option("--gpu-hour", type=float, help="price of a device's hour (of a machine's, where the CPU serves)")
@click.option("--kwh", type=float, help="price of a kilowatt-hour, where it is paid for beside the device")
@click.option("--co2", "co2_kg_per_kwh", type=float, help="kilograms of CO2e of a kilowatt-hour")
@click.option("--currency", default="", help="of the prices, as it is printed")
@click.option(
    "--autoscale", is_flag=True, help="simulate an autoscaler over --shape; write serve.yaml, hpa.yaml, keda.yaml"
)
@click.option("--cold-start", type=float, help="seconds until a new replica serves, in place of what was measured")
@click.option("--out", type=out_folder, help="folder to write to [default: plans/UTC-model]")
def plan(folders: tuple[Path, ...], as_json: bool, out: Path | None, autoscale: bool, **given: Any) -> None:
    """Says how many replicas hold an objective at a rate, what they cost, and how sure that is, from measured RUNS."""
    from tailrate.analysis.pages.plan.page import page
    from tailrate.analysis.planning.plan import autoscaling, candidates, plan_text
    from tailrate.analysis.planning.plan import plan as plans
    from tailrate.analysis.records.folder import run_folder
    from tailrate.analysis.text import console

    if out is not None:
        plans.check_folder(out, autoscale)
    with console.progress() as tell:
        runs, asked = loaded("plan from", folders), question(given, tell)
        if autoscale:
            autoscaling.RateCurve.parse(asked.shape)
        per_gpu, wait_ms = given["replicas_per_gpu"], given["max_wait_ms"]
        variants, left_out = candidates.variants(
            runs, asked.slo, endpoints=given["endpoints"], replicas_per_gpu=per_gpu, tell=tell,
            max_batch=given["max_batch"], batch_wait_s=None if wait_ms is None else wait_ms / 1e3,
        )  # fmt: skip
        made = plans.plan([run.folder.name for run in runs], variants, asked, left_out)
        advice = autoscaling.advise(*made.best, asked, given["cold_start"]) if autoscale and made.best else None
        folder = out or run_folder(Path("plans"), "", made.model)
        tell(f"writing {folder}")
        made.write(folder, page, shlex.join(["tailrate", *sys.argv[1:]]), advice)
    if as_json:
        click.echo((folder / "plan.json").read_text(encoding="utf-8"), nl=False)
    else:
        console.found(plan_text.warnings(made), plan_text.tables(made, advice), [plan_text.conclusion(made)])
        click.echo(f"plan: {(folder / 'plan.html').resolve()}")
    raise SystemExit(made.exit_code)
