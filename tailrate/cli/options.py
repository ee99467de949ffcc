"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tailrate.cli.misuse import refuse

Function = TypeVar("Function", bound=Callable[..., Any])


def port(text: str) -> int:
    from tailrate.serve.deploy.probe import number

    try:
        return number(text)
    except ValueError as problem:
        refuse(str(problem))


processes = click.IntRange(1, 1024)
"""Of a load: Locust itself takes -1 for one per core."""


def out_folder(text: str) -> Path:
    """Of --out; an empty one is a variable that was not set."""
    if not text:
        refuse("--out '' names no folder")
    return Path(text)


class HeadedOption(click.Option):
    """One that stands under a heading of its own in the help."""

    def __init__(self, *words: Any, heading: str, **more: Any) -> None:
        super().__init__(*words, **more)
        self.heading = heading


class HeadedCommand(click.Command):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(param, "heading", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def serve_options(function: Function) -> Function:
    """The options that decide how a model is served, shared by `serve` and by `run` without a host."""
    option = partial(click.option, cls=HeadedOption, heading="Serving, where no --host is given")
    for add in reversed(
        [
            option("--device", default="auto", show_default=True, help="auto, cpu or cuda"),
            option("--weights", default="random", show_default=True, help="random, pretrained, or a path"),
            option("--max-batch", type=int, help="rows per batch [default: by model and device]"),
            option("--buckets", metavar="1,4,16", help="rows per batch, padded [default: powers of two]"),
            option("--max-wait-ms", type=float, default=0.0, show_default=True, help="wait for company this long"),
            option("--max-queue", type=int, default=256, show_default=True, help="beyond it requests are refused"),
            option("--replicas", type=int, default=1, show_default=True, help="replicas per variant"),
            option("--max-replicas", type=int, help="let Ray Serve add replicas under load, up to this many"),
            option("--num-gpus", type=float, help="share of a GPU per replica [default: the GPUs, divided]"),
            option("--threads", type=int, help="CPU threads per replica [default: the cores, shared]"),
            option("--ingress", default="auto", show_default=True, help="fast, plain, or auto"),
            option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="a setting of the model's own"),
            option("--cache-dir", help="where compiled artefacts and weights are kept"),
            option(
                "--parity-share", type=float, default=0.001, show_default=True, help="of responses compared afterwards"
            ),
            option("--fail-on-recompile", is_flag=True, help="refuse a request that would compile again"),
            option("--profile", is_flag=True, help="let clients ask for a profile of the next batches"),
        ]
    ):
        function = add(function)
    return function


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        refuse(f"--set '{text}' is not understood; write for instance --set sequence=512")
    return key, value


def numbers(option: str, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in (text or "").split(",") if word.strip())
    except ValueError:
        refuse(f"{option} '{text}' is not understood; write for instance {option} 1,4,16")


def scenarios() -> dict[str, Path]:
    """Every locustfile that ships with tailrate, by name."""
    from tailrate import loadtest

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
    if not any(isinstance(found.get(name), str) for name in ("model", "protocol")):
        refuse(f"{path} has no class with a `model`; see loadtest/bert.py")
    return {"model": "", **found}


def scenario_options(mode: str = "") -> Callable[[Function], Function]:
    """The load's as click options; None where not given, so that the scenario's own default holds.

    With a mode only those that it has are shown. Locust's variables hold for all of a run, not for its load alone.
    """
    from tailrate.loadtest.engine.modes import OPTIONS

    def add(function: Function) -> Function:
        for option in reversed(OPTIONS):
            kind: Any = click.Choice(option.choices) if option.choices else type(option.default)
            elsewhere = bool(mode) and (option.name == "mode" or (bool(option.modes) and mode not in option.modes))
            heading = f"Mode {' or '.join(option.modes)}" if option.modes else "Load"
            function = click.option(
                f"--{option.name}", option.key, type=kind, help=option.what, hidden=elsewhere,
                cls=HeadedOption, heading=heading, envvar=f"LOCUST_{option.key.upper()}",
            )(function)  # fmt: skip
        return function

    return add


# ---- what a shell can complete


def completed(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """For `shell_complete`: those that begin so; where none does, files."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.startswith(begun)]
        return found or [CompletionItem(begun, type="file")]

    return complete


def run_folders() -> list[str]:
    """Of ./runs, where runs are written unless told."""
    return sorted(str(path.parent) for path in Path("runs").glob("*/run.json"))


def model_names() -> list[str]:
    from tailrate.serve import models

    return models.names()


def question_options(function: Function) -> Function:
    """What is measured, and what is to be held, shared by `plan` and `tune`."""
    for option in reversed(
        [
            click.argument(
                "folders",
                nargs=-1,
                type=click.Path(path_type=Path),
                metavar="[RUNS]...",
                shell_complete=completed(run_folders),
            ),
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
