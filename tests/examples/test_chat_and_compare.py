"""The examples of a chat and of a task for two agents run with a scripted model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.pipeline_command import EXAMPLES
from support.screens import LIMIT, Screen

from corral.testing import Call, ModelServer, Turn, say


def environment(server: ModelServer) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **server.env, "PATH": path, "TERM": "xterm"}


def test_a_chat_edits_a_file_shows_the_change_and_takes_it_back(workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n")
    write = Call("write_file", {"file_path": "a.txt", "content": "two\n"})
    with ModelServer([Turn(calls=[write]), say("Changed.")]) as server:
        argv = ["sh", str(EXAMPLES / "chat.sh"), "--model", "gemini:gemini-2.5-flash"]
        shown = Screen(argv, workspace, environment(server), (50, 80))
        try:
            for line, expected in (
                ("change a.txt", "Changed."),
                ("/diff", "+two"),
                ("/undo", "restored a.txt"),
                ("/usage", "1 prompt ·"),
                ("/save notes.md", "saved "),
            ):
                shown.until_true(lambda: shown.lines[-1:] == [">"])
                shown.type(f"{line}\n")
                shown.until_shown(expected)
            shown.until_true(lambda: shown.lines[-1:] == [">"])
            shown.type("/exit\n")
            assert shown.end() == 0
        finally:
            shown.process.kill()
            os.close(shown.primary)
    assert (workspace / "a.txt").read_text() == "one\n"
    assert "Changed." in (workspace / "notes.md").read_text()


def test_two_agents_get_the_same_task_and_are_compared(workspace: Path) -> None:
    agents = ("gemini:gemini-2.5-flash", "gemini:gemini-2.5-pro")
    with ModelServer([Turn(text="It is small.", repeat=2)]) as server:
        done = subprocess.run(
            ["sh", str(EXAMPLES / "compare_agents.sh"), *agents, "What is it?"],
            cwd=workspace,
            env=environment(server),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        models = sorted(request.model or "" for request in server.requests)
    assert done.returncode == 0, done.stderr
    assert models == ["gemini-2.5-flash", "gemini-2.5-pro"]
    for agent in agents:
        assert agent in done.stdout + done.stderr
    assert done.stdout.count("It is small.") == 2
