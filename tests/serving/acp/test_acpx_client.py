"""acpx, a client of the protocol for terminals, drives ``corral acp``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.node22 import needs_node22, node22_folder
from support.processes import processes_using

from corral.testing import Call, ModelServer, Turn, hang

ACPX = Path(__file__).parents[3] / "tools/acpx/node_modules/.bin/acpx"
needs_acpx = pytest.mark.skipif(
    not ACPX.exists(), reason="no acpx (make tools/acpx/node_modules/.ready)"
)
AGENT = shlex.join([sys.executable, "-m", "corral", "acp", "--model", "gemini:gemini-2.5-flash"])
OPTIONS = ("--agent", AGENT, "--ttl", "1")
"""acpx keeps the agent for this time after a prompt, in seconds."""
TIMEOUT = 60


def script(request: Any) -> Turn:
    if "story" in request.texts[-1]:
        return hang("Once ")
    if len(request.tool_results) < sum("Write" in text for text in request.texts):
        return Turn(calls=[Call("write_file", {"file_path": "a.txt", "content": "new\n"})])
    return Turn(text="Done.")


class Acpx:
    """The command, in a home folder of its own."""

    def __init__(self, model: ModelServer, workspace: Path, home: Path) -> None:
        path = f"{node22_folder()}{os.pathsep}{os.environ['PATH']}"
        self._home = home
        self._env = {**os.environ, **model.env, "PATH": path, "HOME": str(home)}
        self._workspace = workspace

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(ACPX), *OPTIONS, "--cwd", str(self._workspace), *words],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> str:
        with self.start(*words) as process:
            output, _ = process.communicate(timeout=TIMEOUT)
        return output

    def wait_for_end(self) -> None:
        """Wait until its background process, and with it corral, has ended."""
        until = time.monotonic() + TIMEOUT
        while running := processes_using(self._home):
            assert time.monotonic() < until, f"still running: {running}"
            time.sleep(0.1)


@pytest.mark.deep
@needs_node22
@needs_acpx
def test_acpx_prompts_answers_permissions_continues_a_session_and_cancels(
    workspace: Path, tmp_path: Path
) -> None:
    written = workspace / "a.txt"
    with ModelServer(script) as model:
        acpx = Acpx(model, workspace, tmp_path / "home")
        assert "created session" in acpx.run("sessions", "new")
        denied = acpx.run("--deny-all", "prompt", "Write it")
        assert "not allowed" in denied
        assert "Done." in denied
        assert not written.exists()
        acpx.wait_for_end()
        # Another process of corral loads the session; acpx writes the file for it.
        allowed = acpx.run("--approve-all", "prompt", "Write it now")
        assert "[client] fs/write_text_file" in allowed
        assert written.read_text() == "new\n"
        assert "Write it" in model.requests[-1].texts
        with acpx.start("prompt", "Tell a story") as story:
            assert story.stdout
            output = ""
            while "Once" not in output:
                piece = story.stdout.read(1)
                assert piece, output
                output += piece
            assert "cancel requested" in acpx.run("cancel")
            rest, _ = story.communicate(timeout=TIMEOUT)
        assert "[done] cancelled" in rest
        assert "Write it" in acpx.run("sessions", "list")
        acpx.run("sessions", "close")
        acpx.wait_for_end()
