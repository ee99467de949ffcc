"""Numbers and findings in words, the same ones for the conclusion, the page and the Markdown.

Owns how a latency, a rate or a size is written, what each column of a step means, and the sentence for
an eager-against-compiled pair. An absent value is written `–`, a percentile lost to failures `∞`; `nan`
is never written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

ABSENT = "–"
Row = Mapping[str, Any]

VERDICTS = {"pass": "pass", "fail": "fail", "inconclusive": "cannot say", "measured": "measured"}


def finite(value: Any) -> float | None:
    """The value as a float, None where there is none or it is not finite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def count(value: Any) -> str:
    number = finite(value)
    return ABSENT if number is None else f"{number:,.0f}"


def significant(value: Any, digits: int = 3) -> str:
    """Three significant digits without an exponent: 0.0123, 4.50, 78.9, 1,235; infinity is `∞`."""
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    number = finite(value)
    if number is None:
        return ABSENT
    if abs(number) < 1e-12:  # or what rounding left of nothing
        return "0"
    number = float(f"{number:.12g}")  # 44.95 must not be 44.9 for what adding up did to its last bit
    digits -= digits > 2 and abs(number) < 0.1
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(number))))
    return f"{number:,.{0 if number.is_integer() else decimals}f}".replace("-", "−")


def percentile(value: float | None, n: int) -> str:
    """Of so many arrivals; where there were some and it is None, failures have made it infinite."""
    return significant(math.inf if value is None and n else value)


def tick(value: float) -> str:
    """A round number on an axis, never with an exponent."""
    return f"{float(f'{value:.10g}'):,.10f}".rstrip("0").rstrip(".")


def rate_tick(value: float) -> str:
    return f"{tick(value)}/s"


def latency_tick(value: float) -> str:
    return f"{tick(value)}\u00a0ms" if value < 1000 else f"{tick(value / 1000)}\u00a0s"


def with_unit(unit: str) -> Callable[[Any], str]:
    def written(value: Any) -> str:
        text = significant(value)
        return text if text in (ABSENT, "∞") else f"{text}{unit}"

    return written


ms = with_unit("\u00a0ms")
rate = with_unit("/s")


def load(rate_rps: float, concurrency: int) -> str:
    """What a step asked for: `200/s`, or in a closed loop `16 under way`."""
    return f"{concurrency} under way" if concurrency else rate(rate_rps)


def size(value: Any) -> str:
    """Bytes in the binary unit that leaves a readable number."""
    number = finite(value)
    if number is None:
        return ABSENT
    for unit in ("B", "KiB", "MiB"):
        if abs(number) < 1024:
            return f"{significant(number)} {unit}"
        number /= 1024
    return f"{significant(number)} GiB"


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"


def clock_time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def interval(low: Any, high: Any, digits: int = 3) -> str:
    """An end that is None or infinite is open; both of what failures made infinite are.

    >>> interval(1.25, 2.5), interval(1.25, None), interval(None, None), interval(math.inf, math.inf)
    ('1.25–2.5', '≥ 1.25', '–', '∞')
    """
    if low == math.inf:
        return "∞"
    above, below = (end is not None and math.isfinite(end) for end in (low, high))
    if above and below:
        return f"{significant(low, digits)}–{significant(high, digits)}"
    return f"≥ {significant(low, digits)}" if above else f"≤ {significant(high, digits)}" if below else ABSENT


def objective(capacity: Row) -> str:
    """Of a row of `capacity`, and what of it nobody knows."""
    return f"{capacity['slo']} ({capacity['open']} cannot be said)" if capacity.get("open") else str(capacity["slo"])


def short_names(endpoints: Sequence[str]) -> dict[str, str]:
    """Labels for charts: the variant alone where all endpoints are of one model."""
    models = {name.partition("/")[0] for name in endpoints}
    return {name: (name.partition("/")[2] or name) if len(models) == 1 else name for name in endpoints}


def sentence_list(items: Iterable[Any]) -> str:
    return "; ".join(str(item) for item in items)


def pair_sentence(pair: Row) -> str:
    """What a pair shows in plain words; ratios are the latency of `a` over that of `b`."""
    short = short_names([str(pair["a"]), str(pair["b"])])
    a, b = short[str(pair["a"])], short[str(pair["b"])]
    ratio, low, high = (finite(pair.get(key)) for key in ("p99_ratio", "ratio_low", "ratio_high"))
    if not ratio:
        return f"cannot be compared: {pair.get('note') or 'one of the two has no finite P99'}"
    if pair["a"] == pair["b"]:
        between = f" ({interval(low, high, 2)})" if low or high else ""
        return f"noise: two equal steps of {a} differ by {significant(100 * abs(ratio - 1), 2)} % at P99{between}"
    times = f"{significant(max(ratio, 1 / ratio), 2)}× {'faster' if ratio > 1 else 'slower'}"
    if not low and not high and abs(math.log(ratio)) < 0.05:
        return f"{b} and {a} differ by less than 5 % at P99, but {pair.get('note') or 'there is no interval'}"
    if not low and not high:
        return f"{b} seems {times} at P99 than {a}, but {pair.get('note') or 'there is no interval'}"
    why = f"; {pair['note']}" if pair.get("note") else ""
    ends = (low, high) if ratio > 1 else (1 / high if high else None, 1 / low if low else None)
    if ends[0] and ends[0] > 1:
        return f"{b} is {times} at P99 than {a} ({interval(*ends, 2)}){why}"
    if not ends[0] or not ends[1]:
        return f"{b} seems {times} at P99 than {a}, but may not be ({interval(*ends, 2)}){why}"
    visible = finite(pair.get("smallest_visible"))
    reach = f"; one under {significant(100 * visible, 2)} % would not have shown" if visible else ""
    return f"no difference shown at P99 ({interval(low, high, 2)}){reach}{why}"


def flat(found: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by a space: `{"parity": {"cosine": 1}}` → `{"parity cosine": 1}`."""
    out: dict[str, Any] = {}
    for key, value in found.items():
        name = f"{prefix} {key}".strip()
        out |= flat(value, name) if isinstance(value, Mapping) else {name: value}
    return out


_UNITS = {
    "_ms": "ms",
    "_s": "s",
    "_pct": "%",
    "_w": "W",
    "_j": "J",
    "_mhz": "MHz",
    "_rps": "/s",
    "_ppm": "ppm",
    "_ns": "ns",
}


def fact(key: str, value: Any) -> tuple[str, str]:
    """A name and a value as a person writes them, the unit taken from the name's suffix.

    >>> fact("warmup_s", 3.25)
    ('warmup', '3.25 s')
    """
    unit = next((u for u in sorted(_UNITS, key=len, reverse=True) if key.endswith(u)), "")
    name = key.removesuffix("_bytes").removesuffix(unit).replace("_", " ")
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return name, ABSENT
    if isinstance(value, bool):
        return name, "yes" if value else "no"
    if isinstance(value, (int, float)):
        if key.endswith("_bytes"):
            return name, size(value)
        if unit == "_ns":
            return name, ms(value / 1e6)
        number = significant(value) if unit else count(value) if isinstance(value, int) else f"{value:.7g}"
        return name, f"{number} {_UNITS[unit]}".strip() if unit else number
    if isinstance(value, Mapping):
        return name, ", ".join(" ".join(fact(k, v)) for k, v in flat(value).items() if v is not None) or ABSENT
    if isinstance(value, (list, tuple)):
        between = "; " if any(isinstance(item, Mapping) for item in value) else ", "
        return name, between.join(fact(key, item)[1] for item in value) or "none"
    return name, str(value)
