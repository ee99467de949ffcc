"""The live page on Locust's own web server, at /tailrate beside Locust's page: what the board knows, once a second.

    GET  /tailrate          the page, whole in one file; nothing may be fetched for it but what follows
    GET  /tailrate/now      what has changed since `?after=CURSOR`, or all there is
    GET  /tailrate/report   the run's report.html, or how to make it
    POST /tailrate/report   makes it, in a process of its own and only while no load runs

Starting and stopping stay Locust's business; who may come in is the gate's.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from flask import Blueprint, Response, request, send_file

from tailrate.analysis.pages import assets
from tailrate.loadtest.engine import child_python
from tailrate.loadtest.engine.live.board import OVER, Board

REPORT = "report.html"
PLAIN = "text/plain; charset=utf-8"


def attach(web_ui: Any, prefix: str, board: Callable[[], Board]) -> None:
    """Adds the routes; `board` gives that of the present run, or else of the last one."""
    page, policy = _page()
    pen = ReportWriter()
    routes = Blueprint("tailrate", __name__, url_prefix=prefix or None)

    @routes.get("/tailrate")
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def live() -> Response:
        return Response(page, headers={"Content-Security-Policy": policy})

    @routes.get("/tailrate/now")
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def now() -> Response:
        known, cursor = board(), request.args.get("after", "")
        text = known.answer(cursor, known.base.wall_ns(time.monotonic_ns()), report=pen.state(_folder(known)))
        return Response(text, content_type="application/json", headers={"Cache-Control": "no-store"})

    @routes.get("/tailrate/report")
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def report() -> Response:
        folder = _folder(board())
        if folder is None:
            return Response("There is no run that is over.\n", 404, content_type=PLAIN)
        if not (folder / REPORT).is_file():
            return Response(f"There is no report yet. Make it with: {_command(folder)}\n", 404, content_type=PLAIN)
        return send_file(folder / REPORT, max_age=0)

    @routes.post("/tailrate/report")
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def make() -> Response:
        folder = _folder(board())
        if folder is None:
            return Response("A report is made when the run is over.\n", 409, content_type=PLAIN)
        pen.write(folder)
        return Response(status=202)

    web_ui.app.register_blueprint(routes)


class ReportWriter:
    """Has `tailrate report` write a run's report; one at a time."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._said = ""

    def write(self, folder: Path) -> None:
        if self._process is None or self._process.poll() is not None:
            self._folder, self._said = folder, ""
            command = child_python.command("tailrate", "report", str(folder))
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            gevent.spawn(self._listen, self._process)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said = line.strip() or self._said
        process.wait()
        process.stdout.close()

    def state(self, folder: Path | None) -> dict[str, str]:
        """`state` is none, ready, absent, making or failed; `said` is the last that was heard of it."""
        if folder is None:
            return {"state": "none"}
        found = {"state": "absent", "command": _command(folder), "said": ""}
        if folder == self._folder and self._process is not None:
            code = self._process.poll()
            found |= {"state": "making" if code is None else "failed", "said": self._said}
        if found["state"] != "making" and (folder / REPORT).is_file():
            found["state"] = "ready"
        return found


def _folder(board: Board) -> Path | None:
    """Of a run that is over and left something to report."""
    folder = board.facts.get("folder")
    return Path(folder).resolve() if folder and board.status in OVER else None


def _command(folder: Path) -> str:
    return shlex.join(["tailrate", "report", str(folder)])


def _page() -> tuple[str, str]:
    """The page with its style and script in it, and the policy that lets nothing else in."""
    style = "\n".join([assets.style(), assets.texts(__package__, "page/live.css")])
    script = "\n".join([assets.script(), assets.texts(__package__, "page/lanes.js", "page/live.js")])
    page = assets.texts(__package__, "page/live.html").replace("/*css*/", style).replace("/*js*/", script)
    policy = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    policy += f"frame-ancestors 'none'; style-src {assets.source(style)}; script-src {assets.source(script)}"
    return page, policy
