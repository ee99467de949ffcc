"""What is granted depends on the kernel and the user; what is said must be what the kernel then reports."""

import os
import re
import subprocess
import sys

from loadtest.engine.priority import NICE

# in a process of its own: the tests keep theirs
ASK = "import os; from loadtest.engine.priority import take_precedence; print(take_precedence(), '/', os.nice(0))"


def asked():
    return subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout.strip()


def test_what_is_said_is_what_is_granted():
    said, _, nice = asked().partition(" / ")
    granted = re.fullmatch(r"nice (-?\d+), slices of 0.1 ms", said)
    assert int(nice) == (int(granted[1]) if granted else os.nice(0))
    assert int(nice) in (NICE, os.nice(0))


def test_a_user_without_the_right_keeps_the_nice_value():
    become_nobody = "os.setuid(65534)" if os.geteuid() == 0 else "pass"
    code = ASK.replace("print(", f"{become_nobody}; print(")  # after the imports, which nobody may not read
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(f"/ {os.nice(0)}")
