"""The live page's routes on Locust's own server: what they give of real runs, and to whom."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint
from packaging.version import parse
from waiting import PATIENCE_S, until

from tailrate.analysis.records.folder import read_events
from tailrate.analysis.records.manifest import Manifest
from tailrate.loadtest.engine.live.points import RATES
from tailrate.serve.deploy.haproxy import free_port

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
QUICK = ["--step-seconds=3", "--settle-seconds=0.5", "--idle-seconds=0.2", "--run-id=it", "--only-summary"]
AUTH = """
from flask_login import UserMixin
from locust import events
from tailrate.loadtest.null import Null  # noqa: F401

class Someone(UserMixin):
    def get_id(self):
        return "someone"

@events.init.add_listener
def signed(environment, **_):
    environment.web_ui.app.secret_key = "for this test"
    environment.web_ui.login_manager.user_loader(lambda _: Someone())
"""


STOPS = {"x": ""} if parse(version("locust")) >= parse("2.47") else {}
"""What is posted so that it stops; before, it was only asked for."""


class Test:
    """A Locust with its web server, on a free port."""

    __test__ = False

    def __init__(self, process: subprocess.Popen[bytes], page: str, folder: Path) -> None:
        self.process, self.page, self.folder = process, page, folder

    def get(self, path: str, **form: str) -> tuple[int, dict[str, str], str]:
        """Status, headers, body; a form is posted."""
        posted = urllib.parse.urlencode(form).encode() if form else None
        try:
            with urllib.request.urlopen(f"{self.page}{path}", data=posted, timeout=PATIENCE_S) as answer:
                return answer.status, dict(answer.headers), answer.read().decode()
        except urllib.error.HTTPError as answer:
            return answer.code, dict(answer.headers), answer.read().decode()

    def now(self, after: str = "") -> dict[str, Any]:
        status, _, body = self.get(f"/tailrate/now?after={after}")
        assert status == 200
        return dict(json.loads(body))

    def until(self, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        def held() -> dict[str, Any]:
            return found if holds(found := self.now()) else {}

        return until(held)

    def over(self) -> dict[str, Any]:
        return self.until(lambda found: found["state"]["status"] in ("complete", "aborted", "failed"))


@contextlib.contextmanager
def locust(tmp_path: Path, *words: str, scenario: str = "loadtest/null.py", prefix: str = "") -> Iterator[Test]:
    port = free_port()
    command = [sys.executable, "-m", "locust", "-f", scenario, "--web-host", "127.0.0.1", "--web-port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--run-dir", str(tmp_path), *QUICK, *words],
            stdout=log, stderr=log, cwd=ROOT, start_new_session=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    try:
        test = Test(process, f"http://127.0.0.1:{port}{prefix}", tmp_path / "it")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                test.get("/tailrate")
                break
            except OSError:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.1)
        yield test
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summed(found: dict[str, Any], name: str) -> int:
    return sum(columns[RATES.index(name)] or 0 for point in found["points"] for columns in point["e"].values())


# ---- routes


def test_a_run_from_its_start_on_locusts_page_to_its_report(tmp_path: Path) -> None:
    with endpoint(fail_every=10) as url, locust(tmp_path, "--rates=40") as test:
        found = test.now()
        assert (found["state"]["status"], found["points"], found["report"]) == ("waiting", [], {"state": "none"})
        assert test.get("/tailrate/report")[0] == 404
        assert json.loads(test.get("/swarm", host=url)[2])["success"]
        found = test.until(lambda found: found["points"] and found["state"]["steps"])
        assert found["state"]["status"] == "running"
        assert found["state"]["steps"][0]["endpoint"] in ("null/eager", "null/compiled")
        assert found["state"]["of"] == 2
        assert 0 < found["state"]["left_s"] < 12
        assert test.get("/tailrate/report", x="")[0] == 409  # while it runs
        found = test.over()
        manifest = Manifest.read(test.folder)
        # every arrival has gone into a point, and the figures are those that the run wrote down
        assert summed(found, "ok") == manifest.totals["ok"] > 0
        assert summed(found, "failed") == manifest.totals["failed"] > 0
        assert summed(found, "offered") == manifest.totals["scheduled"]
        for row, end in zip(found["state"]["endpoints"], ends(test.folder), strict=True):
            for name in ("achieved_rps", "p50_ms", "p99_ms"):
                assert row[name] == end[name]
        assert found["state"]["devices"][0]["util_pct"] == 12.5
        later = test.now(found["cursor"])
        assert (later["whole"], later["points"], later["events"]) == (False, [], [])
        status, _, said = test.get("/tailrate/report")
        assert status == 404
        assert f"tailrate report {test.folder}" in said
        assert test.get("/tailrate/report", x="")[0] == 202
        test.until(lambda found: found["report"]["state"] == "ready")
        status, headers, said = test.get("/tailrate/report")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert said == (test.folder / "report.html").read_text()


def ends(folder: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(folder) if event["event"] == "step_end"]


def test_a_stop_and_a_start_that_fails_are_shown(tmp_path: Path) -> None:
    with endpoint() as url, locust(tmp_path, "--rates=40", "--step-seconds=60", "--autostart", f"--host={url}") as test:
        test.until(lambda found: len(found["points"]) > 2)
        assert json.loads(test.get("/stop", **STOPS)[2])["success"]
        found = test.over()
        assert found["state"]["status"] == "aborted"
        assert any("the run was stopped" in event.get("warning", "") for event in found["events"])
        first = found["cursor"]
        time.sleep(1.5)  # Locust looks once a second whether the plan is over
        test.get("/swarm", host="http://127.0.0.1:9", run_id="other")
        found = test.until(lambda found: found["state"]["status"] == "failed")
        assert "nothing answers at http://127.0.0.1:9" in found["state"]["doing"]
        assert test.now(first)["whole"]  # that was another run
        assert found["report"] == {"state": "none"}


@pytest.mark.parametrize("way", ["processes", "workers"])
def test_the_rows_of_all_workers_come_together(tmp_path: Path, way: str) -> None:
    port = str(free_port())
    words = ["--rates=60", "--variants=eager", "--autostart", "--master-bind-port", port]
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(endpoint())
        if way == "processes":
            words += ["--processes", "2", "--master-port", port]
        else:
            words += ["--master", "--expect-workers", "2", "--master-bind-host", "127.0.0.1"]
            command = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--worker", "--master-port", port]
            for _ in range(2):
                worker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                stack.callback(lambda worker=worker: (worker.kill(), worker.wait()))
        test = stack.enter_context(locust(tmp_path, *words, f"--host={url}"))
        found = test.over()
        assert found["state"]["status"] == "complete"
        assert summed(found, "ok") == Manifest.read(test.folder).totals["ok"] > 100
        assert found["points"][-1]["e"].get("0", [0] * 9)[RATES.index("in_flight")] == 0


def test_a_closed_loop_has_no_offered_rate(tmp_path: Path) -> None:
    words = ["--mode=closed", "--concurrency=3", "--variants=eager", "--autostart"]
    with endpoint(delay_ms=20) as url, locust(tmp_path, *words, f"--host={url}") as test:
        found = test.over()
        columns = [point["e"]["0"] for point in found["points"] if "0" in point["e"]]
        assert {row[RATES.index("offered")] for row in columns} == {None}
        assert max(row[RATES.index("in_flight")] for row in columns) == 3
        assert summed(found, "ok") == Manifest.read(test.folder).totals["ok"]


def test_the_page_lets_nothing_in_and_stands_below_locusts_path(tmp_path: Path) -> None:
    with locust(tmp_path, "--web-base-path=/load", prefix="/load") as test:
        status, headers, page = test.get("/tailrate")
        assert status == 200
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        for reference in ("http://", "https://", "//cdn", "src=", "@import"):
            assert reference not in page.replace("http://www.w3.org/2000/svg", "")
        assert test.now()["state"]["status"] == "waiting"


def test_who_may_not_see_locusts_page_sees_nothing_here(tmp_path: Path) -> None:
    (tmp_path / "signed.py").write_text(AUTH)
    with locust(tmp_path, "--web-login", scenario=str(tmp_path / "signed.py")) as test:
        for path, form in (
            ("/tailrate", {}),
            ("/tailrate/now", {}),
            ("/tailrate/report", {}),
            ("/tailrate/report", {"x": ""}),
        ):
            status, headers, body = test.get(path, **form)
            assert "points" not in body
            assert "tailrate, live" not in body
            assert (status, headers.get("Allow")) == (200, None) or status in (401, 405)
            assert "auth" in body.lower() or status in (401, 405)
