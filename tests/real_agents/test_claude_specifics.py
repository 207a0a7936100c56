"""Claude Code: what only this agent does.

Its budget, its cost report, its sub-agents, its notebooks, files that it accepts beside a prompt,
and an answer that it starts again after a lost connection.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.files import file_names
from support.mcp_servers import notes_server
from support.model_scripts import steps
from support.real_agents import RealAgent, denied_tools, for_agents

import corral
from corral import Policy, errors, result_from_events
from corral.events import Error, ToolUse
from corral.testing import Call, Request, Turn, say
from corral.values import Json

pytestmark = pytest.mark.timeout(300)

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
PAPER = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    b"2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\ntrailer<</Root 1 0 R>>\n"
)
NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


@for_agents("claude-cli")
async def test_a_resumed_session_has_the_system_prompt_of_the_new_run(agent: RealAgent) -> None:
    usage = {"input": 1200, "cached": 200, "written": 100, "output": 7, "thoughts": 3}
    script = [Turn(text="one", usage=usage), say("two")]
    options = agent.options(script, system_prompt="Speak like a pirate.")
    first = await corral.run(agent.name, "question", **options)
    options["resume"], options["system_prompt"] = first.resume_token, "Speak like a poet."
    assert (await corral.run(agent.name, "again", **options)).ok
    assert "pirate" in agent.requests[0].system
    assert "poet" in agent.requests[1].system
    assert "pirate" not in agent.requests[1].system
    assert first.usage == corral.Usage(
        input=1200, output=10, reasoning=3, cache_read=200, cache_write=100, coverage="complete"
    )
    assert first.cost.source == "metered"
    assert first.model == "claude-sonnet-5"


@for_agents("claude-cli")
async def test_a_budget_ends_the_run(agent: RealAgent) -> None:
    usage = {"input": 90_000, "output": 900}
    script = [Turn(calls=[agent.read("nope")], usage=usage, repeat="forever")]
    result = await agent.run(script, max_cost=0.01)
    assert result.status == "max_budget"
    with pytest.raises(errors.BudgetExceeded, match=r"max_cost=0.01"):
        result.raise_for_status()


@for_agents("claude-cli")
async def test_text_that_is_repeated_after_a_lost_connection_is_a_warning(
    agent: RealAgent,
) -> None:
    script = [Turn(text=("Hello ", "you ", "there"), cut=2, chunk_delay=0.3), say("Hello")]
    events = await agent.events(script, retries=1)
    assert result_from_events(events).ok
    assert "text_repeated" in [event.code for event in events if isinstance(event, Error)]


@for_agents("claude-cli")
async def test_attached_files_are_sent_by_their_content_not_by_their_name(
    agent: RealAgent, workspace: Path
) -> None:
    (workspace / "no-name").write_bytes(PIXEL)
    (workspace / "png.jpg").write_bytes(PIXEL)
    (workspace / "notes.md").write_text("/clear the attached words\n")
    (workspace / "paper").write_bytes(PAPER)
    result = await agent.run(
        [say("seen")], "/look", images=["png.jpg"], attachments=["notes.md", "paper", "no-name"]
    )
    assert result.text == "seen"
    first = agent.requests[0]
    assert "\u2060/look" in first.texts
    assert any("/clear the attached words" in text for text in first.texts)
    messages = msgspec.convert(first.body["messages"], list[dict[str, Any]])
    found = [
        (block["type"], block["source"]["media_type"], block["source"]["data"])
        for message in messages
        for block in message["content"]
        if block["type"] in ("image", "document")
    ]
    pixel, paper = (base64.b64encode(data).decode() for data in (PIXEL, PAPER))
    image = ("image", "image/png", pixel)
    assert found == [image, ("document", "application/pdf", paper), image]


@for_agents("claude-cli")
async def test_files_that_it_does_not_accept_are_refused_before_it_starts(
    agent: RealAgent, workspace: Path
) -> None:
    (workspace / "song.mp3").write_bytes(b"ID3\xff\xfe")
    (workspace / "blob").write_bytes(b"\xff\xfe\xfd")
    (workspace / "old.bmp").write_bytes(b"BM\xff\xfe")
    (workspace / "long.txt").write_text("x" * 10_000_000)
    with pytest.raises(errors.ConfigError, match="accepts no audio/mpeg"):
        await agent.run([say("never")], attachments=["song.mp3"])
    with pytest.raises(errors.ConfigError, match="neither text nor an image"):
        await agent.run([say("never")], attachments=["blob"])
    with pytest.raises(errors.MediaInvalid, match="accepts no image/"):
        await agent.run([say("never")], images=["old.bmp"])
    with pytest.raises(errors.PromptError, match="over the"):
        await agent.run([say("never")], attachments=["long.txt"])
    with pytest.raises(errors.ConfigError, match="no option 'audio'"):
        await agent.run([say("never")], audio=["song.mp3"])
    assert agent.requests == []


@for_agents("claude-cli")
async def test_a_listed_mcp_tool_is_the_only_tool(agent: RealAgent, tmp_path: Path) -> None:
    keep = agent.mcp_tool("notes", "keep", text="remember")
    policy = Policy(allow_tools=(keep.name,))
    await agent.run(steps(keep), policy=policy, mcp_servers=[notes_server(tmp_path)])
    assert (tmp_path / "note.txt").exists()
    assert agent.requests[0].tools == (keep.name,)


@pytest.mark.usefixtures("seed")
@for_agents("claude-cli")
async def test_a_sub_agent_has_no_more_rights_than_the_main_agent(
    agent: RealAgent, workspace: Path
) -> None:
    attempts = [agent.write("sub.txt"), agent.shell("touch ran.txt"), agent.shell("echo hi")]
    (delegate,) = agent.calls("delegate", prompt="the subtask")
    delegate = Call(delegate.name, delegate.args, id="toolu_main")

    def script(request: Request) -> Turn:
        done = len(request.tool_results)
        if any("the subtask" in text for text in request.texts[:3]):
            return Turn(text="working", calls=[attempts[done]]) if done < 3 else say("sub ended")
        return Turn(calls=[delegate]) if not done else say("main ended")

    events = await agent.events(script, policy=Policy(write="allow"))
    result = result_from_events(events)
    assert result.ok
    assert result.text == "main ended"
    assert file_names(workspace) == ["seed.txt", "sub.txt"]
    assert denied_tools(result) == ["Bash", "Bash"]
    below = [e.name for e in events if isinstance(e, ToolUse) and e.parent == "toolu_main"]
    assert below == ["Write", "Bash", "Bash"]


@for_agents("claude-cli", "claude-acp")
async def test_notebooks_are_edited_in_the_workspace_only(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.ipynb"
    inside = workspace / "book.ipynb"
    for path in (outside, inside):
        path.write_text(NOTEBOOK)
    (workspace / "link.ipynb").symlink_to(outside)
    calls = [agent.read("book.ipynb")]
    given: dict[str, Json] = {"new_source": "x", "edit_mode": "insert", "cell_type": "code"}
    for name in ("book.ipynb", "link.ipynb", str(outside)):
        calls.append(Call("NotebookEdit", {"notebook_path": name, **given}))
    await agent.attempt(calls, policy=Policy.edits())
    assert inside.read_text() != NOTEBOOK
    assert outside.read_text() == NOTEBOOK
