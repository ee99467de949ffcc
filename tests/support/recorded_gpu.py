"""What one H200 did (torch 2.11, driver 580), as it was recorded: see docs/results/h200.md.

`nvml.csv` is our own source's rows over 66 s in which thirty variants were compiled and hammered, so that power went
from 84 to 690 W and back; `nvidia-smi.csv` is what nvidia-smi printed beside it. `marks.json`: milliseconds between the
five marks of batches, two of them in flight. `bert-compiled.parquet`: every answer of BERT compiled at four rates;
`bert-knee.parquet`: on another H200, at five rates around its knee, while something else was compiled;
`bert-even.parquet`: on one more, at five rates in two rounds, sent by four processes and so on time.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent / "h200"
NVML, NVIDIA_SMI = FOLDER / "nvml.csv", FOLDER / "nvidia-smi.csv"
BUCKETS = "1,4,8,16,32"
STEP_S, SETTLE_S = 5.5, 1.0
RATES = {4: 250.0, 9: 500.0, 13: 840.0, 19: 1170.0}
"""Of the steps, per second."""
PROBE_S, PROBE_SETTLE_S = 6.0, 1.5
PROBES = {2: 1116.0, 3: 856.0, 4: 946.0, 5: 884.0, 6: 840.0}
"""The same of the search for a knee."""


EVEN_S, EVEN_SETTLE_S = 6.0, 1.0
EVEN = {0: 250.0, 4: 250.0, 5: 500.0, 9: 500.0, 12: 750.0, 13: 750.0, 15: 1000.0, 19: 1000.0, 22: 1200.0, 23: 1200.0}
"""The same of two rounds."""


def marks() -> dict[str, list[list[float]]]:
    """By variant, of each batch: copying in, waiting for the one before, computing, copying out."""
    found: dict[str, list[list[float]]] = json.loads((FOLDER / "marks.json").read_text())
    return found


def answers() -> list[tuple[float, pd.DataFrame]]:
    """Rates, and rows as `Run.requests` has them of one step that began at 0."""
    return _by_rate("bert-compiled.parquet", RATES)


def probes() -> list[tuple[float, pd.DataFrame]]:
    """The same of the search for a knee."""
    return _by_rate("bert-knee.parquet", PROBES)


def rounds() -> list[tuple[float, pd.DataFrame]]:
    """The same of two rounds."""
    return _by_rate("bert-even.parquet", EVEN)


def _by_rate(name: str, rates: dict[int, float]) -> list[tuple[float, pd.DataFrame]]:
    rows = pd.read_parquet(FOLDER / name)
    for name, recorded in (("intended_ns", "intended_us"), ("sent_ns", "sent_us"), ("whole_ns", "done_us")):
        rows[name] = rows.pop(recorded).astype("Int64") * 1000
    rows["handled_ms"] = rows["server_ms"]
    rows = rows.assign(ok=True, rows=1, replica=pd.Categorical(["one"] * len(rows)))
    return [(rates[int(step)], mine) for step, mine in rows.groupby("step")]
