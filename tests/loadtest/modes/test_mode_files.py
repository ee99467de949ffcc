"""A mode is one file: it is found by its name, its options are its fields, and nobody else asks which one it is."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from tailrate.loadtest.engine import modes
from tailrate.loadtest.engine.modes import MODES, OPTIONS, from_options
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

FOLDER = Path(modes.__file__).parent
LOAD_SIDE = FOLDER.parents[1]


def test_each_file_is_a_mode():
    assert list(MODES) == sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


@pytest.mark.parametrize("kind", MODES.values(), ids=lambda kind: kind.name)
def test_a_modes_options_are_its_fields_with_the_same_defaults(kind):
    known = {field.name: field.default for field in fields(kind)}
    for option in kind.options:
        default = known[option.key]
        written = "on" if default is True else "off" if default is False else default
        assert written == option.default or ",".join(map(str, written)) == option.default


def test_an_option_says_whose_it_is():
    told = {option.name: option.help.partition(":")[0] for option in OPTIONS if option.modes}
    assert told["rounds"] == "mode ab"
    assert told["budget-seconds"] == "mode knee or offline"
    assert {name for option in OPTIONS for name in option.modes} <= set(MODES)


def test_an_option_that_the_scenario_sets_for_another_mode_is_no_mistake():
    usual = modes.defaults({"rounds": 6, "total_seconds": 28800})
    assert usual["total_seconds"] == 28800.0
    options = usual | {"mode": "hold"}
    assert from_options("x", "m", _Given(options), usual).mode.name == "hold"
    with pytest.raises(ScenarioError, match="--rounds is for mode ab, not for hold"):
        from_options("x", "m", _Given(options | {"rounds": 4}), usual)


class _Given:
    def __init__(self, options):
        self.__dict__ |= options


def test_nobody_on_the_load_side_compares_the_names_of_modes():
    found = []
    for path in LOAD_SIDE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and "mode" in ast.unparse(node.left):
                words = {word.value for word in ast.walk(node) if isinstance(word, ast.Constant)}
                found += [f"{path}:{node.lineno}"] if words & set(MODES) else []
    assert found == []
