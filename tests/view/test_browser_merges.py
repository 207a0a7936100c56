"""The page of the merge queues in a browser, while a real process merges."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from support.browser import WAIT_MS, Watched, environment_of, running_browser
from support.merge_queues import add_branch, make_repository
from support.view_server import running_view

pytestmark = [pytest.mark.whole_program, pytest.mark.browser]
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        yield page


@pytest.mark.deep
def test_a_queue_is_shown_while_it_is_merged(page: Page, tmp_path: Path) -> None:
    home, go = tmp_path / "home", tmp_path / "go"
    repo = make_repository(tmp_path / "repo")
    add_branch(repo, "good", {"good": "good\n", HOSTILE: "one\n"})
    add_branch(repo, "conflict", {HOSTILE: "two\n"})
    add_branch(repo, "red", {"red": "red\n"})
    add_branch(repo, "slow", {"slow": "slow\n"})
    gate = (
        f"! test -e red || {{ echo '{HOSTILE}'; false; }}"
        f" && until ! test -e slow || test -e {go}; do sleep 0.05; done"
    )
    names = ("good", "conflict", "red", "slow")
    words = ("merge", *names, "--into", "main", "--rounds", "0", "--gate", gate, "--quiet")
    with running_view(home) as server:
        watched = Watched(page, server.address)
        page.goto(server.address)
        page.keyboard.press("g")
        page.keyboard.press("m")
        expect(page.locator(".empty")).to_contain_text("No merge queues yet", timeout=WAIT_MS)
        expect(page.locator("#top a[aria-current]")).to_have_text("Merges", timeout=WAIT_MS)
        with subprocess.Popen(
            [sys.executable, "-m", "corral", *words],
            cwd=repo,
            env=environment_of(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as work:
            try:
                rows = page.locator(".merges tbody tr")
                slow = rows.filter(has=page.get_by_text("slow", exact=True))
                expect(slow).to_contain_text("the gate runs", timeout=WAIT_MS)
                expect(page.locator(".queue-head .state")).to_have_text("merging", timeout=WAIT_MS)
                expect(page.locator(".queue-head .legend")).to_have_text(
                    "1 merged2 failed1 open", timeout=WAIT_MS
                )
                expect(rows).to_have_count(4, timeout=WAIT_MS)
                expect(rows.first).to_contain_text(
                    "slow", timeout=WAIT_MS
                )  # open branches are first
                conflict = rows.filter(has=page.get_by_text("conflict", exact=True))
                expect(conflict).to_contain_text(f"conflict in {HOSTILE}", timeout=WAIT_MS)
                red = rows.filter(has=page.get_by_text("red", exact=True))
                expect(red).to_contain_text("the gate failed", timeout=WAIT_MS)
                expect(rows.locator("img")).to_have_count(0, timeout=WAIT_MS)

                # What a person has opened, and the focus, stay when something changes.
                page.keyboard.press("j")
                page.keyboard.press("j")
                page.keyboard.press("Enter")
                expect(red.locator("pre")).to_have_text(f"{HOSTILE}\n", timeout=WAIT_MS)
                go.touch()
                expect(slow).to_contain_text("merged", timeout=WAIT_MS)
                expect(page.locator(".queue-head .state")).to_have_text(
                    "nothing is queued", timeout=WAIT_MS
                )
                expect(red.locator("pre")).to_be_visible()
                assert red.evaluate("line => line === document.activeElement")
                out, _ = work.communicate(timeout=60)
            finally:
                work.terminate()
        assert work.returncode == 1, out
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.keyboard.press("Escape")
        expect(page.locator(".runs")).to_be_attached()
    assert watched.problems == []
