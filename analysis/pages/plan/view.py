"""`plan.json` ready to be shown: its variants with their colours, what is written of each, and what is drawn of it.

A fleet, a price or a percentile comes from outside, so all that is written goes through `words` and, on the page,
through `tag`. Writes no markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tailrate.analysis.pages.plan.curves import Curves, asking, curves
from tailrate.analysis.planning.simulator.simulate import Fleet
from tailrate.analysis.records.objective import Slo
from tailrate.analysis.text import words

Row = Mapping[str, Any]
FURTHER = 1.6
"""By what factor costs are drawn beyond the planned rate, where no growth goes further."""


@dataclass(frozen=True)
class VariantView:
    """One endpoint of a plan, in colour `series`."""

    found: Row
    series: int
    short: str

    @property
    def endpoint(self) -> str:
        return str(self.found["endpoint"])

    @property
    def answer(self) -> Row | None:
        """None where no number of replicas does it."""
        return None if "refused" in self.found["answer"] else self.found["answer"]

    @property
    def refused(self) -> str:
        return str(self.found["answer"].get("refused", ""))

    @property
    def calibration(self) -> Row:
        found: Row = self.found["calibration"]
        return found

    @property
    def validation(self) -> Row:
        return self.found["validation"] or {"rows": [], "median": {}, "rate_at_slo_error": None, "gate": "refused"}

    @property
    def error(self) -> float | None:
        """Share by which the model's rate at the objective was off, on rates that it had not seen."""
        found = words.finite(self.validation["rate_at_slo_error"])
        return None if found is None else abs(found)

    @cached_property
    def fleet(self) -> Fleet:
        return Fleet.from_json(self.found["fleet"])

    @property
    def per_gpu(self) -> int:
        """Replicas on one device."""
        return int(self.found["per_gpu"])

    @property
    def is_cpu(self) -> bool:
        return str(self.calibration.get("device") or "").lower().startswith("cpu")


@dataclass(frozen=True)
class PlanView:
    """What the page is made from."""

    found: Row

    @property
    def demand(self) -> Row:
        found: Row = self.found["demand"]
        return found

    @cached_property
    def slo(self) -> Slo:
        return Slo.parse(str(self.demand["slo"]))

    @property
    def percentile(self) -> str:
        return f"P{self.slo.percentile:g}"

    @property
    def limit_ms(self) -> float:
        return float(self.demand["latency_ms"])

    @property
    def rate_rps(self) -> float:
        """For which replicas are counted: the peak."""
        return float(self.demand.get("peak_rps") or self.demand["rate_rps"])

    @property
    def n_plus(self) -> int:
        return int(self.demand["n_plus"])

    @cached_property
    def variants(self) -> list[VariantView]:
        short = words.short_names([str(one["endpoint"]) for one in self.found["variants"]])
        return [VariantView(one, n, short[str(one["endpoint"])]) for n, one in enumerate(self.found["variants"])]

    @property
    def series(self) -> dict[str, int]:
        return {one.endpoint: one.series for one in self.variants}

    @property
    def answered(self) -> list[VariantView]:
        return [one for one in self.variants if one.answer]

    @property
    def best(self) -> VariantView | None:
        return next((one for one in self.variants if one.endpoint == self.found["best"]), None)

    @property
    def devices(self) -> str:
        return "machines" if self.variants and all(one.is_cpu for one in self.variants) else "GPUs"

    @property
    def most_rps(self) -> float:
        """To which rate costs are drawn."""
        later = [float(one["rate_rps"]) for one in self.found["growth"]]
        peak = self.rate_rps / float(self.demand["rate_rps"])
        return max(FURTHER * self.rate_rps, *(peak * rate for rate in later), 0.0)

    @cached_property
    def curves(self) -> dict[int, Curves]:
        """By series, of the variants that have an answer."""
        asked = asking(self.demand)
        found = {}
        for one in self.answered:
            fleet = replace(one.fleet, replicas=int((one.answer or {})["replicas"]))
            found[one.series] = curves(fleet, asked, self.rate_rps, self.n_plus, self.most_rps)
        return found

    # ---- as it is written

    def money(self, value: Any) -> str:
        text = words.significant(value)
        return text if text == words.ABSENT else f"{text} {self.found['prices']['currency'] or ''}".strip()

    def figures(self, one: VariantView) -> dict[str, str]:
        """Every figure of a variant's answer, by the name under which the page's script replaces it."""
        answer = one.answer
        if answer is None:
            return {}
        known = answer.get
        return {
            "replicas": words.count(answer["replicas"]),
            "gpus": words.count(answer["gpus"]),
            "tail": words.ms(lost_as_infinite(answer["p99_ms"])),
            "between": words.interval(known("p99_low_ms"), known("p99_high_ms")),
            "after_loss": words.ms(lost_as_infinite(known("p99_after_loss_ms"))) if self.n_plus else words.ABSENT,
            "busy": busy(answer["utilisation"]),
            "batch": words.significant(known("mean_batch")),
            "knee": words.rate(answer["knee_rps"]),
            "headroom": percent((known("headroom_pct") or 0.0) / 100),
            "hour": self.money(answer["cost_per_hour"]),
            "million": self.money(answer["cost_per_million"]),
            "joules": words.with_unit(" J")(answer["joules_per_request"]),
            "co2": words.with_unit(" g")(answer["co2_g_per_million"]),
        }


def lost_as_infinite(value: Any) -> float:
    """JSON has no infinity."""
    return math.inf if value is None else float(value)


def percent(share: Any) -> str:
    found = words.finite(share)
    return words.ABSENT if found is None else f"{words.significant(100 * found, 2)} %"


def busy(share: Any) -> str:
    """That of a replica with much to do is close to 1 long before its queue grows, and never is 1."""
    found = words.finite(share)
    return "> 99 %" if found is not None and found > 0.99 else percent(share)
