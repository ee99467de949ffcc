"""A JPEG file to the square image that a classifier takes: decoded to RGB, the shorter side to 256, the middle cut out.

A file may claim any size in a few bytes, so the claim is read before anything is decoded.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np

from serve.wire import Array, WireError

MOST_PIXELS = 50_000_000
RESIZE_TO_CROP = 256 / 224


def size(raw: bytes) -> tuple[int, int] | None:
    """(height, width) as the header says, or None where it says nothing: no JPEG."""
    if raw[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(raw):
        if raw[at] != 0xFF:
            return None
        marker = raw[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame; those three are tables
            return int.from_bytes(raw[at + 5 : at + 7], "big"), int.from_bytes(raw[at + 7 : at + 9], "big")
        else:
            at += 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
    return None


def decoded(raw: bytes, row: int, side: int) -> Array:
    """UINT8 of 3 × side × side; raises `WireError` that names the row."""
    claimed = size(raw)
    if claimed is None:
        raise WireError(400, f"input 'image', row {row}, is not a JPEG file")
    height, width = claimed
    if not 0 < height * width <= MOST_PIXELS:
        raise WireError(
            400, f"input 'image', row {row}, is {width} × {height} pixels, but at most {MOST_PIXELS} are taken"
        )
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
    image = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + side, top + side))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
