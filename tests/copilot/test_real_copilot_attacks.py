"""The real Copilot CLI, led by a model that tries what the policy forbids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.real_agents import KEY
from support.real_attacks import (
    COMMANDS,
    READS,
    SECRET,
    WRITES,
    AttackWorkspace,
    describe_results,
    listener,
    run_attempts,
)

import corral
from corral import Policy, errors
from corral.events import Decision, PermissionRequest
from corral.testing import Call, say

if TYPE_CHECKING:
    from copilot.conftest import Copilot

pytestmark = [pytest.mark.copilot, pytest.mark.timeout(400)]

ALONE, PEER = "copilot-cli", "copilot-acp"


def reads(trap: AttackWorkspace) -> list[Call]:
    return [
        *(Call("view", {"path": trap.at(path)}) for path in READS),
        Call("view", {"path": str(trap.out)}),
        Call(
            "grep", {"pattern": "outside-canary", "path": str(trap.out), "output_mode": "content"}
        ),
        Call(
            "grep", {"pattern": "outside-canary", "path": trap.at("way"), "output_mode": "content"}
        ),
        Call("grep", {"pattern": "outside-canary", "glob": "../out/*", "output_mode": "content"}),
        Call("grep", {"pattern": "outside-canary", "output_mode": "content"}),
        Call("glob", {"pattern": f"{trap.out}/*"}),
        Call("glob", {"pattern": "../out/*"}),
        Call("glob", {"pattern": "*", "path": str(trap.out)}),
    ]


def writes(trap: AttackWorkspace) -> list[Call]:
    patch = "*** Begin Patch\n*** Add File: .git/hooks/update\n+x\n*** End Patch"
    return [
        *(Call("create", {"path": trap.at(path), "file_text": "x"}) for path in WRITES),
        Call("edit", {"path": trap.at(".git/config"), "old_str": "[core]", "new_str": "[x]"}),
        Call("apply_patch", {"patch": patch, "input": patch}),
    ]


def commands(trap: AttackWorkspace) -> list[Call]:
    return [
        Call("bash", {"command": trap.command(text), "description": "Run it"}) for text in COMMANDS
    ]


async def test_edits_reads_and_writes_nothing_outside_and_nothing_protected(
    copilot: Copilot, workspace: Path
) -> None:
    trap = AttackWorkspace(workspace)
    calls = [
        *reads(trap),
        *writes(trap),
        *commands(trap)[:3],
        Call("task", {"description": "d", "prompt": "p", "agent_type": "general-purpose"}),
        Call("create", {"path": trap.at("new.txt"), "file_text": "x"}),
        Call("view", {"path": trap.at("seed.txt")}),
    ]
    results, seen = await run_attempts(copilot, PEER, calls, policy=Policy.edits())
    assert trap.changes() == [str(workspace / "new.txt")], describe_results(results, calls)
    assert SECRET not in seen, describe_results(results, calls)
    assert KEY not in seen
    assert "seed words" in seen
    assert not {*copilot.requests[0].tools} & {"bash", "task", "web_fetch"}


@pytest.mark.parametrize("agent", [ALONE, PEER])
async def test_nobody_to_ask_means_not_offered(
    copilot: Copilot, workspace: Path, agent: str
) -> None:
    trap = AttackWorkspace(workspace)
    with listener() as (url, seen_there):
        calls = [
            *commands(trap),
            *writes(trap)[:2],
            Call("create", {"path": trap.at("new.txt"), "file_text": "x"}),
            Call("web_fetch", {"url": url}),
            *reads(trap),
            Call("view", {"path": trap.at("seed.txt")}),
        ]
        results, seen = await run_attempts(
            copilot, agent, calls, turns=agent == PEER, policy=Policy()
        )
        assert seen_there == []
    assert trap.changes() == [], describe_results(results, calls)
    assert SECRET not in seen, describe_results(results, calls)
    assert KEY not in seen
    assert "uid=" not in seen
    assert "seed words" in seen
    offered = {*copilot.requests[0].tools}
    assert "view" in offered
    assert not offered & {"bash", "create", "edit", "apply_patch", "task", "web_fetch"}


async def test_with_somebody_to_ask_a_shell_that_asks_is_still_not_offered(
    copilot: Copilot, workspace: Path
) -> None:
    trap = AttackWorkspace(workspace)

    def ask(request: PermissionRequest) -> Decision:
        return "allow_once" if request.kind == "edit" else "deny"

    calls = [*commands(trap)[:4], *writes(trap)[:1],
             Call("create", {"path": trap.at("new.txt"), "file_text": "x"})]  # fmt: skip
    results, seen = await run_attempts(copilot, PEER, calls, ask, policy=Policy())
    assert trap.changes() == [str(workspace / "new.txt")], describe_results(results, calls)
    assert "uid=" not in seen
    assert "bash" not in copilot.requests[0].tools


async def test_for_one_prompt_edits_are_refused_for_nothing_would_protect_git(
    copilot: Copilot,
) -> None:
    options = copilot.options([say("no")], policy=Policy.edits())
    with pytest.raises(errors.PolicyNotEnforceable, match="copilot-acp"):
        await corral.run(ALONE, "do it", **options)
    assert copilot.requests == []
