"""A program like the Gemini CLI that only answers, for tests of what uses an agent."""

from __future__ import annotations

from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "programs" / "answering_gemini.py"


def folder_for_path(parent: Path) -> str:
    """A folder for PATH, in which the program is named as the CLI."""
    folder = parent / "programs"
    if not folder.exists():
        folder.mkdir()
        (folder / "gemini").symlink_to(PROGRAM)
    return str(folder)
