"""Locks as proof of life: what is swept is ours and dead, and a link leads nowhere."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrate.serve import file_locks
from tailrate.serve.deploy import cluster


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_what_a_dead_server_left_is_swept_and_nothing_else(temp: Path) -> None:
    """Numbers say nothing: they are of another PID namespace, of somebody's payroll, or used again."""
    for name in ("tr2024-payroll", "tr1-dead", "tr2-link", "tr3-held", f"tr{os.getpid()}-mine"):
        (temp / name).mkdir()
        (temp / name / "work").touch()
    code = "import pathlib, sys; from tailrate.serve import file_locks\nfile_locks.live(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, temp / "tr1-dead" / cluster.ALIVE], check=True)
    subprocess.run([sys.executable, "-c", code, temp / f"tr{os.getpid()}-mine" / cluster.ALIVE], check=True)
    (temp / "tr2-link" / cluster.ALIVE).symlink_to(temp / "tr2024-payroll" / "work")
    (temp / "tr4-away").symlink_to(temp / "tr1-dead")
    held = file_locks.live(temp / "tr3-held" / cluster.ALIVE)
    cluster._sweep()
    left = {path.name for path in temp.iterdir()}
    assert left == {"tr2024-payroll", "tr2-link", "tr3-held", "tr4-away"}
    assert (temp / "tr2024-payroll" / "work").exists()
    os.close(held)
    cluster._sweep()
    assert not (temp / "tr3-held").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file another user's")
def test_what_is_another_users_stays(temp: Path) -> None:
    (temp / "tr1-theirs").mkdir()
    (temp / "tr1-theirs" / cluster.ALIVE).touch()
    os.chown(temp / "tr1-theirs" / cluster.ALIVE, 10001, 10001)
    cluster._sweep()
    assert (temp / "tr1-theirs").exists()


def test_a_lock_leads_to_no_other_file_and_empties_none(tmp_path: Path) -> None:
    secret, link = tmp_path / "secret", tmp_path / "x.lock"
    secret.write_text("keep")
    link.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic"), file_locks.locked(link):
        pass
    assert secret.read_text() == "keep"
    with file_locks.locked(secret):  # it is no matter what is in it
        assert secret.read_text() == "keep"


def test_one_at_a_time_and_the_other_says_that_it_waits(tmp_path: Path) -> None:
    said: list[str] = []
    first = os.open(tmp_path / "x.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(first, fcntl.LOCK_EX)

    def waits() -> None:
        said.append("waiting")
        os.close(first)

    with file_locks.locked(tmp_path / "x.lock", waits):
        assert file_locks.grip(tmp_path / "x.lock") is None
    assert said == ["waiting"]
    held = file_locks.grip(tmp_path / "x.lock")
    assert held is not None
    os.close(held)
