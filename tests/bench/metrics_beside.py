"""Does reading the servers' metrics beside the load hold arrivals up, also where a page hangs, never ends or is large?

Physics: the reader is a process of its own with the least priority, so what an arrival can lose to it is a core that is
taken anew in the middle of a slice, and what the load process does with the rows: one copy a second. The endpoint and
the pages share this machine's cores with the load, and so does the reader, which is the worst case. Each round drives
the same arrivals at the same endpoint once without metrics and once beside each kind of page.

Prints a table (lateness P50, P99 and most in ms, and rows that are missing: medians of the rounds, the lowest and the
highest), then one JSON line.

    python tests/bench/metrics_beside.py
    python tests/bench/metrics_beside.py --rounds 9 --rate 500 --seconds 8
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, shown, spreads  # noqa: E402


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--rate", type=float, default=300.0)
    found.add_argument("--seconds", type=float, default=6.0)
    return found


def driven(url: str, folder: Path, pages: str, options: argparse.Namespace) -> dict[str, float]:
    """Lateness of one run."""
    from tailrate import analysis

    command = [sys.executable, "-m", "locust", "-f", "loadtest/null.py", "--headless", "--only-summary", "--host", url]
    command += [f"--rates={options.rate:g}", f"--step-seconds={options.seconds:g}", "--settle-seconds=1"]
    command += ["--variants=eager", "--idle-seconds=0", f"--run-dir={folder.parent}", f"--run-id={folder.name}"]
    subprocess.run([*command, *(["--metrics", pages] if pages else [])], check=True, cwd=ROOT, capture_output=True)
    run = analysis.load(folder)
    late_ms = run.requests(columns=["late_ms"])["late_ms"].to_numpy()
    if pages:
        assert len(run.metrics), "nothing was read"
    p50, p99, most = np.quantile(late_ms, [0.5, 0.99, 1.0], method="higher")
    missing = run.manifest.totals["scheduled"] - run.manifest.totals["ok"]
    return {"p50_ms": float(p50), "p99_ms": float(p99), "most_ms": float(most), "missing": float(missing)}


def main() -> None:
    from endpoint import endpoint
    from odd_pages import hangs, large, never_ends, serving

    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrate-") as scratch, ExitStack() as stack:
        url = stack.enter_context(endpoint(delay_ms=1))
        odd = {answer.__name__: stack.enter_context(serving(answer)) for answer in (hangs, large, never_ends)}
        pages = {"none": "", "the endpoint's own": url} | {name: f"{url},{page}" for name, page in odd.items()}
        numbers = count()

        def once(page: str) -> dict[str, float]:
            return driven(url, Path(scratch) / str(next(numbers)), page, options)

        found = in_turns(options.rounds, {name: partial(once, page) for name, page in pages.items()})
    print(f"{'pages':<20} {'late P50, ms':>24} {'P99, ms':>24} {'most, ms':>24} {'missing':>14}")
    rows = []
    for name, rounds in found.items():
        row = spreads(rounds)
        cells = [shown(row[key], ".2f", 24) for key in ("p50_ms", "p99_ms", "most_ms")]
        print(f"{name:<20} {' '.join(cells)} {shown(row['missing'], '.0f', 14)}")
        rows.append({"pages": name} | row)
    last_line("metrics_beside", rate=options.rate, rows=rows)


if __name__ == "__main__":
    main()
