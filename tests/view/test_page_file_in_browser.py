"""An exported file in a real browser, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browser import WAIT_MS, running_browser
from support.event_samples import session_events, write_events

from corral._runs import stored_run
from corral._view import page_file
from corral.events import (
    Event,
    Init,
    PermissionDecision,
    PermissionRequest,
    Text,
    ToolResult,
    ToolUse,
    Vendor,
    to_json,
)

pytestmark = [pytest.mark.whole_program, pytest.mark.browser]
HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>[a](javascript:alert(3))"


def exported(log: Path) -> str:
    """The address of the exported file."""
    path = log.with_suffix(".html")
    with path.open("wb") as file:
        page_file.write(stored_run.at(log), file.write)
    return path.as_uri()


def hostile_log(path: Path) -> Path:
    events: list[Event] = [
        Init(run_id="s.1", agent=HOSTILE),
        ToolUse("1", HOSTILE, title=HOSTILE, input={"command": HOSTILE}),
        ToolResult("1", "success", output=HOSTILE * 200),
        Text(HOSTILE),
    ]
    return write_events(path, events)


def long_log(path: Path) -> Path:
    line = to_json(Text("many words ", run_id="s.1", agent="codex-cli")) + b"\n"
    write_events(path, [Init(run_id="s.1", agent="codex-cli"), Text("The beginning.")])
    with path.open("ab") as file:
        file.write(line * 100_000)
        file.write(to_json(Text("The end.", message_id="9")) + b"\n")
    return path


@pytest.mark.deep
def test_an_exported_file_shows_the_run_and_loads_nothing(tmp_path: Path) -> None:
    addresses = {
        "Let me look.": exported(write_events(tmp_path / "plain.ndjson", session_events())),
        "onerror=alert(1)": exported(hostile_log(tmp_path / "hostile.ndjson")),
        "The end.": exported(long_log(tmp_path / "long.ndjson")),
    }
    problems: list[str] = []
    with running_browser() as browser:
        for text, address in addresses.items():
            page = browser.new_page()
            page.on("console", lambda message: problems.append(message.text))
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("dialog", lambda dialog: problems.append(dialog.message))
            page.on(
                "request",
                lambda request: (
                    problems.append(request.url) if request.url not in addresses.values() else None
                ),
            )
            page.goto(address)
            page.get_by_text(text).first.wait_for(timeout=WAIT_MS)
            assert page.locator("main img, main script, main a[href^=javascript]").count() == 0
            assert page.locator("main *").count() < 5_000
            if text == "Let me look.":
                page.get_by_text("ls -l").first.click()
                page.get_by_text("x.py").first.wait_for(timeout=WAIT_MS)
            page.close()
    assert problems == []


@pytest.mark.deep
def test_a_conversation_reads_from_the_question_to_the_call(tmp_path: Path) -> None:
    cwd = "/work/project"
    log = write_events(
        tmp_path / "asked.ndjson",
        [
            Init(run_id="s.1", agent="gemini-acp", cwd=cwd),
            Vendor("available_commands_update", data={"commands": ["memory"]}),
            ToolUse("1", "write_file", kind="edit", title="Write", paths=(f"{cwd}/src/a.py",)),
            PermissionRequest("p", kind="edit", title=f"Writing to {cwd}/src/a.py", call_id="1"),
            PermissionDecision("p", "allow_once", by="policy", call_id="1"),
            ToolResult("1", "success"),
            Text("Done."),
        ],
    )
    with running_browser() as browser:
        page = browser.new_page()
        page.goto(exported(log))
        page.get_by_text("Done.").wait_for(timeout=WAIT_MS)
        lines = page.locator("article.item .target").all_inner_texts()
        assert lines == ["Writing to src/a.py", "src/a.py"]
        assert "available_commands_update" not in page.locator("body").inner_text()
