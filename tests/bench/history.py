"""What a history costs: seconds and bytes of the file beside the runs, beside other places to keep it.

Synthetic runs of two endpoints at six rates each, in one environment. `folders` reads run.json and report.json of each
run, as the gallery does; the others hold the same lines: `jsonl` is what tailrate keeps, `sqlite` a table of names and
JSON, `parquet` one file that is written anew for every run, `duckdb` (where it is installed) the same as SQLite. `add`
is one more run for what is there; `read` ends with every run as an `Entry`. `shown` is `tailrate history` as a process.

    python tests/bench/history.py [--runs 1000,10000] [--rounds 3]

A table (seconds: the median of the rounds, the lowest and the highest), then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line, shown, spread  # noqa: E402

from tailrate.analysis.history import log  # noqa: E402
from tailrate.analysis.history.run_summary import Entry  # noqa: E402

STEPS = [(endpoint, rate) for rate in (100, 200, 300, 400, 500, 600) for endpoint in ("bert/eager", "bert/compiled")]
START_NS = 1_790_000_000 * 10**9


def make(folder: Path, number: int, report: dict[str, Any], manifest: dict[str, Any]) -> None:
    """A run whose figures are 3 % off those before."""
    noise = np.exp(0.03 * np.random.default_rng(number).normal(size=len(report["steps"])))
    steps = [
        {**row, "p50_ms": row["p50_ms"] * by, "p99_ms": row["p99_ms"] * by}
        for row, by in zip(report["steps"], noise, strict=True)
    ]
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps({**report, "steps": steps}))
    begun = START_NS + number * 3600 * 10**9
    (folder / "run.json").write_text(json.dumps({**manifest, "id": folder.name, "started_ns": begun}))


def template(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    import folders

    from tailrate import analysis
    from tailrate.analysis.exports import report_json

    loads = [folders.Load(endpoint, rate, folders.lognormal(10)) for endpoint, rate in STEPS]
    folders.make_run(folder, loads, slo=["p99<50ms"], poisson=True, devices=[folders.Waveform()])
    report = report_json.write(analysis.load(folder))
    manifest = json.loads((folder / "run.json").read_text())
    manifest["versions"] = {"torch": "2.11.0", "cuda": "13.0", "driver": "580.1", "git": "0123456789ab", "ray": "2.55"}
    manifest["hosts"] = [{"role": "load", "host": "laptop", "cpus": 8, "os": "Linux"}]
    for entry in manifest["endpoints"]:
        entry["parameters"] = {"device_name": "NVIDIA H200", "precision": "fp32", "start": "warm", "warmup_s": 12.0}
    return report, manifest


def timed(what: Callable[[], Any]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


@dataclass(frozen=True)
class Store:
    """One place for a history, and what is done with it; `read` ends with every run as an `Entry`."""

    path: Path
    write: Callable[[], Any]
    read: Callable[[], Any]
    add: Callable[[], Any]


@contextmanager
def stores(folder: Path, entries: list[Entry]) -> Iterator[dict[str, Store]]:
    """All of them, empty."""
    lines = [json.dumps(log._line(entry)) for entry in entries]
    keys = [entry.name for entry in entries]
    more = replace(entries[-1], name="more")
    line = json.dumps(log._line(more))
    beside = folder / "beside"
    beside.mkdir()
    found = {
        "jsonl": Store(
            beside / log.FILE, lambda: log.add(beside, entries), lambda: log.read(beside),
            lambda: log.add(beside, [more]),
        )
    }  # fmt: skip

    def table(path: Path, connection: Any) -> Store:
        def write() -> None:
            connection.execute("create table runs (name text primary key, line text)")
            connection.executemany("insert into runs values (?, ?)", zip(keys, lines, strict=True))
            connection.commit()

        def read() -> list[Entry]:
            rows = connection.execute("select line from runs").fetchall()
            return [log._entry(json.loads(line)) for (line,) in rows]

        def add() -> None:
            connection.execute("insert into runs values (?, ?)", (more.name, line))
            connection.commit()

        return Store(path, write, read, add)

    parquet = folder / "history.parquet"

    def whole(extra: int = 0) -> None:
        held = pa.table({"name": keys + [more.name] * extra, "line": lines + [line] * extra})
        pq.write_table(held, parquet, compression="zstd")

    def more_in_it() -> None:
        pq.read_table(parquet)
        whole(1)

    found["parquet"] = Store(
        parquet, whole,
        lambda: [log._entry(json.loads(line)) for line in pq.read_table(parquet)["line"].to_pylist()], more_in_it,
    )  # fmt: skip
    with closing(sqlite3.connect(folder / "history.sqlite")) as light:
        found["sqlite"] = table(folder / "history.sqlite", light)
        try:
            import duckdb
        except ImportError:
            yield found
            return
        with closing(duckdb.connect(str(folder / "history.duckdb"))) as duck:
            yield found | {"duckdb": table(folder / "history.duckdb", duck)}


def one_round(runs: Path, entries: list[Entry]) -> dict[str, dict[str, float]]:
    """Seconds of each store; its bytes before one more run was added."""
    found: dict[str, dict[str, float]] = {"folders": {"read_s": timed(lambda: log.read(runs))}}
    with tempfile.TemporaryDirectory(dir=runs.parent) as folder, stores(Path(folder), entries) as all_of_them:
        for name, store in all_of_them.items():
            found[name] = {"write_s": timed(store.write), "bytes": store.path.stat().st_size}
            found[name] |= {"read_s": timed(store.read), "add_s": timed(store.add)}
    log.add(runs, entries)
    command = [sys.executable, "-m", "tailrate", "history", str(runs)]
    shown_s = timed(lambda: subprocess.run(command, cwd=ROOT, check=True, capture_output=True))
    (runs / log.FILE).unlink()  # or the next round's folders would not be read
    return found | {"shown": {"read_s": shown_s}}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--runs", default="1000,10000")
    found.add_argument("--rounds", type=int, default=3)
    return found


def main() -> None:
    asked = parser().parse_args()
    rows: list[dict[str, Any]] = []
    for count in map(int, asked.runs.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            runs = Path(scratch) / "runs"
            report, manifest = template(Path(scratch) / "template")
            runs.mkdir()
            for number in range(count):
                make(runs / f"run-{number:05d}", number, report, manifest)
            entries = list(log.read(runs).entries)
            found = [one_round(runs, entries) for _ in range(asked.rounds)]
            size = sum(path.stat().st_size for path in runs.glob("*/*.json"))
        for store, figures in found[0].items():
            row = {key: spread(one[store][key] for one in found) for key in figures if key.endswith("_s")}
            rows.append({"runs": count, "store": store, "bytes": size if store == "folders" else figures.get("bytes")})
            rows[-1] |= row
    print(f"{'runs':>6} {'store':<8} {'read s':>21} {'add s':>21} {'write s':>21} {'MB':>7}")
    for row in rows:
        times = (shown(row[key], ".3f", 21) if key in row else " " * 21 for key in ("read_s", "add_s", "write_s"))
        print(f"{row['runs']:>6} {row['store']:<8} {' '.join(times)} {(row['bytes'] or 0) / 1e6:7.1f}")
    last_line("history", rows=rows)


if __name__ == "__main__":
    main()
