"""What goes into a real agent and what comes out: system prompts, images, attached files, reasoning
effort, limits; events, usage, the model, and the files that changed."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest
from support.files import file_names
from support.model_scripts import sent_json, steps
from support.real_agents import EVERY_DAY, RealAgent, for_agents
from support.repositories import git

from corral import FileChanged, errors, result_from_events
from corral.events import Done, Error, FileChange, Init, ToolResult, ToolUse
from corral.run_kwargs import RunKwargs
from corral.testing import Turn, say

pytestmark = pytest.mark.timeout(400)

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9h"
    "AAAAAElFTkSuQmCC"
)
SOUND = b"RIFF\x24\0\0\0WAVEfmt " + random.Random(3).randbytes(64)


@for_agents(spine=EVERY_DAY - {"opencode-acp"})
async def test_the_events_of_a_run_report_its_tools_files_and_model(
    agent: RealAgent, workspace: Path
) -> None:
    script = [
        Turn(text="I shall write.", calls=[agent.write("new.txt", "one\n")]),
        Turn(calls=[agent.shell("echo heard; exit 3")]),
        say("Writ", "ten."),
    ]
    events = await agent.events(script, policy="all")
    result = result_from_events(events)
    assert result.ok
    assert result.final_text == "Written."
    assert result.text.startswith("I shall write.")
    used = [event for event in events if isinstance(event, ToolUse)]
    assert [(event.kind, event.call_id) for event in used] == [
        ("edit", used[0].call_id),
        ("execute", used[1].call_id),
    ]
    ended = [event for event in events if isinstance(event, ToolResult)]
    assert [event.call_id for event in ended] == [event.call_id for event in used]
    assert ended[0].status == "success"
    if agent.name not in ("gemini-acp", "codex-acp"):  # they report no output of this command
        assert "heard" in f"{ended[1].output} {ended[1].error}"
    changed = [(event.path, event.kind) for event in events if isinstance(event, FileChange)]
    assert changed == [(str(workspace / "new.txt"), "created")]
    assert [(file.path, file.kind) for file in result.files] == changed
    init, done = events[0], events[-1]
    assert isinstance(init, Init)
    assert isinstance(done, Done)
    assert init.cwd == str(workspace)
    package = agent.record.spec.package
    assert package is not None
    assert init.agent_version == package.tested
    assert result.model
    assert [event for event in events if isinstance(event, Error)] == []


@for_agents(lambda record: record.supports("replace_system_prompt"))
async def test_system_prompts_images_folders_and_effort_reach_the_model(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "dot.png").write_bytes(PIXEL)
    far = tmp_path / "two words.png"
    far.write_bytes(PIXEL + b"\0")
    (workspace / "prompt.md").write_text("from the file ✓\n")
    options: RunKwargs = {"system_prompt": 'Say "please".', "prompt_file": "prompt.md"}
    if agent.record.supports("images"):
        options["images"] = ["dot.png", far]
    if agent.record.effort_field:
        options["reasoning_effort"] = "low"
    added = await agent.run([say("done")], "not this", **options)
    assert added.ok, added.error
    first = agent.turns[0]
    sent = sent_json([first])
    assert 'Say "please".' in json.loads(json.dumps(first.system + first.last_text))
    assert agent.record.own_prompt in first.system
    assert "from the file ✓" in first.last_text
    assert "not this" not in sent
    if agent.record.supports("images"):
        for data in (PIXEL, PIXEL + b"\0"):
            assert base64.b64encode(data).decode() in sent
        assert "image/png" in sent
    if agent.record.effort_field:
        assert '"low"' in json.dumps(first.body[agent.record.effort_field])
    assert list((tmp_path / "corral-home" / "sessions").glob("*/images")) == []

    replaced = await agent.run([say("done")], replace_system_prompt="You are a parrot. ${x} 漢")
    assert replaced.ok
    assert "You are a parrot. ${x} 漢" in agent.turns[0].system
    assert agent.record.own_prompt not in agent.turns[0].system


@for_agents(lambda record: record.supports("attachments") and record.name != "codex-acp")
async def test_attached_files_reach_the_model(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "two words.txt").write_text("/clear the words inside\n")
    outside = tmp_path / "outside.md"
    outside.write_text("# words from 漢 outside\n")
    result = await agent.run(
        [Turn(text="read", repeat="forever")],
        "what do they say?",
        attachments=["two words.txt", outside],
    )
    assert result.final_text == "read"
    sent = sent_json(agent.turns[-1:])
    assert "/clear the words inside" in sent
    assert "# words from 漢 outside" in sent
    assert "what do they say?" in sent


@for_agents(lambda record: record.supports("audio"))
async def test_sounds_and_images_reach_the_model_with_their_type(
    agent: RealAgent, workspace: Path
) -> None:
    (workspace / "word.wav").write_bytes(SOUND)
    (workspace / "dot.png").write_bytes(PIXEL)
    (workspace / "note.txt").write_text("words")
    if agent.name != "gemini-acp":
        pytest.skip("the protocol has no audio for this agent's model API")
    options: RunKwargs = {"audio": ["word.wav"], "images": ["dot.png"]}
    result = await agent.run([say("heard")], "what is it?", **options)
    assert result.text == "heard"
    sent = sent_json(agent.turns[-1:])
    for kind, data in (("audio/wav", SOUND), ("image/png", PIXEL)):
        assert kind in sent
        assert base64.b64encode(data).decode() in sent
    assert agent.turns[-1].last_text.startswith("what is it?")


@pytest.mark.parametrize("repository", [True, False], ids=["git", "plain-folder"])
@for_agents("gemini-cli")
async def test_files_are_what_changed_on_the_disk_whoever_changed_it(
    agent: RealAgent, workspace: Path, repository: bool
) -> None:
    names = ("edited.txt", "sedded.txt", "deleted.txt", "same.txt", "dirty.txt")
    for name in names:
        (workspace / name).write_text(f"{name}: old words\n")
    if repository:
        git(workspace, "init", "-q")
        git(workspace, "add", "-A")
        git(workspace, "commit", "-q", "-m", "first")
    (workspace / "dirty.txt").write_text("dirty before the run\n")
    calls = [
        agent.write("made.txt", "one\ntwo\n"),
        agent.edit(workspace / "edited.txt", "edited.txt: old words", "edited.txt: new words"),
        agent.shell("sed -i s/old/new/ sedded.txt && touch same.txt"),
        agent.shell("rm deleted.txt; cp same.txt copied.txt; touch gone.txt; rm gone.txt"),
        agent.read("dirty.txt"),
    ]
    result = await agent.run(steps(*calls), policy="all")
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


@for_agents(lambda record: record.supports("max_turns"))
async def test_a_turn_limit_ends_the_run(agent: RealAgent, seed: Path) -> None:
    script = [Turn(calls=[agent.read("seed.txt")], repeat="forever")]
    result = await agent.run(script, max_turns=2)
    assert result.status == "max_turns"
    with pytest.raises(errors.TurnLimit, match="2"):
        result.raise_for_status()


@pytest.mark.deep
@pytest.mark.parametrize(
    "size",
    [3_000_000, pytest.param(20_000_000, marks=pytest.mark.deep)],
    ids=["3-MB", "20-MB"],
)
@for_agents(*("gemini-cli", "gemini-acp", "opencode-cli", "codex-cli"))
async def test_a_long_prompt_and_a_long_answer_arrive_complete(
    agent: RealAgent, workspace: Path, size: int
) -> None:
    chance = random.Random(size)
    line = "%08x ✓ 👩‍🚀\u2028\n"
    lines = (line % chance.getrandbits(32) for _ in range(size // len((line % 0).encode())))
    # In a code block Gemini CLI does not look for loops, which takes it a minute for 20 MB.
    answer = f"```\n{''.join(lines)}```"
    prompt = '-- "quoted" $HOME @file /init \u2028 ü\n' + "word " * 60_000
    result = await agent.run([say(answer)], prompt)
    assert result.ok
    assert len(result.text) == len(answer)
    assert result.text == answer
    assert agent.turns[0].last_text.strip() == prompt.strip()
    assert file_names(workspace) == []


@for_agents("gemini-cli", "claude-cli", "codex-cli", "qwen-cli")
async def test_a_prompt_over_the_limit_is_refused_before_the_start(agent: RealAgent) -> None:
    with pytest.raises(errors.PromptError):
        await agent.run([say("never")], "x" * (agent.record.spec.prompt_limit + 1))
    assert agent.requests == []
