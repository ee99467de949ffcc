"""Makes the pictures of docs/pictures anew, from a real run on this machine (some five minutes, chromium).

A small model is served eager and compiled, Locust drives rising rates at both with its web page open, the live page is
taken on the way and the report at the end, each light and dark. The plan is of made-up service times, like the example
in docs/planning.md; tokens are those of a language model, driven in the same way. Either can be had alone.

    python tests/support/pictures.py [plan|tokens]
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chromium import chromium
from PIL import Image, ImageOps
from serving import served

from tailrate.serve.deploy.haproxy import free_port

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
WIDTH_PX, MARGIN_PX = 1240, 16
RUN = ["--rates=2,3,4,5", "--step-seconds=22", "--settle-seconds=2", "--slo=p90<500ms", "--run-id=pictures"]
LIVE_AT_S = 140
"""Into the run, of eight steps."""
TOKENS = ["--rates=2,6,10,14,18", "--step-seconds=15", "--slo=p99 ttft<150ms, p99 tpot<15ms", "--run-id=pictures"]


def written(picture: Image.Image, place: Path | io.BytesIO) -> None:
    """In 256 colours, which nobody tells from the rest."""
    picture.quantize(256, dither=Image.Dither.NONE).save(place, "PNG", optimize=True)


def taken(screenshot: bytes) -> Image.Image:
    return Image.open(io.BytesIO(screenshot)).convert("RGB")


def keep(page: Any, name: str, height_px: int | None) -> None:
    """The page as wide as it is and so high from its top."""
    height_px = height_px or page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": WIDTH_PX, "height": height_px})
    written(taken(page.screenshot()), PICTURES / f"{name}.png")


def in_both(browser: Any, url: str) -> Iterator[tuple[str, Any]]:
    """The page in light and in dark."""
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme, viewport={"width": WIDTH_PX, "height": 1000})
        page.goto(url)
        yield scheme, page
        page.close()


def plan() -> None:
    from planned import planned

    from tailrate.analysis.pages.plan import page as plan_page

    with tempfile.TemporaryDirectory(prefix="tailrate-") as scratch, chromium() as browser:
        path = Path(scratch) / "plan.html"
        path.write_text(plan_page.page(planned()), encoding="utf-8")
        for scheme, page in in_both(browser, path.as_uri()):
            page.wait_for_timeout(2500)
            keep(page, f"plan-{scheme}", 1040)


def part(page: Any, place: str, name: str, height_px: int = 9000) -> None:
    """Of a report that is as high as it needs to be, so much of it, with a margin."""
    page.set_viewport_size({"width": WIDTH_PX, "height": 9000})
    whole = taken(page.locator(place).screenshot())
    picture = whole.crop((0, 0, whole.width, min(whole.height, height_px)))
    written(ImageOps.expand(picture, MARGIN_PX, whole.getpixel((0, 0))), PICTURES / f"{name}.png")


def tokens() -> None:
    with tempfile.TemporaryDirectory(prefix="tailrate-") as scratch:
        runs = Path(scratch) / "runs"
        with served(Path(scratch) / "cache", models=("tiny_llama",), threads=1) as server, chromium() as browser:
            command = [sys.executable, "-m", "tailrate", "run", "tiny_llama", "--host", server.url, f"--run-dir={runs}"]
            subprocess.run([*command, *TOKENS], cwd=ROOT, check=False)
            for scheme, page in in_both(browser, (runs / "pictures" / "report.html").as_uri()):
                part(page, "#tokens", f"tokens-{scheme}", 1060)


def report() -> None:
    with tempfile.TemporaryDirectory(prefix="tailrate-") as scratch:
        runs, web = Path(scratch) / "runs", free_port()
        with served(Path(scratch) / "cache", models=("custom_cnn",), threads=1) as server, chromium() as browser:
            command = [sys.executable, "-m", "locust", "-f", "loadtest/custom_cnn.py", "--host", server.url]
            command += ["--autostart", "--web-host=127.0.0.1", f"--web-port={web}", f"--run-dir={runs}", *RUN]
            with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}) as locust:
                try:
                    time.sleep(LIVE_AT_S)
                    for scheme, page in in_both(browser, f"http://127.0.0.1:{web}/tailrate"):
                        page.wait_for_timeout(2500)
                        keep(page, f"live-{scheme}", None)
                    while '"complete"' not in (runs / "pictures" / "run.json").read_text(encoding="utf-8"):
                        time.sleep(1)
                finally:
                    locust.terminate()
            subprocess.run([sys.executable, "-m", "tailrate", "report", str(runs / "pictures")], cwd=ROOT, check=False)
            for scheme, page in in_both(browser, (runs / "pictures" / "report.html").as_uri()):
                keep(page, f"report-{scheme}", 1500)
                part(page, "#time", f"time-{scheme}")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for made in {"plan": [plan], "tokens": [tokens]}.get("".join(sys.argv[1:]), [plan, tokens, report]):
        made()


if __name__ == "__main__":
    main()
