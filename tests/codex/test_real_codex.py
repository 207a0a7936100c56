"""The real Codex: what it answers, how it fails, and that nothing of it is left."""

from __future__ import annotations

import base64
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from support.codex_tools import shell, write
from support.gemini_tools import (
    fifo_signal,
    file_names,
    files_containing,
    processes_matching,
    sent_json,
)
from support.real_agents import KEY, cancel_while_running
from support.stream_checks import check_stream

import corral
from corral import Policy, errors, result_from_events
from corral.events import Error, FileChange, Init, Text, Thinking, ToolResult, ToolUse
from corral.sessions import store
from corral.testing import Turn, say

if TYPE_CHECKING:
    from codex.conftest import Codex

pytestmark = [pytest.mark.codex, pytest.mark.timeout(120)]

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9h"
    "AAAAAElFTkSuQmCC"
)


async def test_a_turn_is_told_from_its_thoughts_to_its_tokens(
    codex: Codex, workspace: Path, tmp_path: Path
) -> None:
    usage = {"input": 120, "cached": 20, "output": 7, "thoughts": 3}
    script = [
        Turn(thoughts="weighing", calls=[write("new.txt")], usage=usage),
        Turn(calls=[shell("echo heard; exit 3")], usage=usage),
        Turn(text=("Hel", "lo."), usage=usage),
    ]
    events = await codex.events(script, policy=Policy(write="allow", shell="allow"))
    result = result_from_events(events)
    assert result.ok
    assert result.text == "Hello."
    assert "".join(e.delta for e in events if isinstance(e, Thinking)) == "weighing"
    used = [(e.name, e.kind) for e in events if isinstance(e, ToolUse)]
    assert used == [("apply_patch", "edit"), ("exec_command", "execute")]
    ended = [(e.status, e.output) for e in events if isinstance(e, ToolResult)]
    assert ended == [("success", None), ("error", "heard\n")]
    changed = [(e.path, e.kind) for e in events if isinstance(e, FileChange)]
    assert changed == [(str(workspace / "new.txt"), "created")]
    assert result.usage == corral.Usage(
        input=360, output=30, reasoning=9, cache_read=60, cache_write=0, coverage="complete"
    )
    assert [request.last_text for request in codex.requests] == ["do it"] * 3
    assert files_containing(tmp_path / "corral-home", KEY) == []
    assert processes_matching(str(tmp_path)) == []


async def test_options_reach_the_model(codex: Codex, tmp_path: Path) -> None:
    image = tmp_path / "dot.png"
    image.write_bytes(PNG)
    odd = '-- "quoted" $HOME @file /init \u2028 ü\n' + "x" * 200_000
    options = codex.options(
        [say("done")], system_prompt='Say "please".\n\x7f', images=[image], reasoning_effort="low"
    )
    async with corral.session("codex", **options) as session:
        assert (await session.run(odd)).ok
    (request,) = codex.requests
    assert odd in request.last_text
    assert 'Say "please".\n\x7f' in request.system
    assert "data:image/png;base64," in sent_json([request])
    reasoning: Any = request.body["reasoning"]
    assert reasoning["effort"] == "low"

    result = await codex.run([say("done")], replace_system_prompt="You are a parrot.")
    assert result.ok
    assert "You are a parrot." in codex.requests[0].system
    assert "You are Codex" in request.system
    assert "You are Codex" not in codex.requests[0].system


async def test_what_it_cannot_do_is_refused_by_name_before_anything_is_started(
    codex: Codex,
) -> None:
    limits: list[Any] = [{"max_turns": 3}, {"max_budget_usd": 1.0}, {"sandbox": True}]
    for given in limits:
        with pytest.raises(errors.ConfigError, match=next(iter(given))):
            await codex.run([say("never")], **given)
    with pytest.raises(errors.PromptError, match="1,048,576"):
        async with corral.session("codex", **codex.options([])) as session:
            await session.run("x" * 1_048_577)
    assert codex.requests == []


class Report(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    count: int


async def test_a_strict_schema_is_answered_by_codex_itself_and_any_other_in_words(
    codex: Codex,
) -> None:
    options = codex.options([say('{"title": "a", "count": 2}')])
    result = await corral.run("codex", "report", output=Report, **options)
    assert result.output == Report("a", 2)
    asked: Any = codex.requests[0].body["text"]
    assert asked["format"]["type"] == "json_schema"
    assert asked["format"]["strict"] is True
    assert codex.requests[0].last_text == "report"

    loose = {"type": "object", "properties": {"title": {"type": "string"}}}
    options = codex.options([say('```json\n{"title": "a"}\n```')])
    result = await corral.run("codex", "report", output=loose, **options)
    assert result.output == {"title": "a"}
    assert "json_schema" not in sent_json(codex.requests)


async def test_a_fork_goes_on_from_a_session_that_stays_as_it_was(codex: Codex) -> None:
    usage = {"input": 100, "output": 5}
    options = codex.options([Turn(text=f"answer {n}", usage=usage) for n in range(5)])
    first = await corral.run("codex", "question 0", **options)
    options["resume"] = first.resume_token
    options["fork"] = True
    async with corral.session("codex", **options) as session:
        forks = [await session.run(f"question {n}") for n in (1, 2)]
    options["fork"] = False
    again = await corral.run("codex", "question 3", **options)
    shutil.rmtree(store.find(first.resume_token or "").folder)  # a fork needs no other
    options["resume"] = forks[0].resume_token
    later = await corral.run("codex", "question 4", **options)
    assert first.session_id == again.session_id
    assert len({result.session_id for result in (*forks, later)}) == 1
    assert forks[0].session_id != first.session_id
    assert [r.usage.input for r in (first, *forks, again, later)] == [100] * 5
    said = [[t for t in r.texts if "question" in t] for r in codex.requests]
    assert [[text[-1] for text in each] for each in said] == [
        *(["0"], ["0", "1"], ["0", "1", "2"]),
        *(["0", "3"], ["0", "1", "2", "4"]),
    ]


async def test_a_session_goes_on_is_resumed_by_its_token_and_counts_each_turn_alone(
    codex: Codex,
) -> None:
    usage = {"input": 100, "output": 5}
    script = [Turn(text=text, usage=usage) for text in ("one", "two", "three")]
    options = codex.options(script, policy="edits")
    async with corral.session("codex", **options) as session:
        first, second = await session.run("first"), await session.run("second")
    options["resume"] = second.resume_token
    async with corral.session("codex", **options) as session:
        events = check_stream([event async for event in session.prompt("third")])
    assert isinstance(events[0], Init)
    assert events[0].resumed
    third = result_from_events(events)
    assert [r.text for r in (first, second, third)] == ["one", "two", "three"]
    assert first.session_id == second.session_id == third.session_id
    assert [(r.usage.input, r.usage.output) for r in (first, second, third)] == [(100, 5)] * 3
    told = [text for m in codex.requests[-1].history for text in m.texts]
    assert [text for text in told if text in ("first", "one", "second", "two", "third")] == [
        *("first", "one"),
        *("second", "two"),
        "third",
    ]


@pytest.mark.parametrize(
    ("turn", "kind", "retries"),
    [
        (Turn(status=401, message="Incorrect API key"), errors.AuthenticationFailed, True),
        (Turn(status=429, message="Rate limit reached", retry_after=0), errors.RateLimited, True),
        (Turn(status=500, message="Boom", retry_after=0), errors.ServerFailed, True),
        (Turn(status=404, message="The model `x` does not exist"), errors.ModelNotFound, False),
    ],
)
async def test_an_error_of_the_api_is_its_own_and_a_reconnection_only_a_warning(
    codex: Codex, turn: Turn, kind: type[errors.CorralError], retries: bool
) -> None:
    events = await codex.events([msgspec.structs.replace(turn, repeat="forever")])
    result = result_from_events(events)
    with pytest.raises(kind) as raised:
        result.raise_for_status()
    assert type(raised.value) is kind
    assert raised.value.hint
    warned = [e for e in events if isinstance(e, Error) and e.code == "retrying"]
    assert bool(warned) == retries
    assert all(e.recoverable and e.level == "warning" for e in warned)


async def test_nobody_at_the_address_is_an_error_and_not_a_wait_without_end(
    codex: Codex, unused_port: int
) -> None:
    options = codex.options([])
    options["env"] = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"http://127.0.0.1:{unused_port}"}
    async with corral.session("codex", **options) as session:
        result = await session.run("do it")
    with pytest.raises(errors.NetworkFailed):
        result.raise_for_status()


async def test_cancelling_ends_the_running_command_and_all_it_started(
    codex: Codex, tmp_path: Path
) -> None:
    sign = f"300.{uuid.uuid4().int}"
    with fifo_signal(tmp_path / "bell") as rung:
        command = f"sleep {sign} & setsid sleep {sign} & echo up > {rung.path}; sleep {sign}"
        options = codex.options([Turn(calls=[shell(command)])], policy="all")
        async with corral.session("codex", **options) as session:
            await cancel_while_running(session, sign, rung, at_once=False)
    assert processes_matching(str(tmp_path)) == []


async def test_a_command_in_the_sandbox_ends_with_it(codex: Codex, workspace: Path) -> None:
    sign = f"300.{uuid.uuid4().int}"
    with fifo_signal(workspace / "bell") as rung:
        command = f"setsid sleep {sign} & echo up > {rung.path}; sleep {sign}"
        policy = Policy(write="allow", shell="allow")
        options = codex.options([Turn(calls=[shell(command)])], policy=policy)
        async with corral.session("codex", **options) as session:
            await cancel_while_running(session, sign, rung, at_once=False)
    assert file_names(workspace) == ["bell"]


async def test_a_model_it_does_not_know_is_a_warning_and_no_failure(codex: Codex) -> None:
    events = await codex.events([say("done")], model="scripted")
    warned = [e for e in events if isinstance(e, Error)]
    assert [(e.code, e.recoverable) for e in warned] == [("agent_warning", True)]
    assert "Model metadata for `scripted` not found" in warned[0].message
    assert result_from_events(events).ok
    assert [e.delta for e in events if isinstance(e, Text)] == ["done"]
