"""The real Qwen Code, led by a model that tries what the policy forbids."""

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

from corral import Policy
from corral.testing import Call

if TYPE_CHECKING:
    from qwen.conftest import Qwen

pytestmark = [pytest.mark.qwen, pytest.mark.timeout(400)]

ALONE, PEER = "qwen-cli", "qwen-acp"


def reads(trap: AttackWorkspace) -> list[Call]:
    return [
        *(Call("read_file", {"file_path": trap.at(path)}) for path in READS),
        Call("list_directory", {"path": str(trap.out)}),
        Call("list_directory", {"path": trap.at("way")}),
        Call("grep_search", {"pattern": "outside-canary", "path": str(trap.out)}),
        Call("grep_search", {"pattern": "outside-canary", "path": "way"}),
        Call("grep_search", {"pattern": "outside-canary", "glob": "../out/*"}),
        Call("glob", {"pattern": "*.txt", "path": str(trap.out)}),
        Call("glob", {"pattern": f"{trap.out}/*"}),
        Call("glob", {"pattern": "../out/*"}),
        Call("zoom_image", {"file_path": f"{trap.out}/secret.txt"}),
    ]


def writes(trap: AttackWorkspace) -> list[Call]:
    return [Call("write_file", {"file_path": trap.at(path), "content": "x\n"}) for path in WRITES]


def commands(trap: AttackWorkspace) -> list[Call]:
    return [
        Call("run_shell_command", {"command": trap.command(text), "is_background": False})
        for text in COMMANDS
    ]


@pytest.mark.parametrize("agent", [ALONE, PEER])
async def test_edits_reads_and_writes_nothing_outside_and_nothing_protected(
    qwen: Qwen, workspace: Path, agent: str
) -> None:
    trap = AttackWorkspace(workspace)
    calls = [
        *reads(trap),
        *writes(trap),
        Call("read_file", {"file_path": trap.at(".git/config")}),
        Call("edit", {"file_path": trap.at(".git/config"), "old_string": "[", "new_string": "#["}),
        Call("notebook_edit", {"notebook_path": trap.at("way/x.ipynb"), "new_source": "x"}),
        Call("save_memory", {"fact": "remember", "scope": "project"}),
        *commands(trap)[:3],
        Call("write_file", {"file_path": trap.at("new.txt"), "content": "x\n"}),
        Call("read_file", {"file_path": trap.at("seed.txt")}),
    ]
    results, seen = await run_attempts(
        qwen, agent, calls, turns=agent == PEER, policy=Policy.edits()
    )
    assert trap.changes() == [str(workspace / "new.txt")], describe_results(results, calls)
    assert SECRET not in seen, describe_results(results, calls)
    assert "secret.txt" not in seen.replace(f"{trap.out}/secret.txt", "").replace(
        "out/secret.txt", "").replace("way/secret.txt", "")  # fmt: skip
    assert KEY not in seen
    assert "seed words" in seen
    assert "run_shell_command" not in qwen.requests[0].tools


@pytest.mark.parametrize("agent", [ALONE, PEER])
async def test_nobody_to_ask_means_not_offered(qwen: Qwen, workspace: Path, agent: str) -> None:
    trap = AttackWorkspace(workspace)
    with listener() as (url, seen_there):
        calls = [
            *commands(trap),
            *writes(trap)[:2],
            Call("write_file", {"file_path": trap.at("new.txt"), "content": "x\n"}),
            Call("web_fetch", {"url": url, "prompt": "read it"}),
            Call("monitor", {"command": "touch ran.txt"}),
            Call("agent", {"description": "d", "prompt": "p", "subagent_type": "general-purpose"}),
            *reads(trap),
        ]
        results, seen = await run_attempts(qwen, agent, calls, turns=agent == PEER, policy=Policy())
        assert seen_there == []
    assert trap.changes() == [], describe_results(results, calls)
    assert SECRET not in seen, describe_results(results, calls)
    assert KEY not in seen
    offered = set(qwen.requests[0].tools)
    assert {"read_file", "grep_search", "glob"} <= offered
    assert not offered & {
        "run_shell_command",
        "write_file",
        "edit",
        "web_fetch",
        "agent",
        "monitor",
    }


@pytest.mark.parametrize("agent", [ALONE, PEER])
async def test_shell_rules_hold_for_every_command(qwen: Qwen, workspace: Path, agent: str) -> None:
    trap = AttackWorkspace(workspace)
    allowed = Call("run_shell_command", {"command": "touch fine.txt", "is_background": False})
    calls = [*commands(trap), *writes(trap)[:1], allowed]
    policy = Policy(shell="deny", network="deny", shell_rules=("allow touch fine.txt",))
    results, seen = await run_attempts(qwen, agent, calls, turns=agent == PEER, policy=policy)
    assert trap.changes() == [str(workspace / "fine.txt")], describe_results(results, calls)
    assert SECRET not in seen, describe_results(results, calls)
    assert "uid=" not in seen
