"""``corral demo``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pictures import terminal_cast
from pictures.__main__ import DEMO
from support.screens import masked
from support.scripted_agent import PROGRAM

from corral.errors import NotInstalled

CORRAL = str(Path(sys.executable).with_name("corral"))


def demo(*words: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CORRAL, "demo", *words],
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.spine
@pytest.mark.gemini_cli
def test_the_demo_fixes_the_bug_with_the_program_on_the_path_as_its_picture_shows(
    gemini_program: str,
) -> None:
    done = demo(path=f"{Path(gemini_program).parent}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'return f"Hello, {name}!"' in done.stdout
    assert "tool_result  run_shell_command: denied" in done.stdout
    assert "Everything worked as expected.\nNext: `corral agents doctor`" in done.stdout
    shown = terminal_cast.lines_of(DEMO.read_text("utf-8"))
    lines = [line for line in done.stdout.splitlines() if line]
    assert [*map(masked, lines)] == [*map(masked, shown)], "make pictures, and look at it"


def test_an_agent_that_fixes_nothing_fails_the_demo() -> None:
    done = demo("--program", str(PROGRAM))
    assert done.returncode == 1, done.stderr
    assert "nane" in done.stdout
    assert done.stdout.endswith("Something is wrong.\n")


def test_without_node_the_demo_says_what_to_install(tmp_path: Path) -> None:
    done = demo(path=str(tmp_path))
    assert done.returncode == NotInstalled.cli_exit, done.stderr
    assert "Node.js 20 or newer is needed" in done.stderr
