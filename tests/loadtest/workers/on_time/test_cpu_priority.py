"""What is granted depends on the kernel and the user; what is said must be what the kernel then reports."""

import os
import re
import subprocess
import sys

import pytest

from tailrate.loadtest.engine.workers.on_time.cpu_priority import NICE

# in a process of its own, as the tests keep their priority; {become} runs after the imports
ASK = """
import os, subprocess
from tailrate.loadtest.engine.workers.on_time.cpu_priority import precedence
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # whatever the tests run under
{become}
now = lambda: f"{{os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK}} {{os.nice(0)}}"
print(now())
with precedence() as granted:
    print(granted)
    print(now())
    print(os.popen("chrt -p $$ 2>/dev/null | head -1 | grep -c SCHED_OTHER").read().strip())
print(now())
"""


def asked(become):
    code = ASK.format(become=become)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="schedulers are Linux's here")
@pytest.mark.parametrize("become", ["pass", "os.setuid(65534)"])
def test_what_is_said_is_what_is_granted_and_it_ends_with_the_block(become):
    if become != "pass" and os.geteuid() != 0:
        become = "pass"
    before, granted, during, child_is_ordinary, after = asked(become)
    assert before == after == f"{os.SCHED_OTHER} {os.nice(0)}"
    slices = re.fullmatch(r"nice (-?\d+), slices of 0.1 ms", granted)
    if granted == "real-time":
        assert during == f"{os.SCHED_RR} {os.nice(0)}"
    elif slices:
        assert during == f"{os.SCHED_OTHER} {slices[1]}"
        assert int(slices[1]) in (NICE, os.nice(0))
    else:
        assert granted == "as started"
        assert during == before
    assert child_is_ordinary == "1"
