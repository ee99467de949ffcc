"""The campaign's tables, as rows of plain values with their headings: what Markdown and the page both show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrate.analysis.text.table import Table
from tailrate.analysis.text.words import significant
from tailrate.cli.campaign.matrix import Cell, Size, Subject, cells
from tailrate.cli.campaign.published import CLAIMS

Results = Mapping[str, Mapping[str, Any]]
MOST_OPERATORS = 10
MOST_ERRORS = 0.01
"""Of the requests, at a rate that is called kept."""
SAME_RATE = 0.05
"""By which rates may differ that are called the same."""
BETTER = ("compiled-reduce-overhead", "cudagraph", "compiled-max-autotune", "compiled", "compiled-default")
"""Of these the fastest stands for what compiling brings, as with the published figures."""


def tables(size: Size, results: Results, only: Sequence[str] = ()) -> Iterator[Table]:
    subjects = [subject for subject in size.subjects if not only or subject.label in only]
    if claims := published(results):
        yield claims
    for subject in subjects:
        yield bare(subject, size.of(subject), size.batches_of(subject), results)
    for subject in subjects:
        if subject.label in size.served:
            for table in (served, inside, together):
                yield table(subject, size.pair(subject), results)
    for subject in subjects:
        yield from profiles(subject, size.pair(subject), results)


def headline(size: Size, results: Results) -> str:
    """The fastest variant of each subject at the smallest batch."""
    batch, parts = size.batches[0] if size.batches else 1, []
    for subject in size.subjects:
        speeds = {
            name.removeprefix(f"bare--{subject.label}--"): found["batches"][str(batch)]["speed"]
            for name, found in results.items()
            if name.startswith(f"bare--{subject.label}--") and "speed" in found.get("batches", {}).get(str(batch), {})
            if _agrees(found)
        }
        if speeds:
            best = max(speeds, key=lambda variant: speeds[variant])
            parts.append(f"{subject.label} {speeds[best]:.2f}× ({best})")
    if not parts:
        return "Nothing is measured yet."
    return f"Times as fast as eager, the fastest variant at a batch of {batch}: {', '.join(parts)}."


def bare(subject: Subject, variants: Sequence[str], batches: Sequence[int], results: Results) -> Table:
    what = "a step" if subject.step else "a call"
    head = ["variant", *(f"× eager at {batch}" for batch in batches), f"P50 of {what} at {batches[0]}, ms", "P99"]
    head += ["best batch", "rows/s there", "peak MB", "cold s", "warm s", "breaks", "rel. error", "new shape, ms"]
    rows, notes = [], []
    for variant in variants:
        found = results.get(Cell("bare", subject, variant).name)
        if found is None:
            notes.append(f"{variant}: not measured yet")
        elif "batches" not in found:
            notes.append(f"{variant}: {found.get('refused') or found.get('failed')}")
        else:
            rows.append(_bare_row(variant, batches, found))
            if not _agrees(found):
                off = significant(found["parity_relative_error"], 2)
                notes.append(
                    f"{variant}: its outputs are off by {off} from those of eager fp32: its speed counts for nothing"
                )
            lost = {f"batches of {batch}": row for batch, row in found["batches"].items()}
            lost |= {"warm start": found.get("again") or {}, "new shape": found.get("new_shape") or {}}
            notes += [f"{variant}, {what}: {one['failed']}" for what, one in lost.items() if "failed" in one]
        profile = results.get(Cell("profile", subject, variant).name, {})
        if why := profile.get("failed") or profile.get("refused"):
            notes.append(f"{variant}, profile: {why}")
    about = (
        "Batches one after the other with no server around; faster than eager where above 1, call by call in turn. New "
        "shape: the first and the next call with a row more than the largest batch; none: what is compiled is compiled "
        "for each size, and a server pads to these."
    )
    return Table(f"{subject.label}, bare", head, rows, about=about, notes=notes)


def _bare_row(variant: str, batches: Sequence[int], found: Mapping[str, Any]) -> list[str]:
    sizes = found["batches"]
    first = sizes.get(str(batches[0]), {})
    best = best_batch(found)
    speeds = [significant(sizes.get(str(batch), {}).get("speed"), 3) for batch in batches]
    peak = max((row.get("peak_memory_bytes") or 0 for row in sizes.values()), default=0) or found["peak_memory_bytes"]
    shape = found.get("new_shape", {})
    new = f"{significant(shape['first_ms'])}, then {significant(shape['again_ms'])}" if "first_ms" in shape else "none"
    return [
        variant, *speeds, significant(first.get("p50_ms")), significant(first.get("p99_ms")), best or "–",
        significant(sizes[best]["rows_s"]) if best else "–", _megabytes(peak, found.get("reserved_memory_bytes")),
        significant(found.get("warmup_s")),
        significant((found.get("again") or {}).get("warmup_s")), str(found.get("graph_breaks", "–")),
        f"{found['parity_relative_error']:.1e}", new,
    ]  # fmt: skip


def _megabytes(peak: float, reserved: float | None) -> str:
    """What CUDA graphs hold for their replays is in the second figure alone."""
    return f"{peak / 1e6:.0f}" + ("" if reserved is None else f" ({reserved / 1e6:.0f} reserved)")


def best_batch(found: Mapping[str, Any]) -> str | None:
    """The one with the most rows per second."""
    known = {batch: row["rows_s"] for batch, row in found.get("batches", {}).items() if "rows_s" in row}
    return max(known, key=lambda batch: known[batch]) if known else None


def published(results: Results) -> Table | None:
    rows = []
    for claim in CLAIMS:
        mine = {
            variant: row
            for variant in BETTER
            if (row := _batch(results, claim.subject, variant, claim.batch)) and "speed" in row
        }
        if not mine:
            continue
        best = max(mine, key=lambda variant: mine[variant]["speed"])
        ratio, row = mine[best]["speed"], mine[best]
        rows.append([
            claim.subject, str(claim.batch), claim.hardware, f"{claim.eager:g} → {claim.compiled:g} {claim.unit}",
            f"{claim.ratio:.2f}×", f"{row['eager_p50_ms']:.3g} → {row['p50_ms']:.3g} ms", best, f"{ratio:.2f}×",
            "yes" if ratio >= claim.ratio else "no",
        ])  # fmt: skip
    head = ["subject", "batch", "there", "eager → compiled", "ratio", "here", "variant", "ratio", "at least theirs"]
    about = (
        "Ratios travel between machines, times do not. Here: the fastest compiled variant, in one precision (fp32). "
        "Where it is less than theirs, the profiles say where the time goes; on a CPU there are no launches to save."
    )
    return Table("Published figures beside ours", head, rows, about=about) if rows else None


def _agrees(found: Mapping[str, Any]) -> bool:
    """Whether its outputs are those of eager fp32: how fast something else is computed is of no interest."""
    return found.get("parity_ok") is not False


def _batch(results: Results, label: str, variant: str, batch: int) -> Mapping[str, Any] | None:
    """None where it was not measured, or computes something else."""
    found = results.get(f"bare--{label}--{variant}", {})
    row: Mapping[str, Any] | None = found.get("batches", {}).get(str(batch))
    return row if _agrees(found) else None


def served(subject: Subject, variants: Sequence[str], results: Results) -> Table:
    head = ["variant", "lone P50, ms", "P99", "knee/s", "95 %", "÷ bare rows/s"]
    head += ["highest rate kept, /s", "use", "W", "J/request", "°C", "MHz"]
    lone, knee, ramp = (results.get(Cell(kind, subject).name, {}) for kind in ("lone", "knee", "ramp"))
    rows, notes = [], []
    for kind, found in (("lone requests", lone), ("rising rates", ramp), ("the knee", knee)):
        if why := found.get("failed"):
            notes.append(f"{kind}: {why}")
        elif found.get("conclusion"):
            notes.append(f"{kind}: {_sentence(found['conclusion'])}")
    for variant in variants:
        alone = next(iter(_steps(lone, variant)), {})
        limit: Mapping[str, Any] = next(
            (one for one in knee.get("capacity") or () if one["endpoint"].endswith(f"/{variant}")), {}
        )
        top = _highest_kept(ramp, variant) or {}
        ceiling = results.get(Cell("bare", subject, variant).name, {})
        best = best_batch(ceiling)
        low, high = limit.get("low_rps"), limit.get("high_rps")
        rate = (low + high) / 2 if limit.get("resolved") and low and high else None
        share = rate / ceiling["batches"][best]["rows_s"] if rate and best else None
        ends = significant(low), significant(high)
        between = " to ".join(ends) if low and high else f"≥ {ends[0]}" if low else f"≤ {ends[1]}" if high else "–"
        rows.append([
            variant, significant(alone.get("p50_ms")), significant(alone.get("p99_ms")), significant(rate),
            between, significant(share, 2),
            significant(top.get("offered_rps")), "–" if top.get("util_pct") is None else f"{top['util_pct']:.0f} %",
            *(significant(top.get(key)) for key in ("power_w", "joules_per_request", "temp_c", "sm_mhz")),
        ])  # fmt: skip
    about = "Behind HTTP on one server, in turn on the same arrivals; the device's state at the highest rate it kept."
    return Table(f"{subject.label}, served", head, rows, about=about, notes=notes)


STAGES = {"queue": "queue", "batch": "batch", "h2d": "copy in", "compute": "compute", "d2h": "copy out"}


def inside(subject: Subject, variants: Sequence[str], results: Results) -> Table:
    """Where the time of a served request goes, and what of it the bare loop has too."""
    rows = []
    for variant in variants:
        top = _highest_kept(results.get(Cell("ramp", subject).name, {}), variant)
        bare = results.get(Cell("bare", subject, variant).name, {}).get("batches", {})
        if top is None or not top.get("batch_rows_mean"):
            continue
        stages = [top[f"{stage}_mean_ms"] for stage in STAGES]
        way = top["mean_ms"] - sum(one or 0.0 for one in stages)
        # the runner pads a batch to the next size that it has
        size = next((size for size in sorted(map(int, bare)) if size >= top["batch_rows_mean"] - 1e-9), None)
        alone = bare.get(str(size), {})
        rows.append([
            variant, significant(top["offered_rps"]), significant(top["batch_rows_mean"]), significant(top["mean_ms"]),
            *map(significant, stages), significant(way), "–" if size is None else str(size),
            significant(alone.get("p50_ms")), significant(alone.get("rows_s")),
        ])  # fmt: skip
    head = ["variant", "rate/s", "rows a batch", "latency, ms", *(f"{name}, ms" for name in STAGES.values())]
    head += ["way there and back, ms", "bare batch", "a bare call, ms", "bare rows/s"]
    about = "Means at the highest rate it kept, beside a bare call with a batch of the size that those are padded to."
    return Table(f"{subject.label}, where a served request's time goes", head, rows, about=about)


def together(subject: Subject, variants: Sequence[str], results: Results) -> Table:
    found = results.get(Cell("mixed", subject).name, {})
    rows, notes = [], [str(found["failed"])] if "failed" in found else []
    if said := found.get("both", {}).get("conclusion"):
        notes.append(f"both at once: {_sentence(said)}")
    for variant in variants:
        alone, both = (next(iter(_steps(found.get(part, {}), variant)), None) for part in ("alone", "both"))
        if why := _not_compared(alone, both):
            if found and "failed" not in found:
                notes.append(f"{variant} is not compared: {why}")
        elif alone and both:
            row = [variant, significant(alone["offered_rps"])]
            for key, known in (("p50_ms", "p50_ms"), ("p99_ms", "p99_low_ms")):
                a, b = alone[key], both[key]
                sure = a and b and alone[known] is not None and both[known] is not None
                row += [f"{significant(a)} → {significant(b)}", f"{b / a:.2f}×" if sure else "–"]
            rows.append(row)
    head = ["variant", "rate/s each", "P50 alone → beside the other, ms", "", "P99", ""]
    about = "At the same rate each: by itself, and both at once. P99 has a ratio where its sample is large enough."
    return Table(f"{subject.label}, two variants on one device", head, rows, about=about, notes=notes)


def _not_compared(alone: Mapping[str, Any] | None, both: Mapping[str, Any] | None) -> str | None:
    """Why times by itself and beside the other are not of the same requests."""
    if alone is None or both is None:
        return f"{'beside the other' if alone else 'by itself'} it was not measured"
    for where, step in (("by itself", alone), ("beside the other", both)):
        if why := _not_kept(step):
            return f"{where} {why}"
    rates = alone["offered_rps"], both["offered_rps"]
    if abs(rates[1] - rates[0]) > SAME_RATE * rates[0]:
        return f"it was driven at {significant(rates[0])}/s by itself and at {significant(rates[1])}/s beside the other"
    return None


def profiles(subject: Subject, variants: Sequence[str], results: Results) -> Iterator[Table]:
    for variant in variants:
        found = results.get(Cell("profile", subject, variant).name, {})
        for batch, one in found.get("profiles", {}).items():
            yield operators(f"{subject.label}/{variant}, profile of batches of {batch}", one)


def operators(title: str, profile: Mapping[str, Any]) -> Table:
    """Those that took most of the time themselves; milliseconds by call of the whole."""
    calls, table = profile["calls"], profile["table"][:MOST_OPERATORS]
    about = (
        f"{profile['ms']:.3g} ms a call under the profiler" if "ms" in profile else f"{calls} batches of live traffic"
    )
    if "kernels" in profile:
        about += (
            f": {profile['kernels']:.0f} kernels in {profile['launches']:.0f} launches, {profile['copies']:.0f} "
            f"copies; the device was busy for {profile['device_ms']:.3g} ms of it ({profile['device_busy']:.0%})"
        )
    times = [key for key in table[0] if key.endswith("_ms")] if table else []
    rows = [
        [row["name"], f"{row['calls'] / calls:.3g}", *(f"{row[key] / calls:.3g}" for key in times)] for row in table
    ]
    head = ["operator", "calls", *(key.removesuffix("_ms").replace("_", " ") + ", ms" for key in times)]
    return Table(title, head, rows, about=about + ".")


def measured(size: Size, results: Results, only: Sequence[str] = ()) -> tuple[int, int]:
    """(how many cells are done, of how many)"""
    every = list(cells(size, only))
    return sum(cell.name in results for cell in every), len(every)


def _steps(found: Mapping[str, Any], variant: str) -> list[Mapping[str, Any]]:
    return [step for step in found.get("steps") or () if step["endpoint"].endswith(f"/{variant}")]


def _highest_kept(found: Mapping[str, Any], variant: str) -> Mapping[str, Any] | None:
    """The step of the highest rate that it kept."""
    good = [step for step in _steps(found, variant) if not _not_kept(step)]
    return max(good, key=lambda step: float(step["offered_rps"]), default=None)


def _not_kept(step: Mapping[str, Any]) -> str | None:
    """Why a step's rate was not kept, or nobody knows."""
    reason = next(iter(step["reasons"]), "")
    if not step["trusted"]:
        return f"it cannot be trusted: {reason}"
    if step["errors"] > MOST_ERRORS * step["n"]:
        return f"{step['errors']:,} of {step['n']:,} requests failed"
    return next((f"it was {reason}" for reason in step["reasons"] if reason.startswith("overloaded")), None)


def _sentence(conclusion: Any) -> str:
    return " ".join(conclusion) if isinstance(conclusion, list) else str(conclusion)
