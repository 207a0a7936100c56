"""What a person does on the page reaches the run: each control is clicked."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.batches import MODEL, CountingModel
from support.browser import WAIT_MS, Watched, environment_of, running_browser
from support.builtin_agent import model_env
from support.view_server import Transcript, running_view

from corral.events import Text
from corral.testing import Call, ModelServer, Turn, fail, say

pytestmark = [pytest.mark.whole_program, pytest.mark.browser]

PIPELINE = """\
digraph build {
    start [shape=Mdiamond]
    count [shape=parallelogram, tool_command="echo once >> counted"]
    done  [shape=Msquare]
    start -> count -> done
}
"""
PAUSED = """\
digraph work {
    max_calls=1; on_budget=pause
    start [shape=Mdiamond]
    a     [type=prompt, prompt="task a"]
    b     [type=prompt, prompt="task b"]
    done  [shape=Msquare]
    start -> a -> b -> done
}
"""
SECRET = "secret-of-the-environment-0123456789"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        yield page


def corral(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "corral", *map(str, words)]


def shows(found: Locator, text: str) -> None:
    expect(found).to_contain_text(text, timeout=WAIT_MS)


def waits_for(path: Path) -> Turn:
    """A tool call that takes until there is a file."""
    command = f"until [ -e {path} ]; do sleep 0.05; done"
    return Turn(calls=[Call("shell", {"command": command})])


@pytest.mark.deep
def test_a_run_is_steered_paused_on_its_budget_raised_and_cancelled(
    page: Page, tmp_path: Path, workspace: Path, model_server: ModelServer
) -> None:
    home = tmp_path / "home"
    lane = model_server.lane(
        "view-controls", [waits_for(workspace / "go"), waits_for(workspace / "never")]
    )
    options = ("--max-calls", "1", "--on-budget", "pause", "--approve", "all", "--sandbox", "off")
    with (
        running_view(home) as server,
        subprocess.Popen(
            corral("run", "--model", MODEL, *options, "--cwd", workspace, "Fix the parser"),
            env={**environment_of(home), **model_env(lane, "gemini")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as run,
    ):
        try:
            watched = Watched(page, server.address)
            page.goto(server.address)
            page.locator("a.run.is-live").click()
            bar = page.locator('.budget[data-limit="calls"]')
            shows(bar, "1 of 1 model calls")
            shows(page.locator(".context").first, "% of 1M")
            raises = page.get_by_role("button", name="Raise budget")
            expect(raises).to_be_visible()
            page.get_by_label("Message to the running agent").fill("Leave the tests as they are")
            page.get_by_role("button", name="Send").click()
            shows(page.locator(".notice"), "Sent")
            (workspace / "go").touch()
            shows(page.locator(".head .state"), "paused: the budget is used up")
            page.keyboard.press("Escape")
            shows(page.locator("a.run .state"), "paused: the budget is used up")
            page.locator("a.run.is-live").click()
            raises.click()
            page.get_by_label("model calls").fill("3")
            page.keyboard.press("Enter")
            shows(bar, "2 of 4 model calls")
            shows(page.locator(".head .state"), "running")
            assert "Leave the tests as they are" in "\n".join(lane.requests[1].texts)
            page.get_by_role("button", name="Cancel").click()
            shows(page.locator(".head .state"), "interrupted")
            run.communicate(timeout=60)
        finally:
            run.terminate()
    assert run.returncode == 130
    assert watched.problems == []


@pytest.mark.deep
def test_a_paused_pipeline_is_raised_on_its_page(
    page: Page, tmp_path: Path, workspace: Path, model_server: ModelServer
) -> None:
    home = tmp_path / "home"
    model = CountingModel(model_server, "view-paused-pipeline")
    (workspace / "work.dot").write_text(PAUSED)
    with (
        running_view(home) as server,
        subprocess.Popen(
            corral("pipeline", "run", "work.dot", "--model", MODEL),
            cwd=workspace,
            env={**environment_of(home), **model.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as run,
    ):
        try:
            watched = Watched(page, server.address)
            page.goto(server.address)
            waiting = page.locator("section", has_text="Waiting for you").locator("a.run")
            shows(waiting, "paused: the budget is used up")
            waiting.click()
            shows(page.locator(".head .state"), "paused: the budget is used up")
            shows(page.locator('.budget[data-limit="calls"]'), "1 of 1 model calls")
            page.get_by_role("button", name="Raise budget").click()
            page.get_by_label("model calls").fill("1")
            page.keyboard.press("Enter")
            shows(page.locator(".head .state"), "finished")
            run.communicate(timeout=60)
        finally:
            run.terminate()
    assert run.returncode == 0
    assert watched.problems == []


@pytest.mark.deep
def test_a_resume_command_is_copied_and_a_bundle_without_secrets_arrives(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", SECRET)
    home = tmp_path / "home"
    stored = Transcript(home, "20260101-000000-aaaaaa")
    stored.write([Text(f"it printed {SECRET}")])
    with running_view(home) as server:
        page.goto(server.address)
        page.locator("a.run").click()
        page.get_by_role("button", name="Copy resume command").click()
        shows(page.locator(".notice"), "Copied")
        copied = "navigator.clipboard.readText()"
        assert page.evaluate(copied) == f"corral run --resume {stored.id}"
        page.locator("#tab-details").click()
        own = page.locator("dt", has_text="Resume in its own program").locator("+ dd")
        own.get_by_role("button", name="Copy").click()
        page.wait_for_function(f"async () => (await {copied}).includes('gemini')")
        command = str(page.evaluate(copied))
        assert command.startswith("cd /work/project && ")
        assert command.endswith(" --resume theirs")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download bundle").click()
        target = tmp_path / "bundle.zip"
        download.value.save_as(target)
    with zipfile.ZipFile(target) as archive:
        found = {name: archive.read(name).decode() for name in archive.namelist()}
    assert any("it printed" in text for text in found.values())
    assert not any(SECRET in text for text in found.values())


@pytest.mark.deep
@pytest.mark.worker_process
def test_a_pipeline_is_run_again_from_a_node(page: Page, tmp_path: Path, workspace: Path) -> None:
    home = tmp_path / "home"
    (workspace / "build.dot").write_text(PIPELINE)
    ended = subprocess.run(
        corral("pipeline", "run", "build.dot"),
        cwd=workspace,
        env=environment_of(home),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    with running_view(home) as server:
        page.goto(server.address)
        page.locator("a.run").click()
        page.locator('.step-node[data-node="count"]').click()
        first = page.url
        page.get_by_role("button", name="Retry from here").click()
        expect(page).not_to_have_url(first, timeout=WAIT_MS)
        shows(page.locator(".head .state"), "finished")
        shows(page.locator("dt", has_text="Forked from").locator("+ dd"), "-")
        assert (workspace / "counted").read_text() == "once\nonce\n"
        with page.expect_download() as download:
            page.get_by_role("link", name="Download bundle").click()
        assert zipfile.is_zipfile(download.value.path())
        page.keyboard.press("Escape")
        expect(page.locator("a.run")).to_have_count(2, timeout=WAIT_MS)


@pytest.mark.deep
@pytest.mark.worker_process
def test_the_failed_tasks_of_a_batch_are_retried_and_a_pipeline_is_cancelled(
    page: Page, tmp_path: Path, workspace: Path, model_server: ModelServer
) -> None:
    home = tmp_path / "home"
    model = CountingModel(model_server, "view-batch-page")
    model.special = lambda task, _: fail(400, "no such luck") if task == "2" else None
    env = {**environment_of(home), **model.env}
    (workspace / "tasks.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in (1, 2)))
    words = ("batch", "tasks.jsonl", "-p", "task {{n}}", "--model", MODEL, "-o", "out.jsonl")
    ended = subprocess.run(corral(*words), cwd=workspace, env=env, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    with pytest.MonkeyPatch.context() as patch:
        for name, value in model.env.items():
            patch.setenv(name, value)
        with running_view(home) as server:
            page.goto(server.address)
            page.locator("a.run").click()
            shows(page.locator(".failures"), "no such luck")
            model.special = lambda _task, _request: say("done")
            page.get_by_role("button", name="Retry failed").click()
            shows(page.locator(".head .state"), "finished")
            assert model.counts == {"1": 1, "2": 2}
            slow = PIPELINE.replace("echo once >> counted", "sleep 300")
            (workspace / "slow.dot").write_text(slow)
            with subprocess.Popen(
                corral("pipeline", "run", "slow.dot"), cwd=workspace, env=env, stderr=-3, stdout=-3
            ) as run:
                page.keyboard.press("Escape")
                page.locator("a.run.is-live").click()
                page.get_by_role("button", name="Cancel").click()
                shows(page.locator(".head .state"), "cancelled")
                assert run.wait(60) != 0
