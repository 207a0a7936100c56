"""The real OpenCode: proven on the disk, on the wire and in the request.

A process takes seconds to start, so a test asks one process all it can.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import (
    denied_tools,
    fifo_signal,
    file_names,
    notes_server,
    processes_matching,
    sent_json,
    steps,
    tool_results_json,
)
from support.real_agents import cancel_while_running
from support.stream_checks import check_stream

import corral
from corral import Policy, errors, result_from_events
from corral.events import Decision, Init, PermissionDecision, PermissionRequest, Text, Thinking
from corral.testing import Call, Turn, say

if TYPE_CHECKING:
    from opencode.conftest import OpenCode

pytestmark = [pytest.mark.opencode, pytest.mark.timeout(180)]


def read(path: str | Path) -> Call:
    return Call("read", {"filePath": str(path)})


def write(path: str | Path, content: str = "written\n") -> Call:
    return Call("write", {"filePath": str(path), "content": content})


def shell(command: str) -> Call:
    return Call("bash", {"command": command, "description": "Run it"})


@pytest.fixture(autouse=True)
def seed(workspace: Path) -> Path:
    file = workspace / "seed.txt"
    file.write_text("seed words\n")
    return file


async def test_one_process_answers_whatever_the_prompt_looks_like_and_survives_errors(
    opencode: OpenCode, workspace: Path, tmp_path: Path
) -> None:
    odd = ["/init do it", "  /review", "look at @seed.txt", "$HOME", "!ls"]
    script = [
        Turn(
            thoughts="weighing",
            text=("Hel", "lo."),
            usage={"input": 120, "cached": 20, "output": 7, "thoughts": 3},
            match="first",
        ),
        *(Turn(text="heard", match=prompt.strip()) for prompt in odd),
        Turn(status=401, message="Incorrect API key provided.", match="fail 401"),
        Turn(
            status=500, retry_after=0, repeat=6, match="fail 500", message="The server had an error"
        ),
        say("still here"),
    ]
    options = opencode.options(script)
    async with corral.session("opencode", **options) as session:
        events = check_stream([event async for event in session.prompt("first question")])
        heard = [await session.run(prompt) for prompt in odd]
        failed = [await session.run(f"fail {code}") for code in (401, 500)]
        last = await session.run("last question")
        listed = await session.list_sessions(workspace)

    first = result_from_events(events)
    assert first.ok
    assert [e.delta for e in events if isinstance(e, Text)] == ["Hel", "lo."]
    assert "".join(e.delta for e in events if isinstance(e, Thinking)) == "weighing"
    assert first.usage == corral.Usage(
        input=120, output=10, reasoning=3, cache_read=20, cache_write=None, coverage="partial"
    )
    assert [result.text for result in heard] == ["heard"] * len(odd)
    told = [request.last_text for request in opencode.requests]
    assert [text.lstrip("\u2060") for text in told[1 : 1 + len(odd)]] == odd
    assert "seed words" not in sent_json(opencode.requests)
    with pytest.raises(errors.AuthenticationFailed):
        failed[0].raise_for_status()
    with pytest.raises(errors.ServerFailed):
        failed[1].raise_for_status()
    assert last.text == "still here"
    assert [(each.id, each.cwd) for each in listed] == [(last.session_id, str(workspace))]
    assert file_names(workspace) == ["seed.txt"]
    assert processes_matching(str(tmp_path)) == []
    assert opencode.failures == []


@pytest.mark.slow  # the attack kit makes the same attempts, and more
async def test_without_leave_nothing_is_written_or_run_and_all_of_it_is_told(
    opencode: OpenCode, workspace: Path
) -> None:
    script = steps(read("seed.txt"), write("new.txt"), shell("touch ran.txt"))
    async with corral.session("opencode", **opencode.options(script)) as session:
        events = check_stream([event async for event in session.prompt("do it")])
    result = result_from_events(events)
    assert result.ok
    assert result.text == "done"
    assert file_names(workspace) == ["seed.txt"]
    assert denied_tools(result) == ["write", "bash"]
    decided = [(e.decision, e.by) for e in events if isinstance(e, PermissionDecision)]
    assert decided == [("allow_once", "policy")]  # of the read; nothing else was offered
    assert "seed words" in tool_results_json(opencode.requests[1])


@pytest.mark.slow  # the attack kit makes the same attempts, and more
async def test_edits_writes_in_the_workspace_and_what_is_writable_and_nowhere_else(
    opencode: OpenCode, workspace: Path, tmp_path: Path
) -> None:
    more = tmp_path / "more"
    notes = tmp_path / "notes"
    more.mkdir()
    notes.mkdir()
    policy = Policy(
        write="allow", shell="deny", mcp="allow", writable=(str(more),), deny_tools=("webfetch",)
    )
    script = steps(
        write("new.txt", "words\n"),
        write(more / "also.txt"),
        write(tmp_path / "up.txt"),
        shell("touch ran.txt"),
        shell("> seed.txt"),  # no command in it, so nobody would be asked
        Call("webfetch", {"url": "http://127.0.0.1:1/", "format": "text"}),
        Call("notes_keep", {"text": "remember"}),
    )
    options = opencode.options(script, policy=policy, mcp_servers=[notes_server(notes)])
    async with corral.session("opencode", **options) as session:
        result = await session.run("do it")
    assert result.ok
    assert (workspace / "new.txt").read_text() == "words\n"
    assert file_names(workspace) == ["new.txt", "seed.txt"]
    assert file_names(more) == ["also.txt"]
    assert not (tmp_path / "up.txt").exists()
    assert denied_tools(result) == ["write", "bash", "bash", "webfetch"]
    assert (workspace / "seed.txt").read_text() == "seed words\n"
    assert (notes / "note.txt").read_text() == "remember"


async def test_whoever_is_asked_gives_leave_or_does_not_and_shell_rules_need_nobody(
    opencode: OpenCode, workspace: Path
) -> None:
    asked: list[tuple[str | None, str]] = []

    async def ask(request: PermissionRequest) -> Decision:
        asked.append((request.kind, json.dumps([request.title, request.input])))
        return "allow_once" if "wanted" in asked[-1][1] else "deny"

    script = steps(
        shell("touch ruled.txt"),
        shell("touch forbidden.txt"),
        shell("touch wanted.txt"),
        shell("touch unwelcome.txt"),
        write("wanted-too.txt"),
    )
    rules = ("allow touch ruled.txt", "deny touch forbidden.txt")
    options = opencode.options(script, policy=Policy(shell_rules=rules), strict=False)
    async with corral.session("opencode", ask=ask, **options) as session:
        result = await session.run("do it")
    assert result.ok
    assert file_names(workspace) == ["ruled.txt", "seed.txt", "wanted-too.txt", "wanted.txt"]
    assert [kind for kind, _ in asked] == ["execute", "execute", "edit"]
    assert "touch unwelcome.txt" in asked[1][1]
    assert denied_tools(result) == ["bash", "bash"]


async def test_cancelling_ends_the_running_command_and_the_session_goes_on(
    opencode: OpenCode, workspace: Path, tmp_path: Path
) -> None:
    sign = f"300.{uuid.uuid4().int}"
    with fifo_signal(tmp_path / "bell") as rung:
        command = f"touch ran.txt; sleep {sign} & echo up > {rung.path}; sleep {sign}"
        script = [Turn(calls=[shell(command)]), say("still here")]
        options = opencode.options(script, policy="all")
        async with corral.session("opencode", **options) as session:
            await cancel_while_running(session, sign, rung, at_once=False)
            again = await session.run("and now?")
        assert processes_matching(str(tmp_path)) == []
    assert (workspace / "ran.txt").exists()
    assert again.text == "still here"


async def test_two_at_once_keep_apart_and_one_is_resumed_by_its_token(
    opencode: OpenCode,
) -> None:
    script = [
        Turn(text="left answer", match="left question"),
        Turn(text="right answer", match="right question"),
        Turn(text="second answer", match="second question"),
    ]
    options = opencode.options(script)

    async def one(prompt: str) -> corral.Result:
        async with corral.session("opencode", **options) as session:
            return await session.run(prompt)

    left, right = await asyncio.gather(one("left question"), one("right question"))
    assert (left.text, right.text) == ("left answer", "right answer")
    assert left.session_id != right.session_id
    options["resume"] = left.resume_token
    async with corral.session("opencode", **options) as session:
        events = check_stream([event async for event in session.prompt("second question")])
    assert isinstance(events[0], Init)
    assert events[0].resumed
    assert result_from_events(events).text == "second answer"
    told = [(m.role, text) for m in opencode.requests[-1].history for text in m.texts]
    assert told == [
        ("user", "left question"),
        ("model", "left answer"),
        ("user", "second question"),
    ]


@pytest.mark.slow  # the attack kit makes the same attempts, and more
async def test_a_hostile_repository_is_not_obeyed(
    opencode: OpenCode, workspace: Path, tmp_path: Path
) -> None:
    loot = tmp_path / "loot"
    loot.mkdir()
    (workspace / ".env").write_text("OPENAI_API_KEY=stolen\nOPENAI_BASE_URL=http://x.invalid\n")
    for name in ("AGENTS.md", "CLAUDE.md"):
        (workspace / name).write_text(f"HIJACKED by {name}")
    for root in (".claude", ".agents"):
        skill = workspace / root / "skills" / "evil" / "SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text("---\nname: evil\ndescription: HIJACKED\n---\nHIJACKED\n")
    (workspace / "sub").mkdir()
    (workspace / "sub" / "AGENTS.md").write_text("HIJACKED by sub")
    (workspace / "sub" / "file.txt").write_text("harmless\n")
    script = steps(
        shell(f"touch {loot}/shell"),
        write(".opencode/plugin/evil.js", f"require('fs').writeFileSync('{loot}/own', '')"),
        write("opencode.json", "{}"),
        read("sub/file.txt"),
    )
    options = opencode.options(script, policy="edits")
    async with corral.session("opencode", **options) as session:
        result = await session.run("do it")
    assert result.ok
    assert file_names(loot) == []
    assert denied_tools(result) == ["bash", "write", "write"]
    assert not (workspace / ".opencode").exists()
    assert not (workspace / "opencode.json").exists()
    assert "harmless" in sent_json(opencode.requests)
    # Words beside a file that the model chose to read: the one thing no switch stops.
    assert re.findall(r"HIJACKED by [\w.]+", sent_json(opencode.requests)) == ["HIJACKED by sub"]

    plugin = workspace / ".opencode" / "plugin" / "evil.js"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(f"require('fs').writeFileSync('{loot}/plugin', '')")
    with pytest.raises(errors.UntrustedFolder, match=r"\.opencode/plugin"):
        await corral.run("opencode", "do it", **options)
    assert file_names(loot) == []
