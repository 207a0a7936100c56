"""What an agent that cannot ask is given, and what is reported, if calls are judged at the wire."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral import McpServer, Policy
from corral.agents import registry
from corral.agents.spec import AgentSpec, PolicyRow, StreamTransport, asked_at_wire, compile_for
from corral.options import RunOptions
from corral.policy import Capability

JUDGED = ("codex-cli", "gemini-cli", "opencode-cli", "pi-cli")


def options_of(agent: AgentSpec, policy: Policy, **more: object) -> RunOptions:
    assert agent.probe is not None
    options = {"model": agent.probe.model, "policy": policy, **more}
    return replace(RunOptions.build(agent.name, options), at_wire=True, interactive=True)


def rows_of(name: str, policy: Policy) -> dict[Capability, PolicyRow]:
    agent = registry.find(name)
    return {row.capability: row for row in compile_for(agent, options_of(agent, policy)).report}


def test_these_agents_are_judged_at_the_wire() -> None:
    found = [
        agent.name
        for agent in registry.all_agents()
        if isinstance(agent.transport, StreamTransport) and agent.transport.wire is not None
    ]
    assert sorted(found) == sorted(JUDGED)


@pytest.mark.parametrize("name", JUDGED)
def test_what_the_policy_asks_about_is_brokered_and_the_rest_stays_native(name: str) -> None:
    rows = rows_of(name, Policy(write="deny"))
    assert (rows["shell"].verdict, rows["shell"].enforcement) == ("ask", "brokered")
    assert (rows["write"].verdict, rows["write"].enforcement) == ("deny", "native")
    assert "before the agent sees it" in rows["shell"].note


@pytest.mark.parametrize("name", JUDGED)
def test_shell_rules_are_brokered(name: str) -> None:
    rows = rows_of(name, Policy(write="deny", shell="deny", shell_rules=("allow git status",)))
    assert (rows["shell"].verdict, rows["shell"].enforcement) == ("deny", "brokered")


def test_a_web_search_that_the_vendor_runs_is_denied_not_asked_about() -> None:
    row = rows_of("codex-cli", Policy())["network"]
    assert (row.verdict, row.enforcement) == ("ask", "native")
    assert "ask→deny" in row.note


def test_the_sandbox_of_codex_stays_read_only_if_commands_need_no_permission() -> None:
    agent = registry.find("codex-cli")
    free = compile_for(agent, options_of(agent, Policy(shell="allow")))
    asking = compile_for(agent, options_of(agent, Policy()))
    assert free.flags[:2] == ("--sandbox", "read-only")
    assert asking.flags[:2] == ("--sandbox", "workspace-write")


def test_where_the_rules_for_paths_are_lifted_paths_are_judged_at_the_wire() -> None:
    rows = rows_of("opencode-cli", Policy(write="allow"))
    assert (rows["read"].enforcement, rows["write"].enforcement) == ("brokered", "brokered")
    rows = rows_of("opencode-cli", Policy(write="allow", shell="deny"))
    assert (rows["read"].enforcement, rows["write"].enforcement) == ("native", "native")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), ("write", "shell", "network")),
        (Policy.edits(), ()),
        (Policy.full(), ()),
        (Policy.native(), ()),
        (Policy(allow_tools=("read_file",)), ()),
    ],
)
def test_only_what_the_policy_leaves_open_is_asked_about(
    policy: Policy, expected: tuple[str, ...]
) -> None:
    agent = registry.find("gemini-cli")
    assert isinstance(agent.transport, StreamTransport)
    assert agent.transport.wire is not None
    assert asked_at_wire(agent.transport.wire, options_of(agent, policy)) == expected
    alone = replace(options_of(agent, policy), interactive=False)
    assert asked_at_wire(agent.transport.wire, alone) == ()


def test_tool_servers_are_asked_about_if_there_are_any() -> None:
    agent = registry.find("gemini-cli")
    assert isinstance(agent.transport, StreamTransport)
    assert agent.transport.wire is not None
    servers = (McpServer("notes", command=("notes",)),)
    run = options_of(agent, Policy.edits(), mcp_servers=servers)
    assert asked_at_wire(agent.transport.wire, run) == ("mcp",)


@pytest.mark.parametrize(
    ("name", "arguments", "command"),
    [
        ("exec_command", {"cmd": "git status"}, "git status"),
        ("shell", {"command": ["bash", "-lc", "git status"]}, "git status"),
        ("shell", {"command": ["git", "commit", "-m", "a b"]}, "git commit -m 'a b'"),
        ("local_shell", {"action": {"command": ["ls"]}}, "ls"),
        ("apply_patch", {"input": "*** Begin Patch"}, None),
    ],
)
def test_the_command_of_a_call_of_codex_is_found(
    name: str, arguments: dict[str, str], command: str | None
) -> None:
    agent = registry.find("codex-cli")
    assert isinstance(agent.transport, StreamTransport)
    assert agent.transport.wire is not None
    assert agent.transport.wire.rewrite(name, {**arguments})[1].get("command") == command
