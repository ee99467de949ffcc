"""What a history costs: seconds and bytes of the file beside the runs, beside other places to keep it.

Synthetic runs of two endpoints at six rates each, in one environment. `folders` reads run.json and report.json of each
run, as the gallery does; the others hold the same lines: `jsonl` is what headroom keeps, `sqlite` a table of names and
JSON, `parquet` one file that is written anew for every run, `duckdb` (where it is installed) the same as SQLite. `add`
is one more run for what is there; `read` ends with every run as an `Entry`. `shown` is `headroom history` as a process.

    python tests/bench/history.py [--runs 1000,10000] [--rounds 3]

A table, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
# in place of this folder, whose coverage.py is not the package
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]

from analysis import history  # noqa: E402
from analysis.entry import Entry  # noqa: E402

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

    import analysis
    from analysis import summary

    loads = [folders.Load(endpoint, rate, folders.lognormal(10)) for endpoint, rate in STEPS]
    folders.make_run(folder, loads, slo=["p99<50ms"], poisson=True, devices=[folders.Waveform()])
    report = summary.write(analysis.load(folder))
    manifest = json.loads((folder / "run.json").read_text())
    manifest["versions"] = {"torch": "2.11.0", "cuda": "13.0", "driver": "580.1", "git": "0123456789ab", "ray": "2.55"}
    manifest["hosts"] = [{"role": "load", "host": "laptop", "cpus": 8, "os": "Linux"}]
    for entry in manifest["endpoints"]:
        entry["parameters"] = {"device_name": "NVIDIA H200", "precision": "fp32", "start": "warm", "warmup_s": 12.0}
    return report, manifest


def timed(what: Callable[[], Any], rounds: int) -> float:
    """The best of some rounds, in seconds."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        what()
        found.append(time.perf_counter() - began)
    return min(found)


def stores(runs: Path, entries: list[Entry], rounds: int) -> list[dict[str, Any]]:
    lines = [json.dumps(history._line(entry)) for entry in entries]
    keys = [entry.name for entry in entries]
    more = replace(entries[-1], name="more")
    rows: list[dict[str, Any]] = []

    def row(name: str, path: Path, write: Callable[[], Any], read: Callable[[], Any], add: Callable[[], Any]) -> None:
        written = timed(write, 1)
        took, added = timed(read, rounds), timed(add, rounds)
        rows.append({"store": name, "write_s": written, "read_s": took, "add_s": added, "bytes": path.stat().st_size})

    numbers = iter(range(10**6))

    def another() -> Entry:
        return replace(more, name=f"more-{next(numbers)}")

    empty = runs.parent / "beside"
    empty.mkdir()
    row(
        "jsonl", empty / history.FILE, lambda: history.add(empty, entries), lambda: history.read(empty),
        lambda: history.add(empty, [another()]),
    )  # fmt: skip

    def table(connection: Any) -> Callable[[], Any]:
        def write() -> None:
            connection.execute("create table runs (name text primary key, line text)")
            connection.executemany("insert into runs values (?, ?)", zip(keys, lines, strict=True))
            connection.commit()

        return write

    def one_more(connection: Any) -> Callable[[], Any]:
        def add() -> None:
            found = another()
            connection.execute("insert into runs values (?, ?)", (found.name, json.dumps(history._line(found))))
            connection.commit()

        return add

    def every(connection: Any) -> Callable[[], Any]:
        return lambda: [
            history._entry(json.loads(line)) for (line,) in connection.execute("select line from runs").fetchall()
        ]

    path = runs.parent / "history.sqlite"
    light = sqlite3.connect(path)
    row("sqlite", path, table(light), every(light), one_more(light))
    light.close()

    path = runs.parent / "history.parquet"

    def whole(extra: int = 0) -> None:
        held = pa.table({"name": keys + ["more"] * extra, "line": lines + lines[-1:] * extra})
        pq.write_table(held, path, compression="zstd")

    def more_in_it() -> None:
        pq.read_table(path)
        whole(1)

    row(
        "parquet", path, whole,
        lambda: [history._entry(json.loads(line)) for line in pq.read_table(path)["line"].to_pylist()], more_in_it,
    )  # fmt: skip
    try:
        import duckdb
    except ImportError:
        return rows
    path = runs.parent / "history.duckdb"
    duck = duckdb.connect(str(path))
    row("duckdb", path, table(duck), every(duck), one_more(duck))
    duck.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", default="1000,10000")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    found = []
    for count in map(int, asked.runs.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            runs = Path(scratch) / "runs"
            report, manifest = template(Path(scratch) / "template")
            runs.mkdir()
            for number in range(count):
                make(runs / f"run-{number:05d}", number, report, manifest)
            entries: list[Entry] = []
            folders_s = timed(lambda: entries.extend(history.read(runs).entries), 1)  # noqa: B023
            size = sum(path.stat().st_size for path in runs.glob("*/*.json"))
            rows = [{"store": "folders", "read_s": folders_s, "bytes": size}, *stores(runs, entries, asked.rounds)]
            history.add(runs, entries)
            command = [sys.executable, "-m", "headroom", "history", str(runs)]
            shown_s = timed(lambda: subprocess.run(command, cwd=ROOT, check=True, capture_output=True), asked.rounds)  # noqa: B023
            found += [{"runs": count, **row} for row in [*rows, {"store": "shown", "read_s": shown_s}]]
    for row in found:
        numbers = "  ".join(f"{key} {row[key]:>10.3f}" for key in ("read_s", "add_s", "write_s") if key in row)
        print(f"{row['runs']:>6} {row['store']:<8} {numbers}  {row.get('bytes', 0) / 1e6:.1f} MB")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
