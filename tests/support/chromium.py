"""Headless chromium for the tests and benches that look at pages; it asks for nothing by itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import starts
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SHELL = shutil.which("chromium-headless-shell") or CHROMIUM
"""The same engine without the browser around it: a third less CPU, where it is installed (a Debian package)."""
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


@contextmanager
def chromium(path: str | None = CHROMIUM) -> Iterator[Browser]:
    starts.need("browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One page for all tests of a file, as a new one costs more than most tests; `open` and `leave` forget what was.

    `wrong` collects every complaint of what is open, and every request but to where it is from.
    """

    def __init__(self, browser: Browser) -> None:
        self.page = browser.new_context(permissions=["clipboard-read", "clipboard-write"]).new_page()
        self.wrong: list[str] = []
        self.own: tuple[str, ...] = ()
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda problem: self.wrong.append(str(problem)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda each: None if each.url.startswith(self.own) else self.wrong.append(each.url))
        self.script = self.page.context.new_cdp_session(self.page)

    def open(
        self,
        url: str,
        *own: str,
        width: int = 1280,
        height: int = 720,
        scheme: Any = "light",
        script: bool = True,
        answer: Callable[[Route], None] | None = None,
    ) -> Page:
        """Anew, like a page just made; requests may go to where `url` is, without its fragment, and to `own`.

        `answer` answers them in place of the network.
        """
        self._empty()
        self.own = (url.partition("#")[0], *own)
        self.wrong.clear()
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme=scheme, media="screen")
        self.script.send("Emulation.setScriptExecutionDisabled", {"value": not script})
        if answer is not None:
            self.page.route("**/*", answer)
        self.page.goto(url)
        return self.page

    def leave(self) -> None:
        """At the end of a test: what was open complained of nothing."""
        self.page.evaluate("0")  # whatever it said before has come
        wrong = self.wrong.copy()
        self._empty()
        assert wrong == []

    def _empty(self) -> None:
        """Also where only the fragment will differ; what ran in the page, or in its workers, ends."""
        self.page.mouse.move(0, 0)
        self.page.goto("about:blank")
        self.page.unroute_all(behavior="ignoreErrors")


@contextmanager
def tabbed() -> Iterator[Tab]:
    with chromium(SHELL) as browser:
        yield Tab(browser)


def findings(page: Page, within: str | None = None) -> list[str]:
    """What axe-core finds seriously wrong for people who cannot see the page, or the part `within`, or use no mouse."""
    found = Axe().run(page, context=within).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
