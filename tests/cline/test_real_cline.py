"""The real Cline: proven on the disk, on the wire and in the request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import denied_tools, processes_matching, sent_json, steps
from support.real_agents import KEY

import corral
from corral import Policy, errors
from corral.events import ToolUse
from corral.result import result_from_events
from corral.testing import Call, say

if TYPE_CHECKING:
    from cline.conftest import Cline

pytestmark = [pytest.mark.cline, pytest.mark.timeout(180)]


def write(path: str | Path) -> Call:
    return Call("editor", {"path": str(path), "new_text": "words\n"})


def commands(*lines: str) -> Call:
    return Call("run_commands", {"commands": [*lines]})


async def test_writes_stay_in_the_workspace_and_there_is_no_sub_agent_to_act_unasked(
    cline: Cline, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "way").symlink_to(tmp_path)
    script = steps(
        write(workspace / "new.txt"),
        write("deep/er/new.txt"),
        write("../out.txt"),
        write(workspace / "way" / "out.txt"),
        write(f"{workspace}-out.txt"),
        write(f"{workspace}/../out.txt"),
        Call("spawn_agent", {"systemPrompt": "x", "task": "touch out.txt"}),
    )
    events = await cline.events(script, policy=Policy.edits())
    result = result_from_events(events)
    assert result.status == "success", result.error
    assert sum(isinstance(event, ToolUse) for event in events) == 7
    assert (workspace / "deep/er/new.txt").read_text() == "words\n"
    assert {Path(file.path).name for file in result.files if file.by_tool} == {"new.txt"}
    assert [*tmp_path.rglob("*out.txt")] == []
    assert denied_tools(result) == ["editor"] * 4
    assert "spawn_agent" not in cline.requests[0].tools
    assert KEY not in sent_json(cline.requests)
    assert processes_matching(str(tmp_path)) == []


async def test_one_command_of_many_that_a_rule_forbids_stops_them_all(
    cline: Cline, workspace: Path
) -> None:
    policy = Policy(shell="allow", network="allow", shell_rules=("deny touch bad*",))
    script = steps(commands("touch good", "touch bad"), commands("touch fine"))
    result = await cline.run(script, policy=policy)
    assert [refusal.name for refusal in result.denied] == ["run_commands"]
    assert [path.name for path in workspace.iterdir()] == ["fine"]


async def test_a_hook_of_the_repository_runs_only_where_it_is_trusted(
    cline: Cline, workspace: Path, tmp_path: Path
) -> None:
    hook, ran = workspace / ".cline" / "hooks" / "TaskStart", tmp_path / "ran"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {ran}\necho '{{}}'\n")
    hook.chmod(0o700)
    options = cline.options([say("hello")])
    with pytest.raises(errors.UntrustedFolder, match=r"own files: .*\.cline"):
        await corral.run("cline", "hi", **options)
    assert not ran.exists()
    options["inherit"] = "project"
    result = await corral.run("cline", "hi", **options)
    assert result.status == "success"
    assert ran.exists()
