"""Permissions and gates are answered on the page, and the agent or the pipeline goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from support.browser import WAIT_MS, environment_of, running_browser
from support.view_server import running_view

from corral.testing import Call, ModelServer, Turn, say
from corral.values import Json

pytestmark = [pytest.mark.whole_program, pytest.mark.browser]

ACP_AGENT = Path(__file__).parents[1] / "programs" / "scripted_acp.py"
GATE = """\
digraph gate {
    start  [shape=Mdiamond]
    agree  [shape=hexagon, label="Publish the notes?"]
    public [shape=parallelogram, tool_command="touch published"]
    done   [shape=Msquare]
    start -> agree
    agree -> public [label="[P] Publish"]
    agree -> done   [label="[N] Not yet"]
    public -> done
}
"""


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


def corral(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "corral", *map(str, words)]


@pytest.mark.deep
def test_a_permission_is_answered_and_the_agent_goes_on(
    page: Page, tmp_path: Path, workspace: Path
) -> None:
    home = tmp_path / "home"
    agent = f"{sys.executable} {ACP_AGENT} --acp"
    orders = "text before\nask execute make release\ntext after"
    with (
        running_view(home) as server,
        subprocess.Popen(
            corral("run", "--agent", agent, "--remote-answers", "--cwd", workspace, orders),
            env=environment_of(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as run,
    ):
        try:
            page.goto(server.address)
            page.locator("a.run.is-pending").click()
            card = page.locator(".asks .ask")
            expect(card).to_contain_text("make release")
            expect(page.locator(".item.permission")).to_contain_text("waiting")
            expect(page.locator(".ask")).to_have_count(1)
            expect(page.locator(".head .state")).to_contain_text("permission")
            page.keyboard.press("a")
            expect(page.locator(".item.text").last).to_contain_text("after", timeout=WAIT_MS)
            expect(card).to_have_count(0, timeout=WAIT_MS)
            printed, _ = run.communicate(timeout=60)
        finally:
            run.terminate()
        assert "[b-once]" in printed
        expect(page.locator(".item.permission").last).to_contain_text("allowed by a person")


@pytest.mark.deep
def test_a_question_is_answered_or_declined_with_a_button(
    page: Page, tmp_path: Path, workspace: Path
) -> None:
    home = tmp_path / "home"
    options: Json = [{"label": "SQLite", "description": "one file"}, {"label": "Postgres"}]
    ask = Call("ask_user", {"question": "Which database?", "options": options})
    more = Call("ask_user", {"question": "Which name?"})
    words = ("--model", "gemini:gemini-2.5-flash", "--remote-answers", "--cwd", workspace, "go")
    with (
        running_view(home) as server,
        ModelServer([Turn(calls=[ask]), Turn(calls=[more]), say("after")]) as model,
        subprocess.Popen(
            corral("run", *words),
            env={**environment_of(home), **model.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as run,
    ):
        try:
            page.goto(server.address)
            page.locator("a.run.is-pending").click()
            card = page.locator(".asks .ask.question")
            expect(card).to_contain_text("1. SQLite: one file")
            expect(card.locator("input")).to_have_count(1)
            card.locator("button", has_text="Postgres").click()
            expect(card).to_contain_text("Which name?", timeout=WAIT_MS)
            card.locator("button", has_text="Decline").click()
            expect(card).to_have_count(0, timeout=WAIT_MS)
            printed, _ = run.communicate(timeout=60)
        finally:
            run.terminate()
        assert printed == "after\n"
        answered, declined = (str(each.tool_results) for each in model.requests[1:])
        assert "Postgres" in answered
        assert "The person did not answer" in declined


@pytest.mark.deep
def test_a_gate_is_answered_after_a_restart(page: Page, tmp_path: Path, workspace: Path) -> None:
    home = tmp_path / "home"
    env = environment_of(home)
    (workspace / "gate.dot").write_text(GATE)
    command = corral("pipeline", "run", "gate.dot")
    waits = subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True)
    assert waits.returncode == 10, waits.stderr
    with running_view(home) as server:
        page.goto(server.address)
        page.locator("a.run").click()
        expect(page.locator(".ask.question")).to_contain_text("Publish the notes?")
        route = page.url.partition("#")[2]
    with running_view(home) as server:
        page.goto(server.address)
        page.goto(f"{page.url.partition('#')[0]}#{route}")
        expect(page.locator(".step-node.wait")).to_have_count(1)
        page.get_by_label("Comment").fill("after the review")
        page.locator(".ask.question button", has_text="Publish").first.click()
        expect(page.locator(".ask.question")).to_have_count(0, timeout=WAIT_MS)
        resumed = subprocess.run(
            corral("runs", "resume", "last"),
            cwd=workspace,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert resumed.returncode == 0, resumed.stderr
        assert (workspace / "published").exists()
        show = corral("runs", "show", "last")
        shown = subprocess.run(show, cwd=workspace, env=env, capture_output=True, text=True)
        assert "agree: Publish: after the review (the page of corral view)" in shown.stdout
        expect(page.locator(".head .state")).to_contain_text("finished", timeout=WAIT_MS)
        expect(page.locator(".step-node.good")).to_have_count(4, timeout=WAIT_MS)
