"""The files below a folder: their names, and those that contain a text."""

from __future__ import annotations

from pathlib import Path


def file_names(folder: Path) -> list[str]:
    """Every file below ``folder``, as a path relative to it."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def files_containing(folder: Path, secret: str) -> list[str]:
    """The files below ``folder`` whose name or content contains ``secret``."""
    needle = secret.encode()
    return [
        str(path)
        for path in folder.rglob("*")
        if secret in path.name or (path.is_file() and needle in path.read_bytes())
    ]
