"""git: the one package through which corral calls it. See ``command`` for what is guaranteed."""

from __future__ import annotations

from corral.system.git.command import (
    GitAccess,
    GitLimits,
    GitOutput,
    is_installed,
    locked,
    redact,
    require,
)
from corral.system.git.repository import (
    call,
    changed_files,
    check,
    commit,
    commit_of,
    is_ancestor,
    locate,
    run,
    stub_of,
    tree_of,
)

__all__ = [
    "GitAccess",
    "GitLimits",
    "GitOutput",
    "call",
    "changed_files",
    "check",
    "commit",
    "commit_of",
    "is_ancestor",
    "is_installed",
    "locate",
    "locked",
    "redact",
    "require",
    "run",
    "stub_of",
    "tree_of",
]
