"""The review of a diff, in Python with the Gemini CLI and in one line of shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import answering_gemini
from support.installed_agents import installed
from support.pipeline_command import CORRAL
from support.real_agents import KEY
from support.repositories import git

from corral.testing import ModelServer, Turn

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "review_diff.sh"


def findings(*severities: str) -> str:
    found = [
        {"file": "a.py", "line": 1, "severity": each, "message": "a bare except"}
        for each in severities
    ]
    return f"Here:\n```json\n{json.dumps(found)}\n```"


@pytest.fixture
def project(workspace: Path) -> Path:
    """A repository with one change that is not committed."""
    git(workspace, "init", "--quiet")
    (workspace / "a.py").write_text("x = 1\n")
    git(workspace, "add", ".")
    (workspace / "a.py").write_text("x = 2\n")
    return workspace


def run(
    server: ModelServer, project: Path, argv: list[str], text: str, agent: str = ""
) -> subprocess.CompletedProcess[str]:
    script = [Turn(text=text, match="x = 2", repeat="forever"), Turn(text="no", repeat="forever")]
    lane = server.lane(f"review-{project.parent.name}", script)
    answering = answering_gemini.folder_for_path
    programs = str(Path(installed(agent)).parent) if agent else answering(project.parent)
    path = [str(Path(CORRAL).parent), programs]
    env = {
        **os.environ,
        **lane.env,
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": lane.url,
        "MODEL": "gemini:gemini-2.5-flash",
        "PATH": os.pathsep.join([*path, os.environ["PATH"]]),
    }
    return subprocess.run(
        argv, cwd=project, env=env, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.parametrize(
    ("severities", "code", "agent"),
    [
        pytest.param(("low", "high"), 2, "gemini-cli", marks=pytest.mark.gemini_cli, id="high"),
        pytest.param((), 0, "", id="none"),
    ],
)
def test_the_exit_code_of_the_python_review_is_the_worst_severity(
    model_server: ModelServer, project: Path, severities: tuple[str, ...], code: int, agent: str
) -> None:
    argv = [sys.executable, str(EXAMPLES / "review_diff.py")]
    done = run(model_server, project, argv, findings(*severities), agent)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == [f"a.py:1: {each}: a bare except" for each in severities]


def test_the_shell_line_fails_only_on_high_severity(
    model_server: ModelServer, project: Path
) -> None:
    bad = run(model_server, project, ["sh", str(SCRIPT)], findings("low", "high", "high"))
    assert bad.returncode == 13, bad.stderr
    assert "severity=high 2 times" in bad.stderr
    assert [each["severity"] for each in json.loads(bad.stdout)] == ["low", "high", "high"]
    good = run(model_server, project, ["sh", str(SCRIPT)], findings("low", "medium"))
    assert good.returncode == 0, good.stderr


def test_the_shell_job_is_one_line() -> None:
    lines = [line for line in SCRIPT.read_text().splitlines() if line and line[0] != "#"]
    assert len(lines) == 1
