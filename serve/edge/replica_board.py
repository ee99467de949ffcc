"""What the gateway knows of all replicas: their latest reports, and from them readiness, index and counters.

A replica reports about once a second, and a last time when it ends. It is not counted on after that, nor when it has
been silent for `SILENT_S`: so a dead one does not count as ready, and the one that replaces it does. What it counted
stays in the totals, once, also when it comes back, whatever order its reports come in. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tailrate.serve.telemetry.prometheus_text import family
from tailrate.serve.telemetry.statistics import Counters, Counts, add, as_prometheus, as_statistics, zero
from tailrate.serve.wire import STOPPING

SILENT_S = 15.0
MOST_GONE = 200
"""Silent replicas whose counts are kept apart, in case they come back; of more, the oldest are taken for dead."""

Report = Mapping[str, Any]
Name = tuple[str, str]
NOBODY = ("", "")
"""Whose are requests for no endpoint that there is."""


class ReplicaBoard:
    """Reports by endpoint and replica, and what was refused before any replica had it."""

    def __init__(self, endpoints: Sequence[Name], replicas: int, since_ns: int = 0) -> None:
        """`since_ns` is the wall clock's, from which on it counts."""
        self.endpoints = tuple(endpoints)
        self.stop_at_s: float | None = None
        """When those that stop give up what they have not answered; None: nobody asked them to stop."""
        self._replicas = replicas
        self._since_ns = since_ns
        self._reports: dict[Name, dict[str, tuple[float, Report]]] = {name: {} for name in endpoints}
        self._gone: dict[Name, dict[str, Report]] = {name: {} for name in endpoints}
        """The last of those that are silent."""
        self._dead: dict[Name, Counts] = {name: zero() for name in endpoints}
        self._died: set[str] = set()
        self._edge = {name: Counters() for name in (*endpoints, NOBODY)}
        self._were_ready: set[Name] = set()

    def put(self, report: Report, now_s: float) -> None:
        """Takes a report, unless a later one of the replica was there before it."""
        name, replica = (report["model"], report["variant"]), report["replica"]
        _, before = self._reports[name].get(replica, (0.0, self._gone[name].get(replica)))
        if replica in self._died or (before is not None and before["number"] > report["number"]):
            return
        self._gone[name].pop(replica, None)
        self._reports[name].pop(replica, None)
        if report["ended"]:
            self._gone[name][replica] = report
            return
        self._reports[name][replica] = (now_s, report)
        if report["state"] == "READY":
            self._were_ready.add(name)

    def under_way(self, now_s: float) -> int:
        """Requests that replicas which stop have not answered yet, and one for each that has not heard of it."""
        reports = [report for name in self.endpoints for report in self.reports(name, now_s)]
        return sum(report["under_way"] if report["stopping"] else max(1, report["under_way"]) for report in reports)

    def refused(self, name: Name, reason: str, ns: int) -> None:
        """Counts a request that no replica has had."""
        self._edge[name].answer(ns, reason)

    def heard(self, names: Iterable[Name], since_s: float, now_s: float) -> bool:
        """Whether all that are not silent have reported since then."""
        for name in names:
            self.reports(name, now_s)  # forgets the silent
        return all(at_s >= since_s for name in names for at_s, _ in self._reports[name].values())

    def was_ready(self, name: Name) -> bool:
        """Whether any replica of this endpoint ever was: one that starts now then replaces another."""
        return name in self._were_ready

    def reports(self, name: Name, now_s: float) -> list[Report]:
        """Of the replicas that are heard of."""
        found, gone = self._reports[name], self._gone[name]
        for replica in [replica for replica, (at_s, _) in found.items() if now_s - at_s > SILENT_S]:
            gone[replica] = found.pop(replica)[1]
        while len(gone) > MOST_GONE:
            oldest = next(iter(gone))
            add(self._dead[name], gone.pop(oldest)["counts"])
            self._died.add(oldest)
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
        what = "replacing a lost replica" if self._gone[name] and self.was_ready(name) else "starting"
        return "LOADING", f"{what} ({len(reports)} of {self._replicas} there)"

    def serving(self, now_s: float) -> str | None:
        """None when any replica is ready, else the sentence that says that none is."""
        if self.stop_at_s is not None:
            return STOPPING
        reports = (report for name in self.endpoints for report in self.reports(name, now_s))
        return None if any(report["state"] == "READY" for report in reports) else "no endpoint has a ready replica"

    def ready(self, names: Iterable[Name], now_s: float) -> str | None:
        """None when all of these are ready, else the sentence that says which is not and why."""
        if self.stop_at_s is not None:
            return STOPPING
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
            there = self.reports(name, now_s)
            total = add(self._edge[name].snapshot(), self._dead[name])
            for report in (*there, *self._gone[name].values()):
                add(total, report["counts"])
            found.append(as_statistics(*name, total) | {"since": self._since_ns // 1_000_000})
        return found

    def nobody(self) -> dict[str, int]:
        """How many requests for inference were for no endpoint that there is, or not to be read, by reason."""
        return dict(self._edge[NOBODY].snapshot()["refused"])

    def metrics(self, now_s: float) -> str:
        """Prometheus text: of every endpoint whether it is ready, and of every replica that is heard of."""
        states = {name: self.state(name, now_s)[0] for name in self.endpoints}
        ready = [("", {"model": m, "variant": v}, int(state == "READY")) for (m, v), state in states.items()]
        what = "Whether as many replicas are warm as were asked for."
        edge = [
            ("", {"model": m, "variant": v, "reason": reason}, n)
            for (m, v), counters in self._edge.items()
            for reason, n in counters.snapshot()["refused"].items()
        ]
        why = "Requests that got no result before any replica had them, by reason."
        lines = [*family("endpoint_ready", "gauge", what, ready), *family("edge_refused_total", "counter", why, edge)]
        return "".join(f"{line}\n" for line in lines) + as_prometheus(
            report for name in self.endpoints for report in self.reports(name, now_s)
        )
