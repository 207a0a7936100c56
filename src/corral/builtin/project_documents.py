"""Instructions of a project for agents: its documents, from the repository's root down."""

from __future__ import annotations

import os
from pathlib import Path

from corral.system.git import scan

ALWAYS = "AGENTS.md"
LARGEST = 32 * 1024
"""Bytes of all of them together."""


def project_root(cwd: Path) -> Path:
    """The repository's root, or the folder itself where there is none."""
    for folder in (cwd, *cwd.parents):
        if (folder / ".git").exists():
            return folder
    return cwd


def project_documents(cwd: Path, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """(path from the root, text) of each document, the outermost first. Unreadable ones are
    skipped; text over the limit is cut and marked."""
    root = project_root(cwd)
    inside = os.path.realpath(root) + os.sep
    steps = cwd.relative_to(root).parts
    folders = [root.joinpath(*steps[:depth]) for depth in range(len(steps) + 1)]
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    left = LARGEST
    for folder in folders:
        for name in (ALWAYS, *names):
            real = os.path.realpath(folder / name)
            # A link out of the repository would put any file of ours into the prompt; one
            # inside would say the same twice.
            if real in seen or not real.startswith(inside) or not os.path.isfile(real):
                continue
            seen.add(real)
            text = _read(Path(real), left)
            if text:
                found.append((str((folder / name).relative_to(root)), text))
                left -= len(text.encode())
            if left <= 0:
                return found
    return found


def _read(path: Path, most: int) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError:
        return None
    text = data[:most].decode("utf-8", "ignore").strip()
    return f"{text}\n[cut here: over {LARGEST:,} bytes]" if len(data) > most else text


def git_branch(cwd: Path) -> str | None:
    """The branch that is checked out, or the start of a commit's id. Read from the files: git
    would obey the repository's settings."""
    found = scan.find_repository(cwd)
    if found is None or found.head is None:
        return None
    head = found.head
    return head.removeprefix("refs/heads/") if head.startswith("refs/") else head[:12]
