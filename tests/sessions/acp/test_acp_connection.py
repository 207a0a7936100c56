"""Output of an agent after its answer, in its own session and with others in a pool."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import Unpack

import pytest
from msgspec import to_builtins
from support.scripted_acp import agent
from support.scripted_agent import child_pids
from support.stream_checks import check_stream

import corral
from corral import errors
from corral._core.nesting import is_too_deep
from corral._sessions import permissions
from corral._sessions.backends import acp
from corral.events import Decision, Error, Unknown, Vendor
from corral.run_kwargs import RunKwargs


def scripted(workspace: Path, **options: Unpack[RunKwargs]) -> RunKwargs:
    all_options: RunKwargs = {"cwd": workspace, "timeout": 30, "grace": 1, **options}
    return all_options


async def events_of(
    workspace: Path, orders: str, *arguments: str, **options: Unpack[RunKwargs]
) -> list[corral.Event]:
    async with corral.session(agent(*arguments), **scripted(workspace, **options)) as session:
        events = [event async for event in session.prompt(orders)]
    assert child_pids() == []
    return check_stream(events)


async def result_of(
    workspace: Path, orders: str, *arguments: str, **options: Unpack[RunKwargs]
) -> corral.Result:
    return corral.result_from_events(await events_of(workspace, orders, *arguments, **options))


def code(result: corral.Result) -> str | None:
    return result.error.code if result.error else None


def warnings_of(events: list[corral.Event]) -> list[str]:
    return [event.code for event in events if isinstance(event, Error)]


@pytest.mark.parametrize("how", ["endless", "flood"])
@pytest.mark.deep_but_first
async def test_an_answered_turn_ends_at_its_timeout_though_the_agent_keeps_sending(
    workspace: Path, how: str
) -> None:
    async with asyncio.timeout(60):
        events = await events_of(workspace, f"text the answer\n{how}", timeout=3, quiet_period=2)
    result = corral.result_from_events(events)
    assert result.ok
    assert result.text.startswith("the answer")
    assert warnings_of(events) == ["lingered"]


async def test_late_updates_are_waited_for_only_so_long(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp, "LATE_UPDATES_TIMEOUT", 0.4)
    async with asyncio.timeout(60):
        events = await events_of(workspace, "text the answer\nendless")
    assert corral.result_from_events(events).ok
    assert warnings_of(events) == ["late_updates"]


@pytest.mark.deep
async def test_an_agent_that_sends_without_a_pause_meets_its_timeout(workspace: Path) -> None:
    async with asyncio.timeout(60):
        result = await result_of(workspace, "many 100000000", timeout=1)
    assert code(result) == "total_timeout"


async def test_an_answer_does_not_wait_for_a_neighbour_that_streams(workspace: Path) -> None:
    options = scripted(workspace, track_files=False)
    async with asyncio.timeout(110), corral.pool(agent(), prompts_at_once=2, **options) as pool:
        streaming = asyncio.create_task(pool.run("text first\nstream stop", timeout=100))
        while not (workspace / "streams").exists():
            await asyncio.sleep(0.01)
        answers = [await pool.run(f"text {number}", timeout=30) for number in range(3)]
        assert not streaming.done()
        (workspace / "stop").touch()
        assert (await streaming).ok
    assert [(answer.status, answer.text) for answer in answers] == [
        ("success", "0"),
        ("success", "1"),
        ("success", "2"),
    ]
    assert child_pids() == []


async def test_history_that_never_ends_is_a_startup_timeout(workspace: Path) -> None:
    first = await result_of(workspace, "text one", "--loads", "--endless-history")
    options = scripted(
        workspace, resume=first.resume_token or "", startup_timeout=1, quiet_period=0.2
    )
    session = corral.session(agent("--loads", "--endless-history"), **options)
    async with asyncio.timeout(60), session as open_session:
        result = await open_session.run("history")
    assert code(result) == "startup_timeout"
    assert child_pids() == []


async def test_a_crash_right_after_the_answer_is_an_error(workspace: Path) -> None:
    events = await events_of(workspace, "text the answer\nexit-after 3")
    result = corral.result_from_events(events)
    assert (result.status, code(result)) == ("error", errors.ProcessFailed.code)
    assert result.text == "the answer"
    assert result.error is not None
    assert result.error.facts["exit_code"] == 3


async def test_a_crash_after_the_answer_of_any_acp_agent_is_an_error(workspace: Path) -> None:
    """Also of an agent that sends nothing after its answers."""
    program = workspace / "program"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec echo 0.61.0\nexec {agent()}\n')
    program.chmod(0o755)
    run = scripted(workspace, program=program, env={"GEMINI_API_KEY": "scripted-key-0123456789"})
    async with corral.session("gemini-acp", **run) as session:
        result = await session.run("text the answer\nexit-after 7")
    assert (result.status, code(result)) == ("error", errors.ProcessFailed.code)


@pytest.mark.parametrize("usage", ["[1]", '{"inputTokens": "many", "outputTokens": 3}', "7"])
async def test_a_usage_that_cannot_be_read_is_unknown_and_the_answer_counts(
    workspace: Path, usage: str
) -> None:
    events = await events_of(workspace, f"text the answer\nwrong-usage {usage}")
    result = corral.result_from_events(events)
    assert (result.status, result.text) == ("success", "the answer")
    assert result.usage.total is None
    assert [event.frame for event in events if isinstance(event, Unknown)] == [
        {"stopReason": "end_turn", "usage": json.loads(usage)}
    ]


async def test_a_permission_request_of_an_unknown_session_is_denied(workspace: Path) -> None:
    result = await result_of(workspace, "ask-foreign\ntext go on", policy=corral.Policy.all())
    assert result.text == "[c-no]go on"


@pytest.mark.parametrize(
    "error",
    [
        "-32000 Authentication required",
        "-32000 see the login page",
        "-32603 Internal error: 401",
        "-32603 Unauthorized: invalid API key",
    ],
)
async def test_a_failed_login_of_any_agent_is_named_and_says_what_to_do(
    workspace: Path, error: str
) -> None:
    result = await result_of(workspace, f"error {error}")
    assert code(result) == errors.AuthenticationFailed.code
    assert "Log in with" in ((result.error and result.error.hint) or "")


async def test_a_clean_exit_right_after_the_answer_is_a_success(workspace: Path) -> None:
    assert (await result_of(workspace, "text the answer\nexit-after 0")).ok


async def test_the_total_timeout_also_bounds_the_handshake(workspace: Path) -> None:
    async with asyncio.timeout(60):
        result = await result_of(
            workspace, "text x", "--fails", "session/new", "silence", timeout=1
        )
    assert code(result) == "startup_timeout"
    assert result.error is not None
    assert (result.error.hint or "").startswith("Raise timeout, or")


async def test_what_an_agent_printed_before_it_ended_or_hung_is_in_the_error(
    workspace: Path,
) -> None:
    secret = "sk-printed-0123456789abcdef"
    printed = f"printf 'a banner\\nno license for %s' {secret}"
    for end, expected in (("exit 3", "(exit 3)"), ("sleep 60", "did not answer initialize within")):
        name = shlex.join(["sh", "-c", f"{printed}; echo; echo fix it >&2; {end}", "--acp"])
        options = scripted(workspace, env={"LICENSE_API_KEY": secret}, startup_timeout=1)
        result = await corral.run(name, "x", **options)
        assert result.error is not None
        message = result.error.message
        assert expected in message
        assert "a banner" in message
        assert "no license for" in message
        assert secret not in message
    name = shlex.join(["sh", "-c", "printf 'no newline, %09999d' 1; exit 3", "--acp"])
    result = await corral.run(name, "x", **scripted(workspace))
    assert "no newline" in ((result.error and result.error.message) or "")
    assert len((result.error and result.error.message) or "") < 1000


@pytest.mark.parametrize("depth", [250, 930, 5000])
async def test_a_tool_call_that_is_nested_too_deeply_does_not_crash_and_is_shortened(
    workspace: Path, depth: int
) -> None:
    update = '{"sessionUpdate":"tool_call","toolCallId":"1","status":"in_progress","rawInput":%s}'
    deep = update % ('{"a":' * depth + "1" + "}" * depth)
    line = '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"@","update":%s}}'
    orders = f"raw-here {line % deep}\ntext the answer"
    events = await events_of(workspace, orders, record=True)
    result = corral.result_from_events(events)
    assert (result.status, result.text) == ("success", "the answer")
    assert not any(is_too_deep(to_builtins(event)) for event in events)


async def test_an_asker_that_ignores_cancellation_does_not_block_close(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions, "CANCEL_TIMEOUT", 0.2)
    over = asyncio.Event()

    async def ask(_request: object) -> Decision:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()
        return "deny"

    options = scripted(workspace, timeout=3, grace=0.2)
    async with asyncio.timeout(60), corral.session(agent(), ask=ask, **options) as session:
        result = await session.run("ask execute something")
    over.set()
    await asyncio.sleep(0.1)
    assert code(result) == "total_timeout"
    assert child_pids() == []


async def test_text_after_the_end_of_a_turn_does_not_begin_the_next_answer(
    workspace: Path,
) -> None:
    sign = workspace / "sign"
    async with corral.session(agent(), **scripted(workspace)) as session:
        first = await session.run("text one\nlate-on sign LATE")
        sign.touch()
        while sign.exists():
            await asyncio.sleep(0.01)
        events = check_stream([event async for event in session.prompt("text two")])
    assert (first.status, first.text) == ("success", "one")
    assert corral.result_from_events(events).text == "two"
    late = [event.data for event in events if isinstance(event, Vendor)]
    assert "LATE" in late


LOCKED = """import json, sys
for line in sys.stdin:
    call = json.loads(line)
    methods = [{"id": "api-key", "name": "Key"}, {"id": "browser", "name": "Browser"}]
    reply = {"result": {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": methods}}
    if call["method"] == "session/new":
        reply = {"error": {"code": -32000, "message": "Authentication required"}}
    print(json.dumps({"jsonrpc": "2.0", "id": call["id"], **reply}), flush=True)
"""


async def test_the_error_of_a_program_that_needs_a_sign_in_names_its_methods(
    workspace: Path, tmp_path: Path
) -> None:
    program = tmp_path / "locked.py"
    program.write_text(LOCKED)
    command = shlex.join([sys.executable, str(program)])
    result = await corral.run(command, "hello", **scripted(workspace))
    assert code(result) == "authentication"
    assert result.error is not None
    assert result.error.hint is not None
    assert "for auth_method: api-key, browser" in result.error.hint
