"""The Gemini CLI as a peer that stays: proven on the disk, on the wire and in the request.

A process takes seconds to start, so a test asks one process all it can.
"""

from __future__ import annotations

import json
import random
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
    read,
    replace,
    sent_json,
    shell,
    steps,
    tool_results_json,
    write,
)
from support.real_agents import cancel_while_running
from support.stream_checks import check_stream

import corral
from corral import Policy, errors, result_from_events
from corral.events import Decision, Init, PermissionDecision, PermissionRequest, Text, Thinking
from corral.testing import Call, Turn, say

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli


@pytest.fixture(autouse=True)
def seed(workspace: Path) -> Path:
    file = workspace / "seed.txt"
    file.write_text("seed words\n")
    return file


async def test_one_process_answers_whatever_the_prompt_looks_like_and_survives_every_error(
    gemini: Gemini, workspace: Path, tmp_path: Path
) -> None:
    big = random.Random(7).randbytes(512 * 1024).hex()  # what repeats would be taken for a loop
    thinking = Turn(
        thoughts="**Weighing**\nthis and that",
        text=("Hel", "lo."),
        usage={"input": 120, "output": 7},
        match="first",
    )
    odd = ["/help me", "/init", "$HOME", "look at @seed.txt", "  /quit  "]
    script = [
        thinking,
        *(Turn(text="heard", match=prompt.strip()) for prompt in odd),
        *(Turn(status=code, message="no", match=f"fail {code}") for code in (401, 429, 500)),
        Turn(text=big, match="a lot"),
        say("still here"),
    ]
    options = gemini.options(script)
    async with corral.session("gemini-acp", **options) as session:
        events = check_stream([event async for event in session.prompt("first question")])
        heard = [await session.run(prompt) for prompt in odd]
        failed = [await session.run(f"fail {code}") for code in (401, 429, 500)]
        long = await session.run("a lot")
        last = await session.run("last question")
        with pytest.raises(errors.ConfigError, match="does not list its sessions"):
            await session.list_sessions()

    first = result_from_events(events)
    assert first.ok
    assert first.text == "Hello."
    assert first.model == "gemini-2.5-flash"
    assert first.usage == corral.Usage(input=120, output=7, coverage="partial")
    assert "".join(e.delta for e in events if isinstance(e, Thinking)).startswith("**Weighing**")
    assert not any("Weighing" in e.delta for e in events if isinstance(e, Text))

    assert [result.text for result in heard] == ["heard"] * len(odd)
    told = [request.last_text for request in gemini.requests if not request.aside]
    assert [text.lstrip("\u2060") for text in told[1 : 1 + len(odd)]] == odd
    assert "seed words" not in sent_json(gemini.requests)
    assert file_names(workspace) == ["seed.txt"]

    kinds = [errors.AuthenticationFailed, errors.RateLimited, errors.ServerFailed]
    for result, kind in zip(failed, kinds, strict=True):
        with pytest.raises(kind):
            result.raise_for_status()
    assert long.error is None
    assert long.text == big
    assert last.text == "still here"
    assert len({r.session_id for r in (first, *heard, *failed, long, last)}) == 1
    assert processes_matching(str(tmp_path)) == []


async def test_what_is_denied_is_not_offered_and_the_result_says_that_it_cannot_know(
    gemini: Gemini, workspace: Path
) -> None:
    script = steps(read("seed.txt"), write("new.txt"), shell("touch ran.txt"))
    async with corral.session("gemini-acp", **gemini.options(script)) as session:
        events = check_stream([event async for event in session.prompt("do it")])
    result = result_from_events(events)
    assert result.ok
    assert result.text.endswith("done")
    assert file_names(workspace) == ["seed.txt"]
    assert not {"write_file", "run_shell_command"} & set(gemini.requests[0].tools)
    assert [e for e in events if isinstance(e, PermissionDecision)] == []
    # The CLI tells the model alone of a call of a tool that it was not offered.
    assert not result.denied_complete
    assert tool_results_json(gemini.requests[-1]).count("not found in registry") == 2
    assert "seed words" in tool_results_json(gemini.requests[1])
    assert result.files == ()


async def test_edits_writes_in_the_workspace_and_the_shell_stays_shut(
    gemini: Gemini, workspace: Path, tmp_path: Path
) -> None:
    script = steps(write("new.txt", "words\n"), write("../up.txt"), shell("touch ran.txt"))
    async with corral.session("gemini-acp", **gemini.options(script, policy="edits")) as session:
        result = await session.run("do it")
    assert result.ok
    assert (workspace / "new.txt").read_text() == "words\n"
    assert file_names(workspace) == ["new.txt", "seed.txt"]
    assert not (tmp_path / "up.txt").exists()
    assert denied_tools(result) == ["write_file"]
    assert "run_shell_command" not in gemini.requests[0].tools
    assert "write_file" in {call.name for call in gemini.requests[-1].tool_calls}
    changed = [(Path(f.path).name, f.kind, f.by_tool) for f in result.files]
    assert changed == [("new.txt", "created", True)]


async def test_whoever_is_asked_gives_leave_for_a_command_or_does_not(
    gemini: Gemini, workspace: Path
) -> None:
    asked: list[tuple[str | None, str]] = []

    async def ask(request: PermissionRequest) -> Decision:
        asked.append((request.kind, json.dumps([request.title, request.input])))
        return "allow_once" if "wanted" in asked[-1][1] else "deny"

    script = steps(shell("touch wanted.txt"), shell("touch unwelcome.txt"), write("wanted-too.txt"))
    options = gemini.options(script)
    async with corral.session("gemini-acp", ask=ask, **options) as session:
        result = await session.run("do it")
    assert result.ok
    assert file_names(workspace) == ["seed.txt", "wanted-too.txt", "wanted.txt"]
    assert [kind for kind, _ in asked] == ["execute", "execute", "edit"]
    assert "touch unwelcome.txt" in asked[1][1]
    assert denied_tools(result) == ["run_shell_command"]


async def test_files_written_through_us_arrive_byte_for_byte(
    gemini: Gemini, workspace: Path
) -> None:
    (workspace / "old.txt").write_bytes(b"one\r\ntwo\r\n")
    asked: list[str | None] = []

    def ask(request: PermissionRequest) -> Decision:
        asked.append(request.kind)
        return "allow_once"

    new, old = write("deep/new.txt", "words\n"), workspace / "old.txt"
    script = steps(new, replace(old, "two", "three"), read(old))
    options = gemini.options(script, allow_file_reads=True, allow_file_writes=True)
    async with corral.session("gemini-acp", ask=ask, **options) as session:
        result = await session.run("do it")
    assert result.ok
    assert asked == ["edit", "edit"]
    assert (workspace / "deep" / "new.txt").read_text() == "words\n"
    assert old.read_bytes() == b"one\r\nthree\r\n"
    assert {(Path(f.path).name, f.kind) for f in result.files} == {
        ("new.txt", "created"),
        ("old.txt", "modified"),
    }


async def test_cancelling_ends_the_running_command_and_the_session_goes_on(
    gemini: Gemini, workspace: Path, tmp_path: Path
) -> None:
    sign = f"300.{uuid.uuid4().int}"
    with fifo_signal(tmp_path / "bell") as rung:
        command = f"touch ran.txt; sleep {sign} & echo up > {rung.path}; sleep {sign}"
        script = [Turn(calls=[shell(command)]), say("still here")]
        options = gemini.options(script, policy="all")
        async with corral.session("gemini-acp", **options) as session:
            result = await cancel_while_running(session, sign, rung, at_once=False)
            again = await session.run("and now?")
        assert processes_matching(str(tmp_path)) == []
    assert (workspace / "ran.txt").exists()
    assert again.text == "still here"
    assert again.session_id == result.session_id


async def test_an_mcp_tool_runs_where_mcp_is_allowed(gemini: Gemini, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    script = steps(Call("mcp_notes_keep", {"text": "remember"}))
    options = gemini.options(script, policy=Policy(mcp="allow"), mcp_servers=[notes_server(notes)])
    async with corral.session("gemini-acp", **options) as session:
        result = await session.run("do it")
    assert result.ok
    assert result.denied == ()
    assert (notes / "note.txt").read_text() == "remember"


@pytest.mark.timeout(200)
async def test_a_conversation_is_resumed_by_its_token_again_and_again(gemini: Gemini) -> None:
    """At once: in the minute of its beginning, too, by which its file is named."""
    script = [say("first answer"), say("second answer"), say("third answer")]
    options = gemini.options(script, timeout=150)
    lane = gemini.lane
    async with corral.session("gemini-acp", **options) as session:
        first = await session.run("first question")
    options["resume"] = first.resume_token
    for question in ("second question", "third question"):
        async with corral.session("gemini-acp", **options) as session:
            events = check_stream([event async for event in session.prompt(question)])
        assert isinstance(events[0], Init)
        assert events[0].resumed
        assert result_from_events(events).ok
        assert result_from_events(events).session_id == first.session_id
    told = [(m.role, text) for m in lane.requests[-1].history for text in m.texts]
    assert told == [
        ("user", "first question"),
        ("model", "first answer"),
        ("user", "second question"),
        ("model", "second answer"),
        ("user", "third question"),
    ]
