"""What image scenarios send: drawn numbers in the form that the endpoint takes, or files of the user's own."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from locust import events

from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.wire import Array

FORMS = ("fp32", "uint8", "jpeg")
SHAPE = (3, 224, 224)


def options(parser: Any, **_: Any) -> None:
    parser.add_argument(
        "--input", env_var="LOCUST_INPUT", choices=FORMS, default="fp32", help="as the endpoint takes it"
    )
    parser.add_argument("--images", env_var="LOCUST_IMAGES", default="", help="folder of JPEG files to send")


events.init_command_line_parser.add_listener(options)


def images(parsed: Any, rng: np.random.Generator, rows: int) -> dict[str, Array]:
    """The `image` tensor of one request."""
    if parsed.input == "jpeg":
        files = jpegs(parsed.images)
        drawn = np.empty((rows, 1), dtype=object)
        drawn[:, 0] = [files[place].read_bytes() for place in rng.integers(0, len(files), rows)]
        return {"image": drawn}
    if parsed.input == "uint8":
        return {"image": rng.integers(0, 256, (rows, *SHAPE), dtype=np.uint8)}
    return {"image": rng.standard_normal((rows, *SHAPE), dtype=np.float32)}


def image_of(parsed: Any, value: Any) -> dict[str, Array]:
    """The `image` tensor of a row of `--data`: an image file's bytes as they are, or a list of numbers."""
    if isinstance(value, bytes):
        if parsed.input != "jpeg":
            raise ScenarioError(
                "--data: image files go as they are, so serve with --set input=jpeg and say --input jpeg"
            )
        if not value.startswith(b"\xff\xd8"):
            raise ScenarioError("--data: --input jpeg takes JPEG files, and there is an image of another kind")
        image = np.empty((1, 1), dtype=object)
        image[0, 0] = value
        return {"image": image}
    kind = np.uint8 if parsed.input == "uint8" else np.float32
    return {"image": np.asarray(value, dtype=kind).reshape(1, *SHAPE)}


@lru_cache
def jpegs(folder: str) -> list[Path]:
    found = (
        sorted(path for path in Path(folder).glob("*") if path.suffix.lower() in (".jpg", ".jpeg")) if folder else []
    )
    if not found:
        raise ScenarioError("--input jpeg needs --images with a folder that has JPEG files")
    return found
