"""Locust's own statistics, told at once, against the same told by Locust's event one by one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S

TOLD = Path(__file__).parents[2] / "support/locust_told.py"


@pytest.fixture(scope="module")
def found():
    words = [sys.executable, TOLD]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_they_say_what_they_would_have_said_once(found):
    for at_once, one_by_one, again in found["at_once"]:
        assert at_once == one_by_one == again
    last = found["at_once"][-1][0]
    assert last["entries"]["all"]["num_requests"] == 1000
    assert sum(last["errors"]) == last["entries"]["all"]["num_failures"] > 100


def test_nobody_waits_for_more_than_many(found):
    *before, last = found["waiting"]
    assert set(before) == {0}
    assert last == len(found["waiting"])


def test_others_that_listen_hear_of_each_at_once(found):
    others = found["others"]
    assert others["heard"] == others["told"]
    assert others["ours"] == others["theirs"]
