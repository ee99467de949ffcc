"""The page of a run of any length: how long it takes to make, how large it is, how fast it opens and zooms.

Sealed folders of an hour at eight GPUs, twenty rates and two variants. `report` is `tailrate report --no-page` as a
process of its own, `with page` the same with report.html and report.md, in turns. `opened` is
from the start of the navigation to the second frame after everything was loaded, `zoom` from a zoom of the time line to
the frame that shows it, both in headless chromium without a GPU. Each time is the median of the rounds, with the lowest
and the highest.

    python tests/bench/pages.py [--rows 1e4,1e6,1e7] [--rounds 5]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line, shown, spread  # noqa: E402

FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
ZOOM = """() => new Promise(done => {
  const began = performance.now();
  document.querySelector("#timeline [data-zoom=in]").click();
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
})"""


def made(folder: Path, page: str) -> tuple[float, float]:
    """Seconds and peak memory in MB of one process."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrate", "report", str(folder), page], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    peak = 0
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        try:
            peak = max(peak, next(int(line.split()[1]) for line in status.open() if line.startswith("VmHWM")))
        except (OSError, StopIteration):  # it has just ended
            break
        time.sleep(0.02)
    process.wait()
    return time.perf_counter() - began, peak / 1024


def opened(browser: Any, page: Path) -> tuple[float, float]:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(page.as_uri())
    loaded_ms = tab.evaluate(FRAMES)
    tab.locator("#timeline").scroll_into_view_if_needed()
    zoomed_ms = tab.evaluate(ZOOM)
    tab.close()
    return loaded_ms, zoomed_ms


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--rows", default="1e4,1e6,1e7")
    found.add_argument("--rounds", type=int, default=5)
    return found


def main() -> None:
    asked = parser().parse_args()
    import wide
    from chromium import CHROMIUM, chromium

    scratch = Path(tempfile.mkdtemp(prefix="tailrate-bench-"))
    found: list[dict[str, Any]] = []
    try:
        print(f"   requests {'report s':>19} {'with page s':>19}  peak MB  page kB {'opened ms':>19} {'zoom ms':>15}")
        for rows in (int(float(word)) for word in asked.rows.split(",")):
            folder = wide.write(scratch / str(rows), rows)
            both = [(made(folder, "--no-page"), made(folder, "--page")) for _ in range(asked.rounds)]
            page = folder / "report.html"
            row: dict[str, Any] = {
                "rows": rows,
                "report_s": spread(plain[0] for plain, _ in both),
                "with_page_s": spread(paged[0] for _, paged in both),
                "peak_mb": max(paged[1] for _, paged in both),
                "page_bytes": page.stat().st_size,
            }
            if CHROMIUM:
                with chromium() as browser:
                    times = [opened(browser, page) for _ in range(asked.rounds)]
                row |= {"opened_ms": spread(t[0] for t in times), "zoom_ms": spread(t[1] for t in times)}
            found.append(row)
            seen = (shown(row["opened_ms"], ".0f", 19), shown(row["zoom_ms"], ".0f", 15)) if CHROMIUM else ()
            print(
                f"{rows:11,} {shown(row['report_s'], '.2f', 19)} {shown(row['with_page_s'], '.2f', 19)} "
                f"{row['peak_mb']:8,.0f} {row['page_bytes'] / 1e3:8,.0f} {' '.join(seen) or 'there is no chromium'}",
                flush=True,
            )
            shutil.rmtree(folder)
        last_line("pages", rows=found)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
