"""The real ``opencode run``: proven on the disk, on the wire and in the request.

A run takes seconds to start, so a test asks one run all it can.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opencode.test_real_opencode import read, shell, write
from support.gemini_tools import (
    denied_tools,
    fifo_signal,
    file_names,
    notes_server,
    processes_matching,
    sent_json,
    steps,
    tool_results_json,
)
from support.real_agents import cancel_while_running
from support.stream_checks import check_stream

import corral
from corral import Policy, Result, errors, result_from_events
from corral.events import Init, Text, Thinking
from corral.testing import Call, Turn, say

if TYPE_CHECKING:
    from opencode.conftest import OpenCode

pytestmark = [pytest.mark.opencode, pytest.mark.timeout(180)]

AGENT = "opencode-cli"
PAGE = Call("webfetch", {"url": "http://127.0.0.1:1/", "format": "text"})


@pytest.fixture(autouse=True)
def seed(workspace: Path) -> Path:
    file = workspace / "seed.txt"
    file.write_text("seed words\n")
    return file


async def test_an_answer_is_told_whole_with_thoughts_tokens_and_what_was_said_before(
    opencode: OpenCode, workspace: Path, tmp_path: Path
) -> None:
    prompt = '--help "quoted"\n/init @seed.txt $HOME\nend'
    long = "x" * 2_000_000
    script = [
        Turn(
            thoughts="weighing",
            text=("Hel", "lo."),
            usage={"input": 120, "cached": 20, "output": 7, "thoughts": 3},
        ),
        Turn(text=long),
    ]
    options = opencode.options(script, system_prompt="Be brief and KIND.")
    async with corral.session(AGENT, **options) as session:
        events = check_stream([event async for event in session.prompt(prompt)])
        again = await session.run("second question")

    first = result_from_events(events)
    assert first.ok
    assert isinstance(events[0], Init)
    assert [e.delta for e in events if isinstance(e, Text)] == ["Hello."]
    assert [e.delta for e in events if isinstance(e, Thinking)] == ["weighing"]
    assert first.usage == corral.Usage(
        input=120, output=10, reasoning=3, cache_read=20, cache_write=0, coverage="complete"
    )
    assert opencode.requests[0].last_text == prompt
    assert "Be brief and KIND." in sent_json(opencode.requests[:1])
    assert again.text == long
    assert again.session_id == first.session_id
    told = [(m.role, text) for m in opencode.requests[1].history for text in m.texts]
    assert told == [("user", prompt), ("model", "Hello."), ("user", "second question")]
    assert file_names(workspace) == ["seed.txt"]
    assert processes_matching(str(tmp_path)) == []
    assert opencode.failures == []


@pytest.mark.slow  # the attack kit makes the same attempts, and more
async def test_without_leave_nothing_is_written_run_or_fetched_and_what_was_tried_is_told(
    opencode: OpenCode, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("secret words\n")
    script = steps(
        read("seed.txt"),
        read(tmp_path / "secret.txt"),
        write("new.txt"),
        write("seed.txt", "gone\n"),
        shell("touch ran.txt"),
        shell("> seed.txt"),
        PAGE,
        Call("notes_keep", {"text": "remember"}),
    )
    options = opencode.options(script, mcp_servers=[notes_server(tmp_path)])
    result = await corral.run(AGENT, "do it", **options)
    assert result.ok
    assert result.text == "done"
    assert file_names(workspace) == ["seed.txt"]
    assert (workspace / "seed.txt").read_text() == "seed words\n"
    assert not (tmp_path / "note.txt").exists()
    assert denied_tools(result) == [
        "read",
        "write",
        "write",
        "bash",
        "bash",
        "webfetch",
        "notes_keep",
    ]
    assert "seed words" in tool_results_json(opencode.requests[1])
    assert "secret words" not in sent_json(opencode.requests)


@pytest.mark.slow  # the attack kit makes the same attempts, and more
async def test_edits_writes_in_the_workspace_and_what_is_writable_and_nowhere_else(
    opencode: OpenCode, workspace: Path, tmp_path: Path
) -> None:
    more, notes = tmp_path / "more", tmp_path / "notes"
    more.mkdir()
    notes.mkdir()
    policy = Policy(write="allow", shell="deny", mcp="allow", writable=(str(more),))
    script = steps(
        write("new.txt", "words\n"),
        write(more / "also.txt"),
        write(tmp_path / "up.txt"),
        write("opencode.json", "{}"),
        shell("touch ran.txt"),
        Call("notes_keep", {"text": "remember"}),
    )
    server = notes_server(notes, NOTES_TOKEN="canary-of-the-notes")
    options = opencode.options(script, policy=policy, mcp_servers=[server])
    result = await corral.run(AGENT, "do it", **options)
    assert result.ok
    assert [(file.path, file.kind) for file in result.files] == [
        (str(more / "also.txt"), "created"),
        (str(workspace / "new.txt"), "created"),
    ]
    assert file_names(workspace) == ["new.txt", "seed.txt"]
    assert file_names(more) == ["also.txt"]
    assert not (tmp_path / "up.txt").exists()
    assert denied_tools(result) == ["write", "write", "bash"]
    assert (notes / "note.txt").read_text() == "remember"


async def test_with_full_leave_it_works_and_cancelling_leaves_nothing_of_its_command(
    opencode: OpenCode, workspace: Path, tmp_path: Path
) -> None:
    sign = f"300.{uuid.uuid4().int}"
    with fifo_signal(tmp_path / "bell") as rung:
        command = f"touch ran.txt; sleep {sign} & echo up > {rung.path}; sleep {sign}"
        script = steps(write(tmp_path / "up.txt"), shell(command))
        options = opencode.options(script, policy="all")
        async with corral.session(AGENT, **options) as session:
            await cancel_while_running(session, sign, rung)
    assert processes_matching(str(tmp_path)) == []
    assert (workspace / "ran.txt").exists()
    assert (tmp_path / "up.txt").exists()


async def test_only_listed_tools_may_be_used_and_a_session_stays_in_its_folder(
    opencode: OpenCode, workspace: Path, tmp_path: Path
) -> None:
    script = [*steps(read("seed.txt"), shell("touch ran.txt"), write("new.txt")), say("again")]
    policy = Policy(allow_tools=("bash",))
    options = opencode.options(script, policy=policy)
    result = await corral.run(AGENT, "do it", **options)
    assert result.ok
    assert file_names(workspace) == ["ran.txt", "seed.txt"]
    assert denied_tools(result) == ["read", "write"]
    # OpenCode itself would hang for ever over a session of another folder.
    other = tmp_path / "other"
    other.mkdir()
    options["resume"] = result.resume_token
    with pytest.raises(errors.ResumeLost, match="another folder"):
        await corral.run(AGENT, "go on", **{**options, "cwd": other})  # type: ignore[arg-type]
    again = await corral.run(AGENT, "go on", **options)
    assert again.text == "again"
    assert again.session_id == result.session_id


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (Turn(status=401, message="Incorrect API key provided."), errors.AuthenticationFailed),
        (Turn(text="half", finish="length"), errors.ContextLengthExceeded),
        (Turn(text=""), errors.EmptyAnswer),
    ],
)
async def test_a_failure_is_told_as_what_it_is(
    opencode: OpenCode, turn: Turn, kind: type[errors.CorralError]
) -> None:
    result: Result = await corral.run(AGENT, "do it", **opencode.options([turn]))
    with pytest.raises(kind):
        result.raise_for_status()
    assert "canary" not in str(result.error)
