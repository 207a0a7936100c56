"""The version of a build, which tells builds apart: ``0.1.0.dev1257+g6fb9d5e8``.

It has the number of commits and the commit; ``.dirty`` follows if files differ. Only a clean
checkout of the tag ``v0.1.0`` is ``0.1.0``. Without git it is ``0.1.0.dev0``, as ``corral.version``
in a checkout; an sdist needs no git, because its metadata have the version.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

RELEASE = "0.1.0"
ROOT = Path(__file__).parents[1]


def find_version() -> str:
    """The version of this checkout."""
    if not (ROOT / ".git").exists():  # it may lie inside of another repository
        return f"{RELEASE}.dev0"
    try:
        commit = _git("describe", "--always", "--dirty", "--abbrev=8", "--exclude=*")
        tags = _git("tag", "--points-at", "HEAD").split()
        count = _git("rev-list", "--count", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return f"{RELEASE}.dev0"
    if f"v{RELEASE}" in tags and not commit.endswith("-dirty"):
        return RELEASE
    return f"{RELEASE}.dev{count}+g{commit.replace('-', '.')}"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
