"""What of a load generator can be reached, from where, and by whom: nothing beyond loopback that nobody asked for."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from endpoint import endpoint
from flask import Flask
from waiting import PATIENCE_S

from tailrate.loadtest.engine.live import same_origin
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.deploy.haproxy import free_port

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
PASSWORD = "twelve or more"
PATHS = (
    "/", "/swarm", "/stop", "/stats/reset", "/stats/report", "/stats/requests", "/stats/requests/csv", "/exceptions",
    "/tasks", "/logs", "/login", "/user", "/worker-count", "/assets/index.js", "/static/index.js", "/nowhere",
    "/tailrate", "/tailrate/now", "/tailrate/report",
)  # fmt: skip


# ---- where it listens


PARSED = """
import json, os, sys
from locust.argument_parser import get_parser
from locust.util.load_locustfile import load_locustfile
load_locustfile("loadtest/bert.py")
for words, environment in json.load(sys.stdin):
    os.environ.update(environment)
    found = get_parser().parse_args(words)
    print(found.web_host, found.master_bind_host)
    for name in environment:
        del os.environ[name]
"""


def test_loopback_is_the_default_and_whatever_is_asked_for_wins(tmp_path):
    """By Locust's parser, with a locustfile of ours: where its page and its master would listen."""
    config = tmp_path / "locust.conf"
    config.write_text("web-host = 10.0.0.1\nmaster-bind-host = 10.0.0.2\n")
    file, asked = ["--config", str(config)], {"LOCUST_WEB_HOST": "10.0.0.3", "LOCUST_MASTER_BIND_HOST": "*"}
    every = [
        ([], {}, "127.0.0.1 127.0.0.1"),
        (file, {}, "10.0.0.1 10.0.0.2"),
        (file, asked, "10.0.0.3 *"),
        (["--web-host", "*", "--master-bind-host=0.0.0.0", *file], asked, "* 0.0.0.0"),
        ([], {}, "127.0.0.1 127.0.0.1"),
    ]
    given = json.dumps([case[:2] for case in every])
    words = [sys.executable, "-c", PARSED]
    done = subprocess.run(words, cwd=ROOT, input=given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [case[2] for case in every]


@contextmanager
def locust(*words, **environment):
    process = subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", "loadtest/null.py", *map(str, words)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def listening(pid):
    """(address in hex, port) of each TCP socket that a process listens on."""
    found = set()
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(path.readlink().name)
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                where, _, port = words[1].partition(":")
                found.add((where, int(port, 16)))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_master_with_its_page_listens_on_loopback_only():
    page, workers = free_port(), free_port()
    with locust("--master", "--web-port", page, "--master-bind-port", workers) as process:
        deadline = time.monotonic() + PATIENCE_S
        while len(found := listening(process.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert found == {("0100007F", page), ("0100007F", workers)}


def test_a_page_for_others_wants_a_password_first():
    with locust("--web-host", "0.0.0.0", "--web-port", free_port()) as process:
        assert process.wait(timeout=PATIENCE_S) == 2
        said = process.stdout.read()
    assert "tailrate: --web-host 0.0.0.0 would let whoever reaches this machine start load from it: set " in said


def test_a_master_for_others_is_warned_about():
    port = free_port()
    with locust("--master", "--master-bind-host", "0.0.0.0", "--master-bind-port", port, "--headless") as process:
        said = next(line for line in process.stdout if "password" in line)
    assert f"whoever reaches port {port} can be a worker: Locust asks for no password" in said


# ---- whom it lets in


def page(host="127.0.0.1", web_login=False):
    app = Flask("test")
    for path in ("/", "/stop", "/under/stats/reset"):
        app.add_url_rule(path, path, view_func=lambda: "in", methods=["GET", "POST"])
    same_origin.attach(SimpleNamespace(app=app, host=host, web_login=web_login))
    return app.test_client()


def basic(password, user="me"):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:8089"}, 200),
        ({"Host": "localhost:8089"}, 200),
        ({"Host": "[::1]:8089"}, 200),
        ({"Host": "10.1.2.3:8089"}, 200),
        ({"Host": "rebound.example:8089"}, 403),
        ({"Host": "localhost.rebound.example"}, 403),
        ({"Host": "127.0.0.1.rebound.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost:8089", "Origin": "http://localhost:8089"}, 200),
        ({"Host": "localhost:8089", "Origin": "http://127.0.0.1:8089"}, 403),
        ({"Host": "localhost:8089", "Origin": "http://localhost:3000"}, 403),
        ({"Host": "localhost:8089", "Origin": "https://other.example"}, 403),
        ({"Host": "localhost:8089", "Origin": "null"}, 403),
    ],
)
def test_without_a_password_it_answers_this_machine_and_no_other_site(monkeypatch, headers, status):
    monkeypatch.delenv(same_origin.PASSWORD, raising=False)
    visitor = page()
    for method in (visitor.get, visitor.post):
        answer = method("/", headers=headers)
        assert answer.status_code == status
        assert (answer.text == "in") == (status == 200)


@pytest.mark.parametrize("path", ["/stop", "/under/stats/reset"])
@pytest.mark.parametrize("said", [None, "none", "same-origin", "same-site", "cross-site"])
def test_a_link_or_a_picture_of_another_site_does_nothing(monkeypatch, path, said):
    monkeypatch.delenv(same_origin.PASSWORD, raising=False)
    headers = {"Host": "localhost:8089"} | ({"Sec-Fetch-Site": said} if said else {})
    status = 403 if said in ("same-site", "cross-site") else 200
    assert page().get(path, headers=headers).status_code == status
    assert page().get("/", headers=headers).status_code == 200, "a link may lead here"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (basic("wrong"), 401),
        (basic(""), 401),
        ({"Authorization": f"Bearer {PASSWORD}"}, 401),
        ({"Authorization": "Basic ?"}, 401),
        (basic(PASSWORD), 200),
        (basic(PASSWORD, "anybody"), 200),
        (basic(PASSWORD) | {"Host": "load.example"}, 200),
        (basic(PASSWORD) | {"Host": "load.example", "Origin": "https://load.example"}, 200),
        (basic(PASSWORD) | {"Origin": "https://other.example"}, 403),
    ],
)
def test_with_a_password_everybody_brings_it_whatever_the_name(monkeypatch, headers, status):
    monkeypatch.setenv(same_origin.PASSWORD, PASSWORD)
    answer = page(host="0.0.0.0").get("/", headers=headers)
    assert answer.status_code == status
    assert answer.headers.get("WWW-Authenticate") == ('Basic realm="tailrate"' if status == 401 else None)
    assert answer.headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "192.168.1.5", "load.example"])
def test_what_others_can_reach_needs_a_password_or_accounts_of_ones_own(monkeypatch, host):
    monkeypatch.delenv(same_origin.PASSWORD, raising=False)
    with pytest.raises(ScenarioError, match="set TAILRATE_WEB_PASSWORD, or leave the page on loopback"):
        page(host)
    assert page(host, web_login=True).get("/", headers={"Host": "load.example"}).text == "in"
    monkeypatch.setenv(same_origin.PASSWORD, "short")
    with pytest.raises(ScenarioError, match="needs at least 12 characters"):
        page(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_has_many_names(monkeypatch, host):
    monkeypatch.delenv(same_origin.PASSWORD, raising=False)
    assert page(host).get("/", headers={"Host": "localhost"}).text == "in"


@pytest.mark.live
def test_behind_the_password_is_all_of_locust_and_a_run_can_be_started_with_it(tmp_path):
    port = free_port()
    where = f"http://127.0.0.1:{port}"

    def ask(path, method="GET", headers=None, body=None):
        request = urllib.request.Request(where + path, data=body, headers=headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as answer:
            return answer.code, answer.read().decode()

    words = ["--web-port", port, "--run-dir", tmp_path, "--run-id", "it", "--rates", "20", "--step-seconds", "2"]
    words += ["--settle-seconds", "0.5", "--idle-seconds", "0.1", "--variants", "eager"]
    with endpoint() as url, locust(*words, TAILRATE_WEB_PASSWORD=PASSWORD) as _:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(OSError):
                ask("/")
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for path in PATHS:
            for method in ("GET", "POST", "OPTIONS"):
                assert ask(path, method)[0] == 401, (path, method)
        assert ask("/swarm", "POST", basic("wrong"), f"host={url}".encode())[0] == 401
        assert ask("/swarm", "POST", basic(PASSWORD) | {"Origin": "http://other.example"}, b"host=x")[0] == 403
        assert ask("/", headers=basic(PASSWORD))[0] == 200
        status, said = ask("/swarm", "POST", basic(PASSWORD) | {"Origin": where}, f"host={url}".encode())
        assert (status, json.loads(said)["success"]) == (200, True)
        deadline = time.monotonic() + PATIENCE_S
        while (status := json.loads(ask("/tailrate/now", headers=basic(PASSWORD))[1])["state"]["status"]) != "complete":
            assert time.monotonic() < deadline, status
            time.sleep(0.2)
    assert json.loads((tmp_path / "it" / "run.json").read_text())["totals"]["ok"] > 0
