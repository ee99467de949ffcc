import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_weights import small_net
from waiting import PATIENCE_S, until

from tailrate.serve.runner import compile_cache
from tailrate.serve.runner.compile_cache import COMPLETE, Artefacts

pytestmark = pytest.mark.computes


def opened(cache: Path, **change: Any) -> Artefacts:
    what: dict[str, Any] = {"variant": "compiled", "weights": "abc", "device": "cpu", "threads": 2} | change
    return Artefacts.of(small_net(), cache=cache, **what)


def written(cache: Path) -> Artefacts:
    """A folder with two files, kept."""
    found = opened(cache)
    with found.used(print):
        assert not found.found
        (found.folder / "code").mkdir()
        (found.folder / "code" / "kernel.so").write_bytes(b"\x7fELF" * 100)
        (found.folder / "graph.py").write_text("print()")
        (found.folder / "graph.lock").touch()
        found.keep({"parity": 0.5})
    return found


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compile_cache.CACHE, "elsewhere")


def test_what_was_kept_is_found_with_its_notes(tmp_path: Path) -> None:
    first = written(tmp_path)
    second = opened(tmp_path)
    with second.used(print):
        assert second.found
        assert second.notes == {"parity": 0.5}
        assert second.folder == first.folder
        assert os.environ[compile_cache.CACHE] == str(second.folder)
        assert (second.folder / "code" / "kernel.so").exists()


@pytest.mark.parametrize("change", [{"weights": "abd"}, {"threads": 1}, {"variant": "aot"}])
def test_whatever_the_code_depends_on_has_a_folder_of_its_own(tmp_path: Path, change: dict[str, Any]) -> None:
    assert opened(tmp_path, **change).folder != opened(tmp_path).folder


def test_the_compilers_switches_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = opened(tmp_path).folder
    monkeypatch.setenv(compile_cache.CACHE, "somewhere")
    assert opened(tmp_path).folder == before
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert opened(tmp_path).folder != before


def test_code_for_one_processor_is_not_run_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that was baked on a newer one: torch calls both AVX512."""
    before = opened(tmp_path).folder
    older = [flag for flag in compile_cache.instructions(Path("/proc/cpuinfo")) if flag != "sse4_2"]
    monkeypatch.setattr(compile_cache, "instructions", lambda cpuinfo: older)
    assert opened(tmp_path).folder != before


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("flags\t\t: fpu vme avx2 avx512f ibrs md_clear hypervisor sse2", ["avx2", "avx512f", "sse2"]),
        ("flags\t\t: sse2 avx2 fpu", ["avx2", "sse2"]),  # what a kernel's settings hide makes no difference
        ("Features\t: fp asimd aes sve cpuid", ["aes", "asimd", "sve"]),
        ("processor\t: 0", []),
    ],
)
def test_what_a_processor_can_do_is_told_by_its_flags(tmp_path: Path, line: str, found: list[str]) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\nbugs\t\t: spectre_v1\n")
    assert compile_cache.instructions(tmp_path / "cpuinfo") == found
    assert compile_cache.instructions(tmp_path / "none") == [platform.machine(), platform.processor()]


def broken_file(folder: Path) -> None:
    (folder / "code" / "kernel.so").write_bytes(b"\x7fELF")


def missing_file(folder: Path) -> None:
    (folder / "graph.py").unlink()


def garbage(folder: Path) -> None:
    (folder / COMPLETE).write_text("{")


def another_format(folder: Path) -> None:
    kept = json.loads((folder / COMPLETE).read_text())
    (folder / COMPLETE).write_text(json.dumps(kept | {"format": 0}))


def no_list(folder: Path) -> None:
    (folder / COMPLETE).write_text("[]")


@pytest.mark.parametrize("harm", [broken_file, missing_file, garbage, another_format, no_list])
def test_what_is_not_whole_is_made_anew(tmp_path: Path, harm: Any) -> None:
    harm(written(tmp_path).folder)
    second = opened(tmp_path)
    with second.used(print):
        assert not second.found
        assert second.notes == {}
        assert not list(second.folder.iterdir())
        (second.folder / "graph.py").touch()
        second.keep({})
    third = opened(tmp_path)
    with third.used(print):
        assert third.found


def test_what_was_killed_while_compiling_does_not_count(tmp_path: Path) -> None:
    found = opened(tmp_path)
    with found.used(print):
        (found.folder / "half").touch()
    again = opened(tmp_path)
    with again.used(print):
        assert not again.found
        assert not (again.folder / "half").exists()


def test_a_folder_that_cannot_be_written_is_read_from_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = written(tmp_path).folder
    before = {path: path.stat().st_mtime_ns for path in kept.rglob("*")}
    monkeypatch.setattr(compile_cache, "_can_write", lambda folder: False)  # root may write everywhere
    baked = opened(tmp_path)
    with baked.used(print):
        assert baked.found
        assert baked.folder != kept
        assert (baked.folder / "code" / "kernel.so").read_bytes() == (kept / "code" / "kernel.so").read_bytes()
        (baked.folder / "more").touch()
        baked.keep({"parity": 1})
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*")} == before
    said: list[str] = []
    stale = opened(tmp_path, threads=1)
    with stale.used(said.append):
        assert not stale.found
        stale.keep({})
    assert len(said) == 1
    assert "cannot be written" in said[0]


def state(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("harm", [None, broken_file, missing_file, garbage, another_format, no_list])
def test_what_is_baked_is_found_where_the_cache_has_nothing(tmp_path: Path, harm: Any) -> None:
    """A copy in the cache is used, so that more may come to it; what is not whole is not, and never fatal."""
    baked = written(tmp_path / "baked").folder
    if harm:
        harm(baked)
    (baked / "code").chmod(0o555)
    before = state(tmp_path / "baked")
    first = opened(tmp_path / "cache", baked=tmp_path / "baked")
    with first.used(print):
        assert (first.found, first.notes) == ((False, {}) if harm else (True, {"parity": 0.5}))
        assert first.writable
        assert first.folder == opened(tmp_path / "cache").folder
        assert (first.folder / "code" / "kernel.so").exists() is (harm is None)
        assert {path.stat().st_mode & 0o777 for path in (first.folder, *first.folder.glob("code"))} == {0o700}
        (first.folder / "more").touch()
        first.keep({"parity": 0.25})
    again = opened(tmp_path / "cache", baked=tmp_path / "baked")
    with again.used(print):
        assert (again.found, again.notes) == (True, {"parity": 0.25})
        assert (again.folder / "more").exists()
        with again.anew():  # it does not work here
            again.keep({"parity": 0.125})
    anew = opened(tmp_path / "cache", baked=tmp_path / "baked")
    with anew.used(print):
        assert anew.notes == {"parity": 0.125}
    assert state(tmp_path / "baked") == before


def test_a_broken_cache_begins_anew_with_what_is_baked(tmp_path: Path) -> None:
    written(tmp_path / "baked")
    broken_file(kept := written(tmp_path / "cache").folder)
    (kept / "of the broken one").touch()
    found = opened(tmp_path / "cache", baked=tmp_path / "baked")
    with found.used(print):
        assert (found.found, found.notes) == (True, {"parity": 0.5})
        assert (found.folder / "code" / "kernel.so").stat().st_size == 400
        assert not (kept / "of the broken one").exists()


def test_what_is_baked_is_used_where_no_cache_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baked = written(tmp_path / "baked").folder
    before = state(tmp_path / "baked")
    monkeypatch.setattr(compile_cache, "_can_write", lambda folder: False)
    said: list[str] = []
    found = opened(tmp_path / "cache", baked=tmp_path / "baked")
    with found.used(said.append):
        assert (found.found, found.writable) == (True, False)
        assert found.folder not in (baked, opened(tmp_path / "cache").folder)
        assert (found.folder / "graph.py").read_text() == "print()"
        (found.folder / "more").touch()
    assert said == []
    assert state(tmp_path / "baked") == before


@pytest.mark.parametrize(
    "others", [pytest.param(True, marks=pytest.mark.skipif(os.geteuid() != 0, reason="root")), False]
)
def test_what_others_could_have_baked_is_not_run(tmp_path: Path, others: bool) -> None:
    baked = written(tmp_path / "baked").folder
    if others:
        os.chown(baked, 10002, 10002)
    else:
        baked.chmod(0o777)
    found = opened(tmp_path / "cache", baked=tmp_path / "baked")
    with found.used(print):
        assert not found.found
        assert list(found.folder.iterdir()) == []


@pytest.mark.parametrize("how", ["open", "a link", "a lock that is one", "open, in a pod", "sticky"])
def test_what_others_could_swap_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Where anyone may write to a folder above it, ours can be moved away between look and use."""
    place = tmp_path / "shared"
    written(place)
    place.chmod({"open": 0o777, "open, in a pod": 0o777, "sticky": 0o1777}.get(how, 0o755))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if how == "open, in a pod":
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    if how == "a link":
        kept = next(path for path in (place / "compiled").iterdir() if path.is_dir())
        kept.rename(tmp_path / "elsewhere")
        kept.symlink_to(tmp_path / "elsewhere")
    if how == "a lock that is one":
        (lock,) = (place / "compiled").glob("*.lock")
        lock.unlink()
        lock.symlink_to(tmp_path / "of somebody")
    again = opened(place)
    with again.used(lambda line: None):
        if how in ("open, in a pod", "sticky"):
            assert (again.found, again.writable) == (True, True)
        elif how == "a lock that is one":  # read from a copy
            assert (again.found, again.writable) == (True, False)
            assert not (tmp_path / "of somebody").exists()
        else:
            assert not again.found
            assert again.folder.lstat().st_mode & 0o777 == 0o700
            assert again.writable == (how == "a link")


def test_what_is_run_is_for_this_user_alone(tmp_path: Path) -> None:
    kept = written(tmp_path / "not" / "there").folder
    assert {path.stat().st_mode & 0o777 for path in (kept, *kept.parents[:4])} == {0o700}


def test_what_others_could_have_put_there_is_made_anew(tmp_path: Path) -> None:
    kept = written(tmp_path).folder
    kept.chmod(0o775)
    again = opened(tmp_path)
    with again.used(print):
        assert (again.found, again.folder) == (False, kept)
        assert list(kept.iterdir()) == []
        assert kept.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder another user's")
def test_what_is_another_users_is_not_used(tmp_path: Path) -> None:
    kept = written(tmp_path).folder
    os.chown(kept, 10001, 10001)
    found = opened(tmp_path)
    with found.used(print):
        assert not found.found
        assert found.folder != kept
    assert (kept / "code" / "kernel.so").exists()


def blocked(pid: int) -> bool:
    """Whether the kernel has the process wait for a lock of a file."""
    locks = Path("/proc/locks")  # not everywhere
    return not locks.exists() or any(" -> " in line and f" {pid} " in line for line in locks.read_text().splitlines())


def test_two_processes_take_turns(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from test_compile_cache import opened\n"
        f"found = opened(Path({str(tmp_path)!r}))\n"
        "with found.used(lambda line: print(line, flush=True)):\n"
        "    print(found.found, flush=True)\n"
    )
    first = opened(tmp_path)
    with first.used(print):
        other = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "waiting for another process that compiles the same\n"
        until(lambda: blocked(other.pid) or other.poll() is not None)
        assert other.poll() is None
        first.keep({})
    assert other.communicate(timeout=PATIENCE_S)[0] == "True\n"
