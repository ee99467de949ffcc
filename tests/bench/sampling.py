"""What sampling devices costs: CPU of the sampler, and what is left of the null model's throughput.

Three servers are up at once, one that does not sample (once a minute), one at 10 Hz and one at 20 Hz, each with the
host and two GPUs behind a stand-in NVML (nvml.c); wrk visits them in turn, in rounds, so that a noisy minute hits
all. Then once more, started in the opposite order: of equal servers the last to be started is some 5 % slower. The CPU
share is that of a process which does nothing but sample.

Prints a table (medians over the rounds, the lowest and the highest), then one JSON line. Needs a C compiler, and wrk
(Debian: apt-get install wrk) for the throughput.

    python tests/bench/sampling.py [--seconds 3] [--rounds 5] [--cpu-seconds 8]
    python tests/bench/sampling.py --no-servers         the CPU share alone
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, left_out, over, shown, spread  # noqa: E402

PERIODS_MS = {"none": 60_000, "10 Hz": 100, "20 Hz": 50}
SHOWN = (("cpu_pct", ".2f", 18), ("rps", ".0f", 22), ("ratio", ".3f", 21))
ALONE = """
import sys, time
from tailrate.serve.telemetry.sampler import Sampler, sources
sampler = Sampler(sources(), int(sys.argv[1]))
sampler.start()
time.sleep(1)
cpu, began = time.process_time(), time.monotonic()
time.sleep(float(sys.argv[2]))
print(100 * (time.process_time() - cpu) / (time.monotonic() - began))
"""


def alone(period_ms: int, seconds: float, environment: dict[str, str]) -> float:
    """Percent of a core."""
    words = [sys.executable, "-c", ALONE, str(period_ms), str(seconds)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout)


def served_rps(order: list[str], seconds: float, rounds: int, scratch: Path) -> dict[str, list[float]]:
    """Requests per second of each server in each round; they are started in this order."""
    from bench.request_path import PATH, SCRIPT, head, visit
    from serving import served

    script = scratch / "body.lua"
    script.write_text(SCRIPT % (head(1000), 1000))
    with ExitStack() as stack:
        urls = {}
        for name in order:
            cache = scratch / f"{name}-{order[0]}-first".replace(" ", "-")
            period = PERIODS_MS[name]
            server = stack.enter_context(served(cache, models=["null"], variants=["eager"], sample_ms=period))
            urls[name] = server.url + PATH

        def rps(name: str) -> float:
            return visit(urls[name], script, 64, seconds)["rps"]

        return in_turns(rounds, {name: partial(rps, name) for name in PERIODS_MS})


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seconds", type=float, default=3)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--cpu-seconds", type=float, default=8)
    found.add_argument("--no-servers", action="store_true")
    return found


def main() -> None:
    options = parser().parse_args()
    from bare import standin

    if not (shutil.which("gcc") or shutil.which("cc")):
        left_out("sampling", "there is no C compiler, which the stand-in for NVML takes")
        return
    rps: dict[str, list[list[float]]] = {name: [] for name in PERIODS_MS}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        os.environ.update(standin(scratch))
        ways = {
            name: partial(alone, period, options.cpu_seconds, dict(os.environ)) for name, period in PERIODS_MS.items()
        }
        cpu = in_turns(options.rounds, ways)
        if shutil.which("wrk") is None:
            print("the throughput is left out, there is no wrk (Debian: apt-get install wrk)")
        elif not options.no_servers:
            for way in (1, -1):
                each = served_rps(list(PERIODS_MS)[::way], options.seconds, options.rounds, scratch)
                for name, rates in each.items():
                    rps[name].append(rates)
    print(f"{'sampling':<8} {'CPU %':>18} {'req/s':>22} {'÷ none':>21}")
    rows = []
    for name, ways_rps in rps.items():
        row = {"sampling": name, "cpu_pct": spread(cpu[name])}
        if ways_rps:
            # of the two orders, so that who was started last has no advantage
            both = [[math.prod(pair) ** 0.5 for pair in zip(*rates, strict=True)] for rates in (ways_rps, rps["none"])]
            row |= {"rps": spread(chain(*ways_rps)), "ratio": over(*both)}
        rows.append(row)
        figures = [shown(row[key], form, width) for key, form, width in SHOWN if key in row]
        print(f"{name:<8} {' '.join(figures)}")
    last_line("sampling", rows=rows)


if __name__ == "__main__":
    main()
