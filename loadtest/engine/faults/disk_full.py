"""The run folder's volume is full: only a small one that holds the run and was named for it is ever filled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import gevent

from tailrate.loadtest.engine.faults import LoadFault, LoadSide, RefusedError
from tailrate.serve.faults import Target

MOST_VOLUME_BYTES = 4 << 30
"""A larger volume is nobody's test volume."""


@contextmanager
def lasting(here: LoadSide, target: str, seconds: float) -> Iterator[str]:
    mount = Path(target)
    device = here.folder.stat().st_dev
    if not mount.is_mount() or mount.stat().st_dev != device:
        raise RefusedError(f"{mount} is not the mount point of the volume that the run folder is on")
    if device in {Path(path).stat().st_dev for path in ("/", Path.home(), "/dev/shm", "/tmp") if Path(path).exists()}:  # noqa: S108
        raise RefusedError(f"{mount} holds more than this run, and a disk that others need is never filled")
    volume = os.statvfs(mount)
    if volume.f_blocks * volume.f_frsize > MOST_VOLUME_BYTES:
        raise RefusedError(f"{mount} is larger than {MOST_VOLUME_BYTES >> 30} GiB, so it is no test volume")
    filler = here.folder / "filler"
    written = 0
    try:
        with filler.open("wb", buffering=0) as out, suppress(OSError):
            while part := out.write(bytes(1 << 20)):
                written += part
                gevent.sleep(0)
        yield f"{mount} is full: {written >> 20} MiB were taken"
    finally:
        filler.unlink(missing_ok=True)


VOLUME = Target("the mount point of the run folder's own small volume")
FAULT = LoadFault(place=6, word="disk", seconds=15, target=VOLUME, lasting=lasting)
