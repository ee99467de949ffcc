"""headroom: one command over three packages.

It only composes them: `serve` hosts models, a Locust process drives a scenario at them, `analysis` reads the
run folder that came of it. Each command imports what it needs when it runs, so that a laptop without torch
and Ray can do everything but `serve`.

Exit codes: 0 pass; 1 objective missed; 2 bad input, in one sentence; 3 the run cannot be trusted.
"""

from __future__ import annotations

import ast
import csv
import getpass
import json
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

MISUSES = (
    ("analysis.campaign.work", "CampaignError"),
    ("analysis.records", "RunError"),
    ("analysis.sizing", "QuestionError"),
    ("loadtest.engine.scenario", "ScenarioError"),
    ("serve.spec", "ServeError"),
)
READY_S = 1800
MANY = 20_000_000
STOP_S = 30


def refuse(sentence: str) -> NoReturn:
    click.echo(f"headroom: {sentence}", err=True)
    raise SystemExit(2)


class Front(click.Group):
    """Turns every misuse that a package names into one sentence and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before there was anything to keep
            raise SystemExit(130) from None
        except Exception as problem:
            # a package that was not imported has raised nothing
            known = (getattr(sys.modules.get(module), name, None) for module, name in MISUSES)
            if any(kind and isinstance(problem, kind) for kind in known):
                refuse(str(problem))
            raise

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.commands, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            refuse(f"unknown command '{args[0]}'; known are {', '.join(sorted(self.commands))}{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=Front, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "HEADROOM"})
@click.version_option(package_name="headroom", message="%(prog)s %(version)s")
def main() -> None:
    """Load-tests live inference endpoints: how much compiling buys, and how much an endpoint can take."""


def port(text: str) -> int:
    from serve.health import number

    try:
        return number(text)
    except ValueError as problem:
        refuse(str(problem))


# ---- serve


def serve_options(function: Function) -> Function:
    """The options that decide how a model is served, shared by `serve` and by `run` without a host."""
    for option in reversed(
        [
            click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda"),
            click.option("--weights", default="random", show_default=True, help="random, pretrained, or a path"),
            click.option("--max-batch", type=int, help="rows per batch [default: by model and device]"),
            click.option("--buckets", metavar="1,4,16", help="rows per batch, padded [default: powers of two]"),
            click.option(
                "--max-wait-ms", type=float, default=0.0, show_default=True, help="wait for company this long"
            ),
            click.option(
                "--max-queue", type=int, default=256, show_default=True, help="beyond it requests are refused"
            ),
            click.option("--replicas", type=int, default=1, show_default=True, help="replicas per variant"),
            click.option("--max-replicas", type=int, help="let Ray Serve add replicas under load, up to this many"),
            click.option("--num-gpus", type=float, help="share of a GPU per replica [default: the GPUs, divided]"),
            click.option("--threads", type=int, help="CPU threads per replica [default: the cores, shared]"),
            click.option("--ingress", default="auto", show_default=True, help="fast, plain, or auto"),
            click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="a setting of the model's own"),
            click.option("--cache-dir", help="where compiled artefacts and weights are kept"),
            click.option(
                "--parity-share", type=float, default=0.001, show_default=True, help="of responses compared afterwards"
            ),
            click.option("--fail-on-recompile", is_flag=True, help="refuse a request that would compile again"),
            click.option("--profile", is_flag=True, help="let clients ask for a profile of the next batches"),
        ]
    ):
        function = option(function)
    return function


@main.command()
@click.argument("models", nargs=-1)
@click.option("--variants", default="eager,compiled", show_default=True, help="served side by side; the first answers")
@click.option("--host", default="127.0.0.1", show_default=True, help="interface to listen on")
@click.option("--port", type=port, default="8000", show_default=True)
@click.option("--token-file", envvar="HEADROOM_TOKEN_FILE", help="tokens, one of which every request must show")
@click.option("--tls-cert", default="", help="PEM file of a certificate: HTTPS instead of HTTP")
@click.option("--tls-key", default="", help="PEM file of its key")
@click.option("--seed", type=int, default=0, show_default=True, help="of random weights")
@click.option("--max-rows", type=int, help="of a request; beyond it it is refused [default: 64 batches]")
@click.option("--max-body-bytes", type=int, default=64 << 20, show_default=True, help="of a request's body")
@click.option("--sample-ms", type=int, default=100, show_default=True, help="period of device samples")
@click.option("--device-trace", default="", help="CSV of device samples that is played back instead of sampling")
@click.option("--keep-on-parity-failure", is_flag=True, help="serve a variant whose outputs differ from eager fp32")
@click.option(
    "--drain-s", type=float, default=30.0, show_default=True, help="to answer what is under way, once stopped"
)
@click.option("--allow-faults", is_flag=True, help="let clients break things on purpose: kill a replica, take the CPU")
@click.option("--list", "only_list", is_flag=True, help="the models and variants there are")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    envvar="HEADROOM_LOG_FORMAT",
    help="of what replicas log when something breaks; it goes to standard error",
)  # fmt: skip
@click.option("--log-file", type=click.Path(path_type=Path), help="a copy of that, of at most 32 MB")
@click.option("--config", "only_config", is_flag=True, help="print the YAML for `serve run`, or KubeRay, instead")
@serve_options
def serve(
    models: tuple[str, ...], only_list: bool, only_config: bool, token_file: str | None, log_format: str,
    log_file: Path | None, **given: Any,
) -> None:  # fmt: skip
    """Hosts MODELS, every variant side by side, until stopped."""
    from serve import guard
    from serve.options import ServeOptions, check, named

    if only_list:
        from serve import listing

        click.echo(listing.text())
        return
    given["variants"] = tuple(name.strip() for name in given["variants"].split(",") if name.strip())
    given["settings"] = dict(_pair(text) for text in given["settings"])
    given["buckets"] = _numbers("--buckets", given["buckets"])
    options = named(ServeOptions(models=models, **given))
    if token_file:
        os.environ[guard.FILE] = str(Path(token_file).absolute())
    check(replace(options, port=0) if only_config else options)
    if not only_config and (why := guard.exposure(options)):
        click.echo(f"headroom: {why}", err=True)
    from serve import app, cluster

    if only_config:
        click.echo(app.configuration(options), nl=False)
        return
    _terminate_is_ctrl_c()
    _stop_with_parent()
    server = None
    try:
        server = cluster.start(options, click.echo, log_format, log_file)
        click.echo(f"ready: {', '.join(server.endpoints)} at {server.url} (Ctrl-C stops)")
        threading.Event().wait()
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):  # a second one ends it at once
            click.echo("stopping")
            if server is not None:
                server.drain(options.drain_s, click.echo)
    finally:
        if server is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            server.stop()


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        refuse(f"--set '{text}' is not understood; write for instance --set sequence=512")
    return key, value


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in (text or "").split(",") if word.strip())
    except ValueError:
        refuse(f"{option} '{text}' is not understood; write for instance {option} 1,4,16")


def _terminate_is_ctrl_c() -> None:
    """A scheduler's SIGTERM keeps as much as a person's Ctrl-C."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def _stop_with_parent() -> None:
    """What another command started ends when it does, even when that is killed."""
    if "HEADROOM_PARENT" not in os.environ:
        return
    parent = int(os.environ.pop("HEADROOM_PARENT"))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


# ---- run


def scenarios() -> dict[str, Path]:
    """Every locustfile that ships with headroom, by name."""
    import loadtest

    folder = Path(loadtest.__path__[0])
    return {path.stem: path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")}


def scenario_file(name: str) -> Path:
    if name.endswith(".py"):
        if not Path(name).is_file():
            refuse(f"there is no scenario file {name}")
        return Path(name)
    known = scenarios()
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        refuse(f"unknown scenario '{name}'; known are {', '.join(known)}, or a path to a locustfile{hint}")
    return known[name]


def scenario_defaults(path: Path) -> dict[str, Any]:
    """The literal class attributes of a locustfile, read without running it (running it patches the process)."""
    found: dict[str, Any] = {}
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as problem:
        refuse(f"{path} is not a Python file: {problem}")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.Assign | ast.AnnAssign) and isinstance(item.value, ast.Constant):
                    target = item.targets[0] if isinstance(item, ast.Assign) else item.target
                    if isinstance(target, ast.Name):
                        found[target.id] = item.value.value
    if not isinstance(found.get("model"), str):
        refuse(f"{path} has no class with a `model`; see loadtest/bert.py")
    return found


def scenario_options(function: Function) -> Function:
    """`scenario.OPTIONS` as click options; None where not given, so that the scenario's own default holds."""
    from loadtest.engine.scenario import OPTIONS

    for option in reversed(OPTIONS):
        kind: Any = click.Choice(option.choices) if option.choices else type(option.default)
        function = click.option(f"--{option.name}", option.key, type=kind, help=option.what)(function)
    return function


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("scenario")
@click.option("--host", help="the endpoint, such as http://gpu-host:8000; without it the model is served here")
@click.option("--processes", type=int, default=1, show_default=True, help="load processes")
@scenario_options
@serve_options
@click.argument("locust_args", nargs=-1, type=click.UNPROCESSED)
def run(scenario: str, host: str | None, processes: int, locust_args: tuple[str, ...], **given: Any) -> None:
    """Drives SCENARIO (a name such as bert, or a locustfile), then writes the report.

    Options that are not listed here go to Locust, such as a scenario's own --text.
    """
    raise SystemExit(_run(scenario, host, processes, locust_args, given))


def _run(
    scenario: str,
    host: str | None,
    processes: int,
    locust_args: Sequence[str],
    given: dict[str, Any],
    forms: Sequence[str] = (),
    lock: int | None = None,
) -> int:
    from analysis.records import SERVER_LOG, SOAK
    from loadtest.engine import access, foretold, provenance
    from loadtest.engine.scenario import OPTIONS, from_options

    _terminate_is_ctrl_c()
    _stop_with_parent()
    path = scenario_file(scenario)
    defaults = scenario_defaults(path)
    keys = {option.key for option in OPTIONS}
    chosen = {key: value for key, value in given.items() if key in keys and value is not None}
    chosen.setdefault("self_check", "on")
    resolved = {option.key: chosen.get(option.key, defaults.get(option.key, option.default)) for option in OPTIONS}
    # what is wrong is said before any wait, and before anything is kept
    plan = from_options(path.stem, str(defaults["model"]), Namespace(**resolved))
    access.read(Namespace(**resolved))
    if host:
        access.address(host)
    for sentence in foretold.sentences(plan, len(plan.variants) or 2):
        click.echo(sentence)
    for sentence in provenance.lacks():
        click.echo(f"this machine has {sentence}", err=True)
    folder = _new_folder(resolved["run_dir"], resolved["run_id"], path.stem)
    words = [f"--{key.replace('_', '-')}={value}" for key, value in chosen.items() if key not in ("run_id", "run_dir")]
    words += locust_args
    how = {k: value for k, value in given.items() if k not in keys and value not in (None, ()) and value is not False}
    # served and driven by one machine: the load keeps a core, or its lateness would be all there is to see
    how.setdefault("threads", max(1, (os.cpu_count() or 1) - processes))
    how["log_file"] = str((folder / SERVER_LOG).resolve())
    if plan.faults:
        how["allow_faults"] = True
    start: dict[str, Any] = {"scenario": str(path.resolve()), "host": host, "processes": processes, "words": words}
    start |= {"model": plan.model, "variants": plan.variants or ("eager", "compiled"), "how": how}
    if plan.mode == "soak":  # so that it can go on when it was interrupted
        (folder / SOAK).write_text(json.dumps(start, indent=1) + "\n")
    return _load(folder, start, forms, lock)


def _load(folder: Path, start: dict[str, Any], forms: Sequence[str], lock: int | None, more: Sequence[str] = ()) -> int:
    """Drives the endpoint that `start` names, or one that is served here meanwhile."""
    from analysis.records import SERVER_LOG

    with ExitStack() as stack:
        url = start["host"] or stack.enter_context(serving(start["model"], start["variants"], start["how"]))
        path, words = Path(start["scenario"]), [*start["words"], *more]
        try:
            return _drive(path, url, folder, start["processes"], words, forms, lock)
        finally:
            if (folder / SERVER_LOG).exists():
                click.echo(f"what the server logged: {folder / SERVER_LOG}", err=True)


def _new_folder(run_dir: str, run_id: str, scenario: str) -> Path:
    from analysis.records import run_folder, taken

    folder = run_folder(Path(run_dir), run_id, scenario)
    if why := taken(folder):
        refuse(why)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        refuse(f"the run folder {folder} cannot be made: {problem}")
    return folder


def _drive(
    path: Path, host: str, folder: Path, processes: int, words: list[str], forms: Sequence[str], lock: int | None
) -> int:
    """Runs Locust on the scenario, shows its progress from the run folder, then reports."""
    from analysis.records import BEFORE, LOG, MANIFEST, SOAK, STATS, Manifest
    from analysis.verdict import EXIT_CODES, INCONCLUSIVE
    from loadtest.engine import launch, provenance

    command = [sys.executable, "-m", "locust", "-f", str(path), "--headless", "--only-summary", "--host", host]
    command += ["--run-dir", str(folder.parent), "--run-id", folder.name, "--logfile", str(folder / LOG)]
    command += ["--json-file", str(folder / STATS), *words]
    if processes > 1:
        from serve.ingress import free_port

        port = str(free_port())
        command += ["--processes", str(processes), "--master-bind-port", port, "--master-port", port]
        command += ["--master-bind-host", "127.0.0.1"]
    # a session of its own: Ctrl-C reaches us, and we pass it on once; it holds the lock even when we are gone
    child = subprocess.Popen(command, start_new_session=True, pass_fds=() if lock is None else (lock,))
    if lock is not None:
        launch.hold(lock, child.pid, folder)
    try:
        follow(folder, child)
    except KeyboardInterrupt:
        if not sys.stdout.isatty():  # there the table says so
            click.echo("stopping: what there is will be kept and reported", err=True)
        child.send_signal(signal.SIGINT)
    for stop in (signal.SIGINT, signal.SIGTERM):  # from here on it is a matter of seconds
        signal.signal(stop, signal.SIG_IGN)
    try:
        code = child.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _terminate_is_ctrl_c()
    if not (folder / MANIFEST).exists():
        log = (folder / LOG).read_text().strip().splitlines() if (folder / LOG).exists() else []
        for name in BEFORE:
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # whatever else came there is somebody's
            folder.rmdir()
        if code == 0:  # stopped by hand before anything was sent
            return 2
        if code == EXIT_CODES[INCONCLUSIVE]:
            click.echo(f"headroom: {log[-1] if log else 'nothing was sent'}", err=True)
            return code
        if code != 2:
            refuse(f"Locust ended with code {code} before any load: {log[-1] if log else 'it said nothing'}")
        return 2
    if code == 2 and (folder / SOAK).exists() and Manifest.read(folder).status != "complete":
        return 2  # it did not go on, and has said why
    manifest = Manifest.read(folder)
    manifest.extra["command"] = provenance.command_line(["headroom", *sys.argv[1:]])
    manifest.write(folder)
    return make_report(folder, forms=forms)


def follow(folder: Path, child: subprocess.Popen[bytes]) -> None:
    """Prints `events.jsonl` as it grows, a line for each step; on a terminal the load process shows more than that."""
    from analysis.console import console
    from loadtest.engine.board import warning
    from loadtest.engine.terminal import line

    if sys.stdout.isatty():
        child.wait()
        return
    out = console()
    for event in tail_events(folder, child):
        if (told := line(event | {"warning": warning(event)})) is not None:
            out.print(told)


def tail_events(folder: Path, child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Events as they are written, until the child ends."""
    from analysis.records import EVENTS

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


@contextmanager
def serving(model: str, variants: Sequence[str], how: dict[str, Any], held: Sequence[int] = ()) -> Iterator[str]:
    """`headroom serve` in a process of its own, from ready to stopped; yields its URL.

    It keeps the files `held` open.
    """
    from serve.ingress import free_port

    port = free_port()
    command = [sys.executable, "-m", "headroom", "serve", model, "--variants", ",".join(variants), "--port", str(port)]
    for key, value in how.items():
        option = f"--{key.replace('_', '-')}"
        said = [f"--set={pair}" for pair in value] if key == "settings" else [f"{option}={value}"]
        command += [option] if value is True else said
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADROOM_SERVE_TLS_")}
    environment |= {"HEADROOM_PARENT": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        pass_fds=held,
    )  # fmt: skip
    assert process.stdout is not None
    url = f"http://127.0.0.1:{port}"
    try:
        for line in process.stdout:
            click.echo(line.rstrip(), err=line.startswith("headroom:"))
            if line.startswith("ready:"):
                break
        else:
            raise SystemExit(process.wait() or 2)
        threading.Thread(target=lambda: [None for _ in process.stdout or ()], daemon=True).start()  # never blocks it
        yield url
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@main.command()
@click.option("--run-dir", default="runs", show_default=True, help="folder that holds run folders")
def demo(run_dir: str) -> None:
    """Serves custom_cnn eager and compiled on this machine, drives rising rates at both, and reports."""
    from analysis.verdict import EXIT_CODES

    _terminate_is_ctrl_c()
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
        code = _run("custom_cnn", url, 1, (), given)
    # the verdict is about this machine, not about whether the demo worked
    raise SystemExit(0 if code in EXIT_CODES.values() else code)


DEMO_SHARES = (0.3, 0.6, 0.9, 1.3)
"""Of what eager answers flat out."""
DEMO_N = 150
"""Arrivals of the lowest step: P90 takes 44 independent ones."""


def _flat_out(url: str) -> tuple[float, float]:
    """What eager answers flat out, in requests per second; four times a lone request's P50 and its longest batch."""
    import analysis

    with tempfile.TemporaryDirectory() as scratch:
        words = ["--mode", "closed", "--concurrency", "1,32", "--step-seconds", "2", "--settle-seconds", "0"]
        words += ["--idle-seconds", "0", "--variants", "eager", "--run-dir", scratch, "--run-id", "flat-out"]
        command = [sys.executable, "-m", "locust", "-f", str(scenario_file("custom_cnn")), "--headless", "--host", url]
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


# ---- soak


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("scenario", required=False)
@click.option("--host", help="the endpoint, such as http://gpu-host:8000; without it the model is served here")
@click.option("--processes", type=int, default=1, show_default=True, help="load processes")
@click.option("--hours", type=float, help="how long it is in all, instead of --total-seconds [default: 1]")
@click.option("--share", type=float, metavar="0.5", help="the rate, as a share of what --capacity-from could take")
@click.option("--capacity-from", type=click.Path(path_type=Path), metavar="RUN", help="run whose report has a capacity")
@click.option("--extend", is_flag=True, help="with --resume: ends later by as long as it did not run")
@click.option(
    "--webhook", metavar="URL", envvar="HEADROOM_WEBHOOK",
    help="gets verdict, conclusion and run as JSON (POST) when it is over; HEADROOM_WEBHOOK keeps it to yourself",
)  # fmt: skip
@click.option("--export", "forms", multiple=True, metavar="FORM", help="as of headroom report; may be repeated")
@click.option(
    "--print-schedule", "when", metavar="WHEN",
    help="print units for systemd and a line for cron that run this daily, weekly or at five fields of cron, and end",
)  # fmt: skip
@scenario_options
@serve_options
@click.argument("locust_args", nargs=-1, type=click.UNPROCESSED)
def soak(scenario: str | None, **given: Any) -> None:
    """Drives SCENARIO for hours or days in chapters, or goes on with a soak that was interrupted (--resume RUN)."""
    from loadtest.engine import access, launch

    own = ("host", "processes", "hours", "share", "capacity_from", "extend", "webhook", "forms", "when", "locust_args")
    asked = {key: given.pop(key) for key in own}
    if asked["webhook"]:
        launch.check(asked["webhook"])
    if asked["host"]:
        access.address(asked["host"])
    if asked["when"]:
        from loadtest.engine import schedule

        at = sys.argv.index("soak")
        words = _without(_without(sys.argv[at:], "--print-schedule"), "--webhook")
        click.echo(schedule.text(asked["when"], [sys.executable, "-m", "headroom", *words], str(Path.cwd())), nl=False)
        return
    _check_forms(asked["forms"])
    resumed = Path(given["resume"]).resolve() if given["resume"] else None
    if resumed is None and scenario is None:
        refuse("soak what? give a scenario such as bert, or --resume with the run to go on with")
    if resumed and not resumed.is_dir():  # before the lock makes its parent
        refuse(f"{given['resume']} is not a folder")
    run_dir = resumed.parent if resumed else Path(given["run_dir"] or "runs")
    with launch.alone(run_dir) as lock:
        if resumed:
            extra = [key for key, value in given.items() if value not in (None, (), False) and key != "resume"]
            changed = [key for key in extra if _was_given(key)]
            if scenario or asked["host"] or changed:
                refuse("--resume goes on with the same plan: beside it there can be --extend, --webhook and --export")
            folder, start, more = _resumption(resumed, asked["extend"])
            _terminate_is_ctrl_c()
            code = _load(folder, start, asked["forms"], lock, more)
        else:
            assert scenario is not None
            given["run_id"] = given["run_id"] or _run_name(run_dir, scenario)
            folder = run_dir / given["run_id"]
            given |= {"mode": _soak_mode(given["mode"]), "rates": _soak_rate(given["rates"], asked)}
            if asked["hours"]:
                given["total_seconds"] = 3600 * asked["hours"]
            code = _run(scenario, asked["host"], asked["processes"], asked["locust_args"], given, asked["forms"], lock)
    if asked["webhook"] and (problem := launch.tell(asked["webhook"], folder, code)):
        click.echo(f"headroom: {problem}", err=True)
    raise SystemExit(code)


def _without(words: Sequence[str], option: str) -> list[str]:
    """A command line less an option with its value."""
    found, skip = [], False
    for word in words:
        if not skip and word != option and not word.startswith(f"{option}="):
            found.append(word)
        skip = not skip and word == option
    return found


def _was_given(key: str) -> bool:
    """On the command line, not by default."""
    source = click.get_current_context().get_parameter_source(key)
    return source is not None and source.name == "COMMANDLINE"


def _run_name(run_dir: Path, scenario: str) -> str:
    from analysis.records import run_folder

    return run_folder(run_dir, "", scenario_file(scenario).stem).name


def _soak_mode(asked: str | None) -> str:
    if asked not in (None, "soak"):
        refuse(f"headroom soak is mode soak; for mode {asked} say headroom run")
    return "soak"


def _resumption(folder: Path, extend: bool) -> tuple[Path, dict[str, Any], list[str]]:
    """Closes the ledger of the life that ended, and says with what the next one starts."""
    from analysis import store
    from analysis.records import SOAK, Manifest, mend_events
    from loadtest.engine import resumption

    manifest = Manifest.read(folder)
    if not (folder / SOAK).is_file():
        refuse(f"{folder} was not started by headroom soak, so it is not known how to go on with it")
    if manifest.status == "complete":
        refuse(f"{folder} is complete: there is nothing to go on with")
    elsewhere = manifest.extra.get("host") not in (None, socket.gethostname())
    if manifest.status == "running" and elsewhere and (writer := store.writer(folder, manifest)):
        refuse(f"{folder} is still being written by {writer}")
    start = json.loads((folder / SOAK).read_text(encoding="utf-8"))
    mend_events(folder)
    run = store.load(folder)
    store.settle_missing(run)
    steps = [int(step["index"]) for step in resumption.open_steps(manifest)]
    rows = run.requests(steps, ["step", "seq", "status", "intended_ns", "done_ns"])
    seen = {step: rows.loc[rows["step"] == step, "seq"].tolist() for step in steps}
    last = [int(event["time_ns"]) for event in run.events]
    last += [int(rows[name].max()) for name in ("intended_ns", "done_ns") if rows[name].notna().any()]
    statuses = {str(status): int(count) for status, count in rows["status"].value_counts().items()}
    manifest.extra["extend"] = extend
    lost = resumption.close(folder, manifest, seen, statuses, max(last, default=0), store.next_segment(run))
    away_s = time.time() - manifest.extra["interrupted_ns"] / 1e9
    click.echo(f"going on with {folder.name} after {away_s / 60:.1f} min; {lost} arrivals were lost with the process")
    return folder, start, [f"--resume={folder}", f"--total-seconds={manifest.scenario['total_seconds']}"]


def _soak_rate(asked: str | None, own: dict[str, Any]) -> str:
    """As given, or a share of what an earlier run's endpoints could take."""
    from loadtest.engine import launch

    share, known = own["share"], own["capacity_from"]
    if asked and share is None:
        return asked
    if asked or share is None or known is None:
        refuse("how much load? say --rates 50, or --share 0.5 with --capacity-from and a run that searched a capacity")
    rate, most = launch.share_of(known, share)
    click.echo(f"{rate:.4g} requests/s: {share:g} of the {most:.4g}/s that {known.name} found")
    return f"{rate:.6g}"


# ---- read


@main.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--page/--no-page", default=True, help="write report.html and report.md, or only the figures")
@click.option(
    "--export", "forms", multiple=True, metavar="FORM",
    help="write the report in another form too: junit, github, openmetrics, loadgen, parquet or pdf; may be repeated",
)  # fmt: skip
@click.option(
    "--index", "runs", type=click.Path(path_type=Path), metavar="RUNS",
    help="write index.html over all runs of this folder instead, to look through, compare and follow them over time",
)  # fmt: skip
def report(folder: Path | None, page: bool, forms: tuple[str, ...], runs: Path | None) -> None:
    """Seals a run FOLDER and writes report.json, steps.csv, report.md and report.html into it."""
    if runs is not None:
        if folder or forms:
            refuse("--index takes the folder that holds the runs, and neither a run nor --export beside it")
        from analysis import gallery

        path, count = gallery.write(runs)
        click.echo(f"{count} {'run' if count == 1 else 'runs'}: {path.resolve()}")
        return
    if folder is None:
        refuse("report what? give a run folder, or --index with the folder that holds the runs")

    _check_forms(forms)
    if "pdf" in forms and not page:
        refuse("--export pdf prints the page, which --no-page leaves out")
    raise SystemExit(make_report(folder, page=page, forms=forms))


def _check_forms(forms: Sequence[str]) -> None:
    from analysis.forms import FORMS

    for form in forms:
        if form not in FORMS:
            refuse(f"--export {form}: the forms are {', '.join(FORMS)}")


def make_report(folder: Path, *, page: bool = True, forms: Sequence[str] = ()) -> int:
    from analysis import console, store, summary
    from analysis.forms import FORMS
    from analysis.verdict import EXIT_CODES

    store.seal(folder)
    run = store.load(folder)
    if (rows := len(run.tables["requests"])) > MANY:
        click.echo(f"reading {rows:,} requests; ten million take about two seconds", err=True)
    found = summary.write(run)
    _remember(folder)
    if page:
        from analysis import report as pages

        pages.write(run, found)
        refresh_gallery(folder)
    for form in forms:
        click.echo(f"{form}: {FORMS[form](run, found)}")
    console.report(found, folder / ("report.html" if page else summary.REPORT))
    return EXIT_CODES[found["verdict"]]


def _remember(folder: Path) -> None:
    """A run goes into the history of its neighbours, where somebody has begun one; it spoils no report."""
    from analysis import history
    from analysis.records import RunError

    try:
        history.follow(folder)
    except RunError as problem:
        click.echo(f"headroom: {problem}", err=True)


def refresh_gallery(folder: Path) -> None:
    """The index over a run's neighbours follows along, where somebody has made one."""
    from analysis import gallery

    runs = Path(os.path.relpath(folder.resolve().parent))
    if gallery.is_ours(runs / gallery.INDEX):
        gallery.write(runs)


@main.command()
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path), nargs=-1)
@click.option(
    "--fail-on", "gates", multiple=True, metavar="p99>5%",
    help="exit with 1 where a figure changed by more, with 3 where that cannot be said; circumstances: with 1 where a "
    "run ran on something else; may be repeated",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
def compare(base: Path, new: tuple[Path, ...], gates: tuple[str, ...], as_json: bool) -> None:
    """Compares run folders: each NEW with BASE at the loads that both have, or the variants inside BASE alone.

    A name that `headroom history --pin` gave to a run stands for its folder.
    """
    import analysis
    from analysis import change, console

    try:
        asked = [change.Gate.parse(gate) for gate in gates if gate != change.CIRCUMSTANCES]
    except ValueError as problem:
        refuse(f"--fail-on: {problem}")
    homes = [Path("runs"), *(folder.parent for folder in (base, *new) if folder.is_dir())]
    base, *new_folders = (_or_pinned(folder, homes) for folder in (base, *new))
    first = analysis.load(base)
    runs = [analysis.load(folder) for folder in new_folders]
    found = [one for run in runs for one in change.changes(first, run)] if runs else change.inside(first)
    if not found:
        refuse(f"{base} has nothing to compare" + (f" with {', '.join(map(str, new))}" if new else ""))
    judged = change.judge(asked, found, [first, *runs], alike=change.CIRCUMSTANCES in gates)
    if as_json:
        click.echo(json.dumps(judged.as_json(), indent=1, ensure_ascii=False))
    else:
        console.changes(found, judged.sentences, several=len(runs) > 1)
    raise SystemExit(judged.exit_code)


def _or_pinned(folder: Path, homes: Sequence[Path]) -> Path:
    from analysis import history

    return folder if folder.is_dir() else history.pinned_folder(str(folder), homes) or folder


@main.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path), metavar="[RUNS]...")
@click.option("--endpoint", metavar="NAME", help="of this endpoint only, such as bert/compiled or bert/*")
@click.option("--figure", metavar="NAME", help="capacity, p50, p99, joules, errors, start or parity, and run by run")
@click.option("--since", metavar="DAY", help="runs from then on, such as 2026-11-01 or 30d")
@click.option("--by", metavar="FACT", help="compare runs by torch, gpu, variant, driver, git … where all else is alike")
@click.option("--against", metavar="NAME", help="hold the newest run against a pinned one, not against all before it")
@click.option("--fail-on-regression", is_flag=True, help="exit with 1 where it is worse, with 3 where that is unknown")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of tables")
@click.option("--add", is_flag=True, help="write RUNS, run folders or folders of them, into their history.jsonl")
@click.option("--pin", nargs=2, metavar="NAME RUN", help="give a run a name, as a baseline")
@click.option("--unpin", metavar="NAME", help="take a name away again")
@click.option("--accept", metavar="RUN", help="what is worse in this run is usual from it on; say --why")
@click.option("--why", default="", help="of --accept, written down with it")
@click.option("--who", default="", help="of --accept  [default: your user name]")
def history(
    folders: tuple[Path, ...], add: bool, pin: tuple[str, str] | None, unpin: str | None, accept: str | None, why: str,
    who: str, **given: Any,
) -> None:  # fmt: skip
    """Shows what became of each endpoint over all runs of a folder RUNS: worse, better, or no change.

    With history.jsonl in it, which --add or --pin begins and every report continues, runs outlive their folders.
    """
    from analysis import history_table

    if add:
        for line in history_table.added(folders or (Path("runs"),)):
            click.echo(line)
        return
    if len(folders) > 1:
        refuse("history of what? give one folder that holds runs, or --add with several")
    runs = folders[0] if folders else Path("runs")
    if pin or unpin:
        for line in history_table.pinned(runs, pin, unpin):
            click.echo(line)
        return
    if accept:
        click.echo(history_table.accepted(runs, accept, who or getpass.getuser(), why))
        return
    if why or who:
        refuse("--why and --who are of --accept RUN")
    if given["by"] and given["fail_on_regression"]:
        refuse("--by compares the values of a fact, and knows no regression; leave --fail-on-regression out")
    raise SystemExit(_show_history(runs, **given))


def _show_history(runs: Path, *, fail_on_regression: bool, as_json: bool, by: str | None, **given: str | None) -> int:
    from analysis import console, history_table

    shown = history_table.compared(runs, by, **given) if by else history_table.overview(runs, **given)
    if as_json:
        click.echo(json.dumps(shown.as_json(), indent=1, allow_nan=False))
    else:
        console.blocks(shown.blocks())
        for sentence in shown.sentences():
            click.echo(sentence)
    return shown.exit_code if fail_on_regression else 0


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--table", type=click.Choice(["requests", "devices"]), default="requests", show_default=True)
def rows(folder: Path, table: str) -> None:
    """Prints the rows of a run FOLDER as CSV, for head and grep; sealing is not needed."""
    import analysis

    stored = analysis.load(folder).tables[table]
    out = csv.writer(sys.stdout, lineterminator="\n")
    try:
        out.writerow(stored.names)
        for part in stored.parts:
            for batch in stored.read(part).to_batches(max_chunksize=1024):
                out.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- plan


def question_options(function: Function) -> Function:
    """What is measured, and what is to be held, shared by `plan` and `tune`."""
    for option in reversed(
        [
            click.argument("folders", nargs=-1, type=click.Path(path_type=Path), metavar="[RUNS]..."),
            click.option("--slo", default="", metavar="p99<50ms", help="the objective, errors and goodput too"),
            click.option("--endpoint", "endpoints", multiple=True, metavar="NAME", help="only these, such as bert/*"),
            click.option(
                "--burst", default="poisson", show_default=True, help="arrivals: poisson, constant, or gamma:0.25"
            ),
            click.option("--json", "as_json", is_flag=True, help="print JSON instead of tables"),
        ]
    ):
        function = option(function)
    return function


@main.command()
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
@click.option("--out", type=click.Path(path_type=Path), help="folder to write to [default: plans/UTC-model]")
def plan(folders: tuple[Path, ...], as_json: bool, out: Path | None, autoscale: bool, **given: Any) -> None:
    """Says how many replicas hold an objective at a rate, what they cost, and how sure that is, from measured RUNS."""
    from analysis import candidates, console, plan_words, scaling
    from analysis import plan as plans
    from analysis.records import run_folder

    with console.progress() as tell:
        runs, asked = _loaded("plan from", folders), _question(given, tell)
        if autoscale:
            scaling.Curve.parse(asked.shape)
        per_gpu, wait_ms = given["replicas_per_gpu"], given["max_wait_ms"]
        variants, left_out = candidates.variants(
            runs, asked.slo, endpoints=given["endpoints"], replicas_per_gpu=per_gpu, tell=tell,
            max_batch=given["max_batch"], batch_wait_s=None if wait_ms is None else wait_ms / 1e3,
        )  # fmt: skip
        made = plans.plan([run.folder.name for run in runs], variants, asked, left_out)
        advice = scaling.advise(*made.best, asked, given["cold_start"]) if autoscale and made.best else None
        folder = out or run_folder(Path("plans"), "", made.model)
        tell(f"writing {folder}")
        made.write(folder, shlex.join(["headroom", *sys.argv[1:]]), advice)
    if as_json:
        click.echo((folder / "plan.json").read_text(encoding="utf-8"), nl=False)
    else:
        console.found(plan_words.warnings(made), plan_words.blocks(made, advice), [plan_words.conclusion(made)])
        click.echo(f"plan: {(folder / 'plan.html').resolve()}")
    raise SystemExit(made.exit_code)


@main.command()
@question_options
@click.option("--objective", type=click.Choice(["rate", "energy"]), default="rate", show_default=True)
def tune(folders: tuple[Path, ...], as_json: bool, objective: str, **given: Any) -> None:
    """Looks for the settings with the highest rate within the objective, or the least energy, in measured RUNS."""
    from analysis import console
    from analysis import tune as tuning

    with console.progress() as tell:
        runs = _loaded("tune from", folders)
        found = tuning.tune(runs, _sizing(given, tell), objective, given["endpoints"])
    sentences = list(tuning.sentences(found, runs))
    if as_json:
        click.echo(json.dumps(found.as_json() | {"notes": sentences}, indent=1, ensure_ascii=False))
    else:
        console.found((), [tuning.block(found)], sentences)
    raise SystemExit(0 if found.best else 1)


def _loaded(what: str, folders: Sequence[Path]) -> list[Any]:
    import analysis

    if not folders:
        refuse(f"{what} what? give one or more run folders, such as runs/20261120T101500Z-bert")
    return [analysis.load(folder) for folder in folders]


def _sizing(given: dict[str, Any], tell: Callable[[str], None]) -> Any:
    from analysis.records import Slo
    from analysis.sizing import Objective, Sizing, Traffic

    if not given["slo"]:
        refuse("hold what? give an objective, such as --slo 'p99<50ms'")
    try:
        slo = Slo.parse(given["slo"])
    except ValueError as problem:
        refuse(f"--slo: {problem}")
    return Sizing(Objective(slo), Traffic.parse(given["burst"], _drawn), tell=tell)


def _question(given: dict[str, Any], tell: Callable[[str], None]) -> Any:
    from analysis.prices import Prices
    from analysis.question import Growth, Question
    from loadtest.engine.arrivals import mean_arrivals, parse_shape, peak

    if given["rate"] is None:
        refuse("hold how much? give a rate, such as --rate 5000")
    try:
        kind, _ = parse_shape(given["shape"])
    except ValueError as problem:
        refuse(f"--shape: {problem}")
    span_s = 86_400.0 if kind == "spike" else 60.0  # of a day with one spike, or of a shape that fills any span
    return Question(
        rate_rps=given["rate"],
        sizing=_sizing(given, tell),
        prices=Prices(**{key: given[key] for key in ("gpu_hour", "kwh", "co2_kg_per_kwh", "currency")}),
        n_plus=given["n_plus"],
        shape=given["shape"],
        peak=peak(given["shape"]),
        mean=1.0 if kind == "sine" else mean_arrivals(given["shape"], span_s) / span_s,
        growth=None if given["growth"] is None else Growth.parse(given["growth"]),
    )


def _drawn(count: int, seed: int, burstiness: float) -> Any:
    """So many arrivals in seconds at a rate of one."""
    from loadtest.engine.arrivals import Pattern

    pattern = Pattern("constant") if burstiness == float("inf") else Pattern("gamma", burstiness)
    milliseconds = 1.01 * count + 100
    while len(found := pattern.offsets(1000.0, milliseconds / 1000, seed)) < count:
        milliseconds *= 1.1
    return found[:count] / 1e6


# ---- campaign and profile


@main.command()
@click.option("--quick/--full", default=True, show_default="quick", help="a quarter of an hour, or most of a day")
@click.option("--out", type=click.Path(path_type=Path), default="campaign", show_default=True, help="its folder")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--only", metavar="SUBJECTS", default="", help="such as resnet50,bert-128")
def campaign(quick: bool, out: Path, device: str, only: str) -> None:
    """Measures models bare and served, eager and compiled, and fills the tables in --out.

    One that was stopped goes on where it was.
    """
    from analysis.campaign.cells import SIZES
    from analysis.campaign.study import study
    from analysis.campaign.work import Work
    from serve import footprint

    _terminate_is_ctrl_c()
    machine = _bare("--machine", device)
    threads = max(1, footprint.cores() - 1)  # served and driven by one machine: the load keeps a core
    what = "quick" if quick else "full"
    size = SIZES[what, machine["kind"]]
    how = {"device": machine["kind"], "threads": threads, "cache_dir": str((out / "cache").resolve())}

    def served(subject: Any, variants: Sequence[str], held: int) -> Any:
        settings = tuple(f"{key}={value}" for key, value in subject.settings)
        more = {"buckets": ",".join(map(str, size.batches_of(subject)))} | ({"settings": settings} if settings else {})
        return serving(subject.model, variants, how | more, [held])

    wanted = [label for label in only.split(",") if label]
    work = Work(out, size, machine["kind"], served, click.echo, threads, wanted)
    click.echo(f"report: {study(work, what, machine)}")


@main.command()
@click.argument("model")
@click.option("--variant", default="compiled", show_default=True)
@click.option("--batches", default="1,4", show_default=True, help="rows of a batch: the smallest and the largest")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="a setting of the model")
@click.option("--out", type=click.Path(path_type=Path), default="profiles", show_default=True, help="folder for traces")
@click.option("--host", help="profile the next batches of a server that was started with --profile, instead")
@click.option("--ca-file", default="", help="PEM file of the CAs that may vouch for --host, in place of the system's")
@click.option("--calls", type=int, default=20, show_default=True, help="how many batches")
def profile(model: str, variant: str, host: str | None, ca_file: str, calls: int, **given: Any) -> None:
    """Where the time of MODEL's batches goes, by operator; traces open in Perfetto or chrome://tracing."""
    from analysis.campaign.tables import operators
    from analysis.console import grid

    if host:
        found = {f"the next {calls} batches": _live_profile(host, ca_file, model, variant, calls)}
    else:
        asked = {"model": model, "variant": variant, "device": given["device"], "profile": str(given["out"])}
        asked |= {"settings": dict(map(_pair, given["settings"])), "batches": _numbers("--batches", given["batches"])}
        whole = _bare(json.dumps(asked | {"calls": calls}))
        if why := whole.get("refused") or whole.get("failed"):
            refuse(why)
        found = {f"batches of {size}": one for size, one in whole["profiles"].items()}
    for what, one in found.items():
        table = operators(f"{model}/{variant}, {what}", one)
        grid(table.title, table.about, table.head, table.rows)
        click.echo(f"trace: {one['trace']}")


def _bare(*words: str) -> Any:
    """What `serve.bare` prints; what it refuses is refused here."""
    done = subprocess.run([sys.executable, "-m", "serve.bare", *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(2)
    return json.loads(done.stdout.strip().splitlines()[-1])


def _live_profile(host: str, ca_file: str, model: str, variant: str, batches: int) -> Any:
    from loadtest.engine import access
    from loadtest.engine.client import OK, Client, error_sentence
    from serve import wire

    client = Client(host, 120.0, access.read(Namespace(token_file="", ca_file=ca_file)))
    path = f"{client.prefix}{wire.model_path(model, variant)}/profile"
    answer = client.send("POST", path, json.dumps({"batches": batches, "timeout_s": 100}).encode())
    if answer.status != OK:
        refuse(f"{client.url}: {answer.error or error_sentence(answer.body)}")
    found = json.loads(answer.body)
    return found | {"calls": found["batches"]}


# ---- cache and doctor


@main.command()
@click.option("--cache-dir", help="the folder [default: HEADROOM_CACHE, or ~/.cache/headroom]")
@click.option("--prune", is_flag=True, help="remove what --older-than and --keep-gb say")
@click.option("--older-than", metavar="30d", help="with --prune: what was last used before so many h, d or w")
@click.option("--keep-gb", type=float, help="with --prune: the oldest, until the rest is no larger than this")
@click.option("--dry-run", is_flag=True, help="with --prune: only say what it would do")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
def cache(
    cache_dir: str | None, prune: bool, older_than: str | None, keep_gb: float | None, dry_run: bool, as_json: bool
) -> None:
    """Lists what is kept for the next start of a server (compiled code, weights, profiles), and removes what is old."""
    from analysis import console, words
    from serve import cache as kept
    from serve.options import ServeOptions

    if prune and older_than is None and keep_gb is None:
        refuse("prune what? give an age, such as --older-than 30d, or a size, such as --keep-gb 20")
    if not prune and (dry_run or older_than is not None or keep_gb is not None):
        refuse("--older-than, --keep-gb and --dry-run are of --prune")
    older_s = None if older_than is None else kept.age_s(older_than)
    folder = ServeOptions(models=(), cache_dir=cache_dir).cache_folder
    items, others = kept.listed(folder)
    now_s = time.time()
    become = kept.tried if dry_run else kept.removed
    most_bytes = None if keep_gb is None else 1e9 * keep_gb
    done = [become(item) for item in kept.chosen(items, now_s, older_s, most_bytes)] if prune else []
    did = "would be removed" if dry_run else "removed"
    became = {one.item: f"stays: {one.why}" if one.why else did for one in done}
    if as_json:
        click.echo(json.dumps(kept.as_json(folder, items, others, became, now_s), indent=1))
    else:
        rows = []
        for one in items:
            state = became.get(one, "in use" if one.locked else "")
            rows.append((one.name, one.kind, words.size(one.bytes), kept.age(now_s - one.used_s), state))
        about = f"{len(items)} kept, {words.size(sum(one.bytes for one in items))}"
        console.grid(str(folder), about, ("name", "kind", "size", "last used", ""), rows)
        for path in others:
            what = f"{path.relative_to(folder)}, {words.size(kept.size(path))}"
            click.echo(f"{what}: neither code, weights nor a profile of this user's, so left alone")
        if prune:
            gone = [one.item.bytes for one in done if not one.why]
            click.echo(f"{did}: {len(gone)}, {words.size(sum(gone))}")
    raise SystemExit(1 if any(one.failed for one in done) else 0)


@main.command()
@click.option("--port", type=port, default="8000", show_default=True, help="the port that `headroom serve` would take")
@click.option("--host", help="an endpoint to look at, such as http://gpu-host:8000")
def doctor(port: int, host: str | None) -> None:
    """Looks at this machine, and says what to do about what is missing."""
    from analysis.console import console
    from serve.doctor import checks

    out = console()
    marks = {"ok": "[green]ok[/green]  ", "note": "[yellow]note[/yellow]", "bad": "[red]bad[/red] "}
    worst = "ok"
    for name, state, found, advice in checks(port, host):
        said = f"{name:<12} {found}" + (f" — {advice}" if advice else "")
        out.print(f"{marks[state]}  " + said.replace("[", r"\["))  # headroom[serve] is no style
        worst = "bad" if state == "bad" else worst
    raise SystemExit(2 if worst == "bad" else 0)


if __name__ == "__main__":
    main()
