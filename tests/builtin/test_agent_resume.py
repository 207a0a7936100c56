"""Continued conversations of the built-in agent: in a session, from disk, after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.builtin_agent import (
    KEY,
    MODELS,
    BuiltinAgent,
    events_of,
    inline_media,
    last_tool_result,
    model_env,
    process_exists,
    read_pid,
    run_command,
)
from support.scripted_agent import child_pids

import corral
from corral._builtin.history import CUT_OFF, NAME, History
from corral._sessions import store
from corral._system.process.process import Process, ProcessSpec
from corral.events import Init
from corral.messages import Image, Message, Text, ToolCall, ToolResult
from corral.result import Result, result_from_events
from corral.testing import Call, Turn, call, say

pytest_plugins = ("support.builtin_agent_fixture",)

CHILD = """
import asyncio, sys, corral
async def main():
    options = {"policy": "all", "retries": 0}
    if len(sys.argv) > 3:
        options["resume"] = sys.argv[3]
    result = await corral.run(sys.argv[1], sys.argv[2], check=True, **options)
    print(result.resume_token, result.text, sep="\\n")
asyncio.run(main())
"""


async def _child(ours: BuiltinAgent, *words: str) -> Process:
    env = {**os.environ, **model_env(ours.lane)}
    argv = [sys.executable, "-c", CHILD, MODELS["gemini"], *words]
    return await Process.start(ProcessSpec(argv, cwd=ours.workspace, env=env, stderr_tail=4000))


async def _output_lines(process: Process) -> list[str]:
    out = b""
    try:
        while chunk := await process.read():
            out += chunk
        exited = await process.wait()
    finally:
        await process.end(1)
    assert exited.code == 0, process.stderr
    return out.decode().splitlines()


async def test_prompts_of_a_session_share_a_history(ours: BuiltinAgent) -> None:
    async with ours.session([say("One."), call("list_dir"), say("Two."), say("Three.")]) as session:
        results: list[Result] = [await session.run(text) for text in ("a", "b", "c")]
    assert [result.final_text for result in results] == ["One.", "Two.", "Three."]
    assert ours.requests[-1].texts == ["a", "One.", "b", "Two.", "c"]
    assert len({result.session_id for result in results}) == 1
    assert len({result.run_id for result in results}) == 3


async def test_another_process_resumes_the_session(ours: BuiltinAgent) -> None:
    ours.options([call("list_dir"), say("One."), say("Two.")])
    token, output = await _output_lines(await _child(ours, "first"))
    second, answer = await _output_lines(await _child(ours, "second", token))
    assert (output, answer, second) == ("One.", "Two.", token)
    last = ours.requests[-1]
    assert last.texts == ["first", "One.", "second"]
    assert [made.name for made in last.tool_calls] == ["list_dir"]
    assert [name for name, _ in last.tool_results] == ["list_dir"]


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_killed_session_is_resumed_with_a_valid_history(
    ours: BuiltinAgent, turns: int
) -> None:
    """In its first turn, or in a later one."""
    hangs = Turn(text="Trying.", calls=[Call("shell", {"command": "echo $$ > pid; sleep 300"})])
    ours.options([*[say("One.")] * turns, hangs, say("Back.")])
    token = (await _output_lines(await _child(ours, "first")))[0] if turns else None
    process = await _child(ours, "second", *([token] if token else []))
    pid = await read_pid(ours.workspace / "pid")
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await process.end(1)
    events = await ours.events([say("Back.")], "third", resume=token or "last")
    assert result_from_events(events).text == "Back."
    init = events[0]
    assert isinstance(init, Init)
    assert init.resumed
    last = ours.requests[-1]
    assert "second" in last.texts
    assert last.last_text == "third"
    assert last_tool_result(last, "shell") == CUT_OFF
    assert len(last.tool_calls) == len(last.tool_results) == 1
    if process_exists(
        pid
    ):  # its parent was killed: the kernel takes it along, a moment later perhaps
        os.kill(pid, signal.SIGKILL)
    await _buried()


async def _buried() -> None:
    """What a killed process leaves falls to us, as we are the reaper of our descendants."""
    async with asyncio.timeout(60):
        while child_pids():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            await asyncio.sleep(0.01)


@pytest.mark.deep
async def test_the_command_line_resumes_the_last_session(ours: BuiltinAgent) -> None:
    code, out, reported = await run_command(ours, [say("One.")], prompt="first")
    assert (code, out) == (0, "One.\n"), reported
    code, out, reported = await run_command(
        ours, [say("Two.")], "--resume", "last", prompt="second"
    )
    assert (code, out) == (0, "Two.\n"), reported
    assert ours.requests[-1].texts == ["first", "One.", "second"]


@pytest.mark.parametrize("wire", ["anthropic", "openai", "chat"])
async def test_a_session_is_resumed_with_another_vendors_model(
    ours: BuiltinAgent, wire: str
) -> None:
    thought = Turn(thoughts="hm", text="One.", calls=[Call("list_dir")])
    first = await ours.run([thought, say("Two.")])
    run_options = ours.options([say("Three.")], wire, resume=first.resume_token or "")
    async with corral.session(**run_options) as session:
        result = await session.run("go on")
    assert result.ok
    assert ours.requests[-1].texts[-1] == "go on"
    assert [name for name, _ in ours.requests[-1].tool_results] == ["list_dir"]
    assert result.model == MODELS[wire]


async def test_nothing_is_left_of_a_session_without_keep(ours: BuiltinAgent) -> None:
    result = await ours.run([call("list_dir"), say("ok")], keep=False)
    assert result.ok
    assert result.resume_token is None
    home = ours.workspace.parent / "corral-home"
    assert [path for path in home.rglob("*") if path.is_file()] == []


async def test_resuming_without_keep_has_the_history_and_adds_nothing(
    ours: BuiltinAgent,
) -> None:
    first = await ours.run([say("One.")], "first")
    stored = store.find(first.resume_token or "")
    before = (stored.folder / NAME).read_bytes()
    run_options = ours.options([say("Two.")], resume=first.resume_token or "", keep=False)
    async with corral.session(**run_options) as session:
        await session.run("second")
    assert ours.requests[-1].texts == ["first", "One.", "second"]
    assert (stored.folder / NAME).read_bytes() == before


async def test_a_missing_history_is_an_error(ours: BuiltinAgent) -> None:
    first = await ours.run([say("One.")])
    (store.find(first.resume_token or "").folder / NAME).unlink()
    with pytest.raises(corral.errors.ResumeLost):
        await ours.events([say("never")], resume=first.resume_token or "")
    assert ours.requests == []


async def test_one_session_cannot_run_two_prompts_at_once(ours: BuiltinAgent) -> None:
    first = await ours.run([say("One.")])
    token = first.resume_token or ""
    async with ours.session([say("Two.")], resume=token) as session:
        async for _ in session.prompt("go on"):
            with pytest.raises(corral.errors.ConfigError, match="in use by another run"):
                await ours.events([say("never")], resume=token)
            break


async def test_a_transcript_is_written_if_requested(ours: BuiltinAgent) -> None:
    events = await ours.events([call("list_dir"), say("ok")], record=True)
    stored = store.find(result_from_events(events).resume_token or "")
    begin, _prompt, _facts, *rest = stored.events()
    assert [begin, *rest] == events
    for name in (NAME, "events.ndjson", "meta.json"):
        assert (stored.folder / name).stat().st_mode & 0o777 == 0o600


async def test_images_in_the_history_are_read_back(ours: BuiltinAgent) -> None:
    pixel = bytes.fromhex("89504e470d0a1a0a") + b"pixels"
    (ours.workspace / "a.png").write_bytes(pixel)
    first = await ours.run([say("A cat.")], images=["a.png"])
    (ours.workspace / "a.png").unlink()
    await ours.events([say("Still.")], resume=first.resume_token or "")
    assert inline_media(ours.requests[-1]) == [("image/png", pixel)]


def test_only_the_incomplete_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / NAME
    history = History(path)
    history.add(Message.user("one"))
    history.add(Message.assistant("two"))
    path.write_bytes(path.read_bytes()[:-5])
    second = History(path)
    assert [message.text for message in second.messages] == ["one"]
    second.begin(Message.user("three"))
    assert [message.text for message in History(path).messages] == ["one", "three"]


def test_a_call_whose_result_was_lost_in_the_middle_gets_one(tmp_path: Path) -> None:
    path = tmp_path / NAME
    history = History(path)
    history.add(Message.user("one"))
    history.add(Message.assistant(ToolCall("1", "tool"), ToolCall("2", "tool")))
    history.add(Message.tool(ToolResult("1", "a"), ToolResult("2", "b")))
    history.add(Message.assistant("done"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b'{"role": garbage\n', lines[3]]))
    roles = [message.role for message in History(path).messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    path.write_bytes(b"".join([lines[0], *lines[2:]]))
    assert [message.role for message in History(path).messages] == ["user", "assistant"]


def test_a_history_is_read_back_as_it_was(tmp_path: Path) -> None:
    message = Message.user("é\u2028\n", Image(b"\x00\xff", media_type="image/png"))
    history = History(tmp_path / NAME)
    history.add(message)
    (back,) = History(tmp_path / NAME).messages
    assert back.content[0] == Text("é\u2028\n")
    assert isinstance(back.content[1], Image)
    assert back.content[1].source == "data:image/png;base64,AP8="


async def test_files_on_disk_contain_no_key(ours: BuiltinAgent) -> None:
    """Also where the user, or the model after him, wrote it."""
    made = Turn(text=f"The key is {KEY}.", calls=[Call("shell", {"command": f"echo {KEY} > k"})])
    events = await ours.events([made, say("ok")], f"My key is {KEY}", policy="all", record=True)
    stored = store.find(result_from_events(events).resume_token or "")
    for path in stored.folder.rglob("*"):
        if path.is_file():
            assert KEY not in path.read_text(), path
    assert (ours.workspace / "k").read_text() == f"{KEY}\n"
    messages = [json.loads(line) for line in (stored.folder / NAME).read_text().splitlines()]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert events_of(events, Init)
