"""A worktree that several work in, one after another or at once, and maybe several machines.

After each piece of work all files that are there become a commit of the tree's branch: a snapshot.
git's index and HEAD in the tree are left alone: who works there sees what was done so far as
changes that are not committed, and may commit. A commit of theirs is kept as a parent of the next
snapshot.

Everything here blocks and raises ``StorageFailed``; one process at a time may use a tree.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from corral.errors import StorageFailed
from corral.system import git
from corral.system.git import checkout, repository, worktree

_HEAD = "Corral-Head"
"""The trailer of a snapshot's message that names the tree's HEAD, where it was moved."""


class Conflict(StorageFailed):
    """Two have changed the same lines."""


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    root: Path
    """The repository."""
    base: str
    """The commit that it began with."""
    at: str
    """The snapshot that its files are, with what was changed since."""
    place: Path
    settings: Path
    """What git notes about the worktree: HEAD and its index. Who works there may change it."""

    @property
    def head(self) -> str:
        return worktree.head(self.root, self.settings, self.base)


def make(root: Path, base: str, snapshot: str, own: Path) -> Tree:
    """In this folder, which is corral's; what was there before is removed."""
    place, notes = own / "tree", own / "git"
    worktree.add(root, place, notes, snapshot, _head_of(root, snapshot) or base)
    return Tree(root=root, base=base, at=snapshot, place=place, settings=notes)


def put(tree: Tree, snapshot: str) -> Tree:
    """The tree as of this snapshot. What was changed there meanwhile is lost."""
    head = _head_of(tree.root, snapshot) or tree.base
    try:
        current = worktree.write_tree(tree.root, tree.place, tree.at)
        changes = repository.differences(tree.root, current, snapshot)
        checkout.update(tree.root, tree.place, changes, force=True)
        if head != tree.head:
            worktree.move_head(tree.root, tree.settings, head)
    except StorageFailed:  # somebody left a folder there that cannot be read
        worktree.add(tree.root, tree.place, tree.settings, snapshot, head)
    return msgspec.structs.replace(tree, at=snapshot)


def take(tree: Tree, message: str) -> Tree:
    """A snapshot of what is there now; the same tree where nothing was changed."""
    files = ""
    for left in (2, 1, 0):
        try:
            files = worktree.write_tree(tree.root, tree.place, tree.at)
            break
        except StorageFailed:  # somebody who works there may have just changed a file
            if not left:
                raise
    head = tree.head
    is_known = git.is_ancestor(tree.root, head, tree.at)
    if is_known and files == git.tree_of(tree.root, tree.at):
        return tree
    if head != tree.base:
        message += f"\n\n{_HEAD}: {head}"
    parents = [tree.at] if is_known else [tree.at, head]
    return msgspec.structs.replace(tree, at=git.commit(tree.root, files, parents, message))


def join(tree: Tree, other: str, message: str) -> Tree:
    """With what others have done meanwhile, up to this snapshot. Raises ``Conflict``; a
    ``StorageFailed`` where somebody has just changed what would be changed: take it first."""
    root = tree.root
    if git.is_ancestor(root, other, tree.at):
        return tree
    if git.is_ancestor(root, tree.at, other):
        joined = other
    else:
        words = ("merge-tree", "--write-tree", "--name-only", "--no-messages", tree.at, other)
        answer = git.call(root, *words)
        files, *names = answer.text.strip().splitlines() or [""]
        if answer.code == 1 and names:
            raise Conflict(f"others have changed {', '.join(names[:10])} meanwhile")
        if answer.code:
            hint = "Work side by side on several machines needs git 2.38 or newer."
            raise StorageFailed(f"git merge-tree: {answer.errors}", hint=hint)
        if head := _head_of(root, tree.at):
            message += f"\n\n{_HEAD}: {head}"
        joined = git.commit(root, files, [tree.at, other], message)
    changes = repository.differences(root, tree.at, joined)
    checkout.update(root, tree.place, changes, force=False)
    return msgspec.structs.replace(tree, at=joined)


def remove(tree: Tree) -> None:
    """With whatever is in it."""
    worktree.remove(tree.place, tree.settings)


def _head_of(root: Path, snapshot: str) -> str:
    """The HEAD that a snapshot notes, if that commit is there."""
    form = f"--format=%(trailers:key={_HEAD},valueonly)"
    found = git.run(root, "log", "-1", "--no-mailmap", form, snapshot).split()
    with suppress(StorageFailed):
        return git.commit_of(root, found[0]) if found else ""
    return ""
