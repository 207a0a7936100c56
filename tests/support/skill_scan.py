"""The program ``library-skills``: which skills it finds in an environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("library-skills")


def skill_folders(environment: Path, project: Path) -> list[str]:
    """The folders of corral's skills that it finds in a Python environment, for a new project."""
    (project / ".venv").symlink_to(environment)
    done = subprocess.run(
        [PROGRAM, "scan", "--json"], cwd=project, capture_output=True, text=True, timeout=60
    )
    skills = json.loads(done.stdout)["skills"]
    return [skill["path"] for skill in skills if skill["package"] == "corral"]
