"""Notes on commits, and the lines that changed between two trees. Blocking."""

from __future__ import annotations

import re
from pathlib import Path

from corral._system.git import repository, scan, settings
from corral._system.git.command import GitLimits
from corral.errors import ConfigError
from corral.values import path_from_printable

RECEIPTS = "corral-receipts"
"""The name of the notes with receipts: ``git notes --ref=corral-receipts show COMMIT``."""
MAX_DIFF = 64 * 1024 * 1024
_HUNK = re.compile(r"@@ -[0-9,]+ \+(\d+)(?:,(\d+))? @@")


def commit_with(folder: Path, tree: str) -> str | None:
    """The current commit, if it has exactly the files of this tree. Raises ``StorageFailed``."""
    commit = repository.commit_of(folder, "HEAD")
    return commit if repository.tree_of(folder, commit) == tree else None


def add_note(folder: Path, commit: str, text: bytes) -> None:
    """Add a note with a receipt to a commit, in place of an earlier one. Raises
    ``StorageFailed``."""
    who = settings.identity(repository.locate(folder).common)
    words = ("notes", f"--ref={RECEIPTS}", "add", "--force", "--file=-", commit)
    repository.run(folder, *words, env=who, feed=(text,))


def written_lines(store: Path, old: str, new: str) -> dict[str, list[tuple[int, int]]]:
    """The lines of the new files that the old ones do not have: path → the first and the last of
    each part. Raises ``StorageFailed``."""
    words = ("diff", "--unified=0", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
    answer = repository.call(store, *words, *prefixes, old, new, limits=GitLimits(output=MAX_DIFF))
    lines: dict[str, list[tuple[int, int]]] = {}
    current: list[tuple[int, int]] = []
    in_head = False
    text = repository.checked(words, answer).out.decode("utf-8", "surrogateescape")
    for line in text.split("\n"):
        if line.startswith("diff --git "):
            in_head = True
        elif in_head and line.startswith("+++ "):
            path = path_from_printable(line.removeprefix("+++ ").removesuffix("\t"))
            current = [] if path == "/dev/null" else lines.setdefault(path.removeprefix("b/"), [])
        elif match := _HUNK.match(line):
            in_head = False
            first, count = int(match[1]), int(match[2] or "1")
            if count:
                current.append((first, first + count - 1))
    return lines


def require_repository(folder: Path) -> None:
    """Raises ``ConfigError``."""
    found = scan.find_repository(folder)
    if found is None or found.top is None:
        raise ConfigError(f"a note needs a git repository, got: {folder}")
