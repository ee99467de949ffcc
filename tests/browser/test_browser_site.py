"""The site of docs/ in chromium: no page is wider than a phone, nothing in it is only for those who see well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import CHROMIUM, Tab, findings, tabbed
from playwright.sync_api import Route
from test_site import site  # noqa: F401

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
]

SITE = "http://127.0.0.1/"
PAGES = ("", "how-to/notebook", "how-to/add-a-model", "reference/commands", "results/servers-cpu")
"""One of each kind: pictures, tables of pandas, code, what is generated, wide tables."""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with tabbed() as found:
        yield found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_it_is_for_everybody(site: Path, tab: Tab, page: str, scheme: str) -> None:  # noqa: F811
    def answer(route: Route) -> None:
        path = site / route.request.url.removeprefix(SITE)
        route.fulfill(path=path / "index.html" if path.is_dir() else path)

    shown = tab.open(f"{SITE}{page}", SITE, scheme=scheme, answer=answer)
    assert findings(shown) == []
    shown.set_viewport_size({"width": 390, "height": 720})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
    tab.leave()
