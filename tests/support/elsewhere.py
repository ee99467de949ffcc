"""Another system, played by taking away what it does not have: in this process's children, and in all of theirs.

`macos(folder)` is the environment for programs without Linux's scheduler calls, epoll, timerfd and /proc. psutil, which
has ways of its own on macOS, may read /proc all the same.
"""

from __future__ import annotations

import os
from pathlib import Path

MACOS = """
import ctypes, os, select, sys

def belongs_to_linux(name):
    return name.lower().startswith(("sched_", "epoll", "memfd_", "eventfd", "pidfd_", "posix_fadvise", "prlimit"))

for module in (os, select):
    for name in filter(belongs_to_linux, dir(module)):
        delattr(module, name)

class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name.startswith(("timerfd_", "prctl", "sched_")):
            raise AttributeError(name)
        return super().__getattr__(name)

def hidden(path):
    frame = sys._getframe(2)
    while frame is not None and "psutil" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is None

def look(event, words):
    if event in ("open", "os.listdir", "os.scandir") and words and isinstance(words[0], (str, os.PathLike)):
        if os.fspath(words[0]).startswith(("/proc", "/sys/")) and hidden(words[0]):
            raise FileNotFoundError(2, "there is none on macOS", os.fspath(words[0]))

def stat(path, *words, **more):
    if isinstance(path, (str, os.PathLike)) and str(path).startswith(("/proc", "/sys/")) and hidden(path):
        raise FileNotFoundError(2, "there is none on macOS", str(path))
    return os_stat(path, *words, **more)

ctypes.CDLL = Library
os_stat, os.stat = os.stat, stat
sys.addaudithook(look)
"""

WINDOWS = """
import importlib.abc, sys
import click, locust.main, numpy, pyarrow, psutil  # not ours; they choose by the system when they are imported

ABSENT = ("fcntl", "grp", "pwd", "resource", "termios")
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in ABSENT:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
sys.platform = "win32"
"""


def macos(folder: Path) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(MACOS)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])])}
