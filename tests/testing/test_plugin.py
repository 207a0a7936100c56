"""The pytest plugin, in separate runs of pytest."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.light_pytest import LIGHT_PYTEST
from support.scripted_agent import PROGRAM

pytestmark = pytest.mark.whole_program

PEER = Path(__file__).parents[1] / "programs" / "scripted_acp.py"
COMMAND = shlex.join([sys.executable, "-S", "-E", str(PEER), "--acp"])
TESTS = f"""
import asyncio, os
import corral
import pytest
AGENT = {COMMAND!r}
WORDS = os.environ.get("WORDS", "text hello")

def test_a_run(agent_cassette, tmp_path):
    result = corral.run_sync(AGENT, WORDS, cwd=tmp_path, timeout=30, **agent_cassette(AGENT))
    assert result.ok, result.error.message
    assert result.text == "hello"

@pytest.mark.parametrize("name", ["a/b", "ü"])
class TestMany:
    def test_two_sessions(self, agent_cassette, tmp_path, name):
        for text in (name, "second", name):
            tape = agent_cassette("gemini-cli")
            result = corral.run_sync("gemini-cli", "init\\ntext " + text + "\\nresult",
                cwd=tmp_path, timeout=30, program=os.environ.get("PROGRAM"), **tape)
            assert result.text == text, result.error
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "test_it.py").write_text(TESTS)
    return folder


def run(project: Path, *words: str, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        [*LIGHT_PYTEST, *words],
        cwd=project,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout


def record(project: Path, *words: str) -> None:
    made = {"PROGRAM": str(PROGRAM), "GEMINI_API_KEY": "scripted-key-0123456789"}
    code, output = run(project, "--corral-record", *words, **made)
    assert code == 0, output


@pytest.mark.deep
def test_what_was_recorded_is_replayed_without_any_agent(project: Path) -> None:
    record(project)
    files = sorted(path.name for path in (project / "cassettes" / "test_it").iterdir())
    assert len(files) == 3
    assert files[-1].startswith("test_a_run.")
    assert all(b"scripted-key" not in path.read_bytes() for path in project.rglob("*.ndjson"))
    code, output = run(project, PATH="/nowhere")
    assert code == 0, output
    assert "3 passed" in output


@pytest.mark.deep
def test_another_request_fails_with_the_difference_until_it_is_recorded(project: Path) -> None:
    record(project, "-k", "a_run")
    (cassette,) = project.rglob("*.ndjson")
    first = cassette.read_text()
    code, output = run(project, "-k", "a_run", WORDS="text bye")
    assert code == 1
    assert '-        "text": "text hello"' in output
    assert '+        "text": "text bye"' in output
    assert cassette.read_text() == first
    record(project, "-k", "a_run")
    assert cassette.read_text() != first
    assert cassette.read_text().count('"cassette":') == 1


@pytest.mark.deep
def test_a_missing_recording_fails_with_the_command_that_makes_it(project: Path) -> None:
    code, output = run(project, "-k", "a_run")
    assert code == 1
    assert "there is no recording for this test" in output
    assert "pytest --corral-record 'test_it.py::test_a_run'" in output


def test_the_plugin_imports_nothing_unless_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text(
        "import sys\n"
        "def test_the_loaded_modules():\n"
        "    ours = {name for name in sys.modules if name.split('.')[0] == 'corral'}\n"
        "    assert ours == {'corral', 'corral._core', 'corral._core.lazy_names',"
        " 'corral._testing', 'corral._testing.plugin'}\n"
        "    assert not {'msgspec', 'aiohttp', 'click'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "corral._testing.plugin",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
