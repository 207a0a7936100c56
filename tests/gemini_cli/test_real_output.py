"""What comes out: the whole answer, the true model, the real counts, the files on disk."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import git, replace, shell, steps, write
from support.hostile_git import Traps, make_repository

from corral import FileChanged, Usage, result_from_events
from corral.events import Done, Error, FileChange, Init, Text, ToolResult, ToolUse
from corral.testing import Call, Turn, say
from corral.values import path_from_printable

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli


@pytest.mark.parametrize(
    "size",
    [490_000, 3_000_000, pytest.param(20_000_000, marks=pytest.mark.slow)],
    ids=["490 kB", "3 MB", "20 MB"],
)
async def test_a_long_answer_arrives_whole(gemini: Gemini, size: int) -> None:
    chance = random.Random(size)
    line = "%08x ✓ 👩‍🚀\u2028\n"
    lines = (line % chance.getrandbits(32) for _ in range(size // len((line % 0).encode())))
    # In a code block the CLI does not look for loops, which takes it a minute for 20 MB.
    answer = f"```\n{''.join(lines)}```"

    result = await gemini.run([say(answer)])

    assert result.ok
    assert len(result.text) == len(answer)
    assert result.text == answer


async def test_the_events_of_a_run_tell_the_whole_story(gemini: Gemini, workspace: Path) -> None:
    first = {"input": 100, "cached": 30, "output": 7, "thoughts": 5}
    second = {"input": 200, "cached": 0, "output": 11, "thoughts": 0}
    script = [
        Turn(text="I shall write.", calls=[write("new.txt", "one\n")], usage=first),
        say("Writ", "ten.", usage=second),
    ]

    events = await gemini.events(script, "the prompt", policy="edits")

    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    kinds = [type(e) for e in events]
    assert kinds == [Init, Text, ToolUse, ToolResult, FileChange, Text, Text, Done]
    init, _, use, returned, change, *_, done = events
    assert isinstance(init, Init)
    assert isinstance(use, ToolUse)
    assert isinstance(returned, ToolResult)
    assert isinstance(change, FileChange)
    assert isinstance(done, Done)
    assert init.cwd == str(workspace)
    assert init.agent_version == "0.61.0"
    assert (use.name, use.kind, use.paths) == ("write_file", "edit", ("new.txt",))
    assert (returned.call_id, returned.name, returned.status) == (
        use.call_id,
        "write_file",
        "success",
    )
    assert (change.path, change.kind) == (str(workspace / "new.txt"), "created")
    result = result_from_events(events)
    assert result.text == "I shall write.\n\nWritten."
    assert result.final_text == "Written."
    assert result.usage == Usage(
        input=300, output=23, reasoning=5, cache_read=30, coverage="complete"
    )
    assert result.model == "gemini-2.5-flash"
    assert result.cost.usd is None


async def test_the_model_that_answered_is_told_and_a_silent_exchange_is_a_warning(
    gemini: Gemini,
) -> None:
    events = await gemini.events([say("hello")], model="gemini-3-pro-preview")
    result = result_from_events(events)
    assert result.model == "gemini-3.1-pro-preview"
    assert gemini.requests[0].model == "gemini-3.1-pro-preview"
    warnings = [e for e in events if isinstance(e, Error)]
    assert [(w.code, w.level) for w in warnings] == [("model_differs", "warning")]
    assert "gemini-3.1-pro-preview" in warnings[0].message

    events = await gemini.events([say("hello")], model="flash-lite")
    result = result_from_events(events)
    assert result.ok
    assert result.model == gemini.requests[-1].model != "flash-lite"
    assert [e for e in events if isinstance(e, Error)] == []


@pytest.mark.parametrize("repository", [True, False], ids=["git", "plain folder"])
async def test_files_are_what_really_changed_whoever_did_it(
    gemini: Gemini, workspace: Path, repository: bool
) -> None:
    names = ("edited.txt", "sedded.txt", "deleted.txt", "same.txt", "dirty.txt")
    for name in names:
        (workspace / name).write_text(f"{name}: old words\n")
    if repository:
        git(workspace, "init", "-q")
        git(workspace, "add", "-A")
        git(workspace, "commit", "-q", "-m", "first")
    (workspace / "dirty.txt").write_text("dirty before the run\n")

    result = await gemini.run(
        steps(
            write("made.txt", "one\ntwo\n"),
            replace(workspace / "edited.txt", "old", "new"),
            shell("sed -i s/old/new/ sedded.txt && touch same.txt"),
            shell("rm deleted.txt; cp same.txt copied.txt; touch gone.txt; rm gone.txt"),
            Call("read_file", {"file_path": "dirty.txt"}),
        ),
        policy="all",
    )

    assert result.ok
    assert result.files_complete
    found = {Path(f.path).relative_to(workspace).as_posix(): f for f in result.files}
    assert {name: f.kind for name, f in found.items()} == {
        "made.txt": "created",
        "copied.txt": "created",
        "edited.txt": "modified",
        "sedded.txt": "modified",
        "deleted.txt": "deleted",
    }
    assert {name for name, f in found.items() if f.by_tool} == {"made.txt", "edited.txt"}
    assert found["made.txt"] == FileChanged(
        str(workspace / "made.txt"), "created", lines_added=2, by_tool=True
    )


async def test_files_of_an_embedded_repository_and_names_that_are_not_utf8_are_reported(
    gemini: Gemini, workspace: Path, tmp_path: Path
) -> None:
    make_repository(workspace)
    traps = Traps(tmp_path / "traps")
    (workspace / "sub").mkdir()
    traps.embed(workspace / "sub")
    script = tmp_path / "script"
    odd = "echo x > \"$(printf 'caf\\351')\""
    script.write_text(f"echo work > sub/work; {odd}; mkfifo dir/.gitignore\n")

    result = await gemini.run([Turn(calls=[shell(f"sh {script}")]), say("Done.")], policy="all")

    assert (result.status, result.text) == ("success", "Done.")
    paths = {path_from_printable(each.path) for each in result.files}
    expected = ("sub/work", "caf\udce9", "dir/.gitignore")
    assert paths == {f"{workspace}/{name}" for name in expected}
    assert traps.ran == []
