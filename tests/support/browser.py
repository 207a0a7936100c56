"""A real browser for the tests of the page."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright
from support.find_browser import NO_BROWSER, find_browser

WAIT_MS = 60_000
"""How long a test waits for something on the page."""


@contextmanager
def running_browser() -> Generator[Browser]:
    """A browser without a window. Skips the test if there is none."""
    program = find_browser()
    if program is None:
        pytest.skip(NO_BROWSER)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--enable-precise-memory-info"],
        )
        try:
            yield browser
        finally:
            browser.close()


def environment_of(home: Path) -> dict[str, str]:
    """The environment of programs that share one home of corral."""
    names = ("PATH", "HOME", "LANG", "CORRAL_PROBE")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "CORRAL_HOME": str(home), "GEMINI_API_KEY": "scripted-key-0123456789"}


def heap_size(page: Page) -> int:
    """Bytes of the page's heap, without garbage."""
    page.request_gc()
    return int(page.evaluate("performance.memory.usedJSHeapSize"))


class Watched:
    """What a page must not do: dialogs, errors, requests to other hosts."""

    def __init__(self, page: Page, address: str) -> None:
        self.problems: list[str] = []
        self.host = address.split("/")[2]
        page.set_default_timeout(WAIT_MS)
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("console", self._console)
        page.on("request", self._request)

    def _dialog(self, dialog: Dialog) -> None:
        self.problems.append("dialog")
        dialog.dismiss()

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((f"http://{self.host}/", "data:", "blob:")):
            self.problems.append(f"request: {request.url}")
