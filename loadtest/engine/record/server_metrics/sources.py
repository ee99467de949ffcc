"""Where the servers' metrics are read: what `--metrics [NAME=]URL,…` means, checked before any load."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult

from tailrate.loadtest.engine.endpoint.credentials import Access, address
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

PAGE = "/metrics"
"""Where a page is, if its URL has no path."""
MOST_SOURCES = 32


@dataclass(frozen=True, slots=True)
class MetricSource:
    """One page of metrics."""

    source: str
    """What its rows are called by: the endpoint's name, else the page's host and port; no two are alike."""
    endpoint: str
    """Whose metrics they are; nothing: the server's as a whole."""
    url: str

    def as_json(self) -> dict[str, object]:
        """Its entry in the manifest's `metrics`; what the page is found to hold comes later."""
        return {"source": self.source, "endpoint": self.endpoint, "url": self.url, "presets": [], "metrics": []}


def parse(text: str, match: str, endpoints: Sequence[str]) -> tuple[MetricSource, ...]:
    """The pages that are asked for; `endpoints` are the names that a page may be of."""
    _check_pattern(text, match)
    found: list[MetricSource] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, url = part.partition("=")
        if not equals or "://" in name:  # the sign stands in the URL itself
            name, url = "", part
        if name and name not in endpoints:
            raise ScenarioError(f"--metrics names no endpoint '{name}'; there are {', '.join(endpoints)}")
        parts = _address(url)
        stem = name or parts.netloc
        taken = {source.source for source in found}
        source = next(s for n in range(1, MOST_SOURCES + 2) if (s := stem if n == 1 else f"{stem} {n}") not in taken)
        whole = parts if parts.path not in ("", "/") else parts._replace(path=PAGE)
        found.append(MetricSource(source, name, whole.geturl()))
        if len(found) > MOST_SOURCES:
            raise ScenarioError(f"--metrics names more than {MOST_SOURCES} pages")
    return tuple(found)


def _check_pattern(text: str, match: str) -> None:
    if match and not text.strip():
        raise ScenarioError("--metrics-match says what to keep of a page; name the page with --metrics")
    try:
        re.compile(match)
    except re.error as problem:
        raise ScenarioError(f"--metrics-match '{match}' is no regular expression: {problem}") from None


def _address(url: str) -> SplitResult:
    try:
        return address(url)._replace(fragment="")
    except ScenarioError as problem:
        raise ScenarioError(str(problem).replace("--host", "--metrics")) from None


def fields_for(source: MetricSource, host: str, access: Access) -> str:
    """The header line that lets us in: a token goes to the endpoint's own host and port, and to nobody else."""
    asked, own = address(source.url), address(host)
    return access.line if (asked.scheme, asked.netloc) == (own.scheme, own.netloc) else ""
