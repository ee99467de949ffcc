"""How well does the model foretell a live endpoint? Fitted at three rates, it is asked for others.

`null` with a set delay and `custom_cnn` eager are served on this machine. A closed loop first finds about how much the
endpoint can take (X), and a model of three shorter rates about where its knee is (P99 within a multiple of a lone
request's latency). Then one run drives eight rates: 0.3, 0.6 and 0.9 of X; 0.3, 0.5, 0.7, 0.9 and 1.1 of the knee.
The speed of a shared machine wanders by a tenth, and for about a minute each time, so each rate is many steps of six
seconds, and each round has all of them in an order of its own. The model is fitted to the three, and says P50, P99,
throughput, batch size and utilisation of the five from their arrivals, over all the steps of a rate. The first look's
knee may be a fifth too low; what counts is a rate of at most 0.95 of the knee that the fitted model has, which it says
before it sees any of them.

Then two replicas of `null` are planned from the runs of one, started, and driven at 0.5 and 0.9 of the planned knee.

Prints a table, then one JSON line: median absolute errors of P50, P99 and throughput.

    python tests/bench/prediction.py --quick      a look: nothing but null, twelve seconds a rate
    python tests/bench/prediction.py --rounds 4 --cnn-rounds 5      a quarter of an hour
    python tests/bench/prediction.py              the whole, 50 minutes on a quiet machine
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402

FIT, ASK, PLANNED = (0.3, 0.6, 0.9), (0.3, 0.5, 0.7, 0.9, 1.1), (0.5, 0.9)
COUNTED = 0.95
"""Of the fitted model's knee, the highest rate that counts."""
LIMITS = {"null/eager": 4.0, "custom_cnn/eager": 6.0}
"""P99's objective, in latencies of a lone request."""
FIRST = 0.5
"""Of a rate's steps, at the first look."""
TURN_S, SETTLE_S = 6.0, 2.0
"""Of a step, and before it."""
MODELS: dict[str, dict[str, Any]] = {
    "null": {"settings": {"delay_ms": "20"}, "max_batch": 8},
    "custom_cnn": {"max_batch": 2},
}
"""On two cores `custom_cnn` does 20/s in batches of four and 28/s one by one; with four, P99 is whether one of the few
batches of three was among a minute's requests, so that a thousand of them say it to 30 %, and with two to 9 %."""
TARGETS = {"p50": 0.05, "p99": 0.15, "throughput": 0.02}


def serving(model: str, cache: Path, replicas: int = 1) -> Any:
    from serving import served

    more = MODELS[model] | {"replicas": replicas, "parity_share": 0}
    return served(cache, models=[model], variants=["eager"], device="cpu", **more)


def drive(url: str, model: str, folder: Path, *words: str) -> Any:
    from tailrate import analysis

    command = [sys.executable, "-m", "locust", "-f", f"loadtest/{model}.py", "--headless", "--only-summary"]
    command += ["--host", url, "--variants", "eager", "--idle-seconds", "0", *words]
    command += ["--run-dir", str(folder.parent), "--run-id", folder.name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if not (folder / "run.json").exists():  # Locust's exit code says that requests failed, which is no failure here
        raise SystemExit(f"locust did not run: {done.stderr[-2000:]}")
    return analysis.load(folder)


def at_rates(url: str, model: str, folder: Path, rates: Sequence[float], rounds: int, seed: int) -> Any:
    """Each rate in so many steps; and of each step the place of its rate."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(rates)) for _ in range(rounds)])
    words = ["--mode", "hold", "--rates", ",".join(f"{rates[place]:.2f}" for place in order), "--seed", str(seed)]
    words += ["--step-seconds", f"{SETTLE_S + TURN_S:g}", "--settle-seconds", f"{SETTLE_S:g}"]
    return drive(url, model, folder, *words, "--timeout", "30"), order


def most_rps(url: str, model: str, folder: Path) -> float:
    width = 3 * MODELS[model]["max_batch"]
    words = ["--mode", "closed", "--concurrency", str(width), "--step-seconds", "8", "--settle-seconds", "2"]
    return float(drive(url, model, folder, *words).measured[0].summary.achieved_rps)


def limit_of(model: Any) -> tuple[float, float]:
    """The objective in ms, and the rate at which the model has it."""
    from tailrate.analysis.planning.simulator.simulate import knee

    limit_ms = LIMITS[model.endpoint] * model.lone_ms
    return limit_ms, knee_of(model.fleet(1), limit_ms, knee)


def knee_of(fleet: Any, limit_ms: float, knee: Any) -> float:
    unit = np.cumsum(np.random.default_rng(5).exponential(1.0, 200_000))
    return float(knee(fleet, limit_ms / 1e3, 99.0, lambda rate: unit / rate))


def compared(model: Any, run: Any, endpoint: str, steps: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Each rate of the run, or of these steps, beside what the model says of its arrivals."""
    from tailrate.analysis.planning.model.cross_validation import by_rate, predict
    from tailrate.analysis.planning.model.fit import observed

    rows = []
    for same in by_rate(one for one in observed([run], endpoint) if steps is None or one.index in steps):
        row = predict(model, same)
        doubts = sorted({step.doubt for step in same if step.doubt})
        count = sum(int(step.window.sum()) for step in same)
        found, said, off = row.measured, row.predicted, row.error
        chance, between = (
            "–" if ends is None else "{:.4g}–{:.4g}".format(*ends)
            for ends in (row.p99_predicted_ms, row.p99_measured_ms)
        )
        rate_off = "–" if row.rate_error is None else f"{row.rate_error:.1%}"
        print(
            f"{endpoint:<17} {row.replicas:>2} {row.rate:8.1f} {count:>6} "
            f"{found.p50_ms:8.2f} {said.p50_ms:8.2f} {off.p50_ms:7.1%} "
            f"{found.p99_ms:8.2f} {between:>11} {said.p99_ms:8.2f} {chance:>11} {off.p99_ms:7.1%} "
            f"{off.throughput_rps:7.1%} {found.batch:6.2f} {said.batch:6.2f} "
            f"{found.utilisation:5.0%} {said.utilisation:5.0%} {rate_off:>7} {'; '.join(doubts)}",
            flush=True,
        )  # fmt: skip
        rows.append({"endpoint": endpoint, "n": count, "doubts": doubts, **asdict(row)})
    return rows


def one_endpoint(name: str, rounds: int, cache: Path, scratch: Path, seed: int) -> tuple[list[dict[str, Any]], Any]:
    from fitted import calibrate

    endpoint = f"{name}/eager"
    with serving(name, cache) as server:
        most = most_rps(server.url, name, scratch / f"{name}-most")
        fitted = [share * most for share in FIT]
        first, _ = at_rates(server.url, name, scratch / f"{name}-first", fitted, math.ceil(FIRST * rounds), seed)
        limit_ms, knee_rps = limit_of(calibrate([first], endpoint))
        print(
            f"{endpoint}: about {most:.4g}/s at most; P99 of {limit_ms:.4g} ms at {knee_rps:.4g}/s, by the first look"
        )
        if knee_rps < FIT[0] * most:
            print("  that is below every fitted rate: this machine is too noisy; 0.9 of the most is taken instead")
            knee_rps = FIT[-1] * most
        asked = [share * knee_rps for share in ASK]
        run, order = at_rates(server.url, name, scratch / name, fitted + asked, rounds, seed + 1)
    model = calibrate([run], endpoint, np.flatnonzero(order < len(FIT)).tolist())
    limit_ms, knee_rps = limit_of(model)
    print(
        f"{endpoint}: P99 of {limit_ms:.4g} ms at {knee_rps:.4g}/s, says the model; counted up to {COUNTED:.0%} of it"
    )
    for note in model.notes:
        print(f"  {note}")
    rows = compared(model, run, endpoint, np.flatnonzero(order >= len(FIT)).tolist())
    return [row | {"counted": bool(row["rate"] <= COUNTED * knee_rps)} for row in rows], model


def two_replicas(model: Any, rounds: int, cache: Path, scratch: Path, seed: int) -> list[dict[str, Any]]:
    from tailrate.analysis.planning.simulator.simulate import knee

    limit_ms, _ = limit_of(model)
    planned = knee_of(model.fleet(2), limit_ms, knee)
    if not planned:
        print("no rate keeps the objective on two replicas of null/eager, says the plan")
        return []
    print(f"two replicas of null/eager: P99 of {limit_ms:.4g} ms at {planned:.4g}/s, says the plan")
    with serving("null", cache, replicas=2) as server:
        rates = [share * planned for share in PLANNED]
        run, _ = at_rates(server.url, "null", scratch / "null-two", rates, rounds, seed)
        return compared(model, run, "null/eager")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--quick", action="store_true")
    found.add_argument("--models", default="null,custom_cnn")
    found.add_argument("--rounds", type=int, default=10, help="steps of six seconds, of each rate of null")
    found.add_argument("--cnn-rounds", type=int, default=24, help="of custom_cnn, which is slower")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--keep", default="", help="folder for the runs; else they are deleted")
    return found


def main() -> None:
    options = parser().parse_args()
    names = ["null"] if options.quick else options.models.split(",")
    rounds = {"null": 2 if options.quick else options.rounds, "custom_cnn": options.cnn_rounds}
    print(
        f"{'endpoint':<17} {'k':>2} {'rate/s':>8} {'n':>6} {'P50 ms':>8} {'said':>8} {'off':>7} "
        f"{'P99 ms':>8} {'between':>11} {'said':>8} {'by chance':>11} {'off':>7} {'thr.':>7} "
        f"{'batch':>6} {'said':>6} {'util':>5} {'said':>5} {'rate':>7}"
    )
    rows: list[dict[str, Any]] = []
    planned: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(options.keep or made)
        scratch.mkdir(parents=True, exist_ok=True)
        for name in names:
            found, model = one_endpoint(name, rounds[name], Path(made), scratch, options.seed)
            rows += found
            if name == "null":
                planned = two_replicas(model, rounds[name], Path(made), scratch, options.seed + 2)
    fields = {"p50": "p50_ms", "p99": "p99_ms", "throughput": "throughput_rps"}
    medians = {}
    for of in (*dict.fromkeys(row["endpoint"] for row in rows), "all"):
        mine = [row["error"] for row in rows if row["counted"] and of in (row["endpoint"], "all")]
        if not mine:
            continue
        medians[of] = {key: float(np.median([abs(error[field]) for error in mine])) for key, field in fields.items()}
        said = ", ".join(f"{key} {value:.1%} (wanted: {TARGETS[key]:.0%})" for key, value in medians[of].items())
        print(f"median error of {of}: {said}")
    last_line("prediction", median=medians, rows=rows, two_replicas=planned)


if __name__ == "__main__":
    main()
