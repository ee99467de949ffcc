"""A JPEG file to the square image that a classifier takes: decoded to RGB, the shorter side to 256, the middle cut out.

A file may claim any size in a few bytes, and have it gone over any number of times (a scan needs fewer than a hundred),
so both are read before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy as np

from serve.wire import Array, WireError

MOST_PIXELS = 50_000_000
MOST_WORK = 4_000_000_000
"""Pixels times scans of all files of a request: at half a nanosecond each, two seconds of a thread."""
MOST_MARKERS = 1000
"""Before the frame. A file has some ten, and a large colour profile a hundred or so."""
SCAN = b"\xff\xda"
RESIZE_TO_CROP = 256 / 224


def size(raw: bytes) -> tuple[int, int] | None:
    """(height, width) as the header says, or None where it says nothing: no JPEG."""
    if raw[:2] != b"\xff\xd8":
        return None
    at = 2
    for _ in range(MOST_MARKERS):
        if at + 9 > len(raw) or raw[at] != 0xFF:
            return None
        marker = raw[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame; those three are tables
            return int.from_bytes(raw[at + 5 : at + 7], "big"), int.from_bytes(raw[at + 7 : at + 9], "big")
        else:
            at += 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
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
