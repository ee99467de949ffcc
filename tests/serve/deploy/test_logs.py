"""What replicas say when something breaks: each thing whole once, each time counted, and no client's words as ours."""

import io
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from tailrate.serve.deploy import logs

WHO = {"endpoint": "m/eager", "replica": "abc"}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Told:
    """A handler of its own logger, what it wrote, and a clock."""

    def __init__(self) -> None:
        self.entries: list[logs.Entry] = []
        self.clock = Clock()
        self.handler = logs.Handler(WHO, self.entries.append, self.clock)
        self.log = logging.Logger("serve.there")
        self.log.addHandler(self.handler)

    def fail(self, number: int) -> None:
        try:
            raise ValueError(f"row {number}")
        except ValueError:
            self.log.exception("request %d failed", number)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setattr(logs, "EVERY_S", 3600.0)
    found = Told()
    yield found
    found.handler.flush()
    found.handler.close()


def test_a_thing_is_told_whole_once_and_then_counted(told: Told) -> None:
    for number in range(1000):
        told.fail(number)
    told.log.warning("another thing")
    first, other = told.entries
    assert first["message"] == "request 0 failed"
    assert "in fail" in first["traceback"]
    assert first["traceback"].endswith("ValueError: row 0\n")
    assert {key: first[key] for key in ("level", "logger", *WHO)} == WHO | {"level": "ERROR", "logger": "serve.there"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert other["message"] == "another thing"
    told.handler.flush()
    assert (told.entries[-1]["again"], told.entries[-1]["message"]) == (999, "request 999 failed")
    told.handler.flush()
    assert len(told.entries) == 3
    told.clock.now_s += logs.FORGOTTEN_S + 1
    told.handler.flush()
    told.fail(1000)
    assert (told.entries[-1]["message"], "again" in told.entries[-1]) == ("request 1000 failed", False)


def test_what_comes_from_everywhere_is_bounded_and_counted_too(told: Told) -> None:
    for line in range(2000):  # as many places
        exec(compile("\n" * line + "log.warning('from here')", "somewhere.py", "exec"), {"log": told.log})
    assert len(told.entries) == logs.PLACES + 1
    told.handler.flush()
    assert sum(1 + entry.get("again", 0) - ("again" in entry) for entry in told.entries) == 2000


def test_repeats_are_told_without_being_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "EVERY_S", 0.05)
    found = Told()
    for number in range(3):
        found.fail(number)
    until(lambda: len(found.entries) == 2)
    assert found.entries[1]["again"] == 2


def test_nothing_that_a_client_sends_passes_for_an_entry_or_reaches_the_terminal(told: Told) -> None:
    told.log.error("%s failed", "/x\n2026-01-01T00:00:00.000Z ERROR all is lost\x1b[2J\u2028")
    try:
        raise ValueError("a\n2026-01-01T00:00:00.000Z ERROR no\x07")
    except ValueError:
        told.log.exception("no %d", "number")  # its own words do not fit
    said = [logs.text(entry) for entry in told.entries]
    assert "\n" not in said[0]
    assert "\\x0a2026" in said[0]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]", "".join(said))
    assert all(line.startswith("  ") for line in said[1].splitlines()[1:])
    long = {**told.entries[0], "message": logs._cut("x" * 10**6 + "the end")}
    assert len(logs.text(long)) < logs.MOST_CHARACTERS + 200
    assert logs.text(long).endswith("the end")


def test_others_tell_it_to_who_started_them_and_to_a_file_of_bounded_size(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setenv(logs.ENV, "set by gather, and put back afterwards")
    monkeypatch.setattr(logs, "MOST_BYTES", 10_000)
    logs.gather(tmp_path, "json", out, tmp_path / "server.log")
    assert not (tmp_path / "server.log").exists()
    told.fail(7)
    (entry,) = told.entries
    threads = [threading.Thread(target=logs._to_socket(os.environ[logs.ENV]), args=(entry,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with socket.socket(socket.AF_UNIX) as broken:
        broken.connect(os.environ[logs.ENV])
        broken.sendall(b"not json\n[]\n")
    until(lambda: out.getvalue().count("\n") == 50)
    assert set(out.getvalue().splitlines()) == {json.dumps(entry)}
    kept = (tmp_path / "server.log").read_text().splitlines()
    *lines, full = (json.loads(line) for line in kept)
    assert full["message"].endswith("server.log is full")
    assert lines == [entry] * -(-10_000 // len(json.dumps(entry) + "\n"))  # to the first that fills it, and no more


def test_where_nobody_takes_it_it_goes_to_standard_error(
    tmp_path: Path, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    told.fail(1)
    logs._to_socket(str(tmp_path / "nobody"))(told.entries[0])
    said = capsys.readouterr().err
    assert " ERROR m/eager abc serve.there: request 1 failed\n  Traceback" in said
