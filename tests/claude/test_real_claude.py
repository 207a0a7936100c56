"""The real Claude Code: proven on the disk, on the wire and in the request."""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from claude.conftest import KEY
from support.claude_tools import read, shell
from support.gemini_tools import (
    fifo_signal,
    file_names,
    files_containing,
    notes_server,
    processes_matching,
    sent_json,
    steps,
)
from support.real_agents import cancel_while_running
from support.stream_checks import check_stream

import corral
from corral import Policy, errors, result_from_events
from corral.events import Error, Init, Text, Thinking, ToolResult
from corral.testing import Call, Turn, say

if TYPE_CHECKING:
    from claude.conftest import Claude

pytestmark = [pytest.mark.claude, pytest.mark.timeout(120)]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
PAPER = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    b"2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\ntrailer<</Root 1 0 R>>\n"
)


@dataclass
class Count:
    """How many there are."""

    n: int


async def test_words_and_thoughts_come_as_they_are_said_with_what_was_spent(
    claude: Claude, tmp_path: Path
) -> None:
    spent = {"input": 1200, "cached": 200, "written": 100, "output": 7, "thoughts": 3}
    script = [Turn(thoughts="weighing", text=("Hel", "lo."), usage=spent)]
    events = check_stream(await claude.events(script, "first question"))
    result = result_from_events(events)
    assert result.ok
    assert [e.delta for e in events if isinstance(e, Text)] == ["Hel", "lo."]
    assert "".join(e.delta for e in events if isinstance(e, Thinking)) == "weighing"
    assert result.usage == corral.Usage(
        input=1200, output=10, reasoning=3, cache_read=200, cache_write=100, coverage="complete"
    )
    assert result.cost.source == "reported"
    assert result.model == "claude-sonnet-5"
    assert isinstance(events[0], Init)
    assert events[0].agent_version == "2.1.325"
    assert not [e for e in events if isinstance(e, Error)]  # its stdin was closed, and it went
    assert processes_matching(str(tmp_path)) == []


async def test_a_prompt_is_text_whatever_it_looks_like(claude: Claude, workspace: Path) -> None:
    (workspace / "seed.txt").write_text("seed words\n")
    odd = ["/help me @seed.txt", "  /clear", "!touch bang.txt", "--version"]
    options = claude.options([Turn(text="heard", repeat="forever")])
    async with corral.session("claude", **options) as session:
        heard = [await session.run(prompt) for prompt in odd]
    assert [result.text for result in heard] == ["heard"] * len(odd)
    told = [request.last_text.strip("\u2060 ") for request in claude.requests]
    assert told == [prompt.strip() for prompt in odd]
    assert "seed words" not in sent_json(claude.requests)
    assert file_names(workspace) == ["seed.txt"]


async def test_it_is_resumed_and_forked_and_each_run_tells_its_own_cost(claude: Claude) -> None:
    spent = {"input": 1000, "output": 100}
    script = [Turn(text=f"answer {n}", usage=spent) for n in range(5)]
    options = claude.options(script)
    first = await corral.run("claude", "question 0", **options)
    options["resume"] = first.resume_token
    second = await corral.run("claude", "question 1", **options)
    options["fork"] = True
    async with corral.session("claude", **options) as session:
        fork, more = await session.run("question 2"), await session.run("question 2, more")
    options["fork"] = False
    third = await corral.run("claude", "question 3", **options)
    assert first.session_id == second.session_id == third.session_id != fork.session_id
    assert fork.session_id == more.session_id
    assert len({result.cost.usd for result in (first, second, fork, more, third)}) == 1
    said = [[t for t in r.texts if "question" in t] for r in claude.requests]
    assert said[2] == ["question 0", "question 1", "question 2"]
    assert said[4] == ["question 0", "question 1", "question 3"]


async def test_a_resumed_session_has_the_system_prompt_that_it_is_given_now(
    claude: Claude,
) -> None:
    options = claude.options([say("one"), say("two")], system_prompt="Speak like a pirate.")
    first = await corral.run("claude", "question", **options)
    options["resume"], options["system_prompt"] = first.resume_token, "Speak like a poet."
    assert (await corral.run("claude", "again", **options)).ok
    assert "pirate" in claude.requests[0].system
    assert "poet" in claude.requests[1].system
    assert "pirate" not in claude.requests[1].system


async def test_a_session_that_is_gone_is_told(claude: Claude) -> None:
    options = claude.options([say("one")])
    first = await corral.run("claude", "question", **options)
    from corral.sessions import store

    for file in store.find(first.resume_token or "").folder.rglob("*.jsonl"):
        file.unlink()
    options["resume"] = first.resume_token
    lost = await corral.run("claude", "again", **options)
    with pytest.raises(errors.ResumeLost):
        lost.raise_for_status()


async def test_its_own_limits_end_a_run_as_what_they_are(claude: Claude) -> None:
    script = [Turn(calls=[read("nope")], usage={"input": 90_000, "output": 900}, repeat="forever")]
    turns = await claude.run(script, max_turns=2)
    assert (turns.status, len(claude.requests)) == ("max_turns", 2)
    money = await claude.run(script, max_budget_usd=0.01)
    assert money.status == "max_budget"
    with pytest.raises(errors.BudgetSpent, match=r"\$0.01"):
        money.raise_for_status()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, errors.AuthenticationFailed),
        (403, errors.AccessDenied),
        (404, errors.ModelNotFound),
        (429, errors.RateLimited),
        (500, errors.ServerFailed),
    ],
)
async def test_an_error_of_the_api_has_its_own_class(
    claude: Claude, status: int, kind: type[errors.CorralError]
) -> None:
    script = [Turn(status=status, repeat="forever", retry_after=0)]
    events = await claude.events(script, retries=2 if status == 500 else 1)
    result = result_from_events(events)
    with pytest.raises(kind):
        result.raise_for_status()
    assert result.text == ""
    if status == 500:
        retried = [e for e in events if isinstance(e, Error) and e.code == "retrying"]
        assert [(e.recoverable, e.level) for e in retried] == [(True, "warning")]


async def test_nobody_there_is_a_network_error_and_no_key_starts_nothing(claude: Claude) -> None:
    away = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    result = await claude.run([say("never")], env=away)
    with pytest.raises(errors.NetworkFailed):
        result.raise_for_status()
    with pytest.raises(errors.AuthenticationFailed, match="no credentials"):
        await corral.run("claude", "hello", program=claude.program)


async def test_an_answer_that_broke_off_and_began_again_is_warned_of(claude: Claude) -> None:
    script = [Turn(text=("Hello ", "you ", "there"), cut=2, chunk_delay=0.3), say("Hello")]
    events = await claude.events(script, retries=2)
    assert result_from_events(events).ok
    assert "text_repeated" in [e.code for e in events if isinstance(e, Error)]


async def test_a_value_of_a_type_is_handed_in_by_its_own_tool(claude: Claude) -> None:
    options = claude.options([Turn(calls=[Call("StructuredOutput", {"n": 4})])])
    result = await corral.run("claude", "how many?", output=Count, **options)
    assert result.output == Count(4)
    assert "StructuredOutput" in claude.requests[0].tools


async def test_a_value_that_never_fits_is_asked_for_again_and_then_an_error(
    claude: Claude,
) -> None:
    mends = [say("I will not."), say("No."), Turn(calls=[Call("StructuredOutput", {"n": 5})])]
    options = claude.options(mends)
    mended = await corral.run("claude", "how many?", output=Count, **options)
    assert mended.output == Count(5)
    options = claude.options([Turn(text="Never.", repeat="forever")])
    with pytest.raises(errors.SchemaNotMet):
        await corral.run("claude", "how many?", output=Count, repairs=1, check=True, **options)


async def test_our_functions_are_its_tools(claude: Claude) -> None:
    asked: list[str] = []

    def deployed_version(service: str) -> str:
        """The version that is live."""
        asked.append(service)
        return "2.4.1"

    name = "mcp__corral__deployed_version"
    options = claude.options(steps(Call(name, {"service": "api"})))
    result = await corral.run("claude", "which?", tools=[deployed_version], **options)
    assert result.ok
    assert asked == ["api"]
    assert "2.4.1" in sent_json(claude.requests)


async def test_cancelling_ends_the_running_command_and_the_session_goes_on(
    claude: Claude, workspace: Path, tmp_path: Path
) -> None:
    sign = f"300.{uuid.uuid4().int}"
    with fifo_signal(tmp_path / "bell") as rung:
        command = f"touch ran.txt; sleep {sign} & echo up > {rung.path}; sleep {sign}"
        options = claude.options([Turn(calls=[shell(command)]), say("still here")], policy="all")
        async with corral.session("claude", **options) as session:
            result = await cancel_while_running(session, sign, rung)
            again = await session.run("and now?")
        assert processes_matching(str(tmp_path)) == []
    assert result.usage.total
    assert (workspace / "ran.txt").exists()
    assert again.text == "still here"
    assert "do it" in sent_json(claude.requests[-1:])


async def test_leaving_early_leaves_nothing(claude: Claude, tmp_path: Path) -> None:
    options = claude.options([Turn(text="Hello", hang="after")])
    async with corral.session("claude", **options) as session:
        async for event in session.prompt("do it"):
            if isinstance(event, Text):
                break
    assert processes_matching(str(tmp_path)) == []


async def test_system_prompts_images_folders_and_effort_reach_the_model(
    claude: Claude, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "dot.png").write_bytes(PIXEL)
    more = tmp_path / "more"
    more.mkdir()
    (more / "far.txt").write_text("far words\n")
    result = await claude.run(
        steps(read(more / "far.txt")),
        system_prompt="Speak like a pirate.",
        images=["dot.png"],
        include_directories=[more],
        reasoning_effort="low",
    )
    assert result.denied == ()
    first = claude.requests[0]
    assert "Speak like a pirate." in first.system
    assert "Claude" in first.system
    assert base64.b64encode(PIXEL).decode() in json.dumps(first.body)
    assert '"low"' in json.dumps(first.body.get("output_config"))
    assert "far words" in sent_json(claude.requests)
    await claude.run([say("ok")], replace_system_prompt="You are a poet.")
    assert "You are a poet." in claude.requests[0].system
    assert "software engineering" not in claude.requests[0].system


async def test_files_go_along_with_a_prompt_by_what_is_in_them(
    claude: Claude, workspace: Path
) -> None:
    (workspace / "no-name").write_bytes(PIXEL)
    (workspace / "told.jpg").write_bytes(PIXEL)
    (workspace / "notes.md").write_text("/clear the attached words\n")
    (workspace / "paper").write_bytes(PAPER)
    result = await claude.run(
        [say("seen")], "/look", images=["told.jpg"], attachments=["notes.md", "paper", "no-name"]
    )
    assert result.text == "seen"
    first = claude.requests[0]
    assert "\u2060/look" in first.texts
    assert any("/clear the attached words" in text for text in first.texts)
    messages = msgspec.convert(first.body["messages"], list[dict[str, Any]])
    kinds = [
        (block["type"], block["source"]["media_type"], block["source"]["data"])
        for message in messages
        for block in message["content"]
        if block["type"] in ("image", "document")
    ]
    pixel, paper = (base64.b64encode(data).decode() for data in (PIXEL, PAPER))
    pixels = ("image", "image/png", pixel)
    assert kinds == [pixels, ("document", "application/pdf", paper), pixels]


async def test_files_that_it_does_not_take_are_refused_before_it_starts(
    claude: Claude, workspace: Path
) -> None:
    (workspace / "song.mp3").write_bytes(b"ID3\xff\xfe")
    (workspace / "blob").write_bytes(b"\xff\xfe\xfd")
    (workspace / "old.bmp").write_bytes(b"BM\xff\xfe")
    (workspace / "long.txt").write_text("x" * 10_000_000)
    for name, said in (
        ("song.mp3", "accepts no audio/mpeg"),
        ("blob", "neither text nor an image"),
    ):
        with pytest.raises(errors.ConfigError, match=said):
            await claude.run([say("never")], attachments=[name])
    with pytest.raises(errors.MediaInvalid, match="accepts no image/"):
        await claude.run([say("never")], images=["old.bmp"])
    with pytest.raises(errors.PromptError, match="over the"):
        await claude.run([say("never")], attachments=["long.txt"])
    with pytest.raises(errors.ConfigError, match="no option 'audio'"):
        await claude.run([say("never")], audio=["song.mp3"])
    assert claude.requests == []


async def test_the_key_is_in_no_event_and_no_file(
    claude: Claude, workspace: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    secret = "canary-token-fedcba9876543210"
    tried = [shell("echo $ANTHROPIC_API_KEY"), Call("mcp__notes__keep", {"text": "x"})]
    server = notes_server(notes, NOTES_TOKEN=secret)
    events = await claude.events(steps(*tried), policy="all", mcp_servers=[server], record=True)
    told = b"".join(corral.events.to_json(event) for event in events).decode()
    assert secret in sent_json(claude.requests)  # it reached the server, which told it
    assert secret not in told
    assert KEY not in told
    outputs = [e.output or "" for e in events if isinstance(e, ToolResult)]
    assert all("redacted" in output for output in outputs)
    held = files_containing(tmp_path / "corral-home", KEY)
    assert [path for path in held if "/.claude/projects/" not in path] == []  # its own memory
    assert files_containing(workspace, KEY) == []


async def test_what_it_has_no_option_for_is_refused_by_name_before_it_starts(
    claude: Claude,
) -> None:
    with pytest.raises(errors.ConfigError, match="sandbox"):
        await claude.run([say("never")], sandbox=True)
    with pytest.raises(errors.ConfigError, match="effort"):
        await claude.run([say("never")], reasoning_effort="minimal")
    with pytest.raises(errors.PolicyNotEnforceable, match="network"):
        await claude.run([say("never")], policy=Policy(shell="allow", network="deny"))
    assert claude.requests == []
