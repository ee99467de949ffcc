"""What lets us in somewhere stays where it is: it is in no run folder, page, log or output, and with no other host."""

import http.server
import json
import os
import subprocess
import sys
import threading
from argparse import Namespace
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from asked import found_at
from click.testing import CliRunner
from endpoint import endpoint
from test_web import locust
from waiting import PATIENCE_S

from tailrate import analysis
from tailrate.cli.main import main
from tailrate.loadtest.engine.endpoint import credentials
from tailrate.loadtest.engine.record.provenance import command_line
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.soak import launch
from tailrate.serve.deploy.haproxy import free_port

ROOT = Path(__file__).parents[2]
TOKEN = "tok-Zq7Kx4-in-the-environment"
PASSWORD = "pw-Zq7Kx4-in-a-url"
HOOK = "hook-Zq7Kx4-in-a-path"
OTHERS = {
    "HF_TOKEN": "hf-Zq7Kx4-of-the-hub",
    "AWS_SECRET_ACCESS_KEY": "aws-Zq7Kx4-of-a-cloud",
    "TAILRATE_WEB_PASSWORD": "page-Zq7Kx4-of-locust",
}
MARK = b"Zq7Kx4"
"""In each of them; so long since three bytes are met by chance in a megabyte of times."""
QUICK = ["--rates", "40", "--settle-seconds", "0.5", "--idle-seconds", "0.1"]


def tailrate(command, *words, **more):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILRATE_")}
    return subprocess.run(
        [sys.executable, "-m", "tailrate", command, *map(str, words)],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment | more,
    )  # fmt: skip


def assert_nothing_leaked(folder, *said):
    """Neither as it is nor inside Parquet, which is compressed."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert all("Zq7" not in text for text in said)
    for path in files:
        assert MARK not in path.read_bytes(), path
        if path.suffix == ".parquet":
            assert MARK.decode() not in str(pq.read_table(path).to_pylist()), path
    return {path.name for path in files}


@contextmanager
def webhook(status):
    """What it is sent: header and body of each request."""
    told = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            told.append((dict(self.headers), self.rfile.read(int(self.headers["content-length"])).decode()))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{HOOK}", told
        server.shutdown()


@pytest.mark.live
def test_a_run_is_let_in_everywhere_and_keeps_no_secret(tmp_path):
    summary = tmp_path / "summary.md"
    with endpoint(token=TOKEN, fail_every=10) as url:
        done = tailrate(
            "run", "null", "--host", url, "--run-dir", tmp_path, "--run-id", "it", *QUICK, "--step-seconds", "3",
            TAILRATE_TOKEN=TOKEN, **OTHERS,
        )  # fmt: skip
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    forms = ["--export", "junit", "--export", "github"]
    environment = {"GITHUB_STEP_SUMMARY": str(summary), **OTHERS}
    again = CliRunner().invoke(main, ["report", str(tmp_path / "it"), *forms], env=environment)
    assert again.exit_code == done.returncode, again.output
    names = assert_nothing_leaked(tmp_path, done.stdout, done.stderr, again.stdout, again.stderr)
    assert {"run.json", "report.html", "report.json", "locust.log", "junit.xml", "summary.md"} <= names
    run = analysis.load(tmp_path / "it")
    rows = run.requests(columns=["status", "error"])
    assert set(rows["status"]) == {"200", "500"}  # 401: some request was without it
    assert set(rows["error"].dropna()) == {"told to fail Bearer ***"}
    assert len(run.devices)
    assert [entry["host"] for entry in run.manifest.clock] == ["stand-in-host"]


@pytest.mark.live
def test_a_soak_and_its_schedule_keep_no_secret(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    runs = tmp_path / "runs"
    with endpoint(token=TOKEN) as url, webhook(500) as (hook, told):
        words = ["null", "--host", url, "--run-dir", runs, "--run-id", "it", *QUICK, "--self-check", "off"]
        words += ["--total-seconds", "4", "--chapter-seconds", "2", "--webhook", hook, "--token-file", file]
        done = tailrate("soak", *words, **OTHERS)
        printed = tailrate("soak", *words, "--print-schedule", "daily", **OTHERS)
    assert done.returncode in (0, 3), done.stderr
    assert "the webhook at 127.0.0.1 could not be told: HTTP Error 500" in done.stderr
    names = assert_nothing_leaked(runs, done.stdout, done.stderr, printed.stdout, printed.stderr)
    assert {"run.json", "soak.json", "events.jsonl"} <= names
    assert f"--token-file {file}\n" in printed.stdout
    assert "--webhook" not in printed.stdout
    ((headers, body),) = told
    assert json.loads(body)["run"] == "it"
    assert "Authorization" not in headers
    assert TOKEN not in body


@pytest.mark.live
def test_the_pages_show_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("TAILRATE_TOKEN", TOKEN)
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, OTHERS[name])
    paths = ("/", "/tailrate", "/tailrate/now", "/logs", "/exceptions", "/stats/requests", "/stats/report", "/tasks")
    with endpoint(token=TOKEN, fail_every=5) as url, locust(tmp_path, "--autostart", f"--host={url}") as test:
        test.until(lambda found: len(found["points"]) > 1)
        shown = [test.get(path) for path in paths]
        assert {status for status, *_ in shown} == {200}
        assert "told to fail Bearer ***" in "".join(body for *_, body in shown)
        test.over()
        assert_nothing_leaked(tmp_path, *(body for *_, body in shown))


@pytest.mark.live
def test_a_token_goes_to_no_host_that_only_the_page_names(tmp_path, monkeypatch):
    monkeypatch.setenv("TAILRATE_TOKEN", TOKEN)
    with endpoint(token=TOKEN) as url, webhook(204) as (other, told), locust(tmp_path, f"--host={url}") as test:
        test.get("/swarm", host=other.rpartition("/")[0], token_file="/etc/hostname")
        found = test.until(lambda found: found["state"]["status"] == "failed")
        assert "a token goes to the --host that Locust is started with" in found["state"]["doing"]
        assert not told


@pytest.mark.parametrize("command", ["run", "soak"])
def test_a_url_with_a_password_is_refused_before_anything_is_kept(tmp_path, command):
    done = tailrate(
        command, "null", "--host", f"http://me:{PASSWORD}@127.0.0.1:9", "--rates", "5", "--run-dir", tmp_path
    )
    assert done.returncode == 2
    assert done.stderr == "tailrate: --host must not hold a user or a password; a token goes into TAILRATE_TOKEN\n"
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert_nothing_leaked(tmp_path, done.stdout, done.stderr)


@pytest.mark.live
def test_locust_refuses_it_too_on_its_command_line_and_on_its_page(tmp_path):
    secret = f"http://me:{PASSWORD}@127.0.0.1:9"
    command = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--host", secret, "--run-dir", str(tmp_path)]
    for words in (["--headless"], ["--web-port", str(free_port())]):
        done = subprocess.run(
            [*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 2
        assert "must not hold a user or a password" in done.stderr
        assert_nothing_leaked(tmp_path, done.stdout, done.stderr)
    with locust(tmp_path) as test:
        test.get("/swarm", host=secret)
        found = test.until(lambda found: found["state"]["status"] == "failed")
        assert "must not hold a user or a password" in found["state"]["doing"]
        assert_nothing_leaked(tmp_path, *(test.get(path)[2] for path in ("/tailrate/now", "/stats/report", "/logs")))


def given(**options):
    return Namespace(**({"token_file": "", "ca_file": ""} | options))


def test_a_token_is_that_of_a_file_or_of_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text("of-the-file\n")
    assert credentials.read(given()) == credentials.Keys(credentials.Access(source="TAILRATE_TOKEN"))
    assert credentials.read(given()).common.line == ""
    monkeypatch.setenv("TAILRATE_TOKEN", "of-the-environment")
    found = credentials.read(given()).common
    assert (found.line, found.source) == ("Authorization: Bearer of-the-environment\r\n", "TAILRATE_TOKEN")
    assert "of-the" not in repr(found)
    assert credentials.read(given(token_file=str(file))).common.line == "Authorization: Bearer of-the-file\r\n"
    monkeypatch.setenv("TAILRATE_TOKEN_FILE", str(file))
    assert credentials.read(given()).common.token == "of-the-file"
    file.write_text("of-the-file, older\r\nX-Evil: 1\n")  # a server may know several
    monkeypatch.setenv("TAILRATE_TOKEN_HEADER", "x-api-key")
    assert credentials.read(given()).common.line == "x-api-key: of-the-file\r\n"


@pytest.mark.parametrize(
    ("content", "header", "sentence"),
    [
        (None, "", "cannot be read: No such file or directory"),
        (b"", "", "holds no token"),
        (b"\xff\xfe", "", "cannot be read: it is no text"),
        (b"a\0Zq7", "", "has a character in it that no header can carry"),
        (b"a", "x y", "TAILRATE_TOKEN_HEADER 'x y' is not the name of a header"),
    ],
)
def test_a_token_that_cannot_be_sent_is_one_sentence_without_it(tmp_path, monkeypatch, content, header, sentence):
    monkeypatch.setenv("TAILRATE_TOKEN_HEADER", header)
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(ScenarioError, match=sentence) as raised:
        credentials.read(given(token_file=str(tmp_path / "token")))
    assert "Zq7" not in str(raised.value)


@pytest.mark.live
def test_who_has_no_token_or_a_wrong_one_is_told_so_in_one_sentence():
    with endpoint(token=TOKEN) as url:
        for held, sentence in (
            ("", f"{url} wants a token: set TAILRATE_TOKEN, or name the file that holds it with --token-file"),
            ("another", f"{url} does not take the token of TAILRATE_TOKEN (401: not in with Bearer ***)"),
        ):
            with pytest.raises(ScenarioError) as raised:
                found_at(url, "null", credentials.Access(token=held, source="TAILRATE_TOKEN"))
            assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    "host",
    ["http://a:b@h", "a@h", "http://a:p/w@h:1", "ftp://h", "http://", "http://h:x", "http://[::1", "http://h:99999"],
)
def test_hosts_that_are_none(host):
    with pytest.raises(ScenarioError) as raised:
        credentials.address(host)
    if "@" in host:
        assert "a:" not in str(raised.value)


@pytest.mark.parametrize("url", ["chat", "file:///etc/Zq7", "https://a:Zq7@h/", "https://h/a Zq7", "https://[Zq7"])
def test_a_webhook_that_is_none_is_not_repeated(url):
    with pytest.raises(ScenarioError, match="the webhook is not a URL") as raised:
        launch.check(url)
    assert "Zq7" not in str(raised.value)


def test_a_command_line_is_kept_without_what_is_secret_in_it():
    secret = ["--webhook", "https://h/Zq7", "--webhook=https://h/Zq7", "--api-key", "Zq7", "--token=a\nZq7"]
    words = ["--seed", "1", "--token-file", "f", "--host=http://me:Zq7@h/x", "--tokens=8"]
    kept = command_line(["tailrate", *secret, *words])
    assert "Zq7" not in kept
    for word in ("--seed 1", "--token-file f", "//***@h/x", "--tokens=8"):
        assert word in kept
