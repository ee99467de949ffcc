"""What spares typing: words that a shell completes, and pages that open."""

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from folders import Load, make_run
from waiting import until

from tailrate.cli.main import main
from tailrate.cli.options import scenarios

HERE = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/nonexistent"}
BASH = """
eval "$(tailrate completion bash)"
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_tailrate_completion tailrate
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def environment():
    return {**{name: value for name, value in os.environ.items() if name == "PYTHONPATH"}, **HERE}


def said(folder, *command):
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment())
    return done.stdout


@pytest.fixture
def runs(tmp_path):
    """A folder with two runs, and what is none."""
    for name in "ab":
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").touch()
    (tmp_path / "runs" / "no-run").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tailrate re", {"report"}),
        ("tailrate run res", {"resnet50"}),
        ("tailrate soak ''", set(scenarios())),
        ("tailrate serve bert tiny", {"tiny_llama"}),
        ("tailrate report runs/b", {"runs/b"}),
        ("tailrate compare runs/a ''", {"runs/a", "runs/b"}),
        ("tailrate report --no", {"--no-page"}),
    ],
)
def test_bash_completes_commands_options_and_names(runs, words, found):
    assert set(said(runs, "bash", "--norc", "-c", BASH.format(words=words)).split()) == found


def test_fish_completes_them_too(runs):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed (Debian: apt-get install fish)")
    script = said(runs, "tailrate", "completion", "fish")
    for words, found in {"tailrate re": {"report"}, "tailrate compare runs/a ": {"runs/a", "runs/b"}}.items():
        told = said(runs, "fish", "--no-config", "-c", f"{script}\ncomplete -C '{words}'")
        assert {line.split("\t")[0] for line in told.splitlines()} == found


def test_zsh_completes_them_too(runs):
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed (Debian: apt-get install zsh)")
    terminal, inside = pty.openpty()
    how = {"cwd": runs, "env": environment() | {"TERM": "dumb", "PS1": "% "}, "start_new_session": True}
    process = subprocess.Popen(["zsh", "-f", "-i"], stdin=inside, stdout=inside, stderr=inside, **how)
    os.close(inside)
    told = b""

    def shows(words):
        nonlocal told
        while select.select([terminal], [], [], 0)[0]:
            told += os.read(terminal, 4096)
        return words in told

    try:
        os.write(terminal, b'autoload -Uz compinit; compinit -u -D; eval "$(tailrate completion zsh)"; echo re""ady\n')
        until(lambda: shows(b"\nready"))
        for words, found in ((b"tailrate rep\t", b"tailrate report "), (b"runs/b\t", b"runs/b ")):
            os.write(terminal, words)
            until(lambda found=found: shows(found))
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


@pytest.fixture
def opened(monkeypatch):
    found = []
    monkeypatch.setattr(click, "launch", lambda url: found.append(url) or 0)
    return found


def test_the_report_that_is_there_opens_as_it_is_and_else_is_written(tmp_path, opened):
    folder = make_run(tmp_path / "runs" / "it", [Load("m/eager", 50)], slo=["p99<100ms"]).folder
    page = folder / "report.html"
    assert CliRunner().invoke(main, ["open", str(folder)]).exit_code == 0
    assert "tailrate" in page.read_text()
    page.write_text("as it was")
    assert CliRunner().invoke(main, ["open", str(folder)]).exit_code == 0
    assert opened == [page.as_uri()] * 2
    assert page.read_text() == "as it was"


def test_without_a_run_it_is_the_newest_and_of_a_folder_of_runs_the_index(tmp_path, opened, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["open"]).exit_code == 2
    for number, name in enumerate("bca"):
        folder = make_run(tmp_path / "runs" / name, [Load("m/eager", 50)]).folder
        (folder / "report.html").touch()
        os.utime(folder, (1e9 + number, 1e9 + number))
    assert CliRunner().invoke(main, ["open"]).exit_code == 0
    assert CliRunner().invoke(main, ["open", "runs"]).exit_code == 0
    assert opened == [(tmp_path / "runs" / page).as_uri() for page in ("a/report.html", "index.html")]


def test_where_nothing_opens_pages_it_says_where_the_page_is(tmp_path, monkeypatch):
    monkeypatch.setattr(click, "launch", lambda url: 1)
    folder = make_run(tmp_path / "it", [Load("m/eager", 50)]).folder
    done = CliRunner().invoke(main, ["open", str(folder)])
    assert f"nothing here opens pages; this one is at {folder / 'report.html'}" in done.output


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path, opened):
    done = CliRunner().invoke(main, ["open", str(tmp_path)])
    assert done.exit_code == 2
    assert "holds no run folder" in done.output
    assert opened == []
