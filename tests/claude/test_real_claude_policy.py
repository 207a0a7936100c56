"""The policy holds with the real Claude Code: looked up on the disk, cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.claude_tools import delegate, edit, fetch, read, shell, write
from support.gemini_tools import denied_tools, file_names, notes_server, steps, tool_results_json
from support.stream_checks import check_stream

import corral
from corral import Policy, result_from_events
from corral.events import Decision, PermissionRequest, ToolUse
from corral.testing import Call, Request, Turn, say

if TYPE_CHECKING:
    from claude.conftest import Claude

pytestmark = [pytest.mark.claude, pytest.mark.timeout(120)]

KEEP = Call("mcp__notes__keep", {"text": "remember"})


@pytest.fixture(autouse=True)
def seed(workspace: Path) -> Path:
    file = workspace / "seed.txt"
    file.write_text("seed words\n")
    return file


@pytest.mark.slow  # the attack kit makes the same attempts, and more
async def test_without_leave_nothing_is_written_run_or_fetched_and_all_of_it_is_told(
    claude: Claude, workspace: Path, tmp_path: Path
) -> None:
    tried = [
        *(read("seed.txt"), write("new.txt"), edit("seed.txt", "seed", "weed")),
        *(shell("touch ran.txt"), shell("echo only reads"), fetch("http://127.0.0.1:1/")),
        KEEP,
    ]
    server = notes_server(tmp_path)
    events = check_stream(await claude.events(steps(*tried), mcp_servers=[server]))
    result = result_from_events(events)
    assert result.ok
    assert result.text == "done"
    assert file_names(workspace) == ["seed.txt"]
    assert (workspace / "seed.txt").read_text() == "seed words\n"
    assert not (tmp_path / "note.txt").exists()
    assert denied_tools(result) == ["Write", "Edit", "Bash", "Bash", "WebFetch", "mcp__notes__keep"]
    assert not (tmp_path / "started").exists()
    assert "seed words" in tool_results_json(claude.requests[1])


async def test_what_is_denied_is_not_offered_and_not_done(
    claude: Claude, workspace: Path, tmp_path: Path
) -> None:
    policy = Policy(read="deny", write="deny", shell="deny", network="deny", mcp="deny")
    tried = [
        *(read("seed.txt"), write("new.txt"), shell("touch ran.txt"), shell("echo hi")),
        *(
            fetch("http://127.0.0.1:1/"),
            Call("Monitor", {"command": "touch m", "description": "m"}),
        ),
        *(Call("Grep", {"pattern": "seed"}), KEEP),
    ]
    server = notes_server(tmp_path)
    result = await claude.run(steps(*tried), policy=policy, mcp_servers=[server])
    assert result.ok
    assert file_names(workspace) == ["seed.txt"]
    assert not (tmp_path / "started").exists()
    for name in ("Read", "Write", "Edit", "Bash", "Monitor", "WebFetch", "Grep", "Glob"):
        assert name not in claude.requests[0].tools
    assert "seed words" not in tool_results_json(claude.requests[-1])
    tools = ["Read", "Write", "Bash", "Bash", "WebFetch", "Monitor", "Grep", "mcp__notes__keep"]
    assert denied_tools(result) == tools


async def test_full_does_all_of_it_without_a_question_and_also_as_root(
    claude: Claude, workspace: Path, tmp_path: Path
) -> None:
    beyond = tmp_path / "beyond"
    beyond.mkdir()
    tried = [write("new.txt"), write(beyond / "far.txt"), shell("touch ran.txt"), KEEP]
    server = notes_server(tmp_path)
    events = await claude.events(steps(*tried), policy="all", mcp_servers=[server])
    result = result_from_events(events)
    assert result.ok
    assert file_names(workspace) == ["new.txt", "ran.txt", "seed.txt"]
    assert file_names(beyond) == ["far.txt"]
    assert (tmp_path / "note.txt").exists()
    assert result.denied == ()
    assert not [e for e in events if isinstance(e, PermissionRequest)]


async def test_whoever_is_asked_gives_leave_or_does_not_and_shell_rules_need_nobody(
    claude: Claude, workspace: Path
) -> None:
    asked: list[tuple[str, str | None]] = []

    async def ask(request: PermissionRequest) -> Decision:
        asked.append((request.kind, request.title))
        return "allow_once" if "wanted" in (request.title or "") else "deny"

    tried = [
        *(shell("touch ruled.txt"), shell("touch ruled.txt && touch smuggled.txt")),
        *(shell("touch forbidden.txt"), shell("touch wanted.txt"), shell("ls unwelcome")),
        write("wanted-too.txt"),
    ]
    rules = ("allow touch ruled.txt", "deny touch forbidden.txt")
    result = await claude.run(steps(*tried), ask=ask, policy=Policy(shell_rules=rules))
    assert result.ok
    assert file_names(workspace) == ["ruled.txt", "seed.txt", "wanted-too.txt", "wanted.txt"]
    assert [kind for kind, _ in asked] == ["execute", "execute", "execute", "edit"]
    assert denied_tools(result) == ["Bash", "Bash", "Bash"]


async def test_leave_for_the_session_lasts_from_turn_to_turn_and_no_longer(
    claude: Claude, workspace: Path
) -> None:
    asked: list[str | None] = []

    async def ask(request: PermissionRequest) -> Decision:
        asked.append(request.title)
        return "allow_session"

    tried = [shell("touch one.txt"), write("new.txt"), shell("touch two.txt")]
    script = [turn for call in (*tried[:2], *tried, tried[0]) for turn in steps(call)]
    options = claude.options(script, policy=Policy())
    async with corral.session("claude", ask=ask, **options) as session:
        for _ in range(5):
            assert (await session.run("do it")).denied == ()
    assert len(asked) == 3  # one for each command, one for whatever it writes
    assert file_names(workspace) == ["new.txt", "one.txt", "seed.txt", "two.txt"]
    async with corral.session("claude", ask=ask, **options) as other:
        await other.run("do it")
    assert len(asked) == 4


async def test_rules_hold_under_a_denied_and_over_a_free_shell(
    claude: Claude, workspace: Path
) -> None:
    tried = [shell("touch ruled.txt"), shell("touch other.txt"), shell("echo free")]
    policy = Policy(shell="deny", shell_rules=("allow touch ruled.txt",))
    result = await claude.run(steps(*tried), policy=policy)
    assert denied_tools(result) == ["Bash", "Bash"]
    assert file_names(workspace) == ["ruled.txt", "seed.txt"]
    policy = Policy(shell="allow", shell_rules=("deny touch ruled*",))
    (workspace / "ruled.txt").unlink()
    result = await claude.run(steps(*tried), policy=policy)
    assert denied_tools(result) == ["Bash"]
    assert file_names(workspace) == ["other.txt", "seed.txt"]


async def test_a_list_of_tools_is_all_there_is(
    claude: Claude, workspace: Path, tmp_path: Path
) -> None:
    tried = [write("new.txt"), read("seed.txt"), shell("echo hi"), KEEP, edit("seed.txt", "s", "w")]
    policy = Policy(allow_tools=("Write", "Read"), deny_tools=("Read",))
    server = notes_server(tmp_path)
    result = await claude.run(steps(*tried), policy=policy, mcp_servers=[server])
    assert file_names(workspace) == ["new.txt", "seed.txt"]
    assert set(claude.requests[0].tools) - {"mcp__notes__keep"} == {"Write"}
    assert not (tmp_path / "note.txt").exists()
    assert denied_tools(result) == ["Read", "Bash", "mcp__notes__keep", "Edit"]
    listed = Policy(allow_tools=("mcp__notes__keep",))
    result = await claude.run(steps(KEEP), policy=listed, mcp_servers=[server])
    assert (tmp_path / "note.txt").exists()
    assert claude.requests[0].tools == ("mcp__notes__keep",)


async def test_a_sub_agent_has_no_right_that_its_master_has_not(
    claude: Claude, workspace: Path
) -> None:
    tried = [write("sub.txt"), shell("touch ran.txt"), shell("echo hi")]

    def script(request: Request) -> Turn:
        done = len(request.tool_results)
        if any("the subtask" in text for text in request.texts[:3]):
            return Turn(text="at it", calls=[tried[done]]) if done < 3 else say("sub over")
        return Turn(calls=[delegate("the subtask")]) if not done else say("main over")

    events = check_stream(await claude.events(script, policy=Policy(write="allow")))
    result = result_from_events(events)
    assert result.ok
    assert result.text == "main over"
    assert file_names(workspace) == ["seed.txt", "sub.txt"]
    assert denied_tools(result) == ["Bash", "Bash"]
    below = [e.name for e in events if isinstance(e, ToolUse) and e.parent == "toolu_master"]
    assert below == ["Write", "Bash", "Bash"]


async def test_planning_writes_nothing_whatever_is_tried(claude: Claude, workspace: Path) -> None:
    tried = [read("seed.txt"), write("new.txt"), shell("touch ran.txt")]
    result = await claude.run(steps(*tried), policy=Policy.plan())
    assert result.ok
    assert file_names(workspace) == ["seed.txt"]
    assert denied_tools(result) == ["Write", "Bash"]
