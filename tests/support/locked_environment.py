"""Programs that only deep tests use, from a lock file of ``requirements/``, in ``.cache``."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def install(name: str, *, python: str = sys.executable) -> Path:
    """The folder ``bin`` of the environment with ``requirements/NAME.txt``. ``python``: the version
    that it needs, such as ``>=3.12``; without one on this machine the test is skipped."""
    lock, place = ROOT / "requirements" / f"{name}.txt", ROOT / ".cache" / name
    ready = place / f"ready-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    place.parent.mkdir(exist_ok=True)
    with (place.parent / f"{name}.lock").open("w") as file:  # one of the test workers installs
        fcntl.flock(file, fcntl.LOCK_EX)
        if ready.exists():
            return place / "bin"
        uv = [sys.executable, "-m", "uv"]
        found = ["venv", "-q", "--clear", "--no-python-downloads", "--python", python, str(place)]
        # The programs of pyenv on PATH refuse versions that are not chosen in the folder.
        pyenv = Path(os.environ.get("PYENV_ROOT", "/nowhere"), "versions").glob("*/bin")
        path = os.pathsep.join([os.environ["PATH"], *map(str, pyenv)])
        if subprocess.run([*uv, *found], env={**os.environ, "PATH": path}).returncode != 0:
            pytest.skip(f"no Python {python}")
        pip = ["pip", "install", "-q", "--python", str(place / "bin/python")]
        subprocess.run([*uv, *pip, "--require-hashes", "--no-deps", "-r", str(lock)], check=True)
        ready.touch()
    return place / "bin"
