"""The list of mutants fits the code: no test is run here, only looked for (`python tests/mutants.py` runs them)."""

import ast
from collections import Counter
from functools import cache

import pytest
from mutants import KINDS, MUTANTS, ROOT, Mutant


@cache
def functions(name: str) -> set[str]:
    """The tests of a file."""
    tree = ast.parse((ROOT / "tests" / name).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_has_its_place_and_its_tests(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.kind in KINDS
    compile(text.replace(mutant.old, mutant.new), mutant.path, "exec")
    assert mutant.tests
    for word in mutant.tests:
        name, _, function = word.partition("::")
        assert not function or function in functions(name), f"{name} has no {function}"
        assert functions(name)


def test_there_are_enough_of_them_in_every_package() -> None:
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    counts = Counter(mutant.package for mutant in MUTANTS)
    assert all(counts[package] >= 18 for package in ("serve", "loadtest", "analysis"))
    assert counts["tailrate"]
    assert {mutant.kind for mutant in MUTANTS} == set(KINDS)
