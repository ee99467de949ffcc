"""What a server of ours sets for Ray, whatever the shell has set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrate.serve.deploy import cluster
from tailrate.serve.options import ServeOptions
from tailrate.serve.spec import ServeError

OPTIONS = ServeOptions(("null",), ("eager",))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Ray in this process, and an environment that is put back."""
    monkeypatch.delitem(cluster.sys.modules, "ray", raising=False)
    monkeypatch.setattr(cluster, "_ours", {})
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    monkeypatch.setattr(cluster.os, "environ", kept)


def prepare(folder: Path) -> None:
    cluster._prepare_environment(OPTIONS, folder, print)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("RAY_AUTH_MODE", "disabled"),
        ("RAY_AUTH_TOKEN", "known to others"),
        ("RAY_AUTH_TOKEN_PATH", "/tmp/known"),
        ("RAY_SERVE_HAPROXY_BINARY_PATH", "/tmp/mine"),
        ("RAY_SERVE_HAPROXY_CONFIG_FILE_LOC", "/tmp/mine.cfg"),
        ("RAY_SERVE_ENABLE_HA_PROXY", "0"),
        ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1"),
        ("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "mine.middlewares"),
    ],
)
def test_what_would_open_ray_is_refused(tmp_path: Path, key: str, value: str) -> None:
    os.environ[key] = value
    with pytest.raises(ServeError, match=f"^{key} is set in the environment, and is for tailrate serve to set: unset"):
        prepare(tmp_path)
    assert os.environ[key] == value


def test_tokens_are_on_and_of_this_start_alone(tmp_path: Path) -> None:
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "300"  # a matter of taste
    tokens = []
    for start in ("one", "two"):  # what the first has set is no other's
        prepare(tmp_path / start)
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert os.environ["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"].startswith(str(tmp_path / start))
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
    assert len(tokens[0]) == len(tokens[1]) == 64
    assert tokens[0] != tokens[1]
    assert os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] == "300"


LISTENS = """
import socket, sys
with socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET) as way:
    print(way.getsockname()[1], flush=True)
    input()
"""


@pytest.mark.parametrize(
    ("where", "host", "others_port", "fine"),
    [
        ("127.0.0.1", "127.0.0.1", 0, True),
        ("0.0.0.0", "127.0.0.1", 0, False),
        ("0.0.0.0", "0.0.0.0", 0, True),
        ("0.0.0.0", "0.0.0.0", 1, False),
        ("::", "0.0.0.0", 1, False),
    ],
)
def test_a_port_that_nobody_asked_for_is_looked_for_and_refused(
    monkeypatch: pytest.MonkeyPatch, where: str, host: str, others_port: int, fine: bool
) -> None:
    monkeypatch.setitem(cluster._ours, cluster.AUTH_TOKEN, "of-this-test-alone")
    with subprocess.Popen(
        [sys.executable, "-c", LISTENS, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, cluster.AUTH_TOKEN: "of-this-test-alone"},
    ) as other:  # fmt: skip
        assert other.stdout is not None
        port = int(other.stdout.readline())
        options = ServeOptions(("null",), ("eager",), host=host, port=port + others_port)
        try:
            if fine:
                cluster._look_at_ports(options)
            else:
                with pytest.raises(
                    ServeError, match=f" listens on {where}:{port}, where others can reach it and nobody"
                ):
                    cluster._look_at_ports(options)
        finally:
            other.communicate("\n")
