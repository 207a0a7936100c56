"""The example of a review is one line of shell; it fails only for a finding of high severity."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.example_lines import code_lines
from support.pipeline_command import CORRAL
from support.real_agents import KEY
from support.repositories import git

from corral.testing import ModelServer, Turn

SCRIPT = Path(__file__).parents[2] / "examples" / "review_diff.sh"


@pytest.mark.parametrize(("severity", "code"), [("medium", 0), ("critical", 13)])
def test_the_exit_code_is_by_severity(
    model_server: ModelServer, workspace: Path, severity: str, code: int
) -> None:
    git(workspace, "init", "--quiet")
    (workspace / "a.py").write_text("x = 1\n")
    git(workspace, "add", ".")
    git(workspace, "commit", "--quiet", "-m", "first")
    (workspace / "a.py").write_text("x = 2\n")
    finding = {"file": "a.py", "line": 1, "severity": severity, "title": "t", "explanation": "e"}
    answer = json.dumps({"summary": "s", "findings": [finding]})
    lane = model_server.lane(
        f"review-example-{severity}", [Turn(text=answer, match="x = 2"), Turn(text="no")]
    )
    path = [str(Path(CORRAL).parent), os.environ["PATH"]]
    env = {
        **os.environ,
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": lane.url,
        "PATH": os.pathsep.join(path),
    }
    done = subprocess.run(
        ["sh", str(SCRIPT), "HEAD", "--agent", "gemini:gemini-2.5-flash"],
        cwd=workspace,
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(f"a.py:1: {severity}: t\n    e\n")


def test_the_job_is_one_line() -> None:
    assert code_lines(SCRIPT) == 1
