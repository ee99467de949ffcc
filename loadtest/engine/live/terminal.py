"""The table in the terminal, as a program of its own: reads a frame a line from its standard input, draws the newest.

Knows only frames, no run; `screen.py` starts it. It ends with its input, whatever happened at the other end, and then
leaves the last table standing and the cursor visible. Ctrl-C is not meant for it.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tailrate.analysis.text.words import ABSENT, duration, interval, percentile, significant

NARROW = 110
"""Columns of a terminal below which the table leaves some of its own out."""


def main() -> None:
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        for raw in sys.stdin.buffer:
            frame = json.loads(raw)
            for said in frame["lines"]:
                live.console.print(plain(said), soft_wrap=True)
            for event in frame["events"]:
                if (told := line(event)) is not None:
                    live.console.print(told, soft_wrap=True)
            live.update(picture(frame["state"], console.width), refresh=True)


def plain(text: Any, style: str = "") -> Text:
    """What a server said must not steer the terminal."""
    return Text("".join(c if c.isprintable() else " " for c in str(text)), style)


def line(event: Mapping[str, Any]) -> Text | None:
    """An event as a line that stays; None of one that the table shows, or nobody needs."""
    kind = event["event"]
    if kind == "step_end":
        p50, p99 = (percentile(event.get(f"{name}_ms"), event["errors"]) for name in ("p50", "p99"))
        return plain(
            f"{event['endpoint']:<24} offered {asked(event):>9}  answered {significant(event['achieved_rps']):>8}/s  "
            f"P50 {p50:>8} ms  P99 {p99:>8} ms  late P99 {significant(event.get('late_p99_ms')):>8} ms  "
            f"errors {event['errors']}"
        )
    if kind == "knee":
        why = f", unresolved: {event['reason']}" if event["reason"] else ""
        left = f", not known to keep {event['open']} there" if event.get("open") else ""
        found = f" keeps the objective up to {interval(event['low_rps'], event['high_rps'], 4)}/s{why}{left}"
        return Text.assemble(plain(event["endpoint"], "bold"), found)
    if kind == "self_check":
        return plain(f"self-check: {event['sentence']}", "dim")
    return plain(event["warning"], "yellow") if event.get("warning") else None


def picture(state: Mapping[str, Any], width: int) -> RenderableType:
    """The table with a sentence above it, and below it the devices and what would be held against the run."""
    parts: list[RenderableType] = [plain(headline(state), "bold")]
    if state["endpoints"]:
        parts.append(_table(state["endpoints"], width < NARROW))
    parts += [plain(_device(device), "dim" if device["stale"] else "") for device in state["devices"]]
    parts += [plain(doubt, "yellow") for doubt in state["doubts"]]
    return Group(*parts)


def headline(state: Mapping[str, Any]) -> str:
    """`step 3 of 12: bert/eager at 200/s, 14 s left · 2 min 10 s left in all`"""
    soak = state.get("soak")
    parts = _chapter(soak, state["steps"]) if soak else []
    for step in [] if soak else state["steps"]:
        of = f" of {state['of']}" if state["of"] else ""
        left = "" if step["left_s"] is None else f", {duration(step['left_s'])} left"
        parts.append(f"step {step['index'] + 1}{of}: {step['endpoint']} at {asked(step)}{left}")
    if state["doing"]:
        parts.append(state["doing"])
    if state["status"] != "running":
        parts.insert(0, f"{state['status']} after {duration(state['elapsed_s'])}")
    if state["left_s"] is not None:
        whole = f"of {duration(soak['total_s'])}" if soak else "in all"
        parts.append(f"{duration(state['left_s'])} left {whole}")
    return " · ".join(parts) or state["status"]


def _chapter(soak: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """`chapter 3 of 48: bert/eager at 25/s, bert/compiled at 25/s, 9 min 2 s left`, and what it takes of the disk."""
    parts = []
    if steps:
        names = ", ".join(f"{step['endpoint']} at {asked(step)}" for step in steps)
        left = duration(max(step["left_s"] for step in steps))
        parts.append(f"chapter {soak['chapter']} of {soak['of']}: {names}, {left} left")
    if soak["used_bytes"] is not None:
        parts.append(f"{soak['used_bytes'] / 1e6:.0f} MB on disk, {soak['free_bytes'] / 1e9:.0f} GB free")
    return parts


def asked(step: Mapping[str, Any]) -> str:
    return f"{step['concurrency']} under way" if step.get("concurrency") else f"{step['rate']:.4g}/s"


def _table(rows: Sequence[Mapping[str, Any]], narrow: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=narrow)
    table.add_column("endpoint", no_wrap=True)
    columns = [
        "asked", "offered/s", "achieved/s", "P50 ms", "P99 ms", "TTFT P99 ms", "tokens/s", "in flight", "late P99 ms",
        "late", "dropped",
    ]  # fmt: skip
    left_out = {"offered/s", "late P99 ms", "late"} if narrow else set()
    if all(row.get("tokens_rps") is None for row in rows):
        left_out |= {"TTFT P99 ms", "tokens/s"}
    for name in (*columns, "failed"):
        if name not in left_out:
            table.add_column(name, justify="right")
    for row in rows:
        if row["step"] is None:
            table.add_row(plain(row["endpoint"], "dim"))
            continue
        failed = sum(row["failed"].values())
        shown: dict[str, str | Text] = {
            "asked": asked(row),
            "offered/s": significant(row["offered_rps"]),
            "achieved/s": significant(row["achieved_rps"]),
            "P50 ms": percentile(row["p50_ms"], row["n"]),
            "P99 ms": percentile(row["p99_ms"], row["n"]),
            "TTFT P99 ms": percentile(row["ttft_p99_ms"], 0 if row["tokens_rps"] is None else row["n"]),
            "tokens/s": significant(row["tokens_rps"]),
            "in flight": ABSENT if row["in_flight"] is None else str(row["in_flight"]),
            "late P99 ms": significant(row["late_p99_ms"]),
            "late": str(row["late"]),
            "dropped": Text(str(row["dropped"]), "red" if row["dropped"] else ""),
            "failed": Text(str(failed), "red" if failed else ""),
        }
        cells = [cell for name, cell in shown.items() if name not in left_out]
        table.add_row(plain(row["endpoint"]), *cells, style="" if row["running"] else "dim")
    return table


def _device(device: Mapping[str, Any]) -> str:
    units = {"util_pct": "{:.0f} %", "power_w": "{:.0f} W", "temp_c": "{:.0f} °C", "sm_mhz": "{:.0f} MHz"}
    found = [form.format(device[name]) for name, form in units.items() if device[name] is not None]
    if device["mem_bytes"] is not None:
        found.insert(1, f"{device['mem_bytes'] / 2**30:.1f} GiB")
    return "  ".join([device["name"], *found])


if __name__ == "__main__":
    main()
