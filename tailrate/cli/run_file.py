"""A run as a file: its scenario, its endpoints, and any option of the command by its name.

What is wrong in it is said with its line and key. What stands on the command line as well goes before the file.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from tailrate.cli.misuse import refuse

SUFFIXES = (".yaml", ".yml")
SCENARIO, ENDPOINTS = "scenario", "endpoints"
SEPARATORS = {"slo": ";", "json_headers": ";"}
"""Of options that are several in a text; those of others are separated by commas."""
ENDPOINT_KEYS = ("name", "url", "model", "version", "protocol")
GIVEN = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)
OF_ONE_RUN = ("print_file", "run_id", "run_dir", "when")
LOCUST = "locust-args"
"""Words for Locust, such as a scenario's own options."""
FILE = "tailrate.run_file"
"""Where a command's context keeps what its file says."""


def is_run_file(name: str | None) -> bool:
    return bool(name) and Path(str(name)).suffix in SUFFIXES


def applied(context: click.Context, argument: str = SCENARIO) -> dict[str, Any]:
    """The parameters of a command that was given a run file as that argument, with what the file says."""
    path = Path(context.params[argument])
    said = _read(path, context.command, argument)
    context.meta[FILE] = said
    given = {name for name in context.params if context.get_parameter_source(name) in GIVEN and name != argument}
    found = context.params | {name: value for name, value in said.items() if name not in given}
    if "locust_args" in found:  # of an option that is there twice, Locust takes the last
        found["locust_args"] = (*said.get("locust_args", ()), *context.params["locust_args"])
    return found


def is_given(context: click.Context, name: str) -> bool:
    """On the command line, in the environment or in a run file, not by default."""
    return name in context.meta.get(FILE, {}) or context.get_parameter_source(name) in GIVEN


def text(context: click.Context) -> str:
    """What a command was given, as a file that says the same, less what is secret."""
    import yaml

    from tailrate.loadtest.engine.record.provenance import HIDDEN, command_line, without_secrets

    found: dict[str, Any] = {}
    parameters = applied(context) if is_run_file(context.params[SCENARIO]) else context.params
    for param in context.command.params:
        name = str(param.name)
        left_out = name in (*OF_ONE_RUN, "locust_args") or re.fullmatch(HIDDEN, f"--{_key(param)}")
        if is_given(context, name) and not left_out:
            value = parameters[name]
            value = [*map(str, value)] if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
            found[_key(param)] = without_secrets(str(value)) if name == "json_headers" else value
    if words := parameters.get("locust_args"):
        found[LOCUST] = shlex.split(command_line(words))
    if str(found[SCENARIO]).endswith(".py"):
        found[SCENARIO] = str(Path(found[SCENARIO]).resolve())
    if str(found.get(ENDPOINTS, "")).startswith("["):
        found[ENDPOINTS] = json.loads(found[ENDPOINTS])
    elif found.get(ENDPOINTS):
        found[ENDPOINTS] = found[ENDPOINTS].split(",")
    return str(yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=120))


def schema(command: click.Command) -> dict[str, Any]:
    """A JSON schema of the files that a command takes."""
    properties: dict[str, Any] = {SCENARIO: {"type": "string", "description": "its name, or the path of a locustfile"}}
    for param in _options(command).values():
        kind: dict[str, Any] = {"type": ["string", "number", "array", "object"]}
        if param.is_flag:
            kind = {"type": "boolean"}
        elif isinstance(param.type, click.Choice):
            kind = {"enum": list(param.type.choices)}
        elif isinstance(param.type, click.types.IntParamType):
            kind = {"type": "integer"}
        elif isinstance(param.type, click.types.FloatParamType):
            kind = {"type": "number"}
        properties[_key(param)] = kind | {"description": param.help or ""}
    whole = {"type": "object", "required": ["url"], "properties": {key: {"type": "string"} for key in ENDPOINT_KEYS}}
    properties[LOCUST] = {"type": "array", "description": "words for Locust, such as a scenario's own options"}
    properties[ENDPOINTS] |= {"type": ["string", "array"], "items": {"anyOf": [{"type": "string"}, whole]}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"a run file of tailrate {command.name}",
        "type": "object",
        "required": [SCENARIO],
        "additionalProperties": False,
        "properties": properties,
    }


def _options(command: click.Command) -> dict[str, click.Option]:
    """By the key that a file has for them."""
    return {
        _key(param): param
        for param in command.params
        if isinstance(param, click.Option) and param.name not in ("print_file", "help")
    }


def _key(param: click.Parameter) -> str:
    longest = max(param.opts, key=len)
    return longest.removeprefix("--")


def _read(path: Path, command: click.Command, argument: str) -> dict[str, Any]:
    options = _options(command)
    found: dict[str, Any] = {}
    for key, value, line in _entries(path):
        where = f"{path}, line {line}"
        name = key.replace("_", "-")
        if name == argument == SCENARIO:
            found[SCENARIO] = str(_beside(path, str(value)))
        elif name == LOCUST and _takes_words(command):
            if not isinstance(value, list):
                refuse(f"{where}: '{key}' must be a list of words, such as [--prompt-tokens, 900]")
            found["locust_args"] = tuple(map(_plain, value))
        elif name not in options:
            near = get_close_matches(name, [*({SCENARIO} & {argument}), *options], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            hint = hint or f"; those of a scenario stand under {LOCUST}" if _takes_words(command) else hint
            refuse(f"{where}: '{key}' is no option of tailrate {command.name}{hint}")
        elif str(options[name].name) in found:
            refuse(f"{where}: '{key}' is there twice")
        else:
            found[str(options[name].name)] = _value(where, key, value, options[name])
    if argument == SCENARIO and SCENARIO not in found:
        refuse(f"{path} names no scenario; write for instance scenario: bert")
    return found


def _takes_words(command: click.Command) -> bool:
    return any(param.name == "locust_args" for param in command.params)


def _beside(path: Path, scenario: str) -> str | Path:
    """A locustfile's path is meant from the folder of the run file."""
    return path.parent / scenario if scenario.endswith(".py") else scenario


def _entries(path: Path) -> Iterator[tuple[str, Any, int]]:
    """(key, value, line) of the file's mapping."""
    import yaml

    from tailrate.cli.yaml_words import Loader

    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        refuse(f"the run file {path} cannot be read: {getattr(problem, 'strerror', None) or 'it is no text'}")
    try:
        loader = Loader(content)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            refuse(f"{path} holds no keys; write an option and its value, such as device: cpu")
        for key, value in root.value:
            yield str(key.value), loader.construct_object(value, deep=True), key.start_mark.line + 1
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        what = "" if isinstance(problem, yaml.composer.ComposerError) else "it is no YAML: "
        refuse(f"{path}{line}: {what}{getattr(problem, 'problem', None) or str(problem).splitlines()[0]}")
    except RecursionError:
        refuse(f"{path} is nested too deep")


def _value(where: str, key: str, value: Any, option: click.Option) -> Any:
    """As the command line would have it."""
    name, meant = str(option.name), getattr(value, "meant", value)
    if option.is_flag:
        if not isinstance(meant, bool):
            refuse(f"{where}: '{key}' must be true or false, not {value}")
        return meant
    if meant is None:
        refuse(f"{where}: '{key}' has no value")
    if name == ENDPOINTS and isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return json.dumps([_endpoint(where, each) for each in value])
    if option.multiple:
        pairs = [f"{one}={other}" for one, other in value.items()] if isinstance(value, dict) else value
        return tuple(map(str, pairs if isinstance(pairs, list) else [pairs]))
    if isinstance(value, list) and not any(isinstance(each, list | dict) for each in value):
        value = SEPARATORS.get(name, ",").join(map(_plain, value))
    elif name == "json_headers" and isinstance(value, dict):
        value = ";".join(f"{one}: {other}" for one, other in value.items())
    try:
        return option.type.convert(_plain(value), option, None)
    except click.BadParameter as problem:
        refuse(f"{where}: {key}: {problem.message}")


def _endpoint(where: str, value: Any) -> str | Mapping[str, Any]:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("url"), str):
        refuse(f"{where}: each of the endpoints needs a url, as {value!r} has none")
    flags = {key for key, each in value.items() if isinstance(getattr(each, "meant", each), bool)} - {*ENDPOINT_KEYS}
    return {str(key): each.meant if key in flags else _plain(each) for key, each in value.items()}


def _plain(value: Any) -> str:
    """A scalar as it is written, a list or a mapping as JSON."""
    return json.dumps(_typed(value)) if isinstance(value, list | dict) else str(value)


def _typed(value: Any) -> Any:
    """As JSON has it: of what YAML takes for a number, `1:30` is none."""
    if isinstance(value, dict):
        return {str(key): _typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [*map(_typed, value)]
    if value.meant is None or isinstance(value.meant, bool):
        return value.meant
    try:
        return str(value) if isinstance(value.meant, str) else json.loads(value)
    except ValueError:
        return str(value)
