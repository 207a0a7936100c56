"""Each capability, allowed and denied: proven on the disk, on the wire and in the request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import (
    delegate,
    denied_tools,
    fetch,
    file_names,
    git,
    notes_server,
    read,
    replace,
    search,
    sent_json,
    shell,
    steps,
    tool_results_json,
    write,
)

from corral import Policy
from corral.testing import Call

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli

READERS = {"read_file", "list_directory", "grep_search", "glob"}
WRITERS = {"write_file", "replace"}
NET = {"web_fetch", "google_web_search"}
SHELL = {"run_shell_command", "list_background_processes", "read_background_output"}

EVERYTHING = (
    write("new.txt"),
    replace("seed.txt", "seed", "weed"),
    shell("touch ran.txt"),
    fetch("http://example.com/"),
    search("anything"),
    delegate("write a file"),
)
FORBIDDEN = [call.name for call in EVERYTHING]


@pytest.fixture(autouse=True)
def seed(workspace: Path) -> Path:
    file = workspace / "seed.txt"
    file.write_text("seed words\n")
    return file


def searches(gemini: Gemini) -> int:
    """How often the search tool went out: it asks a model of its own, beside the talk."""
    return len([request for request in gemini.requests if request.aside])


@pytest.mark.slow  # the attack kit makes the same attempts, and more
@pytest.mark.parametrize("policy", [Policy.read_only(), Policy()], ids=["read_only", "unset"])
async def test_reading_alone_is_allowed_and_everything_else_leaves_no_trace(
    gemini: Gemini, workspace: Path, policy: Policy
) -> None:
    result = await gemini.run(steps(read("seed.txt"), *EVERYTHING), policy=policy)

    assert result.ok
    assert result.text == "done"
    assert set(gemini.requests[0].tools) == READERS | {"write_todos"}
    assert "seed words" in tool_results_json(gemini.requests[1])
    assert file_names(workspace) == ["seed.txt"]
    assert (workspace / "seed.txt").read_text() == "seed words\n"
    assert searches(gemini) == 0
    assert denied_tools(result) == FORBIDDEN
    assert result.denied[0].title == "write_file new.txt"
    assert result.denied[0].reason == "write_file is not available under this policy"
    assert result.files == ()


@pytest.mark.slow  # the attack kit makes the same attempts, and more
async def test_without_any_policy_nothing_is_written_and_nothing_is_run(
    gemini: Gemini, workspace: Path
) -> None:
    result = await gemini.run(steps(*EVERYTHING))

    assert result.ok
    assert file_names(workspace) == ["seed.txt"]
    assert denied_tools(result) == FORBIDDEN


@pytest.mark.slow  # the attack kit makes the same attempts, and more
async def test_edits_writes_in_the_workspace_and_nowhere_else(
    gemini: Gemini, workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs.txt").write_text("theirs\n")
    (workspace / "door").symlink_to(outside)
    (workspace / "link.txt").symlink_to(outside / "theirs.txt")
    (workspace / "dangling.txt").symlink_to(outside / "fresh.txt")
    (workspace / ".gemini").mkdir()
    (workspace / ".gemini" / "kept.json").write_text("kept\n")
    (workspace / "deep").mkdir()
    escapes = (
        write("../up.txt"),
        write(outside / "absolute.txt"),
        write("door/through.txt"),
        write("link.txt"),
        write("dangling.txt"),
        write("deep/../../up.txt"),
        write("deep/%2e%2e/%2e%2e/up.txt"),
        replace(outside / "theirs.txt", "theirs", "ours"),
        read(outside / "theirs.txt"),
        write(".gemini/settings.json", "{}"),
        write(workspace / ".gemini" / "settings.json", "{}"),
        write("deep/../.gemini/settings.json", "{}"),
        write("./.gemini/commands/x.toml", "{}"),
        write(".gem%69ni/percent.json", "{}"),
        write(".gem\0ini/nul.json", "{}"),
        replace(".gemini/kept.json", "kept", "lost"),
    )
    corrected = (  # the CLI looks for a relative path that is not there in other folders
        replace("kept.json", "kept", "lost"),
        replace("deep/kept.json", "kept", "lost"),
    )
    script = steps(
        write("new.txt", "one\ntwo\n"),
        replace(workspace / "seed.txt", "seed", "changed"),
        *escapes,
        *corrected,
        shell("touch ran.txt"),
        search("anything"),
    )

    result = await gemini.run(script, policy="edits")

    assert result.ok
    assert set(gemini.requests[0].tools) == READERS | WRITERS | {"write_todos"}
    assert (workspace / "new.txt").read_text() == "one\ntwo\n"
    assert (workspace / "seed.txt").read_text() == "changed words\n"
    assert file_names(outside) == ["theirs.txt"]
    assert (outside / "theirs.txt").read_text() == "theirs\n"
    assert not (tmp_path / "up.txt").exists()
    assert file_names(workspace / ".gemini") == ["kept.json"]
    assert (workspace / ".gemini" / "kept.json").read_text() == "kept\n"
    assert denied_tools(result) == [
        *(call.name for call in (*escapes, *corrected)),
        "run_shell_command",
        "google_web_search",
    ]
    changed = {(Path(f.path).name, f.kind, f.by_tool) for f in result.files}
    assert changed == {("new.txt", "created", True), ("seed.txt", "modified", True)}


async def test_full_does_all_of_it_even_what_the_cli_thinks_dangerous(
    gemini: Gemini, workspace: Path
) -> None:
    git(workspace, "init", "-q")
    git(workspace, "config", "user.name", "Agent")
    git(workspace, "config", "user.email", "agent@example.org")
    (workspace / "doomed" / "deep").mkdir(parents=True)
    (workspace / "doomed" / "deep" / "file.txt").write_text("x")
    script = steps(
        write("new.txt"),
        shell("rm -rf doomed"),
        shell("echo redirected > out.txt 2>&1"),
        shell("printf 'b\\na\\n' | sort | tee sorted.txt"),
        shell("git add -A && git commit -q -m 'by the agent'\ngit status --short"),
        shell("find . -name new.txt -exec touch found.txt \\;"),
        search("anything"),
        fetch("http://example.com/"),
    )

    result = await gemini.run(script, policy="all")

    assert result.ok
    assert result.denied == ()
    assert set(gemini.requests[0].tools) >= READERS | WRITERS | NET | SHELL | {"invoke_agent"}
    assert not (workspace / "doomed").exists()
    assert (workspace / "out.txt").read_text() == "redirected\n"
    assert (workspace / "sorted.txt").read_text() == "a\nb\n"
    assert git(workspace, "log", "--format=%s %an") == "by the agent Agent\n"
    assert (workspace / "found.txt").exists()
    assert searches(gemini) == 1


async def test_one_capability_brings_its_own_tools_and_no_other(
    gemini: Gemini, workspace: Path
) -> None:
    await gemini.run(steps(*EVERYTHING), policy=Policy(network="allow"))
    assert set(gemini.requests[0].tools) == READERS | NET | {"write_todos"}
    assert file_names(workspace) == ["seed.txt"]
    assert searches(gemini) == 1

    script = steps(read("seed.txt"), write("new.txt"))
    blind = await gemini.run(script, policy=Policy(read="deny", write="allow"))
    assert set(gemini.requests[0].tools) == WRITERS | {"write_todos"}
    assert denied_tools(blind) == ["read_file"]
    assert "seed words" not in sent_json(gemini.requests)
    assert file_names(workspace) == ["new.txt", "seed.txt"]

    runner = await gemini.run(steps(*EVERYTHING[:3]), policy=Policy(shell="allow"))
    assert set(gemini.requests[0].tools) >= READERS | SHELL
    assert not set(gemini.requests[0].tools) & (WRITERS | NET)
    assert denied_tools(runner) == ["write_file", "replace"]
    assert file_names(workspace) == ["new.txt", "ran.txt", "seed.txt"]


async def test_an_mcp_tool_runs_where_mcp_is_allowed(gemini: Gemini, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    keep = Call("mcp_notes_keep", {"text": "remember"})
    options = notes_server(notes)

    result = await gemini.run(steps(keep), policy=Policy(mcp="allow"), mcp_servers=[options])

    assert result.ok
    assert result.denied == ()
    assert (notes / "note.txt").read_text() == "remember"
    assert "kept" in tool_results_json(gemini.requests[1])
    assert "mcp_notes_keep" in gemini.requests[0].tools


@pytest.mark.parametrize("policy", [Policy(mcp="deny"), Policy.edits()], ids=["denied", "asked"])
async def test_an_mcp_tool_is_neither_offered_nor_run_where_it_is_not(
    gemini: Gemini, tmp_path: Path, policy: Policy
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    keep = Call("mcp_notes_keep", {"text": "remember"})

    result = await gemini.run(steps(keep), policy=policy, mcp_servers=[notes_server(notes)])

    assert result.ok
    assert (notes / "started").exists()
    assert not (notes / "note.txt").exists()
    assert "mcp_notes_keep" not in gemini.requests[0].tools
    assert denied_tools(result) == ["mcp_notes_keep"]


async def test_allow_tools_is_exact_and_deny_tools_beats_it(
    gemini: Gemini, workspace: Path
) -> None:
    policy = Policy(allow_tools=("glob", "write_file", "run_shell_command"))
    await gemini.run(steps(write("a.txt"), shell("rm -rf seed.txt > log.txt")), policy=policy)
    assert set(gemini.requests[0].tools) == {"glob", "write_file", "run_shell_command"}
    assert file_names(workspace) == ["a.txt", "log.txt"]

    policy = Policy(
        write="allow", allow_tools=("read_file", "write_file"), deny_tools=("write_file",)
    )
    result = await gemini.run(steps(write("b.txt"), read("a.txt")), policy=policy)
    assert set(gemini.requests[0].tools) == {"read_file"}
    assert denied_tools(result) == ["write_file"]
    assert file_names(workspace) == ["a.txt", "log.txt"]

    policy = Policy(read="allow", write="allow", shell="allow", deny_tools=("run_shell_command",))
    result = await gemini.run(steps(shell("touch c.txt")), policy=policy)
    assert "run_shell_command" not in gemini.requests[0].tools
    assert "write_file" in gemini.requests[0].tools
    assert denied_tools(result) == ["run_shell_command"]
    assert file_names(workspace) == ["a.txt", "log.txt"]


async def test_an_empty_list_of_tools_means_none(gemini: Gemini, workspace: Path) -> None:
    script = steps(read("seed.txt"), *EVERYTHING)
    result = await gemini.run(script, policy=Policy(write="allow", allow_tools=()))

    assert result.ok
    assert gemini.requests[0].tools == ()
    assert file_names(workspace) == ["seed.txt"]
    assert "seed words" not in sent_json(gemini.requests)
    assert denied_tools(result) == ["read_file", *FORBIDDEN]


async def test_included_folders_can_be_read_and_writable_ones_written(
    gemini: Gemini, workspace: Path, tmp_path: Path
) -> None:
    shown, given, hidden = (tmp_path / name for name in ("shown", "given", "hidden"))
    for folder in (shown, given, hidden):
        folder.mkdir()
        (folder / "text.txt").write_text(f"of {folder.name}\n")
    script = steps(
        read(shown / "text.txt"),
        write(given / "new.txt"),
        write(given / ".gemini" / "settings.json", "{}"),
        read(hidden / "text.txt"),
        write(hidden / "new.txt"),
        write(shown / "new.txt"),
        write("../shown/new.txt"),
        write("%2e%2e/shown/new.txt"),
        write(workspace / ".." / "shown" / "new.txt"),
        write(f"{given}/../shown/new.txt"),
        replace("text.txt", "of shown", "changed"),
        replace(shown / "text.txt", "of shown", "changed"),
        write("new.txt"),
        replace(workspace / "seed.txt", "seed", "changed"),
    )

    result = await gemini.run(
        script,
        policy=Policy(write="allow", writable=("../given",)),
        include_directories=[shown],
    )

    assert result.ok
    told = tool_results_json(gemini.requests[-1])
    assert "of shown" in told
    assert "of hidden" not in told
    assert (given / "new.txt").exists()
    assert not (given / ".gemini").exists()
    assert not (hidden / "new.txt").exists()
    assert not (shown / "new.txt").exists()
    assert (shown / "text.txt").read_text() == "of shown\n"
    assert (workspace / "new.txt").exists()
    assert (workspace / "seed.txt").read_text() == "changed words\n"


async def test_a_sub_agent_has_no_more_rights_than_the_one_that_sent_it(
    gemini: Gemini, workspace: Path
) -> None:
    finished = Call("complete_task", {"result": {"response": "tried"}})
    script = steps(delegate("write a file"), write("sub.txt"), shell("touch sub2.txt"), finished)
    policy = Policy(allow_tools=("invoke_agent", "complete_task", "read_file"))

    result = await gemini.run(script, policy=policy)

    assert result.ok
    assert file_names(workspace) == ["seed.txt"]
    sub_agent = gemini.requests[1]
    assert "complete_task" in sub_agent.tools
    assert not set(sub_agent.tools) & (WRITERS | SHELL)


async def test_plan_mode_changes_nothing(gemini: Gemini, workspace: Path) -> None:
    result = await gemini.run(steps(read("seed.txt"), *EVERYTHING), approval_mode="plan")

    assert result.ok
    assert file_names(workspace) == ["seed.txt"]
    assert "exit_plan_mode" in gemini.requests[0].tools
    assert not set(gemini.requests[0].tools) & (WRITERS | SHELL | NET)
    assert denied_tools(result) == FORBIDDEN


async def test_native_leaves_the_agent_to_its_own_defaults(gemini: Gemini, workspace: Path) -> None:
    script = steps(read("seed.txt"), *EVERYTHING[:3])
    result = await gemini.run(script, policy=Policy.native())

    assert result.ok
    assert set(gemini.requests[0].tools) == READERS | {"google_web_search", "invoke_agent"}
    assert file_names(workspace) == ["seed.txt"]
    assert denied_tools(result) == ["write_file", "replace", "run_shell_command"]
