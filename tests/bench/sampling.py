"""What sampling devices costs: CPU of the sampler, and what is left of the null model's throughput.

Three servers are up at once, one that does not sample (once a minute), one at 10 Hz and one at 20 Hz, each with the
host and two GPUs behind a stand-in NVML (tests/nvml.c); wrk visits them in turn, in rounds, so that a noisy minute hits
all. Then once more, started in the opposite order: of equal servers the last to be started is some 5 % slower. The CPU
share is that of a process which does nothing but sample.

Prints a table, then one JSON line. Needs wrk (Debian: apt-get install wrk) and a C compiler.

    python tests/bench/sampling.py [--seconds 3] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

PERIODS_MS = {"none": 60_000, "10 Hz": 100, "20 Hz": 50}
ALONE = """
import sys, time
from serve.telemetry import Sampler, sources
sampler = Sampler(sources(), int(sys.argv[1]))
sampler.start()
time.sleep(1)
cpu, began = time.process_time(), time.monotonic()
time.sleep(8)
print(100 * (time.process_time() - cpu) / (time.monotonic() - began))
"""


def alone(period_ms: int, environment: dict[str, str]) -> float:
    """Percent of a core."""
    words = [sys.executable, "-c", ALONE, str(period_ms)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        print("sampling: not run, there is no wrk (Debian: apt-get install wrk)")
        return
    from bare import standin
    from request_path import PATH, SCRIPT, head, visit
    from serving import served

    found: dict[str, list[float]] = {name: [] for name in PERIODS_MS}
    ratios: dict[str, list[float]] = {name: [] for name in PERIODS_MS}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        environment = standin(scratch)
        os.environ.update(environment)
        cpu = {name: alone(period, dict(os.environ)) for name, period in PERIODS_MS.items()}
        script = scratch / "body.lua"
        script.write_text(SCRIPT % (head(1000), 1000))
        for way in (1, -1):
            with ExitStack() as stack:
                urls = {}
                for name, period in list(PERIODS_MS.items())[::way]:
                    cache = scratch / f"{name}{way}".replace(" ", "-")
                    server = stack.enter_context(served(cache, models=["null"], variants=["eager"], sample_ms=period))
                    urls[name] = server.url + PATH
                rates: dict[str, list[float]] = {name: [] for name in PERIODS_MS}
                for _ in range(options.rounds):
                    for name, url in urls.items():
                        rates[name].append(visit(url, script, 64, options.seconds)["rps"])
            for name, each in rates.items():
                found[name] += each
                ratios[name].append(statistics.median(a / b for a, b in zip(each, rates["none"], strict=True)))
    print(f"{'sampling':<8} {'CPU %':>6} {'req/s':>8} {'÷ none':>7}")
    rows = []
    for name, each in found.items():
        ratio = statistics.geometric_mean(ratios[name])
        rows.append({"sampling": name, "cpu_pct": cpu[name], "rps": statistics.median(each), "ratio": ratio})
        print(f"{name:<8} {cpu[name]:6.2f} {rows[-1]['rps']:8.0f} {ratio:7.3f}")
    print(json.dumps({"benchmark": "sampling", "rows": rows}))


if __name__ == "__main__":
    main()
