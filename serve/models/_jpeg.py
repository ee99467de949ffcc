"""A JPEG file to the square image that a classifier takes: decoded to RGB, the shorter side to 256, the middle cut out.

A file may claim any size in a few bytes, and have it gone over any number of times (a scan needs fewer than a hundred),
so both are read before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy as np

from tailrate.serve.wire import Array, WireError

MOST_PIXELS = 50_000_000
MOST_WORK = 4_000_000_000
"""Pixels times scans of all files of a request: at half a nanosecond each, two seconds of a thread."""
MOST_MARKERS = 1000
"""Before the first scan. A file has some ten, and a large colour profile a hundred or so."""
SCAN = b"\xff\xda"
RESIZE_TO_CROP = 256 / 224


def size(raw: bytes) -> tuple[int, int] | None:
    """(height, width) of the one frame before the first scan, or None: no JPEG. What libjpeg would pass over is none,
    so that it can't find another frame than this."""
    if raw[:2] != b"\xff\xd8":
        return None
    at, frame = 2, None
    for _ in range(MOST_MARKERS):
        marker, length = raw[at + 1 : at + 2], int.from_bytes(raw[at + 2 : at + 4], "big")
        if raw[at : at + 1] != b"\xff":
            return None
        if marker == b"\xff":  # padding
            at += 1
            continue
        if marker == b"\xda":
            return frame
        if marker <= b"\x01" or b"\xd0" <= marker <= b"\xd9" or length < 2:  # have no length, and no place here
            return None
        if b"\xc0" <= marker <= b"\xcf" and marker not in (b"\xc4", b"\xc8", b"\xcc"):  # those three are tables
            if frame is not None or length < 8:
                return None
            frame = int.from_bytes(raw[at + 5 : at + 7], "big"), int.from_bytes(raw[at + 7 : at + 9], "big")
        at += 2 + length
    return None


def check(files: Sequence[bytes]) -> None:
    """Raises `WireError` for what is no JPEG, too large, or too much work; it names the row."""
    work = 0
    for row, raw in enumerate(files):
        claimed = size(raw)
        if claimed is None:
            raise WireError(400, f"input 'image', row {row}, is not a JPEG file")
        height, width = claimed
        if not 0 < height * width <= MOST_PIXELS:
            raise WireError(
                400, f"input 'image', row {row}, is {width} × {height} pixels, but at most {MOST_PIXELS} are taken"
            )
        scans = raw.count(SCAN)  # within a scan an FF is followed by a zero
        work += height * width * scans
        if work > MOST_WORK:
            raise WireError(413, f"input 'image', row {row}, with {scans} scans of its pixels, is too much to decode")


def decoded(raw: bytes, row: int, side: int) -> Array:
    """UINT8 of 3 × side × side of a file that was checked; raises `WireError` that names the row."""
    from PIL import Image

    try:
        file = Image.open(BytesIO(raw), formats=("JPEG",))
        if (file.height, file.width) != size(raw):
            raise ValueError("its header says two sizes")
        file.draft("RGB", (resized := round(side * RESIZE_TO_CROP), resized))  # large ones are decoded smaller
        image = file.convert("RGB")
    except (OSError, SyntaxError, ValueError) as problem:
        raise WireError(400, f"input 'image', row {row}, cannot be decoded: {problem}") from None
    scale = resized / min(image.size)
    width, height = (round(length * scale) for length in image.size)
    left, top = (width - side) // 2, (height - side) // 2
    across, down = image.width / width, image.height / height
    # the middle alone is made, as the whole of a long strip would be gigabytes
    middle = (left * across, top * down, (left + side) * across, (top + side) * down)
    image = image.resize((side, side), Image.Resampling.BILINEAR, box=middle)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
