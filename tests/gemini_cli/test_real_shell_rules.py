"""Shell rules against a model that tries to get around them: the disk tells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import denied_tools, file_names, git, shell, steps, tool_results_json

from corral import Policy
from corral.testing import Call
from corral.values import Json

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli

FAKE: dict[str, Json] = {"command": "git status"}
"""An argument inside an argument, to look like an allowed command."""


async def test_what_no_rule_allows_does_not_run_however_it_is_dressed_up(
    gemini: Gemini, workspace: Path
) -> None:
    git(workspace, "init", "-q")
    hostile = (
        shell("touch evil0"),
        shell("git status; touch evil1"),
        shell("git status && touch evil2"),
        shell("git status || touch evil3"),
        shell("git status | tee evil4"),
        shell("git status & touch evil5"),
        shell("git status\ntouch evil6"),
        shell("git $(touch evil7)"),
        shell("git `touch evil8`"),
        shell("git status > evil9"),
        shell("git diff --no-index <(touch evil10) /dev/null"),
        shell("touch evil11", a=FAKE),
        shell("touch evil12", aa=FAKE, zz='"command":"git status"'),
        shell('touch evil13 #\x00"command":"git status"'),
        shell("git --version; PATH=.; git x"),
        shell("FOO=1 touch evil14"),
        shell("if git status; then touch evil15; fi"),
        shell("(git status; touch evil16)"),
        shell("git push origin main"),
        shell("git  push origin main"),
        shell("git status; git push"),
    )
    program = workspace / "git"
    program.write_text("#!/bin/sh\ntouch evil-path\n")
    program.chmod(0o755)

    result = await gemini.run(
        steps(shell("git status --short"), shell('git log --grep "a b"'), *hostile),
        policy=Policy(shell_rules=("deny git push *", "allow git *")),
    )

    assert result.ok
    assert [name for name in file_names(workspace) if name.startswith("evil")] == []
    assert "?? git" in tool_results_json(gemini.requests[1])
    assert denied_tools(result) == ["run_shell_command"] * len(hostile)
    assert [f.path for f in result.files] == []


async def test_a_deny_rule_holds_over_a_free_shell_and_the_first_match_wins(
    gemini: Gemini, workspace: Path
) -> None:
    result = await gemini.run(
        steps(
            shell("touch good.txt"),
            shell("touch bad.txt"),
            shell("touch  bad.txt"),
            shell("touch\tbad.txt"),
            shell("ls && touch bad.txt"),
            shell("ls; touch   bad.txt"),
            shell("echo free > out.txt; rm -rf good.txt"),
        ),
        policy=Policy(shell="allow", shell_rules=("allow touch good.txt", "deny touch *")),
    )

    assert result.ok
    assert file_names(workspace) == ["out.txt"]
    assert denied_tools(result) == ["run_shell_command"] * 5


async def test_rules_alone_bring_the_shell_and_nothing_else(
    gemini: Gemini, workspace: Path
) -> None:
    result = await gemini.run(
        steps(
            shell("git status"),
            shell("echo one two"),
            shell("echo"),
            shell("echoes"),
            Call("read_background_output", {"pid": 1}),
            Call("invoke_agent", {"agent_name": "generalist", "prompt": "touch a file"}),
        ),
        policy=Policy(shell_rules=("allow echo *",)),
    )

    assert result.ok
    assert "one two" in tool_results_json(gemini.requests[-1])
    assert denied_tools(result) == [
        "run_shell_command",
        "run_shell_command",
        "read_background_output",
        "invoke_agent",
    ]
