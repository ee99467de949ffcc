"""README and docs are true: their commands exist, the options too, and the column tables are the columns."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.analysis.records.metric_rows import METRIC_COLUMNS
from tailrate.analysis.records.rows import REQUEST_COLUMNS
from tailrate.cli.main import main
from tailrate.cli.options import scenarios
from tailrate.loadtest.engine.modes import OPTIONS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RUN_FOLDER = (ROOT / "docs" / "run-folder.md").read_text()
LOAD = (ROOT / "docs" / "load.md").read_text()
PAGES = [README, *(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))]
MAKEFILE = (ROOT / "Makefile").read_text()


def commands():
    for block in (block for page in PAGES for block in re.findall(r"^```\n(.*?)^```", page, re.S | re.M)):
        for line in block.splitlines():
            if re.match(r"(make|pip|tailrate|locust) ", line):
                yield line


def test_there_are_commands():
    assert {line.split()[0] for line in commands()} == {"make", "pip", "tailrate", "locust"}


@cache
def help_of(locustfile):
    """`locust --help` never shows what a locustfile adds."""
    code = f"from locust.util.load_locustfile import load_locustfile; load_locustfile({locustfile!r});"
    code += "from locust.argument_parser import get_parser; print(get_parser().format_help())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout


@pytest.mark.parametrize("line", list(commands()))
def test_commands_exist_with_their_options(line):
    words = shlex.split(line)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:.*## ", MAKEFILE, re.M)
    elif words[0] == "tailrate":
        command = main.commands[words[1]]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
    elif words[0] == "locust":
        said = help_of(words[words.index("-f") + 1])
        for word in words:
            if word.startswith("--"):
                assert re.search(rf"(^|\s){re.escape(word)}[\s,=]", said), word


def test_mentioned_subcommands_and_scenarios_exist():
    for name in re.findall(r"`tailrate ([a-z]+)", README):
        assert name in main.commands, name
    for name in re.findall(r"loadtest/([a-z0-9_]+)\.py", README):
        assert name in scenarios(), name
    for path in re.findall(r"`((?:serve|analysis|loadtest|docs|tests)/[\w/]+\.\w+)`", README):
        assert (ROOT / path).exists() or path == "serve/models/NAME.py" or path == "serve/variants/NAME.py", path


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=str)
def test_pictures_are_there_in_light_and_dark(page):
    found = re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text())
    assert all((page.parent / name).is_file() for name in found)
    assert {name.replace("-dark", "-light") for name in found} == {name for name in found if "-light" in name}


def test_the_help_of_make_names_its_targets():
    done = subprocess.run(["make", "--no-print-directory"], capture_output=True, text=True, cwd=ROOT, check=True)
    names = ["help", "demo", "check", "test", "test-long", "lint", "bench", "bench-quick", "bench-compare"]
    names += ["peers", "system", "constraints", "dist", "docs", "images", "audit", "clean"]
    assert [line.split()[0] for line in done.stdout.splitlines()] == names


def table(title):
    section = RUN_FOLDER.split(f"## Columns of `{title}`")[1].split("\n#")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([\w<>]+) \|", section, re.M))


def test_column_tables():
    assert table("requests") == REQUEST_COLUMNS
    assert table("devices") == DEVICE_COLUMNS
    assert table("metrics") == METRIC_COLUMNS


def test_the_option_table_has_every_option_and_its_default():
    for option in OPTIONS:
        assert f"--{option.name}" in LOAD, option.name
    for name, value in re.findall(r"`--([a-z-]+) (\d+)`", LOAD.split("## Options")[1].split("\n## ")[0]):
        default = next(option.default for option in OPTIONS if option.name == name)
        assert float(value) == float(default), name


def test_a_newcomers_path_is_short():
    (path,) = re.findall(r"follow the path, 900 lines with this page: (.*?)\n", README)
    files = ["README.md", *re.findall(r"`([\w/]+\.py)`", path)]
    assert len(files) == 6
    assert sum(len((ROOT / file).read_text().splitlines()) for file in files) <= 900
