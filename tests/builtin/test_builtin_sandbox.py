"""What corral runs for the built-in agent is in the sandbox."""

from __future__ import annotations

from pathlib import Path

from support.builtin_agent import BuiltinAgent
from support.sandbox import needs_sandbox

import corral
from corral.events import Error, Event
from corral.testing import Call, Turn

pytestmark = needs_sandbox

pytest_plugins = ("support.builtin_agent_fixture",)

NO_NETWORK = corral.Policy(read="allow", write="allow", shell="allow", network="deny")


async def test_commands_of_the_built_in_agent_are_in_the_sandbox(
    ours: BuiltinAgent, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").touch()
    command = f"echo x > inside.txt; echo x > {tmp_path}/outside.txt; ls -A {tmp_path} > seen.txt"
    result = await ours.run(
        [Turn(calls=[Call("shell", {"command": command})]), Turn(text="done")],
        policy=NO_NETWORK,
        sandbox="require",
    )
    assert result.ok
    assert (workspace / "inside.txt").exists()
    assert not (tmp_path / "outside.txt").exists()
    assert "secret" not in (workspace / "seen.txt").read_text()


async def test_a_repository_that_a_command_made_is_reported(
    ours: BuiltinAgent, workspace: Path
) -> None:
    command = "git init -q new; git -C new config core.fsmonitor x"
    script = [Turn(calls=[Call("shell", {"command": command})]), Turn(text="done")]
    options = ours.options(script, policy=NO_NETWORK, sandbox="require")
    events: list[Event] = []
    await corral.run(prompt="do it", on_event=events.append, **options)
    assert [each.code for each in events if isinstance(each, Error)] == ["git_quarantined"]
    assert not (workspace / "new/.git/config").exists()


async def test_the_check_of_until_is_in_the_sandbox(
    ours: BuiltinAgent, workspace: Path, tmp_path: Path
) -> None:
    options = ours.options([Turn(text="done")], policy=NO_NETWORK, sandbox="require")
    (tmp_path / "secret").touch()
    check = corral.command_succeeds(f"touch ok; [ ! -e {tmp_path}/secret ]")
    result = await corral.run(prompt="do it", until=check, **options)
    assert result.ok, result
    assert (workspace / "ok").exists()
