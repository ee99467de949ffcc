"""`tailrate report` and `tailrate rows` on folders that are there already."""

import csv
import errno
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from chromium import CHROMIUM
from click.testing import CliRunner
from folders import Load, Waveform, lognormal, make_run

from tailrate import analysis
from tailrate.cli.main import main

ROOT = Path(__file__).parents[2]
LOADS = [Load("m/eager", 200, lognormal(20), seconds=20), Load("m/compiled", 200, lognormal(12), seconds=20)]


def _folder(folder: Path, sealed: bool = True) -> Path:
    return make_run(folder, LOADS, slo=["p99<100ms,errors<1%"], devices=[Waveform()], sealed=sealed).folder


def test_figures_without_a_page(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "run", sealed=False)
    found = CliRunner().invoke(main, ["report", str(folder), "--no-page"])
    assert found.exit_code == 0
    assert found.output.rstrip().endswith(f"report: {folder / 'report.json'}")
    files = {path.name for path in folder.iterdir()}
    assert files == {"run.json", "events.jsonl", "requests.parquet", "devices.parquet", "report.json", "steps.csv"}


def test_every_form_is_written_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    (tmp_path / "step.md").write_text("before\n")
    folder = _folder(tmp_path / "run")
    forms = ("junit", "github", "openmetrics", "loadgen", "parquet")
    words = [word for form in forms for word in ("--export", form)]
    found = CliRunner().invoke(main, ["report", str(folder), "--no-page", *words])
    assert found.exit_code == 0
    for form, name in zip(
        forms, ("junit.xml", "summary.md", "metrics.txt", "summary.txt", "steps.parquet"), strict=True
    ):
        assert f"{form}: {folder / name}" in found.output
        assert (folder / name).stat().st_size > 0
    assert (tmp_path / "step.md").read_text() == "before\n" + (folder / "summary.md").read_text()
    table = pd.read_parquet(folder / "steps.parquet")
    assert table[["run", "endpoint", "rate"]].values.tolist() == [["run", "m/eager", 200], ["run", "m/compiled", 200]]
    assert table["p99_ms"].tolist() == analysis.load(folder).steps["p99_ms"].tolist()


def test_a_form_that_is_none_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["report", str(tmp_path / "none"), "--export", "word"])
    assert found.exit_code == 2
    known = "github, junit, loadgen, mlflow, openmetrics, otlp, parquet, pdf, wandb"
    assert found.output == f"tailrate: --export word: the forms are {known}\n"


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
def test_the_page_is_printed_whole_and_light(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "run")
    found = CliRunner().invoke(main, ["report", str(folder), "--export", "pdf"])
    assert found.exit_code == 0, found.output
    assert f"pdf: {folder / 'report.pdf'}" in found.output
    content = (folder / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    pages = content.count(b"/Type /Page\n") or content.count(b"/Type/Page/") or content.count(b"/Type /Page")
    assert 3 <= pages <= 20
    assert not list(folder.glob("*.part"))


def test_a_pdf_takes_the_page_and_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path / "run")
    found = CliRunner().invoke(main, ["report", str(folder), "--no-page", "--export", "pdf"])
    assert found.exit_code == 2
    assert found.output == "tailrate: --export pdf prints the page, which --no-page leaves out\n"
    monkeypatch.setenv("PATH", str(tmp_path))
    found = CliRunner().invoke(main, ["report", str(folder), "--export", "pdf"])
    assert found.exit_code == 2
    assert "tailrate: a PDF takes chromium or Chrome, and there is none; print " in found.output
    assert (folder / "report.html").exists()
    browser = tmp_path / "chromium"
    half = 'for word; do case $word in --print-to-pdf=*) echo half >"${word#*=}"; esac; done'
    browser.write_text(f"#!/bin/sh\n{half}\nexit 1\n")
    browser.chmod(0o755)
    found = CliRunner().invoke(main, ["report", str(folder), "--export", "pdf"])
    assert f"{browser} could not print {folder / 'report.html'}" in found.output
    assert not [*folder.glob("*.pdf*"), *folder.glob("*.part")]


def test_a_table_that_does_not_fit_on_the_disk_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(table: pd.DataFrame, path: Path, index: bool) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    folder = _folder(tmp_path / "run")
    assert CliRunner().invoke(main, ["report", str(folder), "--no-page", "--export", "parquet"]).exit_code
    assert not list(folder.glob("steps.parquet*"))


def test_rows_of_any_table_are_csv_whether_sealed_or_not(tmp_path: Path) -> None:
    for sealed in (True, False):
        folder = _folder(tmp_path / str(sealed), sealed)
        for table, count in (("requests", 8000), ("devices", 452)):
            said = CliRunner().invoke(main, ["rows", str(folder), "--table", table]).output
            rows = list(csv.DictReader(io.StringIO(said)))
            assert len(rows) == len(analysis.load(folder).tables[table]) == count
    assert {row["device"] for row in rows} == {Waveform().device}


def _imported(folder: Path) -> set[str]:
    """By a report of it."""
    code = (
        "import sys\nfrom tailrate.cli.main import main\n"
        f"try: main(['report', {str(folder)!r}])\n"
        "except SystemExit as ended: assert ended.code == 0\n"
        "print(*sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return set(said.splitlines()[-1].split())


@pytest.mark.parametrize("failed", [0.0, 0.001], ids=["none failed", "few failed, who are looked up"])
def test_a_report_of_a_few_thousand_rows_waits_for_no_library_that_it_can_do_without(
    tmp_path: Path, failed: float
) -> None:
    loads = [replace(load, failed=failed) for load in LOADS]
    folder = make_run(tmp_path / "run", loads, slo=["p99<100ms,errors<1%"], devices=[Waveform()]).folder
    assert not {"pandas", "numba", "scipy", "gevent", "locust", "torch", "ray"} & _imported(folder)


def test_a_report_of_many_rows_waits_for_machine_code_and_no_more(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [Load("m/eager", 3000, seconds=20, failed=1e-4)], slo=["p99<100ms"]).folder
    imported = _imported(folder)
    assert "numba" in imported
    assert not {"pandas", "scipy.special", "scipy.stats", "torch", "ray"} & imported


@pytest.mark.parametrize(
    ("slo", "status", "code"), [("p99<100ms", "complete", 0), ("p99<5ms", "complete", 1), ("p99<100ms", "aborted", 3)]
)
def test_the_exit_code_is_that_of_the_verdict(tmp_path: Path, slo: str, status: str, code: int) -> None:
    folder = make_run(tmp_path / "run", LOADS, slo=[slo], status=status).folder
    assert CliRunner().invoke(main, ["report", str(folder), "--no-page"]).exit_code == code


@pytest.mark.parametrize(
    ("to", "code", "said"),
    [
        ("| head -c 1", 1, ""),
        (">&-", 1, ""),
        (">/dev/full", 2, "tailrate: standard output: No space left on device\n"),
        ("2>/dev/full | cat", 1, ""),
    ],
)
def test_the_exit_code_is_that_of_the_verdict_whoever_reads_it(tmp_path: Path, to: str, code: int, said: str) -> None:
    folder = make_run(tmp_path / "run", LOADS, slo=["p99<5ms"]).folder
    script = f"set -o pipefail; {sys.executable} -m tailrate report {folder} --no-page {to}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, said)


def test_help_that_cannot_be_written_is_no_missed_objective() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tailrate", "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (2, "tailrate: standard output: No space left on device\n")


def test_letters_that_an_output_lacks_end_no_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [Load("m/é", 200, lognormal(20), seconds=20)], slo=["p99<500ms"]).folder
    command = [sys.executable, "-m", "tailrate", "report", folder, "--no-page"]
    given = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=given)
    assert (done.returncode, done.stderr) == (0, "")
    assert "m/\\xe9" in done.stdout


def test_a_report_is_made_from_a_folder_that_is_gone(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", LOADS, slo=["p99<100ms"]).folder
    script = f"mkdir gone; cd gone; rmdir ../gone; {sys.executable} -m tailrate report {folder}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_file_that_fails_is_one_sentence_and_a_fault_of_ours_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither may end as a missed objective does."""
    folder = make_run(tmp_path / "run", LOADS, slo=["p99<100ms"]).folder
    (folder / "report.html").mkdir()
    found = CliRunner().invoke(main, ["report", str(folder)])
    assert found.exit_code == 2
    assert found.stderr == f"tailrate: {folder / 'report.html'}: Is a directory\n"
    monkeypatch.setattr(analysis, "load", lambda _: 1 / 0)
    found = CliRunner().invoke(main, ["report", str(folder)])
    assert found.exit_code == 70
    assert found.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_an_endpoints_name_is_text_on_a_terminal_and_a_lost_percentile_infinite(tmp_path: Path) -> None:
    """Neither markup nor what would move the cursor; nor is its exit code that of a missed objective."""
    loads = [Load(name, 200, lognormal(20), seconds=20, failed=0.5) for name in ("m/a[/b]", "m/[red]x\x1b[2J")]
    folder = make_run(tmp_path / "run", loads, sealed=False).folder
    found = CliRunner().invoke(main, ["report", str(folder), "--no-page"])
    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert "m/a[/b]" in found.output
    assert "m/[red]x" in found.output
    assert "\x1b" not in found.output
    (line,) = (line for line in found.output.splitlines() if line.startswith("m/a[/b]"))
    assert "∞" in line
