"""A worktree that several work in, one after another or at once, and maybe several machines.

After each piece of work all that is there becomes a commit of the tree's branch: a snapshot.
git's index and HEAD in the tree are left alone (snapshots have an index of their own): who
works there sees what was done so far as changes that are not committed, and may commit.
A commit of theirs is kept as a parent of the next snapshot.

Everything here blocks and raises ``StorageFailed``; one at a time may be at a tree.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral.errors import StorageFailed
from corral.io import folders, git

_HEAD = "Corral-Head"
"""What a snapshot's message calls the HEAD that the tree had, where it was moved."""


class Conflict(StorageFailed):
    """Two have changed the same lines."""


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    root: Path
    """Where git is called."""
    base: str
    """The commit that it began with."""
    at: str
    """The snapshot that its files are, with what was changed since."""
    place: Path
    settings: Path
    """What git keeps of it, in the repository. An agent may have put another repository into
    the tree: so git is told, and never looks."""
    index: Path
    """Of the snapshots."""

    def git(self, *words: str) -> str:
        there = (f"--git-dir={self.settings}", f"--work-tree={self.place}")
        return git.run(self.place, *there, *words, index=self.index)

    @property
    def head(self) -> str:
        return git.run(self.settings, f"--git-dir={self.settings}", "rev-parse", "HEAD")


def make(root: Path, base: str, snapshot: str, own: Path) -> Tree:
    """In this folder, which is corral's; what was there of one before is gone."""
    place, index = own / "tree", own / "index"
    head = _head_of(root, snapshot) or base
    with git.alone(_gate(root)):
        _remove(root, place)
        index.unlink(missing_ok=True)
        # Locked: else another machine that has the repository takes it for gone, and prunes it.
        words = ("worktree", "add", "--quiet", "--lock", "--detach", "--force", str(place), head)
        git.run(root, *words)
    settings = Path(git.run(place, "rev-parse", "--absolute-git-dir"))
    shutil.copy(settings / "index", index)
    tree = Tree(root=root, base=base, at=head, place=place, settings=settings, index=index)
    return put(tree, snapshot)


def put(tree: Tree, snapshot: str) -> Tree:
    """The tree as of this snapshot. What was changed there meanwhile is lost."""
    _unlocked(tree)
    with suppress(StorageFailed):
        tree.git("add", "--all")  # so that it is known, and goes
    tree.git("read-tree", "--reset", "-u", snapshot)
    head = _head_of(tree.root, snapshot) or tree.base
    if head != tree.head:
        own = f"--git-dir={tree.settings}"
        git.run(tree.settings, own, "update-ref", "--no-deref", "HEAD", head)
        git.run(tree.settings, own, "read-tree", head)
    return msgspec.structs.replace(tree, at=snapshot)


def take(tree: Tree, message: str) -> Tree:
    """A snapshot of what is there now; the same tree where nothing was changed."""
    _unlocked(tree)
    for left in (2, 1, 0):
        try:
            tree.git("add", "--all")
            break
        except StorageFailed:  # somebody who works there may have just removed a file
            if not left:
                raise
    files, head = tree.git("write-tree"), tree.head
    is_known = git.is_so(tree.root, "merge-base", "--is-ancestor", head, tree.at)
    if is_known and files == git.run(tree.root, "rev-parse", f"{tree.at}^{{tree}}"):
        return tree
    if head != tree.base:
        message += f"\n\n{_HEAD}: {head}"
    parents = [tree.at] if is_known else [tree.at, head]
    return msgspec.structs.replace(tree, at=git.commit(tree.root, files, parents, message))


def join(tree: Tree, other: str, message: str) -> Tree:
    """With what others have done meanwhile, up to this snapshot. Raises ``Conflict``; a
    ``StorageFailed`` where somebody has just changed what would be changed: take it first."""
    root = tree.root
    if git.is_so(root, "merge-base", "--is-ancestor", other, tree.at):
        return tree
    if git.is_so(root, "merge-base", "--is-ancestor", tree.at, other):
        joined = other
    else:
        words = ("merge-tree", "--write-tree", "--name-only", "--no-messages", tree.at, other)
        code, out, said = git.tell(root, *words)
        files, *names = out.strip().splitlines() or [""]
        if code == 1 and names:
            raise Conflict(f"others have changed {', '.join(names[:10])} meanwhile")
        if code:
            hint = "Work side by side on several machines needs git 2.38 or newer."
            raise StorageFailed(f"git merge-tree: {said}", hint=hint)
        if head := _head_of(root, tree.at):
            message += f"\n\n{_HEAD}: {head}"
        joined = git.commit(root, files, [tree.at, other], message)
    tree.git("read-tree", "-m", "-u", tree.at, joined)
    return msgspec.structs.replace(tree, at=joined)


def remove(tree: Tree) -> None:
    """With whatever is in it."""
    with git.alone(_gate(tree.root)):
        _remove(tree.root, tree.place)


def _remove(root: Path, place: Path) -> None:
    """Of this one alone: ``prune`` would take along those of other machines. The folder first:
    git would not remove one that an agent has put another repository into."""
    shutil.rmtree(place, ignore_errors=True)
    git.tell(root, "worktree", "remove", "--force", "--force", str(place))


def _gate(root: Path) -> Path:
    """git makes and removes worktrees of one repository badly at the same time."""
    place = folders.home() / "workspaces"
    place.mkdir(parents=True, mode=0o700, exist_ok=True)
    return place / f"{blake2b(str(root).encode(), digest_size=8).hexdigest()}.gate"


def _head_of(root: Path, snapshot: str) -> str:
    form = f"--format=%(trailers:key={_HEAD},valueonly)"
    found = git.run(root, "log", "-1", form, snapshot).split()
    return git.commit_of(root, found[0]) if found else ""


def _unlocked(tree: Tree) -> None:
    """Nobody else is at the index: a lock that is there was left when git was killed."""
    Path(f"{tree.index}.lock").unlink(missing_ok=True)
