"""The page in a real browser, with a real server over stored and running sessions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect
from support.browser import (
    WAIT_MS,
    Watched,
    environment_of,
    heap_size,
    running_browser,
)
from support.scripted_agent import PROGRAM
from support.stored_sessions import (
    HOSTILE,
    MARKER,
    Transcript,
    long_transcript,
    write_hostile_session,
    write_session,
)
from support.view_server import running_view

from corral import events
from corral._comparison.plan import ComparisonPlan, PlannedTask
from corral._engine.batch.spec import AgentChoice
from corral._sessions.store import Meta
from corral.values import Usage

pytestmark = [pytest.mark.whole_program, pytest.mark.browser]

LONG = "long-session"
LARGE = {
    "table": "|" + "a|" * 300 + "\n|" + "-|" * 300 + "\n" + ("|" + "b|" * 300 + "\n") * 300,
    "quotes": ">" * 15_000 + " deep",
    "brackets": "[" * 20_000,
    "emphasis": "**x" * 6_000,
    "line": "z" * 2_000_000,
}
"""Texts that take a renderer or a page long, if nothing limits them."""
SHORT = "short-session"
MOST_NODES = 12_000
"""Elements of a page that shows 100,000 events."""
MOST_GROWTH = 24_000_000
"""Bytes by which the heap may grow while 100,000 events are scrolled."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view") / "corral"
    write_hostile_session(folder)
    long = long_transcript(100_000)
    write_session(folder, meta_of(LONG, "Go through all files", long.now), long.events)
    for name, text in LARGE.items():
        large = large_transcript(text)
        write_session(folder, meta_of(f"large-{name}", name, large.now), large.events)
    short = short_transcript()
    write_session(folder, meta_of(SHORT, "Fix the parser", short.now), short.events)
    return folder


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with running_view(home) as server:
        yield server.address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page that has the cookie. The test fails if the page did anything forbidden."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = context.new_page()
        watched = Watched(page, address)
        page.goto(address)
        yield page
        assert watched.problems == []


def meta_of(name: str, title: str, updated: float) -> Meta:
    return Meta(
        id=name,
        agent="gemini-cli",
        cwd="/work/app",
        created=updated - 60,
        updated=updated,
        title=title,
        status="success",
        turns=1,
    )


def short_transcript() -> Transcript:
    found = Transcript().init().prompt("Fix the **parser**")
    found.add(events.Thinking(delta="The tokenizer drops the last character."))
    found.tool(
        events.ToolUse(
            call_id="c1", name="run_shell_command", kind="execute", input={"command": "make test"}
        ),
        events.ToolResult(call_id="c1", status="success", output="42 passed", duration_ms=2100),
    )
    return found.text("The parser works:\n\n- one\n- two\n").done(Usage(input=10, output=5), 0.01)


def large_transcript(text: str) -> Transcript:
    found = Transcript().init().prompt("Go").add(events.Text(delta=text))
    found.tool(
        events.ToolUse(call_id="c1", name="shell", kind="execute", input={"command": text}),
        events.ToolResult(call_id="c1", status="success", output=text),
    )
    return found.done(Usage(input=10, output=5), 0.01)


def open_session(page: Page, name: str) -> None:
    page.goto(f"{page.url.split('#')[0]}#/sessions/{name}")
    expect(page.locator(".item").first).to_be_visible(timeout=WAIT_MS)


@pytest.mark.deep
def test_a_live_run_streams_in(page: Page, home: Path, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    wait = f"sh while [ ! -e {go_on} ]; do sleep 0.05; done"
    prompt = f"init\ntext the first **half**\n{wait}\ntext and the second half\nresult"
    command = [
        "run",
        "--agent",
        "gemini-cli",
        "--program",
        str(PROGRAM),
        "--approve",
        "all",
        "--cwd",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "corral", *command, str(tmp_path), prompt],
        env=environment_of(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ):
        try:
            row = page.locator("a.run.is-live")
            expect(row).to_be_visible(timeout=WAIT_MS)
            row.click()
            expect(page.locator(".item.text strong")).to_have_text("half", timeout=WAIT_MS)
            expect(page.locator(".head .state")).to_contain_text("running")
        finally:
            go_on.touch()
        expect(page.locator(".item.text")).to_contain_text("second half", timeout=WAIT_MS)
        expect(page.locator(".head .state")).to_contain_text("finished", timeout=WAIT_MS)


def test_the_body_of_a_tool_call_is_loaded_when_it_is_opened(page: Page) -> None:
    open_session(page, SHORT)
    call = page.locator(".item.tool .call")
    expect(call).to_contain_text("make test")
    expect(call).to_contain_text("2.1 s")
    expect(page.locator(".body")).to_have_count(0)
    call.click()
    expect(page.locator(".body")).to_contain_text("42 passed", timeout=WAIT_MS)


def test_the_page_is_used_with_the_keyboard(page: Page) -> None:
    expect(page.locator("a.run").first).to_be_visible(timeout=WAIT_MS)
    page.keyboard.press("/")
    page.keyboard.type("parser works")
    expect(page.locator("a.run")).to_have_count(1, timeout=WAIT_MS)
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator(".item.prompt strong")).to_have_text("parser", timeout=WAIT_MS)
    for _ in range(4):
        page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator(".item:focus")).to_have_count(1)
    page.keyboard.press("?")
    expect(page.locator("dialog.help")).to_contain_text("allow the first pending permission")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page.locator("a.run").nth(1)).to_be_visible(timeout=WAIT_MS)


def test_a_hostile_transcript_does_nothing(page: Page) -> None:
    """The fixture fails this test for dialogs, errors, and requests to other hosts."""
    expect(page.locator("a.run").first).to_be_visible(timeout=WAIT_MS)
    open_session(page, HOSTILE)
    page.keyboard.press("g")
    page.keyboard.press("g")
    for tab in ("conversation", "changes", "permissions", "events", "details"):
        page.locator(f"#tab-{tab}").click()
        page.wait_for_load_state("networkidle")
    page.locator("#tab-conversation").click()
    # All in one step: an open one may move the others out of the part of the list that is drawn.
    page.eval_on_selector_all(
        ".item.tool .call", "all => all.slice(0, 6).map(each => each.click())"
    )
    page.wait_for_load_state("networkidle")
    assert page.evaluate(f"globalThis.{MARKER}") is None
    links = page.eval_on_selector_all("main a[href]", "all => all.map(a => a.protocol)")
    assert set(links) <= {"http:", "https:", "mailto:"}
    assert page.locator("main script, main iframe, main style, main form[action]").count() == 0
    assert page.locator("#main").evaluate("main => main.scrollWidth <= main.clientWidth")
    text = page.locator("#main").inner_text()
    assert not {"\u202e", "\x1b", "\u2066"} & set(text)


@pytest.mark.deep
def test_large_and_deep_texts_leave_the_page_usable(page: Page) -> None:
    expect(page.locator("a.run").first).to_be_visible(timeout=WAIT_MS)
    for name in LARGE:
        open_session(page, f"large-{name}")
        page.locator(".item.tool .call").first.click()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.querySelectorAll('*').length") < MOST_NODES
        assert page.locator("#main").evaluate("main => main.scrollWidth <= main.clientWidth")


@pytest.mark.deep
def test_the_browser_runs_no_script_that_is_put_into_the_page(
    browser: Browser, address: str
) -> None:
    """As if hostile text had passed the escaping."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(address)
        expect(page.locator("a.run").first).to_be_visible(timeout=WAIT_MS)
        for attack in (
            f"s = document.createElement('script'); s.textContent = 'globalThis.{MARKER} = 1'",
            f"s = document.createElement('script'); s.src = 'data:,globalThis.{MARKER}=1'",
            f"s = document.createElement('div'); s.innerHTML = '<b onclick=\"{MARKER}=1\">'",
            f"s = document.createElement('b'); s.setAttribute('onclick', '{MARKER}=1'); s.click()",
        ):
            page.evaluate(
                f"() => {{ let s; try {{ {attack}; document.body.append(s); }} catch {{}} }}"
            )
        page.wait_for_load_state("networkidle")
        assert page.evaluate(f"globalThis.{MARKER}") is None


@pytest.mark.deep
def test_100000_events_scroll_with_few_elements_and_little_memory(page: Page) -> None:
    open_session(page, LONG)
    expect(page.locator(".item.done")).to_be_visible(timeout=WAIT_MS)

    def scroll(share: float) -> int:
        page.evaluate(
            """share => {
                const box = document.querySelector(".reader .scroller");
                box.scrollTop = share * (box.scrollHeight - box.clientHeight);
            }""",
            share,
        )
        visible = page.locator(".page:not(.loading) .item").first
        expect(visible).to_be_visible(timeout=WAIT_MS)
        page.wait_for_function(
            "() => document.querySelectorAll('.page').length"
            " && !document.querySelector('.page.loading')",
            timeout=WAIT_MS,
        )
        return int(page.evaluate("document.querySelectorAll('*').length"))

    scroll(0.9)
    before = heap_size(page)
    counts = [scroll(step / 8) for step in range(8, -1, -1)]
    assert max(counts) < MOST_NODES
    assert heap_size(page) - before < MOST_GROWTH
    # The first event is at the top.
    expect(page.locator(".item.prompt")).to_have_count(1, timeout=WAIT_MS)


@pytest.mark.deep
def test_a_comparison_shows_its_attempts(page: Page, home: Path) -> None:
    plan = ComparisonPlan(
        name="compared",
        title="Fix the parser",
        created=1.0,
        agents=tuple(AgentChoice(name=name, backend=name) for name in ("one", "two")),
        tasks=(PlannedTask(id="parser", prompt="Fix it"),),
        cwd="/work/app",
    )
    folder = home / "comparisons" / plan.name
    folder.mkdir(parents=True)
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
    page.goto(f"{page.url.split('#')[0]}#/compare/compared")
    expect(page.locator(".attempt")).to_have_text(["pending", "pending"], timeout=WAIT_MS)
    page.locator(".attempt").first.click()
    expect(page.locator(".side")).to_contain_text("one · parser")


@pytest.mark.deep
def test_a_wrong_token_and_another_origin_get_nothing(browser: Browser, address: str) -> None:
    root = address.split("?", maxsplit=1)[0]
    with browser.new_context() as context:
        page = context.new_page()
        assert page.request.get(f"{root}api/runs").status == 401
        page.goto(f"{root}?token=wrong")
        assert "short-session" not in page.content()
        assert page.request.get(f"{root}api/runs").status == 401
        page.goto(address)
        assert page.request.get(f"{root}api/runs").status == 200
        assert "token" not in page.url
        page.goto("data:text/html,<title>another origin</title>")
        read = page.evaluate(
            """async root => {
                const options = {credentials: "include"};
                try { return await (await fetch(root + "api/runs", options)).text(); }
                catch (error) { return error.name; }
            }""",
            root,
        )
        assert read == "TypeError"
        sent = context.request.post(
            f"{root}api/sessions/{SHORT}/cancel", headers={"Origin": "http://evil.invalid"}
        )
        assert sent.status == 403
