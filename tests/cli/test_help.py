"""What the front door says of its commands, and that it waits for none of them."""

import json
import subprocess
import sys

import click
import pytest
import yaml
from click.testing import CliRunner

from tailrate.cli.main import main

LOADED = {"run", "soak"}
"""Whose options are the load's own, which knows what it drives."""
LIBRARIES = {"asyncio", "locust", "numba", "numpy", "pandas", "pyarrow", "ray", "scipy", "ssl", "torch"}
IMPORTED = f"""
import json, sys
from click.testing import CliRunner
from tailrate.cli.main import main
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
print(json.dumps(sorted({LIBRARIES!r} & set(sys.modules))))
"""


def imported(*lines):
    """By the help of these, one after the other."""
    asked = json.dumps([[*line, "--help"] for line in lines])
    done = subprocess.run([sys.executable, "-c", IMPORTED, asked], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_no_library_is_waited_for_where_nothing_is_done():
    assert imported([], *([name] for name in main.commands if name not in LOADED)) == set()


@pytest.mark.parametrize("name", sorted(LOADED))
def test_a_load_s_options_take_numbers_and_no_more(name):
    assert imported([name]) <= {"asyncio", "numpy", "ssl"}


@pytest.mark.parametrize("name", [*main.commands])
def test_each_command_is_listed_with_its_own_first_sentence(name):
    listed = " ".join(CliRunner().invoke(main, ["--help"], terminal_width=500).output.split())
    command = main.commands[name]
    assert isinstance(command, click.Command)
    assert command.name == name
    said = command.get_short_help_str(limit=1000)
    assert said.endswith(".")
    assert f"{name} {said}" in listed


def test_every_option_has_a_variable_of_its_name(monkeypatch):
    """And those of a run obey Locust's, too, so that both halves of it are told the same."""
    for name, command in main.commands.items():
        for option in (each for each in command.params if isinstance(each, click.Option)):
            key = max(option.opts, key=len).removeprefix("--").replace("-", "_").upper()
            assert option.envvar[0] == f"TAILRATE_{name.upper()}_{key}"
    for variable, value in (("LOCUST_RATES", "7"), ("LOCUST_SEED", "1"), ("TAILRATE_RUN_SEED", "2")):
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("TAILRATE_RUN_SET", "sequence=64")
    said = yaml.safe_load(CliRunner().invoke(main, ["run", "bert", "--print-file"]).output)
    assert said == {"scenario": "bert", "rates": "7", "seed": 2, "set": ["sequence=64"]}
