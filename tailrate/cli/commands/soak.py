"""`tailrate soak`."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tailrate.cli import run_file
from tailrate.cli.drive import checked, drive, drive_as_started
from tailrate.cli.misuse import refuse
from tailrate.cli.options import (
    HeadedCommand,
    completed,
    processes,
    scenario_file,
    scenario_options,
    scenarios,
    serve_options,
)
from tailrate.cli.processes import terminate_is_ctrl_c
from tailrate.cli.reporting import check_forms


@click.command(cls=HeadedCommand, context_settings={"ignore_unknown_options": True})
@click.argument("scenario", required=False, metavar="SCENARIO|FILE.yaml", shell_complete=completed(scenarios))
@click.option("--host", help="the endpoint, such as http://gpu-host:8000; without it the model is served here")
@click.option("--processes", type=processes, default=1, show_default=True, help="load processes")
@click.option(
    "--hours", type=float, help="how long it is in all, instead of --total-seconds [default: 1; of scenario soak 8]"
)
@click.option("--share", type=float, metavar="0.5", help="the rate, as a share of what --capacity-from could take")
@click.option("--capacity-from", type=click.Path(path_type=Path), metavar="RUN", help="run whose report has a capacity")
@click.option("--extend", is_flag=True, help="with --resume: ends later by as long as it did not run")
@click.option(
    "--webhook", metavar="URL", envvar="TAILRATE_WEBHOOK",
    help="gets verdict, conclusion and run as JSON (POST) when it is over; TAILRATE_WEBHOOK keeps it to yourself",
)  # fmt: skip
@click.option("--export", "forms", multiple=True, metavar="FORM", help="as of tailrate report; may be repeated")
@click.option(
    "--print-schedule", "when", metavar="WHEN",
    help="print units for systemd and a line for cron that run this daily, weekly or at five fields of cron, and end",
)  # fmt: skip
@scenario_options("soak")
@serve_options
@click.argument("locust_args", nargs=-1, type=click.UNPROCESSED)
def soak(scenario: str | None, **given: Any) -> None:
    """Drives SCENARIO for hours or days in chapters, or goes on with a soak that was interrupted (--resume RUN).

    A default of the scenario goes before one that is said here. A run file holds the same: scenario, endpoints and any
    of these options by their names.
    """
    from tailrate.loadtest.engine.endpoint import credentials
    from tailrate.loadtest.engine.soak import launch

    if run_file.is_run_file(scenario):
        given = run_file.applied(click.get_current_context())
        scenario = given.pop("scenario")
    own = ("host", "processes", "hours", "share", "capacity_from", "extend", "webhook", "forms", "when", "locust_args")
    asked = {key: given.pop(key) for key in own}
    if asked["webhook"]:
        launch.check(asked["webhook"])
    if asked["host"]:
        credentials.address(asked["host"])
    check_forms(asked["forms"])
    resumed = Path(given["resume"]).resolve() if given["resume"] else None
    if resumed is None and scenario is None:
        refuse("soak what? give a scenario such as bert, or --resume with the run to go on with")
    if asked["when"] is not None:
        if scenario is None:
            refuse("--print-schedule is of a soak that begins anew, and takes no --resume")
        _print_schedule(scenario, given, asked)
        return
    if resumed and not resumed.is_dir():  # before the lock makes its parent
        refuse(f"{given['resume']} is not a folder")
    run_dir = resumed.parent if resumed else Path(given["run_dir"] or "runs")
    with launch.alone(run_dir) as lock:
        if resumed:
            context = click.get_current_context()
            extra = [key for key, value in given.items() if value not in (None, (), False) and key != "resume"]
            changed = [f"--{key.replace('_', '-')}" for key in extra if run_file.is_given(context, key)]
            if scenario or asked["host"] or changed:
                beside = ", not ".join(["there can be --extend, --webhook and --export", *changed[:1]])
                refuse(f"--resume goes on with the same plan: beside it {beside}")
            folder, start, more = _resumption(resumed, asked["extend"])
            terminate_is_ctrl_c()
            code = drive_as_started(folder, start, asked["forms"], lock, more)
        else:
            assert scenario is not None
            given["run_id"] = given["run_id"] or _run_name(run_dir, scenario)
            folder = run_dir / given["run_id"]
            whole = _whole(given, asked)
            code = drive(scenario, asked["host"], asked["processes"], asked["locust_args"], whole, asked["forms"], lock)
    if asked["webhook"] and (problem := launch.tell(asked["webhook"], folder, code)):
        click.echo(f"tailrate: {problem}", err=True)
    raise SystemExit(code)


def _whole(given: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """With what only `tailrate soak` has, as options of the load."""
    found = {**given, "mode": _soak_mode(given["mode"]), "rates": _soak_rate(given["rates"], asked)}
    return found if asked["hours"] is None else found | {"total_seconds": 3600 * asked["hours"]}


def _print_schedule(scenario: str, given: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Of a soak that would begin: what would be wrong with it each night is wrong now."""
    from tailrate.loadtest.engine import child_python
    from tailrate.loadtest.engine.soak import timers

    when = timers.read(asked["when"])
    checked(scenario, asked["host"], _whole(given, asked))
    words = _without(_without(sys.argv[sys.argv.index("soak") :], "--print-schedule"), "--webhook")
    click.echo(timers.text(when, child_python.command("tailrate", *words), str(Path.cwd())), nl=False)


def _without(words: Sequence[str], option: str) -> list[str]:
    """A command line less an option with its value."""
    found, skip = [], False
    for word in words:
        if not skip and word != option and not word.startswith(f"{option}="):
            found.append(word)
        skip = not skip and word == option
    return found


def _run_name(run_dir: Path, scenario: str) -> str:
    from tailrate.analysis.records.folder import run_folder

    return run_folder(run_dir, "", scenario_file(scenario).stem).name


def _soak_mode(asked: str | None) -> str:
    if asked not in (None, "soak"):
        refuse(f"tailrate soak is mode soak; for mode {asked} say tailrate run")
    return "soak"


def _resumption(folder: Path, extend: bool) -> tuple[Path, dict[str, Any], list[str]]:
    """Closes the ledger of the life that ended, and says with what the next one starts."""
    from tailrate.analysis.records.folder import SOAK, mend_events, read_json
    from tailrate.analysis.records.manifest import Manifest
    from tailrate.analysis.run.recorded_run import RecordedRun, next_segment, settle_missing, writer
    from tailrate.loadtest.engine.record import resume

    manifest = Manifest.read(folder)
    if not (folder / SOAK).is_file() or manifest.scenario.get("mode") != "soak":
        refuse(f"{folder} was not started by tailrate soak, so it is not known how to go on with it")
    if manifest.status == "complete":
        refuse(f"{folder} is complete: there is nothing to go on with")
    elsewhere = manifest.extra.get("host") not in (None, socket.gethostname())
    if manifest.status == "running" and elsewhere and (who := writer(folder, manifest)):
        refuse(f"{folder} is still being written by {who}")
    start = read_json(folder / SOAK)
    kinds = {"scenario": str, "words": list, "processes": int, "host": str | None}
    if not isinstance(start, dict) or not all(isinstance(start.get(key), kind) for key, kind in kinds.items()):
        refuse(f"{folder / SOAK} does not say what was started, so it is not known how to go on with it")
    mend_events(folder)
    run = RecordedRun.load(folder)
    settle_missing(run)
    steps = [int(step["index"]) for step in resume.open_steps(manifest)]
    rows = run.requests(steps, ["step", "seq", "status", "intended_ns", "done_ns"])
    seen = {step: rows.loc[rows["step"] == step, "seq"].tolist() for step in steps}
    last = [int(event["time_ns"]) for event in run.events]
    last += [int(rows[name].max()) for name in ("intended_ns", "done_ns") if rows[name].notna().any()]
    statuses = {str(status): int(count) for status, count in rows["status"].value_counts().items()}
    manifest.extra["extend"] = extend
    lost = resume.close(folder, manifest, seen, statuses, max(last, default=0), next_segment(run))
    away_s = time.time() - manifest.extra["interrupted_ns"] / 1e9
    click.echo(f"going on with {folder.name} after {away_s / 60:.1f} min; {lost} arrivals were lost with the process")
    return folder, start, [f"--resume={folder}", f"--total-seconds={manifest.scenario['total_seconds']}"]


def _soak_rate(asked: str | None, own: Mapping[str, Any]) -> str:
    """As given, or a share of what an earlier run's endpoints could take."""
    from tailrate.loadtest.engine.soak import launch

    share, known = own["share"], own["capacity_from"]
    if asked and share is None:
        return asked
    if asked or share is None or known is None:
        refuse("how much load? say --rates 50, or --share 0.5 with --capacity-from and a run that searched a capacity")
    rate, most = launch.share_of(known, share)
    told = f"{rate:.4g} requests/s: {share:g} of the {most:.4g}/s that {known.name} found"
    click.echo(told, err=own["when"] is not None)
    return f"{rate:.6g}"
