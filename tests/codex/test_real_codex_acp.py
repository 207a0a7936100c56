"""The real bridge codex-acp: it asks, we answer, and the disk shows who was heard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.codex_tools import shell, write
from support.gemini_tools import (
    denied_tools,
    file_names,
    processes_matching,
    steps,
    tool_results_json,
)
from support.installed_agents import installed
from support.stream_checks import check_stream

import corral
from corral import Policy, errors, result_from_events
from corral.events import Decision, PermissionDecision, PermissionRequest
from corral.testing import Call, Turn, say

if TYPE_CHECKING:
    from codex.conftest import Codex

pytestmark = [pytest.mark.codex, pytest.mark.timeout(180)]


@pytest.fixture(scope="session")
def codex_program() -> str:
    return installed("codex-acp")


def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


async def test_one_process_edits_in_the_workspace_calls_our_tools_and_offers_no_shell(
    codex: Codex, workspace: Path, tmp_path: Path
) -> None:
    script = [
        Turn(calls=[write("new.txt")], match="first"),
        Turn(calls=[shell("touch ran.txt")], match="first"),
        Turn(calls=[Call("mcp__corral__double", {"number": 21})], match="first"),
        Turn(text="done", match="first"),
        Turn(calls=[write(tmp_path / "up.txt")], match="second"),
        Turn(text="still here", match="third"),
    ]
    options = codex.options(script, policy="edits")
    async with corral.session("codex-acp", tools=[double], **options) as session:
        events = check_stream([event async for event in session.prompt("first")])
        outside = await session.run("second")
        third = await session.run("third")
    first = result_from_events(events)
    assert first.ok
    assert file_names(workspace) == ["new.txt"]
    decided = [(e.decision, e.by, e.rule) for e in events if isinstance(e, PermissionDecision)]
    assert decided == [
        ("allow_once", "policy", "write=allow"),
        ("allow_once", "policy", "mcp=allow"),
    ]
    assert not {*codex.requests[0].tools} & {"exec_command", "write_stdin", "shell"}
    assert "42" in tool_results_json(codex.requests[3])
    assert first.usage.coverage == "complete"
    # Where it gets no leave it gives up its turn, but not its session.
    assert not (tmp_path / "up.txt").exists()
    assert outside.status == "denied"
    assert denied_tools(outside) == ["edit"]
    assert third.text == "still here"
    assert processes_matching(str(tmp_path)) == []


async def test_whoever_is_asked_decides(codex: Codex, workspace: Path) -> None:
    asked: list[str] = []

    async def ask(request: PermissionRequest) -> Decision:
        asked.append(json.dumps(request.input))
        return "allow_once" if "wanted.txt" in asked[-1] else "deny"

    script = steps(write("wanted.txt"), write("unwelcome.txt"))
    options = codex.options(script, policy=Policy(deny_tools=("web_search",)))
    async with corral.session("codex-acp", ask=ask, **options) as session:
        result = await session.run("do it")
    assert file_names(workspace) == ["wanted.txt"]
    assert len(asked) == 2
    assert result.status == "denied"
    with pytest.raises(errors.PermissionRefused):
        result.raise_for_status()


async def test_full_asks_for_nothing_and_what_it_cannot_hold_is_refused_before_it_starts(
    codex: Codex, workspace: Path, tmp_path: Path
) -> None:
    script = steps(shell(f"touch ran.txt {tmp_path}/up.txt"))
    async with corral.session("codex-acp", **codex.options(script, policy="all")) as session:
        events = check_stream([event async for event in session.prompt("do it")])
    assert result_from_events(events).ok
    assert file_names(workspace) == ["ran.txt"]
    assert (tmp_path / "up.txt").exists()
    assert not [e for e in events if isinstance(e, PermissionRequest)]
    listed = Policy(allow_tools=("exec_command",))
    for policy in (Policy(shell="allow"), listed, Policy.native()):
        with pytest.raises(errors.PolicyNotEnforceable, match="codex-cli can"):
            await corral.run("codex-acp", "do it", **codex.options([], policy=policy))


async def test_an_error_of_the_api_is_no_answer(codex: Codex) -> None:
    broken = Turn(status=500, message="Boom", retry_after=0, repeat="forever", match="fail 500")
    refusal = Turn(status=401, message="Incorrect API key", repeat="forever", match="fail 401")
    options = codex.options([broken, refusal, say("still here")])
    async with corral.session("codex-acp", **options) as session:
        failed = [await session.run(f"fail {code}") for code in (500, 401)]
        last = await session.run("and now?")
    with pytest.raises(errors.ServerFailed):
        failed[0].raise_for_status()
    with pytest.raises(errors.AuthenticationFailed):
        failed[1].raise_for_status()
    assert last.text == "still here"
