"""Codex: what only this agent does.

Its sandbox (a shell that may run but not write, and the network in it), its tool for images, MCP
servers that do not start, and the ACP bridge, which decides by permission requests.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from support.files import file_names
from support.model_scripts import sent_json, steps, tool_results_json
from support.processes import fifo_signal
from support.real_agents import KEY, RealAgent, cancel_during_command, denied_tools, for_agents
from support.refusing_proxy import refusing_proxy
from support.repositories import git

import corral
from corral import Policy, errors, result_from_events
from corral.events import Error, PermissionDecision, Text
from corral.testing import Call, Turn, say

pytestmark = pytest.mark.timeout(300)

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9h"
    "AAAAAElFTkSuQmCC"
)


@for_agents("codex-cli")
async def test_cancelling_ends_a_command_in_the_sandbox(
    agent: RealAgent, workspace: Path, sleep_time: str
) -> None:
    with fifo_signal(workspace / "started") as started:
        command = f"setsid sleep {sleep_time} & echo up > {started.path}; sleep {sleep_time}"
        script = [Turn(calls=[agent.shell(command)])]
        async with agent.session(script, policy=Policy(write="allow", shell="allow")) as session:
            await cancel_during_command(session, sleep_time, started)
    assert file_names(workspace) == ["started"]


@for_agents("codex-cli")
async def test_an_unknown_model_is_a_warning(agent: RealAgent) -> None:
    events = await agent.events([say("done")], model="scripted")
    warned = [event for event in events if isinstance(event, Error)]
    assert [(event.code, event.recoverable) for event in warned] == [("agent_warning", True)]
    assert "Model metadata for `scripted` not found" in warned[0].message
    assert result_from_events(events).ok
    assert [event.delta for event in events if isinstance(event, Text)] == ["done"]


@contextmanager
def listening_port() -> Generator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def was_connected(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def connect_command(listener: socket.socket) -> str:
    return f"(exec 3<>/dev/tcp/127.0.0.1/{listener.getsockname()[1]}) && touch reached.txt; true"


@for_agents("codex-cli")
async def test_a_shell_without_permission_to_write_runs_and_writes_nowhere(
    agent: RealAgent, workspace: Path, tmp_path: Path, seed: Path
) -> None:
    with listening_port() as listener:
        script = steps(
            agent.shell("cat seed.txt"),
            agent.shell(f"touch ran.txt; touch {tmp_path}/up.txt; touch $TMPDIR/tmp.txt; env"),
            agent.shell(connect_command(listener)),
        )
        policy = Policy(write="deny", shell="allow", network="allow")
        result = await agent.run(script, policy=policy)
        assert not was_connected(listener)
    assert result.ok
    assert file_names(workspace) == ["seed.txt"]
    assert not (tmp_path / "up.txt").exists()
    assert "seed words" in tool_results_json(agent.requests[1])
    returned = tool_results_json(agent.requests[2])
    assert "Read-only file system" in returned
    assert KEY not in returned
    assert "OPENAI_API_KEY" not in returned


@pytest.mark.parametrize("network", ["deny", "allow"])
@for_agents("codex-cli")
async def test_a_shell_that_may_write_is_limited_to_the_workspace_and_the_network_policy(
    agent: RealAgent, workspace: Path, tmp_path: Path, network: Literal["deny", "allow"]
) -> None:
    with listening_port() as listener:
        script = steps(
            agent.shell(
                f"touch ran.txt; touch {tmp_path}/up.txt; echo kept > $TMPDIR/a && cat $TMPDIR/a"
            ),
            agent.shell(connect_command(listener)),
        )
        policy = Policy(write="allow", shell="allow", network=network)
        result = await agent.run(script, policy=policy)
        reached = was_connected(listener)
    assert result.ok
    assert reached == (network == "allow")
    assert file_names(workspace) == ["ran.txt", *(["reached.txt"] if reached else [])]
    assert not (tmp_path / "up.txt").exists()
    assert "kept" in tool_results_json(agent.requests[1])
    declared = msgspec.convert(agent.requests[0].body["tools"], list[dict[str, object]])
    assert ("web_search" in [tool.get("type") for tool in declared]) == (network == "allow")


@for_agents("codex-cli")
async def test_the_policy_all_allows_the_network(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    with listening_port() as listener:
        result = await agent.run(steps(agent.shell(connect_command(listener))), policy="all")
        assert was_connected(listener)
    assert result.ok
    assert file_names(workspace) == ["reached.txt"]


@for_agents("codex-cli")
async def test_functions_that_the_policy_denies_are_an_error(agent: RealAgent) -> None:
    called: list[int] = []

    def double(number: int) -> int:
        """Doubles a number."""
        called.append(number)
        return 2 * number

    script = steps(agent.mcp_tool("corral", "double", number=21))
    options = agent.options(script, policy="reads", model="scripted")
    result = await corral.run(agent.name, "do it", tools=[double], **options)
    assert called == []
    with pytest.raises(errors.ToolFailed, match="did not list the tools"):
        result.raise_for_status()


@for_agents("codex-cli")
async def test_an_mcp_server_that_does_not_start_is_an_error(agent: RealAgent) -> None:
    dead = corral.McpServer("dead", command=("/bin/false",))
    result = await agent.run([say("never")], policy="all", mcp_servers=[dead])
    with pytest.raises(errors.ToolFailed, match="dead"):
        result.raise_for_status()
    assert agent.requests == []


def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


@for_agents("codex-acp")
async def test_the_policy_answers_the_permission_requests_of_the_bridge(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    script = [
        Turn(calls=[agent.write("new.txt")], match="first"),
        Turn(calls=[agent.shell("touch ran.txt")], match="first"),
        Turn(calls=[agent.mcp_tool("corral", "double", number=21)], match="first"),
        Turn(text="done", match="first"),
        Turn(calls=[agent.write(tmp_path / "up.txt")], match="second"),
        Turn(text="still here", match="third"),
    ]
    options = agent.options(script, policy="edits")
    async with corral.session(agent.name, tools=[double], **options) as session:
        events = [event async for event in session.prompt("first")]
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
    assert not {*agent.requests[0].tools} & {"exec_command", "write_stdin", "shell"}
    assert "42" in tool_results_json(agent.requests[3])
    # It ends its turn when a call is denied, but not its session.
    assert not (tmp_path / "up.txt").exists()
    assert outside.status == "denied"
    assert denied_tools(outside) == ["edit"]
    assert third.text == "still here"


def view(path: str) -> Call:
    return Call("view_image", {"path": path})


@for_agents("codex-cli", "codex-acp")
@pytest.mark.deep
async def test_images_of_the_workspace_can_be_seen_and_others_cannot(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "far.png").write_bytes(PNG)
    (workspace / "near.png").write_bytes(PNG)
    (workspace / "link.png").symlink_to(outside / "far.png")
    (workspace / "link").symlink_to(outside)
    before = file_names(workspace)
    calls = [
        *map(view, ("link.png", "link/far.png", f"{outside}/far.png", "../outside/far.png")),
        agent.shell("cat /proc/self/environ"),
        agent.write("new.txt"),
    ]
    await agent.attempt(calls, policy="reads")
    assert file_names(workspace) == before
    assert "data:image" not in sent_json(agent.requests)
    assert "canary" not in sent_json(agent.requests)
    await agent.attempt([view("near.png")], policy="reads")
    assert "data:image" in sent_json(agent.requests)


@for_agents("codex-cli", "codex-acp")
async def test_programs_in_git_settings_do_not_run_and_no_other_host_is_called(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    loot = tmp_path / "loot"
    loot.mkdir()
    git(workspace, "init", "-q")
    (workspace / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (workspace / "a.txt").write_text("a\n")
    git(workspace, "add", ".")
    git(workspace, "commit", "-qm", "first")
    for key in ("filter.evil.clean", "core.fsmonitor", "diff.external", "diff.evil.textconv"):
        git(workspace, "config", key, f"sh -c 'touch {loot}/{key}; cat'")
    (workspace / "a.txt").write_text("b\n")  # of the same size: git must read it
    persistent = agent.record.persistent
    policy = Policy.all() if persistent else Policy(write="allow", shell="allow")
    script = steps(agent.write("new.txt"), agent.shell("git rev-parse --show-toplevel"))
    with refusing_proxy() as called:
        result = await agent.run(script, policy=policy, env=called.env)
    assert result.ok
    assert (workspace / "new.txt").exists()
    assert file_names(loot) == []
    assert called.requests == []
    # The commands of the agent itself see the repository.
    assert f"{workspace}\\n" in sent_json(agent.requests)


@for_agents("codex-acp")
async def test_the_bridge_refuses_settings_in_its_folder_and_ignores_those_above(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    loot = tmp_path / "loot"
    loot.mkdir()
    git(workspace, "init", "-q")
    hook = {"type": "command", "command": f"touch {loot}/hook"}
    files = {
        "config.toml": f'[mcp_servers.evil]\ncommand = "touch"\nargs = ["{loot}/server"]\n',
        "hooks.json": json.dumps({"hooks": {"SessionStart": [{"hooks": [hook]}]}}),
    }
    inner = workspace / "inner"
    for folder in (workspace, inner):
        (folder / ".codex").mkdir(parents=True)
        (folder / "AGENTS.md").write_text("HIJACKED words")
    for name, text in files.items():
        (workspace / ".codex" / name).write_text(text)
    options = agent.options([say("done")], policy="reads", cwd=inner)
    for name in files:
        (inner / ".codex" / name).write_text("")
        with pytest.raises(errors.UntrustedFolder, match=name):
            await corral.run(agent.name, "do it", **options)
        (inner / ".codex" / name).unlink()
    result = await corral.run(agent.name, "do it", **options)
    assert result.ok
    assert file_names(loot) == []
    assert "HIJACKED" not in sent_json(agent.requests)


@for_agents("codex-acp")
async def test_in_a_pool_only_images_of_the_folder_of_the_prompt_can_be_seen(
    agent: RealAgent, workspace: Path
) -> None:
    for name in ("one", "two"):
        (workspace / name).mkdir()
        (workspace / name / "a.png").write_bytes(PNG)
    script = [
        Turn(text="done", match="-first-"),
        Turn(calls=[view("../one/a.png")], match="-far-"),
        Turn(text="done", match="-far-"),
        Turn(calls=[view("a.png")], match="-near-"),
        Turn(text="done", match="-near-"),
    ]
    async with corral.pool(agent.name, **agent.options(script, policy="reads")) as pool:
        await pool.run("attempt -first-", cwd=workspace / "one")
        await pool.run("attempt -far-", cwd=workspace / "two")
        assert "data:image" not in sent_json(agent.requests)
        await pool.run("attempt -near-", cwd=workspace / "two")
        assert pool.started == 1
    assert "data:image" in sent_json(agent.requests)
