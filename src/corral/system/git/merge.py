"""The user's files as commits, and changes of a commit merged into the user's files.

Nothing here changes git's index, ``HEAD`` or a branch of the user. Everything blocks.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from corral.errors import StorageFailed
from corral.system import git
from corral.system.git import checkout, repository, scan
from corral.system.git import tree as git_tree
from corral.values import printable_path

_HINT = "Merging needs git 2.38 or newer."


class Conflict(StorageFailed):
    """The same lines were changed in two worktrees."""


def snapshot_of(root: Path, head: str) -> str:
    """A commit of all files in a work tree that are not ignored, also those that are not committed;
    ``head``, its current commit, if nothing is changed. No branch names it. Raises
    ``StorageFailed``."""
    tree = _work_tree(root, root, head)
    if tree == git.tree_of(root, head):
        return head
    return git.commit(root, tree, [head], "changes that are not committed")


def _work_tree(root: Path, place: Path, at: str) -> str:
    """The tree of a folder of the user, which may be in no repository."""
    scope = scan.scope_of(place) or scan.Scope()
    return git_tree.write_tree(root, place, at, {}, scope)


def folder_repository(own: Path, folder: Path) -> str:
    """Make a repository at ``own`` whose only commit has the files of a folder that are not
    ignored; returns the commit. What was there is removed. The folder is only read. Raises
    ``StorageFailed``."""
    git.require("a copy of a folder")
    try:
        shutil.rmtree(own, ignore_errors=True)
        repository.make_bare(own)
    except OSError as error:
        raise StorageFailed(f"{own} cannot be written: {error}") from error
    empty = git.commit(own, repository.run(own, "mktree"), [], "empty")
    commit = git.commit(own, _work_tree(own, folder, empty), [], f"the files of {folder}")
    git.run(own, "update-ref", "refs/heads/main", commit)
    return commit


def merge_into(root: Path, place: Path, base: str, new: str, *, check: bool) -> tuple[str, ...]:
    """Bring the changes from the commit ``base`` to ``new`` into the files of a folder, which may
    have changed since: a three-way merge. Returns the changed files. Nothing is written if there
    are conflicts, or if ``check`` is set; if writing fails, what was written is undone. git's
    index stays as it is. Raises ``Conflict`` and ``StorageFailed``."""
    current = _work_tree(root, place, base)
    # merge-tree of an old git takes the base from the history only.
    start = git.commit(root, git.tree_of(root, base), [], "base")
    ours = git.commit(root, current, [start], "ours")
    theirs = git.commit(root, git.tree_of(root, new), [start], "theirs")
    merged = merged_tree(root, ours, theirs)
    changes = repository.differences(root, current, merged)
    if changes and not check:
        try:
            checkout.update(root, place, changes, force=False)
        except StorageFailed:
            if _work_tree(root, place, base) != current:
                undone = [repository.Difference(path=c.path, old=c.new, new=c.old) for c in changes]
                checkout.update(root, place, undone, force=True)
            raise
    return git.changed_files(root, current, merged)


def merged_tree(root: Path, ours: str, theirs: str) -> str:
    """Raises ``Conflict`` and ``StorageFailed``."""
    # Without -z git would write names that are not ASCII in quotes, with octal numbers.
    words = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs)
    answer = git.call(root, *words)
    tree, *paths = answer.out.split(b"\0")
    names = [printable_path(os.fsdecode(path)) for path in paths if path]
    if answer.code == 1 and names:
        raise Conflict(f"others have changed {', '.join(names[:10])} meanwhile")
    if answer.code:
        raise StorageFailed(f"git merge-tree: {answer.errors}", hint=_HINT)
    return tree.decode().strip()
