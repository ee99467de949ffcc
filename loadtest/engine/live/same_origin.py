"""Who may come in at Locust's pages, ours among them: nobody from elsewhere without a password, and no other web site.

Locust's server has no password of its own and lets every web site read its answers (CORS); and a browser takes what
any site asks for to loopback, too. So what another site sends is refused by its `Origin`, which a link or a picture
does not have: by what the browser says of it. What came by a name that anybody may have pointed at this machine is
refused by its `Host`. With TAILRATE_WEB_PASSWORD each request has to bring that (HTTP Basic, under any user name);
without it the pages stay on loopback. Whoever has accounts of their own behind Locust's `--web-login` is left to them.
"""

from __future__ import annotations

import hmac
import os
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from flask import Response, request

from tailrate.analysis.records.loopback import is_loopback
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

PASSWORD = "TAILRATE_WEB_PASSWORD"  # noqa: S105 -- its name
LEAST = 12
"""Characters, since nobody counts how often somebody tries."""
LOOPBACK = "127.0.0.1"
ACTS = ("/stop", "/stats/reset")
"""What Locust before 2.47 does for whoever follows a link."""


def attach(web_ui: Any) -> None:
    """Before it listens; `ScenarioError` where it would let anybody in."""
    password = os.environ.get(PASSWORD, "").encode()
    if 0 < len(password) < LEAST:
        raise ScenarioError(f"{PASSWORD} is too short: it needs at least {LEAST} characters")
    asks = bool(password) or web_ui.web_login
    if not asks and not is_loopback(web_ui.host):
        open_to = f"--web-host {web_ui.host or '*'} would let whoever reaches this machine start load from it"
        raise ScenarioError(f"{open_to}: set {PASSWORD}, or leave the page on loopback")

    @web_ui.app.before_request  # type: ignore[untyped-decorator]
    def look() -> Response | None:
        origin, given = request.headers.get("Origin"), request.authorization
        led = request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        if (led and request.path.endswith(ACTS)) or (origin is not None and origin.partition("//")[2] != request.host):
            return _refused(403, "This page answers no other site.")
        if not asks and not _nobody_elses(request.host):
            return _refused(403, f"By this name the page answers only where {PASSWORD} is set.")
        if password and not hmac.compare_digest(((given and given.password) or "").encode(), password):
            return _refused(401, f"This page wants the password of {PASSWORD}.", 'Basic realm="tailrate"')
        return None

    @web_ui.app.after_request  # type: ignore[untyped-decorator]
    def unframed(answer: Response) -> Response:
        answer.headers.setdefault("X-Frame-Options", "DENY")
        return answer


def _refused(status: int, sentence: str, challenge: str | None = None) -> Response:
    headers = {"WWW-Authenticate": challenge} if challenge else None
    return Response(sentence + "\n", status, headers, content_type="text/plain; charset=utf-8")


def _nobody_elses(host: str) -> bool:
    """An address, or the one name that is always this machine's."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False
