"""What a server's processes have to say when something breaks, told where somebody reads it.

Replicas have no terminal: each sends what it logs, from warnings upward, to the process that started the server, and in
a cluster of anyone's to the standard error of its container. A thing is told whole the first time; while it goes on,
every ten seconds how often it came again. So a storm of failures has a page of log, and no failure is uncounted.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

ENV = "TAILRATE_LOG_SOCKET"
FORMAT = "TAILRATE_LOG_FORMAT"
EVERY_S = 10.0
"""After which it is said how often a thing came again."""
FORGOTTEN_S = 600.0
"""After which it is told whole again."""
PLACES = 256
"""That are remembered; what comes from elsewhere is counted among all others."""
MOST_CHARACTERS = 16_000
MOST_BYTES = 32 << 20
"""Of a copy in a file."""
PATIENCE_S = 1.0

Entry = dict[str, Any]
Write = Callable[[Entry], None]


class Handler(logging.Handler):
    """Of one process: `who` (endpoint and replica) goes into every entry."""

    def __init__(self, who: Mapping[str, str], write: Write, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._who, self._write, self._now = who, write, now
        self._seen: dict[Any, Repeated] = {}
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        entry = _entry(record, self._who)
        place = _place(record)
        seen = self._seen.get(place)
        if seen is None and len(self._seen) >= PLACES:
            place, seen = None, self._seen.get(None)
            entry = entry | {"message": f"many different things; the last: {entry['message']}"}
        if seen is None:
            self._seen[place] = Repeated(self._now())
            self._write(entry)
            return
        seen.times, seen.last, seen.last_s = seen.times + 1, entry, self._now()
        if self._timer is None:
            self._timer = threading.Timer(EVERY_S, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Says how often what was told came again since."""
        self.acquire()
        try:
            self._timer = None
            for place, seen in list(self._seen.items()):
                if seen.times:
                    self._write(seen.last | {"again": seen.times})
                    seen.times = 0
                elif seen.last_s < self._now() - FORGOTTEN_S:
                    del self._seen[place]
        finally:
            self.release()


class Repeated:
    """Of one place in the code."""

    def __init__(self, now_s: float) -> None:
        self.times = 0
        self.last: Entry = {}
        self.last_s = now_s


def begin(endpoint: str, replica: str) -> None:
    """In a process of a server: from here on all that it logs is told."""
    path = os.environ.get(ENV)
    write = _to_socket(path) if path else _to(_stream(), os.environ.get(FORMAT, "text"))
    logging.getLogger().addHandler(Handler({"endpoint": endpoint, "replica": replica}, write))


def gather(folder: Path, form: str, out: TextIO, copy: Path | None = None) -> None:
    """In the process that starts the server: writes what all others tell; its environment says where they tell it."""
    path = folder / "log"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    writes = [_to(out, form), *([_to_file(copy, form)] if copy else [])]

    def read(way: socket.socket) -> None:
        with way, way.makefile(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with suppress(ValueError, LookupError, TypeError, AttributeError):  # no entry of ours
                    entry = json.loads(line)
                    text(entry)
                    for write in writes:
                        write(entry)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=read, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    os.environ[ENV] = str(path)


def text(entry: Entry) -> str:
    """One entry for people: a line, and its traceback indented, so that nothing in it can pass for another entry."""
    again = f" ({entry['again']} times more)" if entry.get("again") else ""
    line = f"{entry['time']} {entry['level']} {entry['endpoint']} {entry['replica']} {entry['logger']}: "
    trace = str(entry.get("traceback") or "").strip().splitlines()
    shown = trace[-1:] if again else trace
    return "\n".join([line + _tame(str(entry["message"])) + again, *(f"  {_tame(one)}" for one in shown)])


def _tame(line: str) -> str:
    """Clients' words are in messages: no control character reaches a terminal, and no line break begins an entry."""
    return re.sub(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]", lambda found: f"\\x{ord(found[0]):02x}", line)


def _entry(record: logging.LogRecord, who: Mapping[str, str]) -> Entry:
    try:
        message = record.getMessage()
    except Exception as problem:
        message = f"{record.msg} (not to be written: {problem})"
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    found = {"time": at, "level": record.levelname, **who, "logger": record.name, "message": _cut(message)}
    if record.exc_info and record.exc_info[1] is not None:
        found["traceback"] = _cut("".join(traceback.format_exception(record.exc_info[1])))
    return found


def _cut(words: str) -> str:
    """The beginning and the end, where a traceback's exception is."""
    half = MOST_CHARACTERS // 2
    return words if len(words) <= MOST_CHARACTERS else f"{words[:half]}\n[…]\n{words[-half:]}"


def _place(record: logging.LogRecord) -> Any:
    """Where it comes from: the same failure of two requests has two messages and one place."""
    found: list[Any] = [record.pathname, record.lineno]
    problem = record.exc_info[1] if record.exc_info else None
    if problem is not None:
        found.append(type(problem).__qualname__)
        found += [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(problem.__traceback__)]
    return tuple(found)


def _to(out: TextIO, form: str) -> Write:
    lock = threading.Lock()

    def write(entry: Entry) -> None:
        line = json.dumps(entry) if form == "json" else text(entry)
        with lock, suppress(OSError, ValueError):  # whoever read it is gone
            out.write(line + "\n")
            out.flush()

    return write


def _to_file(path: Path, form: str) -> Write:
    """There when there is something in it, and never larger than so much."""
    held: list[TextIO] = []
    lock = threading.Lock()

    def write(entry: Entry) -> None:
        with lock, suppress(OSError):  # nobody can write there
            if not held:
                held.append(path.open("a", encoding="utf-8"))
            if held[0].tell() < MOST_BYTES:
                kept = _to(held[0], form)
                kept(entry)
                if held[0].tell() >= MOST_BYTES:
                    kept(entry | {"logger": __name__, "message": f"{path} is full", "traceback": None, "again": 0})

    return write


def _to_socket(path: str) -> Write:
    """What nobody takes goes to standard error."""
    instead = _to(sys.stderr, "text")

    def write(entry: Entry) -> None:
        try:
            with socket.socket(socket.AF_UNIX) as way:
                way.settimeout(PATIENCE_S)
                way.connect(path)
                way.sendall(json.dumps(entry).encode() + b"\n")
        except OSError:
            instead(entry)

    return write


def _stream() -> TextIO:
    """Of a pod its first process, which `kubectl logs` shows; elsewhere Ray keeps the standard error of each."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        with suppress(OSError):
            return Path("/proc/1/fd/2").open("a", encoding="utf-8")
    return sys.stderr
