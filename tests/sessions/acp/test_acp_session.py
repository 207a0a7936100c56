"""Sessions with a persistent agent: a scripted program that speaks the protocol."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Unpack

import msgspec
import pytest
from support.sandbox import needs_sandbox
from support.scripted_acp import agent
from support.scripted_agent import child_pids, open_descriptors
from support.stream_checks import check_stream

import corral
from corral import Policy, errors
from corral._sessions.permissions import Asker, PermissionBroker
from corral.events import (
    Decision,
    Done,
    Error,
    Init,
    Log,
    PermissionDecision,
    PermissionRequest,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    Vendor,
)
from corral.options import PermissionMode
from corral.run_kwargs import RunKwargs


def scripted(workspace: Path, **options: Unpack[RunKwargs]) -> RunKwargs:
    merged: RunKwargs = {"cwd": workspace, "timeout": 30, "grace": 1, **options}
    return merged


async def events_of(
    workspace: Path,
    orders: str,
    *arguments: str,
    ask: Asker | None = None,
    **options: Unpack[RunKwargs],
) -> list[corral.Event]:
    wanted = scripted(workspace, **options)
    async with corral.session(agent(*arguments), ask=ask, **wanted) as session:
        events = [event async for event in session.prompt(orders)]
    assert child_pids() == []
    return check_stream(events)


async def result_of(
    workspace: Path,
    orders: str,
    *arguments: str,
    ask: Asker | None = None,
    **options: Unpack[RunKwargs],
) -> corral.Result:
    return corral.result_from_events(
        await events_of(workspace, orders, *arguments, ask=ask, **options)
    )


def code(result: corral.Result) -> str | None:
    return result.error.code if result.error else None


def answer_text(result: corral.Result) -> str:
    """The answer without the blank lines that stand where tools were used."""
    return result.text.replace("\n\n", "")


def decisions(events: list[corral.Event]) -> list[tuple[str, str]]:
    return [(e.decision, e.by) for e in events if isinstance(e, PermissionDecision)]


def answering(decision: Decision) -> Asker:
    return lambda _request: decision


# What comes


async def test_text_in_the_same_chunk_as_the_new_session_is_not_lost(
    workspace: Path,
) -> None:
    result = await result_of(workspace, "text And bye.", "--greets")
    assert result.text == "Hi. And bye."


async def test_a_prompt_becomes_events_and_a_result(workspace: Path) -> None:
    orders = "thought hm\ntext Hel\ntext lo.\nusage 20 10"
    events = await events_of(workspace, orders)
    assert [type(event) for event in events] == [Init, Thinking, Text, Text, Done]
    result = corral.result_from_events(events)
    assert result.ok
    assert result.text == "Hello."
    assert result.session_id
    assert result.session_id.startswith("session-")
    assert result.usage == corral.Usage(input=20, output=10, coverage="complete")


async def test_thinking_is_left_out_if_it_is_switched_off(workspace: Path) -> None:
    events = await events_of(workspace, "thought hm\ntext x", thinking=False)
    assert [type(event) for event in events] == [Init, Text, Done]


async def test_a_tool_is_reported_with_its_end_and_its_file(workspace: Path) -> None:
    orders = "tool t1 edit a.txt\ntouch a.txt\ntool-done t1\ntouch b.txt\ntext x"
    result = await result_of(workspace, orders)
    assert [(Path(f.path).name, f.kind, f.by_tool) for f in result.files] == [
        ("a.txt", "created", True),
        ("b.txt", "created", False),
    ]


async def test_tools_left_open_are_closed_as_cancelled(workspace: Path) -> None:
    events = await events_of(workspace, "tool t1 read a.txt\ntext x")
    assert [e.status for e in events if isinstance(e, ToolResult)] == ["cancelled"]


async def test_invalid_and_unknown_messages_are_passed_on_and_the_turn_continues(
    workspace: Path,
) -> None:
    orders = "\n".join(
        [
            'raw {"jsonrpc":"2.0","method',
            "raw a banner",
            "raw [1,2]",
            "update newer_than_us",
            "note session/newer",
            "request terminal/create",
            "wrong-id",
            "foreign",
            "text x",
        ]
    )
    events = await events_of(workspace, orders)
    kinds = [type(event) for event in events]
    assert kinds.count(Log) == 1
    assert {Error, Unknown, Vendor} <= set(kinds)
    result = corral.result_from_events(events)
    assert result.ok
    assert result.text == "[-32601]x"


async def test_a_second_reply_to_one_prompt_changes_nothing(workspace: Path) -> None:
    async with corral.session(agent(), **scripted(workspace)) as session:
        first = await session.run("text one\ntwice")
        second = await session.run("text two")
    assert [first.text, second.text] == ["one", "two"]
    assert first.ok
    assert second.ok


async def test_a_hundred_thousand_updates_arrive_in_bounded_memory(workspace: Path) -> None:
    async with corral.session(agent(), **scripted(workspace, timeout=90)) as session:
        turn = session.prompt("many 100000")
        pieces = largest = 0
        while batch := await turn.next_batch():
            largest = max(largest, len(batch))
            pieces += sum(isinstance(event, Text) for event in batch)
    assert pieces == 100_000
    assert largest < 20_000


async def test_an_empty_answer_is_an_error(workspace: Path) -> None:
    result = await result_of(workspace, "thought hm")
    assert result.status == "error"
    assert code(result) == "empty_answer"


async def test_a_turn_that_ends_after_a_denial_is_reported_as_such(
    workspace: Path,
) -> None:
    result = await result_of(workspace, "ask-and-give-up", policy=Policy.reads())
    with pytest.raises(errors.PermissionRefused, match="permission was denied"):
        result.raise_for_status()
    assert len(result.denied) == 1


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("max_turn_requests", errors.TurnLimit),
        ("max_tokens", errors.ContextLengthExceeded),
        ("refusal", errors.ContentRefused),
        ("cancelled", errors.Interrupted),
        ("tired", errors.ProcessFailed),
    ],
)
async def test_each_stop_reason_has_its_own_error(
    workspace: Path, reason: str, kind: type[errors.CorralError]
) -> None:
    result = await result_of(workspace, f"text x\nstop {reason}")
    with pytest.raises(kind):
        result.raise_for_status()
    assert result.text == "x"


async def test_an_error_in_reply_is_reported_and_the_session_continues(workspace: Path) -> None:
    async with corral.session(agent(), **scripted(workspace)) as session:
        failed = await session.run("error -32603 no more words")
        repeated = await session.run("text x")
    assert failed.status == "error"
    assert failed.error is not None
    assert "no more words" in failed.error.message
    assert repeated.text == "x"
    assert repeated.session_id == failed.session_id


# More than one prompt


async def test_a_second_prompt_uses_the_same_session_and_process(workspace: Path) -> None:
    async with corral.session(agent(), **scripted(workspace)) as session:
        first = await session.run("text one\npid")
        second = await session.run("history\npid")
    assert first.session_id == second.session_id
    pid = first.text.removeprefix("one")
    assert second.text == json.dumps(["text one\npid"]) + pid


async def test_late_output_of_an_abandoned_prompt_is_not_in_the_next_answer(
    workspace: Path,
) -> None:
    async with corral.session(agent(), **scripted(workspace)) as session:
        async for event in session.prompt("text one\nslow-to-stop"):
            if isinstance(event, Text):
                break
        turn = session.prompt("text two\npid")
        events = check_stream([event async for event in turn])
    texts = [event.delta for event in events if isinstance(event, Text)]
    assert texts[0] == "two"
    assert len(texts) == 2
    assert corral.result_from_events(events).ok


async def test_a_system_prompt_is_sent_before_the_prompt(workspace: Path) -> None:
    result = await result_of(workspace, "text x\ntold session/prompt", system_prompt="be brief")
    assert json.loads(result.text[1:])["prompt"] == [
        {"type": "text", "text": "be brief\n\ntext x\ntold session/prompt"}
    ]


async def test_a_crash_ends_the_turn_and_the_next_prompt_starts_a_fresh_process(
    workspace: Path,
) -> None:
    async with corral.session(agent(), **scripted(workspace)) as session:
        first = await session.run("pid\nstderr the reason why\nexit 3")
        second = await session.run("text back\nhistory")
    assert first.status == "incomplete"
    assert first.error is not None
    assert first.error.facts["exit_code"] == 3
    assert "the reason why" in first.error.message
    assert second.text == "back[]"


async def test_after_a_crash_the_conversation_is_loaded_if_the_agent_can(
    workspace: Path,
) -> None:
    async with corral.session(agent("--loads"), **scripted(workspace)) as session:
        first = await session.run("text one")
        await session.run("exit 3")
        third = await session.run("history")
    assert third.session_id == first.session_id
    assert third.text == '["(loaded)"]'


async def test_after_a_crash_a_conversation_that_cannot_be_loaded_is_an_error(
    workspace: Path,
) -> None:
    async with corral.session(agent(), **scripted(workspace)) as session:
        assert (await session.run("text one")).ok
        await session.run("exit 3")
        events = check_stream([event async for event in session.prompt("history")])
    with pytest.raises(errors.ResumeLost):
        corral.result_from_events(events).raise_for_status()
    assert child_pids() == []


async def test_a_resumed_session_does_not_repeat_its_history(workspace: Path) -> None:
    first = await result_of(workspace, "text one", "--loads")
    assert first.resume_token is not None
    events = await events_of(workspace, "history", "--loads", resume=first.resume_token)
    assert isinstance(events[0], Init)
    assert events[0].resumed
    repeated = corral.result_from_events(events)
    assert repeated.session_id == first.session_id
    assert repeated.text == '["(loaded)"]'


async def test_resuming_is_an_error_if_the_agent_cannot_load(workspace: Path) -> None:
    first = await result_of(workspace, "text one")
    with pytest.raises(errors.ConfigError, match="cannot resume"):
        await result_of(workspace, "text two", resume=first.resume_token)
    assert child_pids() == []


async def test_images_are_sent_to_an_agent_that_takes_them_and_to_no_other(
    workspace: Path,
) -> None:
    (workspace / "dot.png").write_bytes(b"\x89PNG not really")
    result = await result_of(workspace, "told session/prompt", "--images", images=["dot.png"])
    block = json.loads(result.text)["prompt"][1]
    assert block == {"type": "image", "data": "iVBORyBub3QgcmVhbGx5", "mimeType": "image/png"}
    with pytest.raises(errors.ConfigError, match="takes no images"):
        await result_of(workspace, "text x", images=["dot.png"])
    assert child_pids() == []


# Leave


@pytest.mark.parametrize(
    ("kind", "policy", "answer"),
    [
        ("read", Policy(), "b-once"),
        ("read", Policy(read="deny"), "c-no"),
        ("search", Policy(), "b-once"),
        ("edit", Policy(), "c-no"),
        ("edit", Policy(write="allow"), "b-once"),
        ("delete", Policy(write="deny"), "c-no"),
        ("move", Policy(write="allow"), "b-once"),
        ("execute", Policy(write="allow"), "c-no"),
        ("execute", Policy(shell="allow"), "b-once"),
        ("fetch", Policy(shell="allow"), "c-no"),
        ("fetch", Policy(network="allow"), "b-once"),
        ("think", Policy(), "b-once"),
        ("newer", Policy(write="allow", network="allow", mcp="allow"), "c-no"),
        ("newer", Policy(shell="allow"), "b-once"),
    ],
)
async def test_a_question_is_answered_by_the_policy_for_its_kind(
    workspace: Path, kind: str, policy: Policy, answer: str
) -> None:
    events = await events_of(workspace, f"ask {kind} {workspace}/a.txt", policy=policy)
    result = corral.result_from_events(events)
    assert result.ok
    assert result.text == f"[{answer}]"
    allowed = answer == "b-once"
    assert decisions(events) == [("allow_once" if allowed else "deny", "policy")]
    assert len(result.denied) == (0 if allowed else 1)
    assert [e.status for e in events if isinstance(e, ToolResult)] == [
        "success" if allowed else "denied"
    ]


async def test_shell_rules_decide_on_the_command(workspace: Path) -> None:
    rules = Policy(shell="deny", shell_rules=("allow git status",))
    result = await result_of(workspace, "ask execute git status\nask execute rm x", policy=rules)
    assert answer_text(result) == "[b-once][c-no]"


@pytest.mark.parametrize(
    "order",
    [
        "allow_once allow_always reject_once",
        "reject_once allow_once allow_always",
        "allow_always reject_once allow_once",
    ],
)
async def test_an_option_is_chosen_by_its_kind_and_not_by_its_position(
    workspace: Path, order: str
) -> None:
    orders = f"options {order}\nask edit {workspace}/a.txt\nask execute"
    result = await result_of(workspace, orders, policy=Policy(write="allow"))
    assert answer_text(result) == "[b-once][c-no]"


@pytest.mark.parametrize(
    ("decision", "answer"),
    [("allow_once", "b-once"), ("allow_session", "b-once"), ("deny", "c-no")],
)
async def test_the_asker_decides(workspace: Path, decision: Decision, answer: str) -> None:
    asked: list[PermissionRequest] = []

    def ask(request: PermissionRequest) -> Decision:
        asked.append(request)
        return decision

    events = await events_of(workspace, "ask execute make it", ask=ask)
    assert corral.result_from_events(events).text == f"[{answer}]"
    assert [(r.kind, r.title, r.input) for r in asked] == [
        ("execute", "make it", {"command": "make it"})
    ]
    assert decisions(events) == [(decision, "person")]
    assert asked[0].call_id == next(e.call_id for e in events if isinstance(e, ToolUse))


async def test_an_answer_may_take_its_time(workspace: Path) -> None:
    async def ask(_request: PermissionRequest) -> Decision:
        await asyncio.to_thread(str)
        return "allow_once"

    result = await result_of(workspace, "ask execute", ask=ask)
    assert result.text == "[b-once]"


async def test_a_person_is_not_asked_what_the_policy_decides(workspace: Path) -> None:
    asked: list[str | None] = []

    def ask(request: PermissionRequest) -> Decision:
        asked.append(request.kind)
        return "allow_once"

    policy = Policy(write="allow", network="deny")
    orders = f"ask edit {workspace}/a.txt\nask fetch\nask execute"
    result = await result_of(workspace, orders, ask=ask, policy=policy)
    assert answer_text(result) == "[b-once][c-no][b-once]"
    assert asked == ["execute"]


async def test_allow_session_is_remembered_here_and_never_passed_to_the_agent(
    workspace: Path,
) -> None:
    """An agent that may always do it asks no more, and its next paths would not be judged."""
    asked: list[str | None] = []

    def ask(request: PermissionRequest) -> Decision:
        asked.append(request.title)
        return "allow_session"

    first, git = f"{workspace}/first", f"{workspace}/.git/config"
    orders = f"ask edit {first}\nask edit {first}\nask edit {git}\nask execute id\nask execute id"
    result = await result_of(workspace, f"{orders}\nask execute ls", ask=ask)
    assert answer_text(result) == "[b-once][b-once][c-no][b-once][b-once][b-once]"
    assert asked == [first, "id", "ls"]


async def test_a_request_for_files_is_answered_by_their_location(
    workspace: Path, tmp_path: Path
) -> None:
    (workspace / "way").symlink_to(tmp_path)
    (workspace / "dangling").symlink_to(tmp_path / "new")
    (workspace / "hooks").symlink_to(".git/hooks")
    denied = [
        f"edit {workspace}/.git/config",
        f"edit {workspace}/sub/.git/config",
        f"edit {workspace}/hooks/pre-commit",
        f"edit {workspace}/.claude/settings.json",
        f"edit {workspace}/way/x",
        f"edit {workspace}/dangling",
        f"edit {tmp_path}/x",
        "edit",
        "delete",
        f"move {workspace}/.git",
        f"read {tmp_path}/x",
        f"read {workspace}/way/x",
        "read /proc/self/environ",
        "search /",
    ]
    allowed = [f"edit {workspace}/a.txt", f"read {workspace}/.git/config", f"search {workspace}"]
    orders = "\n".join(f"ask {each}" for each in (*denied, *allowed))
    modes: list[tuple[Policy, PermissionMode]]
    modes = [(Policy.edits(), "prompt"), (Policy(write="allow"), "auto")]
    for policy, mode in modes:
        if mode == "auto":  # reading outside is what the policy says of commands: here, asking
            orders = "\n".join(f"ask {each}" for each in (*denied[:10], *allowed))
        events = await events_of(workspace, orders, policy=policy, permission_mode=mode)
        count = len(denied) if mode == "prompt" else 10
        assert answer_text(corral.result_from_events(events)) == "[c-no]" * count + "[b-once]" * 3
        rules = [e.rule or "" for e in events if isinstance(e, PermissionDecision)]
        assert all("protected" in rule for rule in (*rules[:4], rules[9]))
        outside = (*rules[4:7], *rules[10:count])
        assert all("outside" in rule or "link of the kernel" in rule for rule in outside)
        assert all("does not name" in rule for rule in rules[7:9])
    orders = "\n".join(f"ask {each}" for each in denied)
    result = await result_of(workspace, orders, policy="all")
    assert answer_text(result) == "[b-once]" * len(denied)


async def test_a_path_that_became_a_link_during_the_question_is_denied(
    workspace: Path, tmp_path: Path
) -> None:
    def ask(_request: PermissionRequest) -> Decision:
        (workspace / "a.txt").symlink_to(tmp_path / "new")
        return "allow_once"

    result = await result_of(workspace, f"ask edit {workspace}/a.txt", ask=ask)
    assert answer_text(result) == "[c-no]"


async def test_files_are_read_for_an_agent_only_if_the_policy_allows_reading(
    workspace: Path,
) -> None:
    (workspace / "a.txt").write_text("words")
    for policy in (Policy(read="deny"), Policy(read="ask"), Policy(allow_tools=())):
        result = await result_of(
            workspace, f"read {workspace}/a.txt", policy=policy, allow_file_reads=True
        )
        assert "reading is not allowed" in result.text
        assert "words" not in result.text


async def test_a_denial_continues_the_turn_and_a_cancellation_ends_it(workspace: Path) -> None:
    orders = "ask execute\ntext went on"
    refused = await result_of(workspace, orders, ask=answering("deny"))
    assert refused.ok
    assert refused.text == "[c-no]went on"
    assert len(refused.denied) == 1

    events = await events_of(workspace, orders, ask=answering("cancel"))
    cancelled = corral.result_from_events(events)
    assert cancelled.status == "interrupted"
    assert "went on" not in cancelled.text
    assert cancelled.denied == ()
    assert decisions(events) == [("cancel", "person")]


async def test_no_answer_in_time_is_a_denial(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = PermissionBroker.__init__

    def hasty(self: PermissionBroker, *given: Any, **named: Any) -> None:
        make(self, *given, **{**named, "timeout": 0.1})

    async def ask(_request: PermissionRequest) -> Decision:
        await asyncio.Event().wait()
        return "allow_once"

    monkeypatch.setattr(PermissionBroker, "__init__", hasty)
    events = await events_of(workspace, "ask execute\ntext went on", ask=ask)
    assert corral.result_from_events(events).text == "[c-no]went on"
    assert decisions(events) == [("deny", "timeout")]


@pytest.mark.parametrize("answer", ["yes", None, 7, True, []])
async def test_an_invalid_answer_is_a_denial(workspace: Path, answer: object) -> None:
    ask: Callable[[PermissionRequest], object] = lambda _request: answer  # noqa: E731
    result = await result_of(workspace, "ask execute", ask=ask)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert result.text == "[c-no]"


async def test_a_question_that_fails_is_a_denial(workspace: Path) -> None:
    def ask(_request: PermissionRequest) -> Decision:
        raise RuntimeError("the page is gone")

    events = await events_of(workspace, "ask execute\ntext went on", ask=ask)
    assert corral.result_from_events(events).text == "[c-no]went on"
    assert [e.rule for e in events if isinstance(e, PermissionDecision)] == [
        "the question failed: the page is gone"
    ]


async def test_two_questions_are_asked_one_at_a_time(workspace: Path) -> None:
    open_now, most = 0, 0
    asked: list[str | None] = []

    async def ask(request: PermissionRequest) -> Decision:
        nonlocal open_now, most
        asked.append(request.title)
        open_now += 1
        most = max(most, open_now)
        for _ in range(20):
            await asyncio.to_thread(str)
        open_now -= 1
        return "allow_once" if request.title == "question 1" else "deny"

    result = await result_of(workspace, "ask-twice", ask=ask)
    assert answer_text(result) == "[b-once][c-no]"
    assert asked == ["question 1", "question 2"]
    assert most == 1


async def test_a_question_open_at_the_end_is_cancelled_and_its_asker_notices(
    workspace: Path,
) -> None:
    asked = asyncio.Event()
    ended: list[str] = []

    async def ask(_request: PermissionRequest) -> Decision:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.to_thread(str)
            ended.append("gone")
        return "allow_once"

    async with corral.session(agent(), ask=ask, **scripted(workspace)) as session:
        turn = session.prompt("text x\nask execute")
        events: list[corral.Event] = []
        async for event in turn:
            events.append(event)
            if isinstance(event, PermissionRequest):
                async with asyncio.timeout(60):
                    await asked.wait()
                turn.cancel()
        assert ended == ["gone"]
        assert (await session.run("text still here")).text == "still here"
    check_stream(events)
    assert corral.result_from_events(events).status == "interrupted"
    assert decisions(events) == [("cancel", "agent")]


async def test_a_request_that_the_agent_cancels_is_withdrawn(workspace: Path) -> None:
    async def ask(_request: PermissionRequest) -> Decision:
        await asyncio.Event().wait()
        return "allow_once"

    events = await events_of(workspace, "text x\nask-and-end", ask=ask)
    assert corral.result_from_events(events).ok
    assert decisions(events) == [("cancel", "agent")]


async def test_an_invalid_request_is_refused_and_reported(workspace: Path) -> None:
    events = await events_of(workspace, "ask-nonsense", ask=answering("allow_once"))
    assert corral.result_from_events(events).text == "[refused]"
    assert any(isinstance(event, Unknown) for event in events)
    assert decisions(events) == []


# Files


async def test_files_are_read_and_written_for_the_agent_only_where_allowed(
    workspace: Path,
) -> None:
    (workspace / "a.txt").write_text("hello")
    orders = f"read {workspace}/a.txt\nwrite {workspace}/b.txt new"
    closed = await result_of(workspace, orders, policy="all")
    assert "hello" not in closed.text
    assert not (workspace / "b.txt").exists()

    reads = await result_of(workspace, orders, policy="all", allow_file_reads=True)
    assert reads.text.startswith("[hello]")
    assert not (workspace / "b.txt").exists()

    asked = await result_of(workspace, orders, allow_file_writes=True)
    assert "[writing is not allowed]" in asked.text
    assert not (workspace / "b.txt").exists()

    writes = await result_of(workspace, orders, policy="edits", allow_file_writes=True)
    assert "hello" not in writes.text
    assert (workspace / "b.txt").read_text() == "new"
    assert [Path(f.path).name for f in writes.files] == ["b.txt"]


async def test_only_a_write_that_a_person_allowed_is_done(workspace: Path) -> None:
    def ask(request: PermissionRequest) -> Decision:
        return "deny" if "unwelcome" in (request.title or "") else "allow_once"

    orders = "\n".join(
        [
            f"ask edit {workspace}/wanted",
            f"write {workspace}/wanted yes",
            f"write {workspace}/unasked no",
            f"ask edit {workspace}/unwelcome",
            f"write {workspace}/unwelcome no",
            f"ask execute {workspace}/run",
            f"write {workspace}/run no",
        ]
    )
    await result_of(workspace, orders, ask=ask, allow_file_writes=True)
    assert os.listdir(workspace) == ["wanted"]
    denied = Policy(write="deny")
    await result_of(
        workspace, f"write {workspace}/new no", ask=ask, allow_file_writes=True, policy=denied
    )
    assert os.listdir(workspace) == ["wanted"]


async def test_allow_once_is_for_one_write_and_allow_session_for_all(
    workspace: Path,
) -> None:
    first, second = f"{workspace}/first", f"{workspace}/second"
    orders = f"ask edit {first}\nwrite {first} one\nwrite {first} two\nwrite {second} x"
    once = answering("allow_once")
    result = await result_of(workspace, orders, ask=once, allow_file_writes=True)
    assert answer_text(result).count("[writing is not allowed]") == 2
    assert Path(first).read_text() == "one"
    always = answering("allow_session")
    result = await result_of(workspace, orders, ask=always, allow_file_writes=True)
    assert "not allowed" not in result.text
    assert Path(first).read_text() == "two"
    assert Path(second).read_text() == "x"


async def test_only_allowed_capabilities_are_offered(workspace: Path) -> None:
    result = await result_of(workspace, "told initialize", allow_file_reads=True)
    reported = json.loads(result.text)["clientCapabilities"]
    assert reported["fs"] == {"readTextFile": True, "writeTextFile": False}
    assert reported["terminal"] is False


async def test_no_path_of_the_agents_leads_out_of_the_workspace(
    workspace: Path, tmp_path: Path
) -> None:
    beside = tmp_path / "workspace-evil"
    beside.mkdir()
    (beside / "secret").write_text("SECRET")
    (workspace / "door").symlink_to(beside)
    (workspace / "link").symlink_to(beside / "secret")
    (workspace / "loop").symlink_to(workspace / "loop")
    paths = [
        f"{beside}/secret",
        f"{workspace}/../workspace-evil/secret",
        f"{workspace}/door/secret",
        f"{workspace}/link",
        f"{workspace}/loop",
        f"{workspace}/nul\\u0000byte",
        "secret",
        "",
    ]
    orders = [f"read {path}" for path in paths] + [f"write {path} overwritten" for path in paths]
    result = await result_of(
        workspace,
        "\n".join([*orders, "text whole"]),
        policy="all",
        allow_file_reads=True,
        allow_file_writes=True,
    )
    assert result.text.endswith("whole")
    assert "SECRET" not in result.text
    assert "[ok]" not in result.text
    assert (beside / "secret").read_text() == "SECRET"
    assert os.listdir(beside) == ["secret"]


async def test_a_missing_file_has_its_own_error(workspace: Path) -> None:
    result = await result_of(workspace, f"read {workspace}/none", allow_file_reads=True)
    assert result.text == f"[Resource not found: {workspace}/none]"


# Ends


@pytest.mark.parametrize("stage", ["initialize", "session/new"])
@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("exit", "stream_broken"),
        ("die", "killed_by_signal"),
        ("error", "process_failed"),
        ("nonsense", "stream_broken"),
        ("silence", "startup_timeout"),
    ],
)
async def test_failures_before_the_prompt_end_with_a_valid_stream(
    workspace: Path, stage: str, how: str, wanted: str
) -> None:
    handshake_timeout = 0.5 if how == "silence" else 20
    result = await result_of(
        workspace, "text x", "--fails", stage, how, startup_timeout=handshake_timeout
    )
    assert code(result) == wanted
    assert result.status == {"silence": "timeout"}.get(how, result.status)
    assert not result.ok
    if how == "exit":
        assert result.error is not None
        assert result.error.facts["exit_code"] == 3
        assert "the reason why" in result.error.message


async def test_another_version_of_the_protocol_is_an_error_that_names_it(workspace: Path) -> None:
    result = await result_of(workspace, "text x", "--fails", "initialize", "version")
    assert result.error is not None
    assert "version 2" in result.error.message


@pytest.mark.parametrize("stage", ["initialize", "session/new", "session/prompt"])
async def test_cancel_works_at_every_stage(workspace: Path, stage: str) -> None:
    before = open_descriptors()
    command = agent("--fails", stage, "silence")
    async with corral.session(command, **scripted(workspace, grace=0.2)) as session:
        turn = session.prompt("text x")
        reading = asyncio.create_task(turn.collect())
        async with asyncio.timeout(60):
            while not child_pids():
                await asyncio.sleep(0.01)
        turn.cancel()
        async with asyncio.timeout(60):
            result = await reading
    assert result.status == "interrupted"
    assert child_pids() == []
    assert open_descriptors() == before


async def test_a_missing_program_is_raised_before_anything_starts(
    workspace: Path,
) -> None:
    with pytest.raises(errors.NotInstalled):
        await corral.run("/no/such/agent --acp", "x", **scripted(workspace))


@pytest.mark.parametrize(
    ("orders", "wanted"), [("die 9", "killed_by_signal"), ("exit 0", "stream_broken")]
)
async def test_a_crash_in_the_middle_keeps_the_text_so_far(
    workspace: Path, orders: str, wanted: str
) -> None:
    events = await events_of(workspace, f"text half\ntool t1 execute make\n{orders}")
    result = corral.result_from_events(events)
    assert code(result) == wanted
    assert result.text == "half"
    assert [e.status for e in events if isinstance(e, ToolResult)] == ["cancelled"]
    assert result.resume_token is None


async def test_silence_in_between_ends_by_its_own_deadline(workspace: Path) -> None:
    result = await result_of(workspace, "text x\nhang", idle_timeout=2)
    assert result.status == "timeout"
    assert code(result) == "idle_timeout"
    assert result.text == "x"


async def test_a_long_pause_after_the_handshake_is_not_a_startup_timeout(
    workspace: Path,
) -> None:
    orders = "sleep 3\ntext x"
    result = await result_of(workspace, orders, startup_timeout=2, idle_timeout=20)
    assert result.ok
    silent = await result_of(workspace, "hang", idle_timeout=1)
    assert code(silent) == "idle_timeout"


async def test_an_agent_that_waits_for_a_person_is_not_idle(workspace: Path) -> None:
    async def ask(_request: PermissionRequest) -> Decision:
        await asyncio.sleep(2.5)  # longer than the agent may be silent for
        return "allow_once"

    result = await result_of(workspace, "ask execute", ask=ask, idle_timeout=1.5)
    assert result.ok
    assert result.text == "[b-once]"


async def test_a_slow_reader_is_not_an_idle_agent(workspace: Path) -> None:
    async with corral.session(agent(), **scripted(workspace, idle_timeout=1.5)) as session:
        events: list[corral.Event] = []
        async for event in session.prompt("text a\nsleep 0.05\ntext b"):
            if not events:
                await asyncio.sleep(2)
            events.append(event)
    assert corral.result_from_events(events).text == "ab"


async def test_after_a_deadline_the_same_process_serves_the_next_prompt(workspace: Path) -> None:
    async with corral.session(agent(), **scripted(workspace, idle_timeout=2)) as session:
        late = await session.run("pid\nhang")
        repeated = await session.run("pid")
    assert late.status == "timeout"
    assert repeated.text == late.text


async def test_a_reply_that_never_comes_ends_by_the_total_deadline(workspace: Path) -> None:
    result = await result_of(workspace, "text x\nnever", timeout=2, grace=0.2)
    assert code(result) == "total_timeout"


async def test_an_agent_that_ignores_cancellation_is_ended_after_the_grace_period(
    workspace: Path,
) -> None:
    async with corral.session(agent(), **scripted(workspace, grace=0.3)) as session:
        turn = session.prompt("ignore-cancel\ndaemon\ntext x\nhang")
        events: list[corral.Event] = []
        async with asyncio.timeout(60):
            async for event in turn:
                events.append(event)
                if isinstance(event, Text):
                    turn.cancel()
        assert child_pids() == []
        with pytest.raises(errors.ResumeLost, match="cannot load a conversation"):
            (await session.run("text fresh")).raise_for_status()
    check_stream(events)
    assert corral.result_from_events(events).status == "interrupted"


async def test_breaking_out_of_the_loop_ends_all_processes(workspace: Path) -> None:
    before = open_descriptors()
    async with corral.session(agent(), **scripted(workspace)) as session:
        async for event in session.prompt("child\ndaemon\ntext x\nhang"):
            if isinstance(event, Text):
                break
        assert child_pids()
    assert child_pids() == []
    assert open_descriptors() == before


async def test_an_exception_in_the_loop_ends_all_processes(workspace: Path) -> None:
    options = scripted(workspace, grace=0.3)
    with pytest.raises(ZeroDivisionError):
        async with corral.session(agent("--ignore-term"), **options) as session:
            async for event in session.prompt("daemon\nignore-cancel\ntext x\nhang"):
                if isinstance(event, Text):
                    _ = 1 / 0
    assert child_pids() == []


async def test_a_cancelled_task_ends_all_processes(workspace: Path) -> None:
    before = open_descriptors()
    spoke = asyncio.Event()

    def listen(event: corral.Event) -> None:
        if isinstance(event, Text):
            spoke.set()

    orders = "child\ndaemon\ntext x\nhang"
    run = asyncio.ensure_future(corral.run(agent(), orders, on_event=listen, **scripted(workspace)))
    async with asyncio.timeout(60):
        await spoke.wait()
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()
    assert child_pids() == []
    assert open_descriptors() == before


@pytest.mark.parametrize("stage", ["initialize", "session/new"])
async def test_a_task_cancelled_during_the_handshake_leaves_nothing(
    workspace: Path, stage: str
) -> None:
    before = open_descriptors()
    command = agent("--fails", stage, "silence")
    run = asyncio.ensure_future(corral.run(command, "x", **scripted(workspace)))
    async with asyncio.timeout(60):
        while not child_pids():
            await asyncio.sleep(0.01)
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()
    assert child_pids() == []
    assert open_descriptors() == before


@pytest.mark.deep
@pytest.mark.parametrize("orders", ["child\ntext x\nhang", "child\ntext x\nask execute"])
async def test_a_session_that_is_dropped_leaves_no_process_and_no_warning(
    workspace: Path, orders: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = corral.session(agent(), **scripted(workspace))
        await session.__aenter__()
        async for event in session.prompt(orders):
            if isinstance(event, Text):
                break
        assert child_pids()
        del session
        async with asyncio.timeout(60):
            while child_pids():
                gc.collect()
                await asyncio.sleep(0.01)  # the loop still has to drop the iterator


async def test_a_session_that_is_dropped_with_an_open_question_leaves_no_process(
    workspace: Path,
) -> None:
    asked, released = asyncio.Event(), asyncio.Event()
    answered: list[str] = []

    async def ask(_request: PermissionRequest) -> Decision:
        asked.set()
        await released.wait()
        answered.append("too late")
        return "allow_once"

    session = corral.session(agent(), ask=ask, **scripted(workspace))
    await session.__aenter__()
    async for event in session.prompt("child\nask execute"):
        if isinstance(event, PermissionRequest):
            break
    async with asyncio.timeout(60):
        await asked.wait()
    del session
    async with asyncio.timeout(60):
        while child_pids():
            gc.collect()
            await asyncio.sleep(0.01)  # the loop still has to drop the iterator
    released.set()
    async with asyncio.timeout(60):
        while not answered:
            await asyncio.sleep(0.01)


@pytest.mark.deep
async def test_forty_sessions_half_of_them_cancelled_leave_nothing(workspace: Path) -> None:
    await result_of(workspace, "text x")  # what is loaded and opened once, is
    before, dice = open_descriptors(), random.Random(7)
    kinds = ("hang", "child\nhang", "daemon\nhang", "ignore-cancel\nhang", "many 20000")

    async def one(number: int) -> None:
        folder = workspace / str(number)
        folder.mkdir()
        orders = "text x\n" + dice.choice(kinds if number % 2 else ("text y",))
        options = scripted(folder, grace=0.2, keep=False)
        run = asyncio.ensure_future(corral.run(agent(), orders, **options))
        if number % 2:
            await asyncio.wait([run], timeout=dice.random() * 2)
            run.cancel()
            await asyncio.wait([run])
        else:
            assert (await run).ok

    await asyncio.gather(*(one(number) for number in range(40)))
    assert child_pids() == []
    assert open_descriptors() == before
    home = Path(os.environ["CORRAL_HOME"])
    assert list((home / "processes").iterdir()) == []
    assert len(list((home / "sessions").iterdir())) == 1


async def test_a_known_secret_is_redacted_wherever_the_agent_writes_it(workspace: Path) -> None:
    key = "a-secret-of-ours-0123456789"
    orders = f"text my key is {key}\nthought {key}\ntool t1 read {key}\nstderr {key}\nexit 1"
    events = await events_of(workspace, orders, env={"SCRIPTED_API_KEY": key}, record=True)
    reported = b"".join(corral.to_json(event) for event in events).decode()
    assert "redacted" in reported
    assert key not in reported


async def test_the_end_of_stderr_does_not_start_with_part_of_a_secret(workspace: Path) -> None:
    key = "a-secret-of-ours-0123456789"
    filler = "x" * (16_384 - len("0123456789\n"))  # what is kept begins inside the key
    options = scripted(workspace, env={"SCRIPTED_API_KEY": key})
    async with corral.session(agent(), **options) as session:
        await session.run(f"stderr {key}{filler}\nexit 1")
        assert session.stderr.endswith(f"…{filler}\n")


async def test_text_after_the_reply_to_the_prompt_is_not_lost(workspace: Path) -> None:
    assert answer_text(await result_of(workspace, "text first \nlate and last")) == "first and last"


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"session_mode": "plan"}, "plan"),
        ({"policy": corral.Policy.plan()}, "plan"),
        ({"session_mode": "yolo"}, "yolo"),
    ],
)
async def test_a_mode_is_chosen_before_the_prompt(
    options: RunKwargs, reported: str, workspace: Path
) -> None:
    events = await events_of(workspace, "told session/set_mode", **options)
    assert f'"modeId": "{reported}"' in corral.result_from_events(events).text.replace("'", '"')
    refused = [e for e in events if isinstance(e, Error) and e.code == "mode_refused"]
    assert len(refused) == (reported == "yolo")
    for error in refused:
        assert error.level == "warning"
        assert "It has: ask, plan." in error.message


class Verdict(msgspec.Struct):
    title: str


def helper() -> str:
    """Helps."""
    return "helped"


@pytest.mark.parametrize(
    ("flags", "sandbox"),
    [
        (("--connects",), "off"),
        (("--connects", "--no-http"), "off"),  # through a relay
        pytest.param(("--connects", "--no-http"), "require", marks=needs_sandbox),
    ],
)
async def test_a_submitted_value_is_an_answer_without_text(
    workspace: Path, flags: tuple[str, ...], sandbox: Literal["off", "require"]
) -> None:
    orders = 'mcp submit_result {"title": "fine"}'
    events: list[corral.Event] = []
    result = await corral.run(
        agent(*flags),
        orders,
        tools=[helper],
        output=Verdict,
        on_event=events.append,
        **scripted(workspace, sandbox=sandbox),
    )
    assert (result.status, result.output) == ("success", Verdict("fine"))
    done = check_stream(events)[-1]
    assert isinstance(done, Done)
    assert done.error is None


async def test_without_a_value_and_without_text_the_answer_is_empty(workspace: Path) -> None:
    result = await corral.run(
        agent("--connects"),
        "mcp helper {}",
        tools=[helper],
        output=Verdict,
        **scripted(workspace),
    )
    assert code(result) == "empty_answer"


async def test_a_turn_interrupted_after_others_leaves_the_session_resumable(
    workspace: Path,
) -> None:
    async with corral.session(agent("--loads"), **scripted(workspace)) as session:
        first = await session.run("text one")
        turn = session.prompt("touch begun\nhang")
        reading = asyncio.create_task(turn.collect())
        while not (workspace / "begun").exists():
            await asyncio.sleep(0.01)
        turn.cancel()
        second = await reading
    assert second.status == "interrupted"
    assert second.resume_token == first.resume_token
    assert second.resume_token is not None
    repeated = await corral.run(agent("--loads"), "history", **scripted(workspace, resume="last"))
    assert repeated.text == '["(loaded)"]'


async def test_a_conversation_that_cannot_be_loaded_is_lost_with_the_reason(
    workspace: Path,
) -> None:
    arguments = ("--loads", "--fails", "session/load", "error")
    first = await result_of(workspace, "text one", *arguments)
    repeated = await result_of(workspace, "text two", *arguments, resume=first.resume_token)
    assert code(repeated) == "resume_lost"
    assert repeated.error is not None
    assert repeated.error.message == "the agent cannot load the conversation: it cannot be"


@pytest.mark.parametrize("arguments", [(), ("--loads",)])
async def test_a_killed_agent_continues_if_it_can_load(
    workspace: Path, arguments: tuple[str, ...]
) -> None:
    options = scripted(workspace, grace=0.2)
    async with corral.session(agent(*arguments), **options) as session:
        turn = session.prompt("ignore-cancel\ntext x\nhang")
        async for event in turn:
            if isinstance(event, Text):
                turn.cancel()
        repeated = await session.run("history")
    if arguments:
        assert repeated.text == '["(loaded)"]'
    else:
        assert code(repeated) == "resume_lost"


async def test_after_a_first_turn_that_was_not_stored_the_next_prompt_fails(
    workspace: Path,
) -> None:
    options = scripted(workspace, grace=0.2)
    async with corral.session(agent("--loads"), **options) as session:
        turn = session.prompt("ignore-cancel\ntouch begun\nhang")
        reading = asyncio.create_task(turn.collect())
        while not (workspace / "begun").exists():
            await asyncio.sleep(0.01)
        turn.cancel()
        first = await reading
        repeated = await session.run("text fresh")
    assert (first.status, first.resume_token) == ("interrupted", None)
    assert code(repeated) == "resume_lost"
    with pytest.raises(errors.ResumeLost, match="its first turn was interrupted"):
        await corral.run(agent("--loads"), "text x", **scripted(workspace, resume="last"))
