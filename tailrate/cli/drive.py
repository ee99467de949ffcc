"""A run from its options to its report: the folder, the server where there is none, Locust, and its progress."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tailrate.cli import output, run_file
from tailrate.cli.misuse import refuse
from tailrate.cli.options import scenario_defaults, scenario_file
from tailrate.cli.processes import STOP_S, serving, stop_with_parent, terminate_is_ctrl_c, threads_beside
from tailrate.cli.reporting import make_report

if TYPE_CHECKING:
    from tailrate.loadtest.engine.scenario.scenario import Scenario


def drive(
    scenario: str,
    host: str | None,
    processes: int,
    locust_args: Sequence[str],
    given: dict[str, Any],
    forms: Sequence[str] = (),
    lock: int | None = None,
) -> int:
    from tailrate.analysis.records.folder import RUN_FILE, SERVER_LOG, SOAK
    from tailrate.loadtest.engine.modes.soak import Soak
    from tailrate.loadtest.engine.scenario import answerable
    from tailrate.loadtest.engine.workers.on_time import cpu_priority

    output.forgive(OSError)
    terminate_is_ctrl_c()
    stop_with_parent()
    path, plan, chosen, resolved = checked(scenario, host, given)
    if resolved["endpoints"]:
        host = ""
    for sentence in answerable.sentences(plan, len(plan.variants) or 2):
        click.echo(sentence)
    for sentence in cpu_priority.lacks():
        click.echo(f"this machine has {sentence}", err=True)
    folder = _new_folder(resolved["run_dir"], resolved["run_id"], path.stem)
    context = click.get_current_context(silent=True)
    if context and run_file.SCENARIO in context.params:
        (folder / RUN_FILE).write_text(run_file.text(context), encoding="utf-8")
    words = [f"--{key.replace('_', '-')}={value}" for key, value in chosen.items() if key not in ("run_id", "run_dir")]
    words += locust_args
    how = {
        k: value for k, value in given.items() if k not in resolved and value not in (None, ()) and value is not False
    }
    how.setdefault("threads", threads_beside(processes))
    how["log_file"] = str((folder / SERVER_LOG).resolve())
    if plan.faults:
        how["allow_faults"] = True
    start: dict[str, Any] = {"scenario": str(path.resolve()), "host": host, "processes": processes, "words": words}
    start |= {"model": plan.model, "variants": plan.variants or ("eager", "compiled"), "how": how}
    if isinstance(plan.mode, Soak):  # so that it can go on when it was interrupted
        (folder / SOAK).write_text(json.dumps(start, indent=1) + "\n")
    return drive_as_started(folder, start, forms, lock)


def checked(
    scenario: str, host: str | None, given: Mapping[str, Any]
) -> tuple[Path, Scenario, dict[str, Any], dict[str, Any]]:
    """The scenario's file, its plan, the options that were chosen, and those with all others.

    What is wrong is said before any wait, and before anything is kept.
    """
    from tailrate.loadtest.engine import modes
    from tailrate.loadtest.engine.endpoint import credentials, target
    from tailrate.loadtest.engine.record.devices.collector import sources

    path = scenario_file(scenario)
    defaults = scenario_defaults(path)
    keys = {option.key for option in modes.OPTIONS}
    chosen = {key: value for key, value in given.items() if key in keys and value is not None}
    chosen.setdefault("self_check", "on")
    usual = modes.defaults(defaults)
    resolved = usual | chosen
    plan = modes.from_options(path.stem, str(defaults["model"]), Namespace(**resolved), usual)
    credentials.read(Namespace(**resolved))
    sources(Namespace(**resolved))
    if host:
        credentials.address(host)
    if resolved["endpoints"]:
        if host:
            refuse("--endpoints names what is driven, so there is no --host beside it")
        target.parse(resolved["endpoints"], plan.model)
    elif host is None and not plan.model:
        refuse(f"{path.stem} has no model that could be served here: name an endpoint with --host or --endpoints")
    return path, plan, chosen, resolved


def drive_as_started(
    folder: Path, start: dict[str, Any], forms: Sequence[str], lock: int | None, more: Sequence[str] = ()
) -> int:
    """Drives the endpoint that `start` names, or one that is served here meanwhile."""
    from tailrate.analysis.records.folder import SERVER_LOG

    output.forgive(OSError)
    with ExitStack() as stack:
        url = start["host"]  # empty: endpoints are named instead
        if url is None:
            url = stack.enter_context(serving(start["model"], start["variants"], start["how"]))
        path, words = Path(start["scenario"]), [*start["words"], *more, *(["--host", url] if url else [])]
        try:
            return _locust(path, folder, start["processes"], words, forms, lock)
        finally:
            if (folder / SERVER_LOG).exists():
                click.echo(f"what the server logged: {folder / SERVER_LOG}", err=True)


def _new_folder(run_dir: str, run_id: str, scenario: str) -> Path:
    from tailrate.analysis.records.folder import run_folder, taken

    folder = run_folder(Path(run_dir), run_id, scenario)
    if why := taken(folder):
        refuse(why)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        refuse(f"the run folder {folder} cannot be made: {problem}")
    return folder


def _locust(path: Path, folder: Path, processes: int, words: list[str], forms: Sequence[str], lock: int | None) -> int:
    """Runs Locust on the scenario, shows its progress from the run folder, then reports."""
    from tailrate.analysis.records.folder import LOG, MANIFEST, SOAK, STATS
    from tailrate.analysis.records.manifest import Manifest
    from tailrate.loadtest.engine import child_python
    from tailrate.loadtest.engine.record import provenance
    from tailrate.loadtest.engine.soak import launch

    command = child_python.locust("-f", str(path), "--headless", "--only-summary")
    command += ["--run-dir", str(folder.parent), "--run-id", folder.name, "--logfile", str(folder / LOG)]
    command += ["--json-file", str((folder / STATS).with_suffix("")), *words]  # Locust adds the suffix
    if processes > 1:
        from tailrate.serve.deploy.haproxy import free_port

        port = str(free_port())
        command += ["--processes", str(processes), "--master-bind-port", port, "--master-port", port]
        command += ["--master-bind-host", "127.0.0.1"]
    # a session of its own: Ctrl-C reaches us, and we pass it on once; it holds the lock even when we are gone
    child = subprocess.Popen(command, start_new_session=True, pass_fds=() if lock is None else (lock,))
    if lock is not None:
        launch.hold(lock, child.pid, folder)
    code = _followed(folder, child)
    if not (folder / MANIFEST).exists():
        return _never_began(folder, code)
    if code == 2 and (folder / SOAK).exists() and Manifest.read(folder).status != "complete":
        return 2  # it did not go on, and has said why
    manifest = Manifest.read(folder)
    manifest.extra["command"] = provenance.command_line(["tailrate", *sys.argv[1:]])
    manifest.write(folder)
    return make_report(folder, forms=forms)


def _followed(folder: Path, child: subprocess.Popen[bytes]) -> int:
    """The exit code of the load process, which is asked to stop by whatever stops us."""
    try:
        follow(folder, child)
    except KeyboardInterrupt:
        if not sys.stdout.isatty():  # there the table says so
            click.echo("stopping: what there is will be kept and reported", err=True)
        child.send_signal(signal.SIGINT)
    except BaseException:
        child.send_signal(signal.SIGINT)
        raise
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # from here on it is a matter of seconds
        signal.signal(stop, signal.SIG_IGN)
    try:
        return child.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return child.wait()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        terminate_is_ctrl_c()


def _never_began(folder: Path, code: int) -> int:
    """Takes back what was put into the folder, and says why no row came."""
    from tailrate.analysis.records.folder import BEFORE, LOG
    from tailrate.analysis.verdicts.verdict import EXIT_CODES, INCONCLUSIVE

    log = (folder / LOG).read_text().strip().splitlines() if (folder / LOG).exists() else []
    for name in BEFORE:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # whatever else came there is somebody's
        folder.rmdir()
    if code == EXIT_CODES[INCONCLUSIVE]:
        click.echo(f"tailrate: {log[-1] if log else 'nothing was sent'}", err=True)
        return code
    if code not in (0, 2):  # 0: stopped by hand before anything was sent
        refuse(f"Locust ended with code {code} before any load: {log[-1] if log else 'it said nothing'}")
    return 2


def follow(folder: Path, child: subprocess.Popen[bytes]) -> None:
    """Prints `events.jsonl` as it grows, a line for each step; on a terminal the load process shows more than that."""
    from tailrate.analysis.text.console import console
    from tailrate.loadtest.engine.live.board import warning
    from tailrate.loadtest.engine.live.terminal import line

    if sys.stdout.isatty():
        child.wait()
        return
    out = console()
    for event in tail_events(folder, child):
        if (told := line(event | {"warning": warning(event)})) is not None:
            out.print(told)


def tail_events(folder: Path, child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Events as they are written, until the child ends."""
    from tailrate.analysis.records.folder import EVENTS

    at, path = 0, folder / EVENTS
    ended = False
    while not ended:
        ended = child.poll() is not None  # asked before reading, so that nothing written since is missed
        if path.exists():
            with path.open("rb") as lines:
                lines.seek(at)
                whole, newline, _ = lines.read().rpartition(b"\n")
                at += len(whole) + len(newline)
            yield from (json.loads(line) for line in whole.splitlines() if line)
        time.sleep(0.1)
