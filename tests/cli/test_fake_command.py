"""``corral fake serve``: what it prints is enough for the agents as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.installed_agents import installed, mark_of

SCRIPT = """
restart = "per_conversation"
[[turn]]
text = "Hello from the script."
repeat = "forever"
"""
AGENTS = {
    "gemini-cli": "gemini",
    "claude-cli": "claude",
    "codex-cli": "codex",
    "opencode-cli": "opencode",
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The lines on stderr of a server that runs."""
    folder = tmp_path_factory.mktemp("fake")
    (folder / "fake.toml").write_text(SCRIPT)
    command = [sys.executable, "-m", "corral", "fake", "serve", "--seconds", "600"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        lines: list[str] = []
        while sum(line.startswith("#") for line in lines) < len(AGENTS):
            lines.append(server.stderr.readline())
            assert lines[-1], lines
        yield lines
        server.terminate()


@pytest.mark.deep
@pytest.mark.parametrize(
    "agent", [pytest.param(name, marks=getattr(pytest.mark, mark_of(name))) for name in AGENTS]
)
def test_the_agent_itself_runs_with_what_is_printed(
    agent: str, printed: list[str], tmp_path: Path
) -> None:
    program = installed(agent)
    (line,) = [line for line in printed if line.startswith("#") and f"{AGENTS[agent]} " in line]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / AGENTS[agent]).symlink_to(program)
    exports = "".join(line for line in printed if line.startswith("export "))
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", exports + line.removeprefix("# ")],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "Hello from the script." in done.stdout, done
