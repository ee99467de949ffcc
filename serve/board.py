"""What the gateway knows of all replicas: their latest reports, and from them readiness, index and counters.

A replica reports about once a second and is forgotten when it has been silent for `SILENT_S`: so a dead
one does not count as ready, and the one that replaces it does. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serve.counters import Counts, add, as_prometheus, as_statistics, zero
from serve.exposition import family

SILENT_S = 15.0

Report = Mapping[str, Any]
Name = tuple[str, str]


class Board:
    """Reports by endpoint and replica."""

    def __init__(self, endpoints: Sequence[Name], replicas: int) -> None:
        self.endpoints = tuple(endpoints)
        self._replicas = replicas
        self._reports: dict[Name, dict[str, tuple[float, Report]]] = {name: {} for name in endpoints}
        self._retired: dict[Name, Counts] = {name: zero() for name in endpoints}
        """Counts of replicas that are gone: counters never fall."""
        self._were_ready: set[Name] = set()

    def put(self, report: Report, now_s: float) -> None:
        name = (report["model"], report["variant"])
        self._reports[name][report["replica"]] = (now_s, report)
        if report["state"] == "READY":
            self._were_ready.add(name)

    def was_ready(self, name: Name) -> bool:
        """Whether any replica of this endpoint ever was: one that starts now then replaces another."""
        return name in self._were_ready

    def reports(self, name: Name, now_s: float) -> list[Report]:
        """Of the replicas that are heard of."""
        found = self._reports[name]
        for replica in [replica for replica, (at_s, _) in found.items() if now_s - at_s > SILENT_S]:
            add(self._retired[name], found.pop(replica)[1]["counts"])
        return [report for _, report in found.values()]

    def state(self, name: Name, now_s: float) -> tuple[str, str]:
        """(state, reason) of an endpoint in the words of the repository index."""
        reports = self.reports(name, now_s)
        if sum(report["state"] == "READY" for report in reports) >= self._replicas:
            return "READY", ""  # even while one more is added
        for state in ("UNAVAILABLE", "LOADING"):
            for report in reports:
                if report["state"] == state:
                    return state, report["reason"]
        what = "replacing a lost replica" if self.was_ready(name) else "starting"
        return "LOADING", f"{what} ({len(reports)} of {self._replicas} there)"

    def serving(self, now_s: float) -> str | None:
        """None when any replica is ready, else the sentence that says that none is."""
        reports = (report for name in self.endpoints for report in self.reports(name, now_s))
        return None if any(report["state"] == "READY" for report in reports) else "no endpoint has a ready replica"

    def ready(self, names: Iterable[Name], now_s: float) -> str | None:
        """None when all of these are ready, else the sentence that says which is not and why."""
        for model, variant in names:
            state, reason = self.state((model, variant), now_s)
            if state != "READY":
                return f"{model}/{variant} is {state.lower()}: {reason}"
        return None

    def index(self, now_s: float) -> list[dict[str, Any]]:
        """Triton's repository index, with the replicas of each beside it."""
        found = []
        for model, variant in self.endpoints:
            state, reason = self.state((model, variant), now_s)
            replicas = [report["replica"] for report in self.reports((model, variant), now_s)]
            found.append({"name": model, "version": variant, "state": state, "reason": reason, "replicas": replicas})
        return found

    def statistics(self, names: Iterable[Name], now_s: float) -> list[dict[str, Any]]:
        """`model_stats`, each endpoint's replicas added up, as of their latest reports."""
        found = []
        for name in names:
            total = add(zero(), self._retired[name])
            for report in self.reports(name, now_s):
                add(total, report["counts"])
            found.append(as_statistics(*name, total))
        return found

    def metrics(self, now_s: float) -> str:
        """Prometheus text: of every endpoint whether it is ready, and of every replica that is heard of."""
        states = {name: self.state(name, now_s)[0] for name in self.endpoints}
        ready = [("", {"model": m, "variant": v}, int(state == "READY")) for (m, v), state in states.items()]
        what = "Whether as many replicas are warm as were asked for."
        own = "".join(f"{line}\n" for line in family("endpoint_ready", "gauge", what, ready))
        return own + as_prometheus(report for name in self.endpoints for report in self.reports(name, now_s))
