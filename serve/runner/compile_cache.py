"""What compiling left behind, kept for the next start: a folder per endpoint, or one baked into an image.

The key is what the code depends on: model and settings, weights (frozen ones are part of the code), variant, torch,
device, threads, and the compiler's own switches. A folder counts only when it is whole: `complete.json` lists
every file with its digest, and what does not match is made anew, never fatal. One writer at a time, since two
processes that build the same thing break each other's files; a folder that cannot be written is read from a copy.
What an image was built with lies elsewhere, since a volume hides what is below it, and is only read: a cache that holds
nothing whole for a key begins with a copy of it.

What lies there is run: shared libraries, and pickles of the compiler's. So it is for this user alone, and what others
can have put there does not count.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from tailrate.serve.file_locks import locked
from tailrate.serve.machine import CPU_INFO
from tailrate.serve.spec import ModelSpec

FORMAT = 1
COMPLETE = "complete.json"
SWITCHES = ("TORCHINDUCTOR_", "TORCH_COMPILE_", "TORCHDYNAMO_", "ATEN_CPU_CAPABILITY", "CXX")
"""Environment variables that change what the compiler makes; where it keeps it is not among them."""
CACHE = "TORCHINDUCTOR_CACHE_DIR"
END_BYTES = 1 << 20


class Artefacts:
    """The folder of one endpoint's compiled code; `notes` is what its last writer knew of it."""

    def __init__(self, folder: Path, baked: Path | None = None) -> None:
        self.folder = folder
        self.notes: dict[str, Any] = {}
        self.found = False
        """Whether the folder was whole when it was opened."""
        self._kept_at, self._baked_at = folder, baked

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        variant: str,
        weights: str,
        device: str,
        threads: int,
        cache: Path,
        baked: Path | None = None,
    ) -> Artefacts:
        import torch

        switches = {k: v for k, v in sorted(os.environ.items()) if k.startswith(SWITCHES) and k != CACHE}
        what = [
            FORMAT,
            spec.code,
            dict(spec.settings),
            weights,
            _device(device),
            threads,
            torch.version.git_version,
            switches,
        ]
        key = hashlib.blake2b(json.dumps(what, sort_keys=True, default=str).encode(), digest_size=6).hexdigest()
        name = f"compiled/{spec.name}-{variant}-torch{torch.__version__}-{key}"
        return cls(cache / name, baked / name if baked else None)

    @property
    def writable(self) -> bool:
        return self.folder == self._kept_at

    @contextmanager
    def used(self, say: Callable[[str], None]) -> Iterator[None]:
        """The compiler reads and writes this folder meanwhile, and no other process does."""
        waiting = partial(say, "waiting for another process that compiles the same")
        lock = self._kept_at.with_name(self._kept_at.name + ".lock")
        trusted = [place for place in (self._kept_at, self._baked_at) if place and _is_ours_alone(place)]
        writable = _can_write(self._kept_at)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(lock, waiting) if writable else nullcontext())
            except OSError:  # a link lies there, or what another user locked
                writable = False
            found = ((place, notes) for place in trusted if (notes := _notes(place)) is not None)
            whole, self.notes = next(found, (None, {}))
            if not writable:
                self.folder = Path(tempfile.mkdtemp(prefix="tailrate-compiled-"))
                atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
                if not whole:
                    who = "cannot be written by this user alone"
                    say(f"{self._kept_at} {who}: what is compiled now will not be there at the next start")
            elif whole != self._kept_at:
                self._empty()
            if whole and whole != self.folder:
                _copy(whole, self.folder)
            self.found = whole is not None
            os.environ[CACHE] = str(self.folder)
            yield

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Nothing kept, as what is there does not work; but where the block raises, all is as it was."""
        aside, before = self.folder.with_name(self.folder.name + ".aside"), (self.found, self.notes)
        shutil.rmtree(aside, ignore_errors=True)
        self.folder.rename(aside)
        self._empty()
        self.found, self.notes = False, {}
        try:
            yield
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            aside.rename(self.folder)
            self.found, self.notes = before
            raise
        shutil.rmtree(aside, ignore_errors=True)

    def _empty(self) -> None:
        if self.folder.is_symlink():
            self.folder.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        _make(self.folder)
        self.folder.chmod(0o700)

    def keep(self, notes: Mapping[str, Any]) -> None:
        """Declares the folder whole, with `notes` (JSON) for who comes next."""
        self.notes = dict(notes)
        if not self.writable:
            return
        files = {str(path.relative_to(self.folder)): _digest(path) for path in self._files()}
        scratch = self.folder / (COMPLETE + ".part")
        scratch.write_text(json.dumps({"format": FORMAT, "notes": self.notes, "files": files}))
        scratch.replace(self.folder / COMPLETE)

    def _files(self) -> Iterator[Path]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.suffix != ".lock" and path.name not in (COMPLETE, COMPLETE + ".part"):
                yield path


def _notes(folder: Path) -> dict[str, Any] | None:
    """Its last writer's, where every file is as that left it."""
    try:
        kept = json.loads((folder / COMPLETE).read_text())
        whole = kept["format"] == FORMAT and all(
            _digest(folder / name) == digest for name, digest in kept["files"].items()
        )
        return dict(kept["notes"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _copy(whole: Path, folder: Path) -> None:
    """Folders that this user may write to, whatever the first ones were."""
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o700)


def _digest(path: Path) -> str:
    """Of the size and of both ends: packages hold whole models, and wrong numbers inside fail the parity gate."""
    size = path.stat().st_size
    found = hashlib.blake2b(str(size).encode(), digest_size=8)
    with path.open("rb") as file:
        found.update(file.read(END_BYTES))
        if size > END_BYTES:
            file.seek(max(END_BYTES, size - END_BYTES))
            found.update(file.read())
    return found.hexdigest()


def _make(folder: Path) -> None:
    """With those above it that are missing, all for this user alone."""
    for path in (*reversed(folder.parents), folder):
        path.mkdir(mode=0o700, exist_ok=True)


def _is_ours_alone(folder: Path) -> bool:
    """Whether nobody but this user and root can have put anything there, or something else in its place."""
    try:
        found = folder.lstat()
        # a link is not what is used, and others may not write there
        closed = stat.S_ISDIR(found.st_mode) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return closed and found.st_uid in (0, os.geteuid()) and _is_closed_above(folder)
    except OSError:
        return False


def _is_closed_above(folder: Path) -> bool:
    where = folder.absolute()
    return all(_closed(path) for path in {*where.parents, *where.resolve().parents})


def _closed(path: Path) -> bool:
    """Whether nobody but this user and root can put one folder in another's place there."""
    found = path.lstat()
    if found.st_uid not in (0, os.geteuid()):
        return False
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return True
    open_to = stat.S_IWOTH if _group_is_own(found) else stat.S_IWOTH | stat.S_IWGRP
    # volumes of a pod are writable for all there, and all there is us
    return not found.st_mode & open_to or "KUBERNETES_SERVICE_HOST" in os.environ


def _group_is_own(found: os.stat_result) -> bool:
    """Whether its group is the owner's alone, as many systems make one for each user."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(found.st_gid), pwd.getpwuid(found.st_uid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


def _can_write(folder: Path) -> bool:
    """Whether the folder, or one to be made, is this user's alone to write: false on a read-only mount for root."""
    try:
        _make(folder)
        with tempfile.TemporaryFile(dir=folder):
            return folder.stat().st_uid == os.geteuid() and _is_closed_above(folder)
    except OSError:
        return False


def _device(kind: str) -> list[str]:
    """What compiled code is made for: more than a GPU's or CPU's kind."""
    import torch

    if kind == "cuda":
        major, minor = torch.cuda.get_device_capability(0)
        return [torch.cuda.get_device_name(0), f"{major}.{minor}", str(torch.version.cuda)]
    return [kind, torch.backends.cpu.get_cpu_capability(), *instructions(CPU_INFO)]


INSTRUCTIONS = re.compile(
    r"(sse|ssse|pni$|avx|fma|f16c|bmi|abm|popcnt|movbe|adx|aes|vaes|sha|gfni|pclmul|vpclmul|amx|xop|lzcnt"  # x86
    r"|asimd|sve|sme|bf16|i8mm|crc32|atomics|dcpop|jscvt|fcma|lrcpc)"  # arm64
)
"""Of a processor's flags those that compiled code may be made of; others come and go with a kernel's settings."""


def instructions(cpuinfo: Path) -> list[str]:
    """What this processor can do: the compiler builds for all of it, and elsewhere such code ends in SIGILL."""
    try:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.M)
    except OSError:  # macOS
        return [platform.machine(), platform.processor()]
    return sorted(flag for flag in found[1].split() if INSTRUCTIONS.match(flag)) if found else []
