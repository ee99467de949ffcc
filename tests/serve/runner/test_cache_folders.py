"""What is kept in the cache is told with its size and age, and nothing that is used or not ours is removed."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_weights import small_net

from tailrate.cli.main import main
from tailrate.serve import file_locks
from tailrate.serve.models import _weights
from tailrate.serve.runner import cache_folders
from tailrate.serve.runner.compile_cache import COMPLETE, Artefacts

DAY_S = 86_400
OLD, NEWER = "bert-compiled-torch2.11.0-0123456789ab", "bert-aot-torch2.11.0-cdef01234567"


def aged(path: Path, days: float, now_s: float) -> None:
    os.utime(path, (now_s - days * DAY_S,) * 2, follow_symlinks=False)


def hollow(path: Path, size: int) -> None:
    """So large, without a byte on the disk."""
    path.touch()
    os.truncate(path, size)


def compiled(folder: Path, name: str, size: int, days: float, now_s: float) -> Path:
    """As `artefacts` leaves one that was last taken up so many days ago."""
    path = folder / "compiled" / name
    (path / "code").mkdir(parents=True)
    hollow(path / "code" / "kernel.so", size)
    (path / COMPLETE).write_text("{}")
    lock = path.with_name(path.name + ".lock")
    lock.touch()
    aged(path, 400, now_s)
    aged(lock, days, now_s)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three of ours, of 40, 20 and 10 MB and 40, 20 and 10 days; the clock stands still."""
    now_s = 1.8e9
    monkeypatch.setattr("time.time", lambda: now_s)
    where = tmp_path / "cache"
    compiled(where, OLD, 40_000_000, 40, now_s)
    compiled(where, NEWER, 20_000_000, 20, now_s)
    kept = _weights.kept_path(small_net(), 7, where)
    kept.parent.mkdir()
    hollow(kept, 10_000_000)
    kept.with_suffix(".lock").touch()
    aged(kept, 300, now_s)
    aged(kept.with_suffix(".lock"), 10, now_s)
    return where


def run(folder: Path, *words: str, code: int = 0) -> dict:
    done = CliRunner().invoke(main, ["cache", "--cache-dir", str(folder), "--json", *words])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def became(found: dict) -> dict[str, str | None]:
    return {item["path"].rpartition("/")[2]: item["outcome"] for item in found["items"]}


def names(folder: Path) -> set[str]:
    """Of what is left, without locks."""
    return {path.name for kind in folder.iterdir() for path in kind.iterdir() if path.suffix != ".lock"}


WEIGHTS = _weights.kept_path(small_net(), 7, Path()).name


def test_kind_size_and_last_use_of_each_the_oldest_first(folder: Path) -> None:
    found = run(folder)
    told = [(item["kind"], item["age_s"] / DAY_S, item["bytes"] // 10**6, item["in_use"]) for item in found["items"]]
    assert told == [("compiled", 40, 40, False), ("compiled", 20, 20, False), ("weights", 10, 10, False)]
    assert found["bytes"] == 70_000_000 + 4
    assert found["others"] == []
    said = CliRunner().invoke(main, ["cache", "--cache-dir", str(folder)]).stdout
    assert re.search(rf"{OLD} +compiled +38.1 MiB +40 d ago", said)
    assert "3 kept, 66.8 MiB" in said


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--older-than", "41d"], {OLD, NEWER, WEIGHTS}),
        (["--older-than", "3w"], {NEWER, WEIGHTS}),
        (["--older-than", "479h"], {WEIGHTS}),
        (["--keep-gb", "0.0701"], {OLD, NEWER, WEIGHTS}),
        (["--keep-gb", "0.0699"], {NEWER, WEIGHTS}),
        (["--keep-gb", "0.0299"], {WEIGHTS}),
        (["--keep-gb", "0"], set()),
        (["--older-than", "30d", "--keep-gb", "0.03001"], {NEWER, WEIGHTS}),
        (["--older-than", "30d", "--keep-gb", "0.02"], {WEIGHTS}),
    ],
)
def test_what_is_too_old_goes_and_then_the_oldest_until_the_rest_fits(
    folder: Path, words: list[str], left: set[str]
) -> None:
    tried = became(run(folder, "--prune", "--dry-run", *words))
    assert tried == {name: None if name in left else "would be removed" for name in (OLD, NEWER, WEIGHTS)}
    assert names(folder) == {OLD, NEWER, WEIGHTS}
    done = became(run(folder, "--prune", *words))
    assert done == {name: None if name in left else "removed" for name in (OLD, NEWER, WEIGHTS)}
    assert names(folder) == left


def test_what_a_process_uses_stays_and_the_next_oldest_goes_for_it(folder: Path) -> None:
    lock = folder / "compiled" / f"{OLD}.lock"
    code = "import sys; from pathlib import Path; from tailrate.serve.file_locks import locked\n"
    code += "with locked(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        aged(lock, 40, 1.8e9)
        assert [item["in_use"] for item in run(folder)["items"]] == [True, False, False]
        stays = {OLD: "stays: a process uses it", NEWER: "would be removed", WEIGHTS: "would be removed"}
        assert became(run(folder, "--prune", "--dry-run", "--keep-gb", "0.04")) == stays
        found = became(run(folder, "--prune", "--keep-gb", "0.0401"))
        assert found == stays | {NEWER: "removed", WEIGHTS: "removed"}
        assert names(folder) == {OLD}
    finally:
        other.communicate()
    assert became(run(folder, "--prune", "--keep-gb", "0")) == {OLD: "removed"}


def test_what_was_taken_up_since_it_was_listed_stays(folder: Path) -> None:
    items, _ = cache_folders.listed(folder)
    with file_locks.locked(folder / "compiled" / f"{OLD}.lock"):
        assert cache_folders.removed(items[0]) == cache_folders.Removal(items[0], "a process uses it")
    assert cache_folders.removed(items[0]).why == "a process has used it meanwhile"
    assert names(folder) == {OLD, NEWER, WEIGHTS}


def test_who_waits_for_the_lock_of_what_is_removed_gets_it(folder: Path) -> None:
    """A lock that were removed too would be held by one process and made anew by the next: two writers."""
    lock = folder / "compiled" / f"{OLD}.lock"
    before = lock.stat().st_ino
    run(folder, "--prune", "--keep-gb", "0")
    assert lock.stat().st_ino == before


def test_a_removed_folder_is_made_anew_at_the_next_start(tmp_path: Path) -> None:
    where = Artefacts(tmp_path / "compiled" / OLD)
    for _ in range(2):
        with where.used(print):
            assert not where.found
            (where.folder / "kernel.so").write_text("x")
            where.keep({})
        assert became(run(tmp_path, "--prune", "--older-than", "0h", "--keep-gb", "0")) == {OLD: "removed"}


def test_what_came_without_its_lock_is_removed_under_one(folder: Path) -> None:
    """As in a copy; its age is that of the making."""
    (folder / "compiled" / f"{OLD}.lock").unlink()
    assert run(folder)["items"][0]["age_s"] == 400 * DAY_S
    assert not (folder / "compiled" / f"{OLD}.lock").exists()
    assert became(run(folder, "--prune", "--older-than", "100d"))[OLD] == "removed"
    assert (folder / "compiled" / f"{OLD}.lock").exists()


def test_what_is_not_ours_by_place_and_name_stays_and_is_told(folder: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    shutil.copytree(folder / "compiled" / OLD, away)
    (folder / "compiled" / "link-eager-torch2.11.0-0123456789ab").symlink_to(away)
    (folder / "compiled" / "my notes").mkdir()
    (folder / "compiled" / "file-eager-torch2.11.0-0123456789ab").touch()
    (folder / "weights" / "mine.safetensors").write_text("x")
    (folder / "weights" / WEIGHTS.replace("seed7", "seed8")).symlink_to(away / COMPLETE)
    (folder / "self-check.json").write_text("{}")
    (folder / "logs").mkdir()
    (folder / "logs" / "torch.log").write_text("abc")
    (folder / "profiles").symlink_to(away)
    (folder / "compiled" / "x.lock").symlink_to(away / COMPLETE)
    there = {str(path) for path in folder.rglob("*")}
    ours = {str(path) for kind in ("compiled", "weights") for path in (folder / kind).glob("*[!k]")}
    found = run(folder, "--prune", "--keep-gb", "0")
    assert set(became(found)) == {OLD, NEWER, WEIGHTS}
    others = {path["path"].removeprefix(f"{folder}/") for path in found["others"]}
    assert others == {
        "compiled/link-eager-torch2.11.0-0123456789ab", "compiled/my notes", "compiled/x.lock",
        "compiled/file-eager-torch2.11.0-0123456789ab", "logs", "profiles", "self-check.json",
        f"weights/{WEIGHTS.replace('seed7', 'seed8')}", "weights/mine.safetensors",
    }  # fmt: skip
    left = {str(path) for path in folder.rglob("*")}
    assert {str(folder / other) for other in others} <= left
    assert all(any(path.startswith(str(folder / "compiled" / name)) for name in (OLD, NEWER)) or path in ours
               for path in there - left)  # fmt: skip
    assert (away / "code" / "kernel.so").exists()
    assert "logs, 3 B: neither code" in CliRunner().invoke(main, ["cache", "--cache-dir", str(folder)]).stdout


def test_a_link_that_is_put_in_place_after_the_list_is_not_followed(folder: Path, tmp_path: Path) -> None:
    items, _ = cache_folders.listed(folder)
    items[0].path.rename(tmp_path / "away")
    items[0].path.symlink_to(tmp_path / "away")
    assert cache_folders.removed(items[0]).failed
    assert (tmp_path / "away" / "code" / "kernel.so").exists()


def test_what_another_has_removed_meanwhile_is_no_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items, _ = cache_folders.listed(folder)
    assert [cache_folders.removed(item) for item in (items[0], items[0])] == [cache_folders.Removal(items[0])] * 2
    monkeypatch.setattr(cache_folders, "size", lambda path: shutil.rmtree(path, ignore_errors=True) or 0)
    assert [item.name for item in cache_folders.listed(folder)[0]] == [WEIGHTS]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder another user's")
def test_what_is_another_users_stays(folder: Path) -> None:
    os.chown(folder / "compiled" / OLD, 10001, 10001)
    found = run(folder, "--prune", "--keep-gb", "0")
    assert set(became(found)) == {NEWER, WEIGHTS}
    assert [other["path"] for other in found["others"]] == [str(folder / "compiled" / OLD)]


def test_profiles_and_a_killed_writers_rest(folder: Path) -> None:
    (folder / "profiles").mkdir()
    trace = folder / "profiles" / "bert-compiled-abc1-20260101T101500-012345.json.gz"
    rest = (folder / "weights" / WEIGHTS).with_suffix(".part")
    for path in (trace, rest):
        path.write_text("x")
        aged(path, 50, 1.8e9)
    found = run(folder, "--prune", "--older-than", "45d")
    assert became(found)[trace.name] == "removed"
    assert became(found)[rest.name] is None  # its lock was last used when that of the weights was
    assert not trace.exists()
    assert not trace.with_name(trace.name + ".lock").exists()


def test_what_the_system_refuses_is_told_and_ends_with_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(cache_folders.shutil, "rmtree", refuses)
    found = became(run(folder, "--prune", "--keep-gb", "0", code=1))
    assert found[OLD] == "stays: it cannot be removed: Read-only file system"
    assert found[WEIGHTS] == "removed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prune"], "prune what? give an age, such as --older-than 30d, or a size, such as --keep-gb 20"),
        (["--prune", "--dry-run"], "prune what? give an age"),
        (["--older-than", "30d"], "--older-than, --keep-gb and --dry-run are of --prune"),
        (["--keep-gb", "0"], "--older-than, --keep-gb and --dry-run are of --prune"),
        (["--prune", "--older-than", "30"], "--older-than '30' is not understood; write for instance 12h, 30d or 8w"),
        (["--prune", "--older-than", "-1d"], "--older-than '-1d' is not understood"),
        (["--prune", "--keep-gb", "-1"], "--keep-gb must be a number of gigabytes from 0 up"),
        (["--prune", "--keep-gb", "nan"], "--keep-gb must be a number of gigabytes from 0 up"),
    ],
)
def test_what_is_misunderstood_is_one_sentence_and_removes_nothing(folder: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["cache", "--cache-dir", str(folder), *words])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"tailrate: {said}")
    assert names(folder) == {OLD, NEWER, WEIGHTS}


def test_the_folder_is_the_servers_and_one_that_is_not_there_holds_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRATE_CACHE", str(folder))
    assert "3 kept" in CliRunner().invoke(main, ["cache"]).stdout
    assert run(tmp_path / "none") == {"folder": str(tmp_path / "none"), "bytes": 0, "items": [], "others": []}
    assert not (tmp_path / "none").exists()


def test_ages() -> None:
    assert [cache_folders.age_s(text) for text in ("12h", "1.5d", "2w")] == [43_200, 129_600, 1_209_600]
    assert [cache_folders.age(hours * 3600) for hours in (-1, 47.9, 48, 960)] == [
        "0 h ago",
        "47 h ago",
        "2 d ago",
        "40 d ago",
    ]


@pytest.mark.computes
def test_names_are_those_that_the_makers_give(tmp_path: Path) -> None:
    made = Artefacts.of(small_net(), "compiled-bf16", "abc", "cpu", 2, tmp_path).folder
    assert cache_folders.NAMES["compiled"].fullmatch(made.name)
    assert made.parent.name == "compiled"


def test_bytes_are_those_of_files_and_of_what_lies_there_itself(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(bytes(10))
    (tmp_path / "b").write_bytes(bytes(5))
    assert cache_folders.size(tmp_path) == 15
    assert cache_folders.size(tmp_path / "b") == 5
    assert cache_folders.size(tmp_path / "nowhere") == 0
    (tmp_path / "deep" / "link").symlink_to(tmp_path / "b")
    assert cache_folders.size(tmp_path / "deep") == 10 + len(str(tmp_path / "b"))
