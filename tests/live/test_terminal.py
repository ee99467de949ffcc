"""The table in the terminal; `test_commands.py` and `test_run.py` look that nothing else gets one."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from endpoint import endpoint
from rich.console import Console
from waiting import PATIENCE_S

from tailrate.analysis.records.folder import read_events
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.text.words import significant
from tailrate.loadtest.engine.live.screen import Lines
from tailrate.loadtest.engine.live.terminal import headline, line, picture

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
QUICK = ["--rates=50,80", "--step-seconds=2", "--settle-seconds=0.5", "--idle-seconds=0.2", "--slo=p99<50ms"]
EVIL = "\x1b[2Jm/evil\x07[red]"
ROW = {
    "endpoint": "m/eager", "step": 2, "running": True, "rate": 200.0, "concurrency": 0, "offered_rps": 199.5,
    "achieved_rps": 150.25, "n": 900, "p50_ms": 12.3, "p99_ms": None, "in_flight": 41, "late_p99_ms": 0.2, "late": 3,
    "dropped": 7, "failed": {"500": 2, "timeout": 4}, "ttft_p99_ms": None, "tokens_rps": None,
}  # fmt: skip
DEVICE = {"name": "GPU 0", "stale": False, "util_pct": 93.4, "mem_bytes": 3 * 2**30, "power_w": 212.0, "temp_c": 61.0}
STATE = {
    "status": "running", "doing": "", "elapsed_s": 40.0, "left_s": 130.0, "of": 12,
    "steps": [{"index": 2, "endpoint": "m/eager", "rate": 200.0, "concurrency": 0, "left_s": 14.0}],
    "endpoints": [ROW, {"endpoint": "m/compiled", "step": None}], "devices": [DEVICE | {"sm_mhz": None}],
    "doubts": ["m/eager: 7 arrivals were dropped"],
}  # fmt: skip


def drawn(state, width=140):
    console = Console(width=width, file=io.StringIO())
    console.print(picture(state, width))
    return console.file.getvalue()


def test_of_streams_the_table_has_first_tokens_and_tokens_per_second():
    streams = ROW | {"endpoint": "m/stream", "ttft_p99_ms": 45.6, "tokens_rps": 1234.5}
    text = drawn(STATE | {"endpoints": [streams, ROW]}, 160)
    assert [word for word in text.split() if word in ("TTFT", "tokens/s")] == ["TTFT", "tokens/s"]
    (mine,) = (line for line in text.splitlines() if line.startswith("m/stream"))
    assert "45.6  " in mine
    assert "1,234" in mine
    lost = drawn(STATE | {"endpoints": [streams | {"ttft_p99_ms": None}]}, 160)
    assert "∞" in lost.split("m/stream")[1].partition("1,234")[0].split()[-1]
    assert "TTFT" not in drawn(STATE)


class Display:
    """What a person sees, of the few control sequences that a table which is drawn anew needs."""

    def __init__(self, raw):
        self.lines, self.row, self.hidden = [""], 0, False
        for code, end, text in re.findall(r"\x1b\[(\??[0-9;]*)([A-Za-z])|([^\x1b]+)", raw):
            if end == "A":
                self.row -= int(code or 1)
            elif end == "K":
                self.lines[self.row] = ""
            elif code == "?25":
                self.hidden = end == "l"
            for part in re.split(r"(\n)", text.replace("\r", "")):
                if part == "\n":
                    self.row += 1
                    self.lines += [""] * (self.row + 1 - len(self.lines))
                else:
                    self.lines[self.row] += part
            assert self.row >= 0, "above what it wrote itself"
        self.text = "\n".join(self.lines)


@contextlib.contextmanager
def terminal(*command):
    """The command on a terminal of its own, in the foreground, as a person starts it; yields (it, the terminal)."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 150, 0, 0))
    ways = termios.tcgetattr(theirs)
    ways[3] |= termios.NOFLSH  # else Ctrl-C throws away what is on its way to us
    termios.tcsetattr(theirs, termios.TCSANOW, ways)
    process = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, os, sys, termios; fcntl.ioctl(0, {termios.TIOCSCTTY}, 0);"
         "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])", *command],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        | {"TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    try:
        yield process, ours
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)


def read(process, ours, until=None, timeout_s=PATIENCE_S):
    """All that is written until the program ends, or until it has written that."""
    said, deadline = b"", time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the last one closed it
                break
            said += part
            if not part or (until and re.search(until, said.decode(errors="replace"))):
                break
        elif process.poll() is not None:
            break
    return said.decode()


def cells(text, endpoint):
    """The last row of the table for that endpoint."""
    rows = [row.split() for row in text.splitlines() if row.startswith(endpoint + " ") and "offered" not in row]
    return rows[-1]


def test_the_table_holds_the_figures_and_says_what_is_left():
    text = drawn(STATE)
    assert headline(STATE) == "step 3 of 12: m/eager at 200/s, 14 s left · 2 min 10 s left in all"
    assert cells(text, "m/eager") == ["m/eager", "200/s", "200", "150", "12.3", "∞", "41", "0.200", "3", "7", "6"]
    assert cells(text, "m/compiled") == ["m/compiled"]
    assert "GPU 0  93 %  3.0 GiB  212 W  61 °C" in text
    assert "7 arrivals were dropped" in text


def test_a_closed_loop_and_a_narrow_terminal():
    loop = ROW | {"concurrency": 16, "offered_rps": None}
    text = drawn(STATE | {"endpoints": [loop], "left_s": None}, 80)
    assert "16 under way" in text
    assert "offered" not in text
    assert max(map(len, text.splitlines())) <= 80
    state = {"status": "aborted", "doing": "", "steps": [], "of": None, "left_s": None, "elapsed_s": 4000.0}
    assert headline(state) == "aborted after 1 h 6 min"


def test_a_soak_says_its_chapter_what_is_left_of_how_much_and_the_disk():
    soak = {"chapter": 3, "of": 48, "total_s": 28800.0, "used_bytes": 120_000_000, "free_bytes": 50_000_000_000}
    state = STATE | {"soak": soak, "left_s": 27000.0}
    said = "chapter 3 of 48: m/eager at 200/s, 14 s left · 120 MB on disk, 50 GB free · 7 h 30 min left of 8 h 0 min"
    assert headline(state) == said
    between = state | {"steps": [], "soak": soak | {"chapter": None, "used_bytes": None}}
    assert headline(between) == "7 h 30 min left of 8 h 0 min"


def test_what_a_server_says_does_not_steer_the_terminal():
    state = json.loads(json.dumps(STATE).replace("m/eager", json.dumps(EVIL)[1:-1]))
    lines = [line({"event": "warning", "warning": EVIL})]
    lines += [line({"event": "step_end", "endpoint": EVIL, "rate": 1, "achieved_rps": 1.0, "errors": 0})]
    for text in (drawn(state), *map(str, lines)):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "m/evil [red]" in text  # and is no markup


@pytest.mark.parametrize("kind", ["idle", "step_start", "rows", "load_cpu"])
def test_matters_of_course_make_no_line(kind):
    assert line({"event": kind}) is None


def test_lines_are_whole_or_wait():
    lines = Lines()
    lines.write("one\ntw")
    assert lines.fetch() == ["one"]
    lines.write("o\n")
    lines.write("rest")
    assert lines.fetch() == ["two"]
    assert lines.fetch(rest=True) == ["rest"]


def ends(folder):
    return [event for event in read_events(folder) if event["event"] == "step_end"]


def assert_final(display, folder):
    """The last table stands, with the figures that the run wrote down of its last steps."""
    assert not display.hidden
    assert display.text.count("late P99 ms") == 1
    for end in ends(folder)[-2:]:
        row = cells(display.text, end["endpoint"])
        assert row[1] == f"{end['rate']:.4g}/s"
        assert row[3:6] == [significant(end[name]) for name in ("achieved_rps", "p50_ms", "p99_ms")]
        assert row[-1] == str(end["errors"])


def test_tailrate_run_on_a_terminal_draws_one_table_and_leaves_it_standing(tmp_path):
    with endpoint() as url:
        words = ["run", "null", "--host", url, *QUICK, "--run-dir", str(tmp_path), "--run-id", "it"]
        with terminal("-m", "tailrate", *words, "--self-check=off") as (process, ours):
            said = read(process, ours)
    assert "\x1b[1A" in said
    display = Display(said)
    table, report = display.text.split("complete after")
    assert table.count("offered") == 4  # a line for each step stays
    assert "in flight" in report
    assert "verdict: " in report
    assert_final(Display(said.split("verdict: ")[0].rpartition("\x1b[?25h")[0] + "\x1b[?25h"), tmp_path / "it")


def test_ctrl_c_leaves_the_terminal_clean(tmp_path):
    with endpoint() as url:
        words = [
            "run",
            "null",
            "--host",
            url,
            *QUICK,
            "--step-seconds=30",
            "--run-dir",
            str(tmp_path),
            "--run-id",
            "it",
        ]
        with terminal("-m", "tailrate", *words, "--self-check=off") as (process, ours):
            said = read(process, ours, until=r"(?s)step 1 of 4.*step 1 of 4.*step 1 of 4")
            os.write(ours, b"\x03")
            said += read(process, ours)
    display = Display(said)
    assert not display.hidden
    assert "aborted after" in display.text
    assert "KeyboardInterrupt" not in display.text
    assert "Traceback" not in display.text
    assert "verdict: " in display.text
    assert display.text.count("late P99 ms") == 1
    assert Manifest.read(tmp_path / "it").status == "aborted"
    assert "aborted" in (tmp_path / "it/report.md").read_text()
    assert (tmp_path / "it/requests.parquet").exists()


def test_locust_headless_on_a_terminal_logs_above_the_table_and_prints_no_other(tmp_path):
    with endpoint() as url:
        words = ["-f", "loadtest/null.py", "--headless", "--host", url, *QUICK, "--run-dir", str(tmp_path)]
        with terminal("-m", "locust", *words, "--run-id", "it") as (process, ours):
            said = read(process, ours)
    text = Display(said).text
    before, after = text.split("complete after")
    assert len(re.findall(r"INFO/tailrate: step \d of 4 ", before)) == 4
    assert "Aggregated" not in before
    assert after.count("Aggregated") == 2  # Locust's last words: its summary and its percentiles
    assert_final(Display(said.rpartition("\x1b[?25h")[0] + "\x1b[?25h"), tmp_path / "it")
