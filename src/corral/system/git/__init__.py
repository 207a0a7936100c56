"""git: the one package through which corral calls it. See ``command`` for what is guaranteed."""

from __future__ import annotations

from corral.system.git.command import Access, Answer, Limits, alone, is_installed, redact, require
from corral.system.git.repository import (
    changed_files,
    commit,
    commit_of,
    is_ancestor,
    is_so,
    locate,
    run,
    stub_of,
    tell,
    tree_of,
)

__all__ = [
    "Access",
    "Answer",
    "Limits",
    "alone",
    "changed_files",
    "commit",
    "commit_of",
    "is_ancestor",
    "is_installed",
    "is_so",
    "locate",
    "redact",
    "require",
    "run",
    "stub_of",
    "tell",
    "tree_of",
]
