"""The ready workflows of ``corral workflow new``, with the built-in agent on a scripted model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.model_scripts import ModelClient, Script
from support.pipeline_command import CORRAL, corral
from support.real_agents import KEY
from support.starter_runs import CHECKS

from corral._cli.starters import find_starters
from corral._workflows import definition
from corral.run_kwargs import RunKwargs
from corral.testing import ModelServer

MODEL = "gemini:gemini-2.5-flash"
STARTERS = find_starters("corral._workflows", ".py")
LONGEST = 75
"""Lines of a ready workflow: they are read before they are run."""


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_ready_workflow_does_its_work(
    name: str, tmp_path: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ModelClient(model_server, f"starter-{name}")

    def connect(answer: Script) -> RunKwargs:
        lane = client.add_lane(answer)
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", lane.url)
        monkeypatch.setenv("GEMINI_API_KEY", KEY)
        return {}

    monkeypatch.setenv("PATH", f"{Path(CORRAL).parent}{os.pathsep}{os.environ['PATH']}")
    CHECKS[name](tmp_path, MODEL, connect)
    assert client.failures == []


@pytest.mark.parametrize("name", sorted(STARTERS))
def test_a_ready_workflow_is_short_and_describes_itself(name: str) -> None:
    starter = STARTERS[name]
    workflow = definition.load_text(starter.file, starter.text)
    assert name in CHECKS
    assert f"corral workflow run {starter.file} " in starter.text
    assert workflow.goal
    assert len(starter.text.splitlines()) <= LONGEST
    required = [each for each in workflow.parameters if each.default is each.empty]
    assert all(f"--arg {each.name}=" in starter.text for each in required)


def test_new_writes_a_file_and_overwrites_none(workspace: Path) -> None:
    done = corral("workflow", "new", "fix-test", cwd=workspace)
    assert (done.returncode, done.stdout) == (0, "fix_test.py\n")
    assert (workspace / "fix_test.py").read_text() == STARTERS["fix-test"].text
    (workspace / "mine.py").write_text("mine")
    done = corral("workflow", "new", "fix-test", "mine.py", cwd=workspace)
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert (workspace / "mine.py").read_text() == "mine"
    listed = corral("workflow", "new", "--list", cwd=workspace).stdout
    assert [line.split()[0] for line in listed.splitlines()] == sorted(CHECKS)


@pytest.mark.parametrize("words", [(), ("nothing",)])
def test_new_without_a_known_name_lists_them(words: tuple[str, ...], workspace: Path) -> None:
    done = corral("workflow", "new", *words, cwd=workspace)
    assert done.returncode == 2
    assert "fix-test" in done.stderr
    assert list(workspace.iterdir()) == []
