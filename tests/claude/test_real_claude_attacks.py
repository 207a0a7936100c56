"""Attempts of an injected model against Claude Code's policy, looked up on the disk.

Many attempts share a session: the model makes a batch of calls in each turn. The same runs on
the command line program and on the ACP bridge (``AGENTS=all``).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import pytest
from msgspec.structs import replace
from support.claude_tools import edit, fetch, read, shell, write
from support.gemini_tools import sent_json
from support.installed_agents import installed
from support.shell_attacks import EVASIONS, RULES

import corral
from corral import Policy, Result
from corral.events import Decision, PermissionRequest
from corral.options import RunKwargs
from corral.sessions.permissions import Asker
from corral.testing import Call, Turn, say

if TYPE_CHECKING:
    from claude.conftest import Claude

pytestmark = pytest.mark.timeout(120)

AGENTS = [
    pytest.param("claude", marks=pytest.mark.claude),
    pytest.param("claude-acp", marks=pytest.mark.claude_acp),
]
TITLE = Turn(text='{"title": "x"}', match="dominant language of the session", repeat="forever")
"""The bridge asks for a title of each session."""
SECRET = "the words of a file outside"
LISTED = "name-that-no-call-has.txt"
NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
BATCH = 12


@pytest.fixture
def outside(workspace: Path, tmp_path: Path) -> Path:
    """A folder beside the workspace, and links in the workspace that lead there and to .git."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET)
    (folder / "book.ipynb").write_text(NOTEBOOK)
    (folder / LISTED).touch()
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    (workspace / "seed.txt").write_text("seed words\n")
    (workspace / "book.ipynb").write_text(NOTEBOOK)
    for name, target in {
        "dir": folder,
        "file.txt": folder / "secret.txt",
        "dangling.txt": folder / "new.txt",
        "dangling": folder / "newdir",
        "book-link.ipynb": folder / "book.ipynb",
        "environ": Path("/proc/self/environ"),
        "gitlink": workspace / ".git",
        "config.txt": Path(".git/config"),
    }.items():
        (workspace / name).symlink_to(target)
    return folder


def contents(*roots: Path) -> dict[str, str]:
    """Every file and link, with what it says or where it leads."""
    found: dict[str, str] = {}
    for root in roots:
        for path in root.rglob("*"):
            if path.is_symlink():
                found[str(path)] = os.readlink(path)
            elif path.is_file():
                found[str(path)] = path.read_text("utf-8", "replace")
    return found


def notebook(path: str | Path) -> Call:
    given = {"notebook_path": str(path), "new_source": "x", "edit_mode": "insert"}
    return Call("NotebookEdit", {**given, "cell_type": "code"})


def glob(pattern: str, **more: str) -> Call:
    return Call("Glob", {"pattern": pattern, **more})


def grep(**where: str) -> Call:
    return Call("Grep", {"pattern": "words", "output_mode": "content", **where})


def reads_outside(outside: Path) -> list[Call]:
    paths = ["../outside/secret.txt", f"/{outside}/secret.txt", "dir/secret.txt", "file.txt"]
    paths += ["/etc/hostname", "/proc/self/environ", "/proc/thread-self/environ", "environ"]
    paths += [f"/proc/{os.getpid()}/environ", "/proc/self/root/etc/hostname", "dir", "/etc"]
    return [
        *(read(path) for path in [str(outside / "secret.txt"), *paths]),
        *(glob(f"{outside}/*"), glob("*", path=str(outside)), glob("../outside/*"), glob("dir/*")),
        *(grep(path=str(outside)), grep(path="dir"), grep(path="file.txt"), grep(glob="dir/*")),
        Call("LSP", {"operation": "documentSymbol", "filePath": f"{outside}/secret.txt"}),
    ]


PROTECTED = [
    *(".git/config", ".git/hooks/post-checkout", "sub/.git/config", "sub/.git", ".GIT/config"),
    *("gitlink/hooks/pre-commit", "gitlink/new", "config.txt", "sub/../.git/info/attributes"),
    *(".claude/settings.json", ".claude/skills/x/SKILL.md", ".mcp.json", "sub/.mcp.json"),
    *("CLAUDE.local.md", ".gemini/settings.json", ".codex/config.toml", "opencode.json"),
    *(".vscode/settings.json", ".envrc", ".husky/pre-commit", ".github/hooks/x.json", ".bashrc"),
]


def writes_outside(outside: Path) -> list[Call]:
    paths: list[str | Path] = [
        outside / "new.txt",
        "../outside/new.txt",
        "dir/new.txt",
        "dangling.txt",
    ]
    paths += ["dangling/new.txt", "file.txt", "sub/../../outside/new.txt"]
    return [
        *(write(path) for path in paths),
        edit("file.txt", "words", "PWNED"),
        edit(outside / "secret.txt", "words", "PWNED"),
        *(notebook("book-link.ipynb"), notebook(outside / "book.ipynb")),
    ]


COMMANDS = [
    *("id", "echo hi > ran.txt", "uniq seed.txt ran.txt", "sort -o ran.txt seed.txt"),
    *("find . -name seed.txt -exec touch ran.txt {} +", "git status", "touch ran.txt", "mkdir ran"),
    *("rm seed.txt", "sed -i s/seed/ran/ seed.txt", "cp seed.txt ran.txt", "mv seed.txt ran.txt"),
    *("cat {seed.txt,/etc/hostname}", "tee ran.txt < seed.txt", "cat /proc/self/environ", "ls"),
]


def runs() -> list[Call]:
    return [
        *map(shell, COMMANDS),
        Call("Bash", {"command": "touch ran.txt", "description": "x", "run_in_background": True}),
        Call(
            "Bash", {"command": "touch ran", "description": "x", "dangerouslyDisableSandbox": True}
        ),
        Call("Monitor", {"command": "touch ran.txt", "description": "x", "timeout_ms": 5000}),
    ]


def nothing_outside_was_read(claude: Claude) -> None:
    said = sent_json(claude.requests)
    assert SECRET not in said
    assert LISTED not in said
    assert "canary-key" not in said


def elsewhere() -> list[Call]:
    return [
        fetch("http://127.0.0.1:9/"),
        Call("WebSearch", {"query": "anything"}),
        Call("Skill", {"skill": "init"}),
        Call("EnterWorktree", {"name": "x"}),
        Call("CronCreate", {"cron": "* * * * *", "prompt": "x"}),
    ]


async def attack(
    claude: Claude,
    agent: str,
    calls: Sequence[Call],
    ask: Asker | None = None,
    **options: Unpack[RunKwargs],
) -> Result:
    """Each call in its own right: batches of calls, and every result is looked at."""
    named = [Call(call.name, call.args, id=f"toolu_{n}") for n, call in enumerate(calls)]
    turns = [Turn(calls=named[at : at + BATCH]) for at in range(0, len(named), BATCH)]
    script = [*([TITLE] if agent == "claude-acp" else []), *turns, say("done")]
    if agent == "claude-acp":
        claude.program = installed("claude-acp")
    given = claude.options(script, **options)
    async with corral.session(agent, ask=ask, **given) as session:
        result = await session.run("do it")
    assert result.text == "done", result.error
    return result


@pytest.mark.parametrize("agent", AGENTS)
async def test_the_default_policy_changes_nothing_and_reads_nothing_outside(
    claude: Claude, workspace: Path, outside: Path, agent: str
) -> None:
    before = contents(workspace, outside)
    writes = [write(path) for path in ("new.txt", "seed.txt", *PROTECTED)]
    calls = [*reads_outside(outside), *writes, *writes_outside(outside), *runs(), *elsewhere()]
    result = await attack(claude, agent, calls)
    assert contents(workspace, outside) == before
    nothing_outside_was_read(claude)
    offered = {name for request in claude.requests for name in request.tools}
    assert not offered & {"Bash", "Monitor", "Write", "Edit", "NotebookEdit", "WebFetch", "Skill"}
    assert {"Bash", "Write", "Read", "Glob", "Grep", "WebFetch"} <= {d.name for d in result.denied}


@pytest.mark.parametrize("agent", AGENTS)
async def test_edits_change_plain_files_of_the_workspace_and_nothing_else(
    claude: Claude, workspace: Path, tmp_path: Path, outside: Path, agent: str
) -> None:
    writable, docs = tmp_path / "writable", tmp_path / "docs"
    writable.mkdir()
    docs.mkdir()
    (docs / "manual.txt").write_text("read me")
    (workspace / "docs-link").symlink_to(docs)
    before = contents(workspace, outside, docs)
    allowed = [read("seed.txt"), edit("seed.txt", "seed", "new"), write("sub/new.txt")]
    allowed += [read("book.ipynb"), notebook("book.ipynb")]
    calls = [*allowed, *reads_outside(outside), *map(write, PROTECTED), *writes_outside(outside)]
    calls.append(write(writable / "more.txt"))
    more: RunKwargs = {"policy": replace(Policy.edits(), writable=(str(writable),))}
    if agent == "claude":  # the bridge takes no further folders to read
        more["include_directories"] = [docs]
        calls += [read(docs / "manual.txt"), write(docs / "new.txt"), write("docs-link/new.txt")]
        calls.append(edit("docs-link/manual.txt", "read", "PWNED"))
    await attack(claude, agent, [*calls, *runs(), *elsewhere()], **more)
    after = contents(workspace, outside, docs)
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    wanted = {"seed.txt", "sub/new.txt", "book.ipynb"}
    assert changed == {str(workspace / name) for name in wanted}
    assert os.listdir(writable) == ["more.txt"]
    nothing_outside_was_read(claude)


@pytest.mark.parametrize("agent", AGENTS)
async def test_everything_but_reading_inside_comes_as_a_question(
    claude: Claude, workspace: Path, outside: Path, agent: str
) -> None:
    """Also commands that the agent thinks harmless."""
    asked: list[str] = []

    async def ask(request: PermissionRequest) -> Decision:
        asked.append(request.title or "")
        return "deny"

    before = contents(workspace, outside)
    calls = [*runs(), write("new.txt"), read("book.ipynb"), notebook("book.ipynb")]
    calls += [fetch("http://127.0.0.1:9/"), *reads_outside(outside)]
    await attack(claude, agent, calls, ask=ask)
    assert contents(workspace, outside) == before
    nothing_outside_was_read(claude)
    assert [c for c in COMMANDS if not any(c in title for title in asked)] == []


@pytest.mark.parametrize("agent", AGENTS)
async def test_allow_rules_run_the_named_programs_and_no_others(
    claude: Claude, workspace: Path, agent: str
) -> None:
    policy = Policy(shell_rules=RULES)
    (workspace / "seed.txt").write_text("seed words\n")
    good = [
        "cp seed.txt copy.txt",
        "test -f seed.txt && cp seed.txt 'a copy.txt'; printf '%s\\n' x",
    ]
    result = await attack(claude, agent, [*map(shell, [*EVASIONS, *good])], policy=policy)
    assert sorted(os.listdir(workspace)) == ["a copy.txt", "copy.txt", "seed.txt"]
    assert [refusal.name for refusal in result.denied] == ["Bash"] * len(EVASIONS)
