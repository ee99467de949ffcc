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


BUSY = """
import os, time, gevent
from tailrate.loadtest.engine.workers.on_time.cpu_priority import precedence
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

def until_it_is(wanted, work):
    end = time.monotonic() + 60
    while os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != wanted and time.monotonic() < end:
        work()

with precedence() as granted:
    print(granted)
    for _ in range(2 if granted == "real-time" else 0):
        until_it_is(os.SCHED_OTHER, lambda: gevent.sleep(0))
        print(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
        until_it_is(os.SCHED_RR, lambda: gevent.sleep(0.02))
        print(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
gevent.sleep(0.3)
print(os.sched_getscheduler(0), os.nice(0))
"""


def asked(become):
    return said(ASK.format(become=become))


def said(code):
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


@pytest.mark.skipif(sys.platform != "linux", reason="schedulers are Linux's here")
def test_a_busy_thread_is_real_time_no_longer_and_is_again_when_it_is_calm():
    """Of the core of a thread that is both, the kernel takes its 5 % at one go."""
    granted, *found, after = said(BUSY)
    assert found == [str(os.SCHED_OTHER), str(os.SCHED_RR)] * (2 if granted == "real-time" else 0)
    assert after == f"{os.SCHED_OTHER} {os.nice(0)}"
