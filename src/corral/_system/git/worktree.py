"""Linked work trees of a repository, in folders of corral's own, and the user's files as commits.

git's data about a work tree (``HEAD``, ``index``) are in a folder beside it, not in the repository:
nothing there is locked, listed or left behind. A program that works in the tree can use git as in
any linked work tree: objects and branches are those of the repository. Nothing of the user's own
work tree is changed. git's own commands for work trees are not used, since they run hooks and
filters that the repository names.

``TaskWorktree`` is for one task: its own folder at a commit. The work done there becomes a branch.

``SharedWorktree`` is for several nodes of a run, one after another or at the same time, maybe on
several machines. After each of them all files in the tree become a commit of the run's branch: a
snapshot. git's index and HEAD in the tree are left alone, so a program sees the earlier work as
changes that are not committed, and may commit. Its commits become parents of the next snapshot.
One process at a time may use a tree.

``snapshot_of`` makes a commit of the user's own files, and ``merge_into`` merges changes of a
commit into them. Neither changes git's index, ``HEAD`` or a branch of the user.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral._system import paths
from corral._system.git import command, repository, scan
from corral._system.git import tree as git_tree
from corral._system.threads import in_thread
from corral.errors import ConfigError, StorageFailed
from corral.values import printable_path

_HINT = "Merging needs git 2.38 or newer."


class Conflict(StorageFailed):
    """The same lines were changed in two worktrees."""

    files: tuple[str, ...] = ()
    tree: str = ""
    """A tree with both versions of these lines, between conflict markers."""


def snapshot_of(root: Path, head: str) -> str:
    """A commit of all files in a work tree that are not ignored, also those that are not committed;
    ``head``, its current commit, if nothing is changed. No branch names it. Raises
    ``StorageFailed``."""
    tree = _work_tree(root, root, head)
    if tree == repository.tree_of(root, head):
        return head
    return repository.commit(root, tree, [head], "changes that are not committed")


def _work_tree(root: Path, place: Path, at: str) -> str:
    """The tree of a folder of the user, which may be in no repository."""
    scope = scan.scope_of(place) or scan.Scope()
    return git_tree.write_tree(root, place, at, {}, scope)


def folder_repository(own: Path, folder: Path) -> str:
    """Make a repository at ``own`` whose only commit has the files of a folder that are not
    ignored; returns the commit. What was there is removed. The folder is only read. Raises
    ``StorageFailed``."""
    command.require("a copy of a folder")
    try:
        shutil.rmtree(own, ignore_errors=True)
        repository.make_bare(own)
    except OSError as error:
        raise StorageFailed(f"{own} cannot be written: {error}") from error
    empty = repository.commit(own, repository.run(own, "mktree"), [], "empty")
    commit = repository.commit(own, _work_tree(own, folder, empty), [], f"the files of {folder}")
    repository.run(own, "update-ref", "refs/heads/main", commit)
    return commit


def merge_into(root: Path, place: Path, base: str, new: str, *, check: bool) -> tuple[str, ...]:
    """Bring the changes from the commit ``base`` to ``new`` into the files of a folder, which may
    have changed since: a three-way merge. Returns the changed files. Nothing is written if there
    are conflicts, or if ``check`` is set; if writing fails, what was written is undone. git's
    index stays as it is. Raises ``Conflict`` and ``StorageFailed``."""
    # merge-tree of an old git takes the base from the history only.
    start = repository.commit(root, repository.tree_of(root, base), [], "base")
    ours = files_as_commit(root, place, [start])
    theirs = repository.commit(root, repository.tree_of(root, new), [start], "theirs")
    merged = merged_tree(root, ours, theirs)
    if not check:
        write_merged(root, place, ours, merged)
    return repository.changed_files(root, ours, merged)


def files_as_commit(root: Path, place: Path, parents: Sequence[str]) -> str:
    """A commit of the files that a folder has now, after these commits. No branch names it. Raises
    ``StorageFailed``."""
    tree = _work_tree(root, place, parents[0])
    return repository.commit(root, tree, parents, "the files of a folder")


def write_merged(root: Path, place: Path, ours: str, merged: str) -> None:
    """Change the files of a folder from the commit ``ours``, which they are, to the tree or commit
    ``merged``. If writing fails, or a file is not as ``ours`` has it, what was written is undone.
    Raises ``StorageFailed``."""
    changes = repository.differences(root, ours, merged)
    if not changes:
        return
    try:
        git_tree.update(root, place, changes, force=False)
    except StorageFailed:
        if _work_tree(root, place, ours) != repository.tree_of(root, ours):
            git_tree.revert(root, place, changes)
        raise


def update_checkout(top: Path, branch: str, old: str, new: str) -> None:
    """Move a branch forward that is checked out in the work tree ``top``, with its files and index,
    as ``git merge --ff-only`` does. The files must be as the commit ``old`` has them, or as ``new``
    has them, because an earlier call may have been interrupted; new ones that are not in the way
    stay. Raises ``StorageFailed``; then nothing was changed, except by an interruption."""
    if not top.is_dir():
        raise StorageFailed(f"the folder {top} of this work tree is missing")
    layout = repository.locate(top)
    if repository.is_in_progress(layout.git_dir) or scan.read_head(layout.git_dir) != branch:
        raise StorageFailed(f"{top} is in the middle of a rebase or a merge")
    if repository.is_sparse(layout):
        raise StorageFailed(f"{top} is a sparse checkout")
    index = {"GIT_INDEX_FILE": str(layout.git_dir / "index")}
    current = _work_tree(top, top, old)
    changes = repository.differences(top, current, new)
    if current != repository.tree_of(top, old):
        merged = {each.path for each in repository.differences(top, old, new)}
        own = repository.differences(top, old, current)
        words = ("ls-files", "-z")
        in_index = repository.checked(words, repository.call(top, *words, env=index)).out
        spared = _out_of_the_way(own, merged, {*in_index.split(b"\0")})
        changes = [change for change in changes if change.path not in spared]
        changed = {change.path for change in changes}
        blocking = [each.path for each in own if each.path in changed]
        if blocking:
            name = printable_path(os.fsdecode(blocking[0]))
            more = f" and {len(blocking) - 1} more" if len(blocking) > 1 else ""
            raise StorageFailed(f"{top} has changes that are not committed: {name}{more}")
    is_indexed = False
    try:
        git_tree.update(top, top, changes, force=False)
        repository.run(top, "read-tree", new, env=index)
        is_indexed = True
        if repository.commit_of(top, branch) != new:
            repository.run(top, "update-ref", branch, new, old)
    except StorageFailed:  # another program has locked the index or the branch, or the disk is full
        if _work_tree(top, top, old) != current:
            git_tree.revert(top, top, changes)
        if is_indexed:
            repository.run(top, "read-tree", old, env=index)
        raise


def _out_of_the_way(
    own: Sequence[repository.TreeDifference], merged: set[bytes], in_index: set[bytes]
) -> set[bytes]:
    """Those of the user's changes that are new files, neither in the index nor at a path that
    ``merged`` needs for a file or a folder."""
    needed = merged | {parent for path in merged for parent in _parents(path)}
    return {
        each.path
        for each in own
        if each.old is None
        and each.path not in in_index | needed
        and merged.isdisjoint(_parents(each.path))
    }


def _parents(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:count]) for count in range(1, len(parts))]


def merged_tree(root: Path, ours: str, theirs: str) -> str:
    """Raises ``Conflict`` and ``StorageFailed``."""
    # Without -z git would write names that are not ASCII in quotes, with octal numbers.
    words = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs)
    answer = repository.call(root, *words)
    tree, *paths = answer.out.split(b"\0")
    names = [printable_path(os.fsdecode(path)) for path in paths if path]
    if answer.code == 1 and names:
        conflict = Conflict(f"others have changed {', '.join(names[:10])} meanwhile")
        conflict.files, conflict.tree = tuple(names), tree.decode().strip()
        raise conflict
    if answer.code:
        raise StorageFailed(f"git merge-tree: {answer.errors}", hint=_HINT)
    return tree.decode().strip()


LARGEST_PATCH = 256 * 1024
"""Bytes."""

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+|\.{2,}|^[.-]+|\.lock$|\.$")
_HEAD = "Corral-Head"
"""The trailer of a snapshot's message that names the tree's HEAD, if it was moved."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What was done in the worktree of a task."""

    branch: str
    commit: str
    files: tuple[str, ...]
    patch: str
    """Empty if it would be too large, or is not UTF-8."""


class TaskWorktree(msgspec.Struct, frozen=True, kw_only=True):
    """A worktree for one task."""

    root: Path
    """Of the repository."""
    commit: str
    place: Path
    git_dir: Path
    """git's data about the worktree: HEAD and its index."""

    @classmethod
    async def make(cls, root: Path, commit: str, place: Path) -> TaskWorktree:
        """Make a worktree at this commit. What an earlier one left at the place is removed. Raises
        ``StorageFailed``, also if the repository cannot take the work."""
        for part in ("objects", "refs"):
            folder = Path(repository.locate(root).common, part)
            if not paths.is_writable(folder):
                raise StorageFailed(f"{folder} cannot be written: the work would be lost")
        git_dir = place.with_name(f"{place.name}.git")
        await in_thread(_add, root, place, git_dir, files=commit, head=commit)
        return cls(root=root, commit=commit, place=place, git_dir=git_dir)

    async def remove(self) -> None:
        """Remove the worktree with everything in it."""
        await in_thread(self._remove)

    def _remove(self) -> None:
        _remove(self.place, self.git_dir)
        with suppress(OSError):  # other files are beside it
            self.place.parent.rmdir()

    async def commit_to(self, name: str, message: str) -> Change | None:
        """Commit what was changed since the commit to a branch of the repository, or to another
        reference, such as ``refs/corral/...``: git's commands do not list that, and keep its
        commits. Returns None if nothing was changed. Raises ``StorageFailed``: then the worktree
        must stay, because its work is nowhere else."""
        return await in_thread(self._commit_to, name, message)

    def _commit_to(self, name: str, message: str) -> Change | None:
        reference = name if name.startswith("refs/") else f"refs/heads/{name}"
        root, commit = self.root, self.commit
        tree = _write_tree(root, self.place, commit)
        if tree == repository.tree_of(root, commit):
            return None
        head = _head(root, self.git_dir, commit)
        if repository.tree_of(root, head) != tree:
            head = repository.commit(root, tree, [head], message)
        repository.run(root, "update-ref", reference, head)
        return Change(
            branch=name,
            commit=head,
            files=repository.changed_files(root, commit, head),
            patch=repository.patch(root, commit, head, LARGEST_PATCH),
        )


class SharedWorktree(msgspec.Struct, frozen=True, kw_only=True):
    """A worktree that several nodes work in. All methods block and raise ``StorageFailed``."""

    root: Path
    """The repository."""
    base: str
    """The commit that the run started from."""
    at: str
    """The snapshot that the files are, except for what was changed since."""
    place: Path
    git_dir: Path
    """git's data about the worktree: HEAD and its index. Programs in the tree may change it."""

    @classmethod
    def make(cls, root: Path, base: str, snapshot: str, own: Path) -> SharedWorktree:
        """Make a worktree in the folder ``own``. What was there before is removed."""
        place, git_dir = own / "tree", own / "git"
        _add(root, place, git_dir, files=snapshot, head=_recorded_head(root, snapshot) or base)
        return cls(root=root, base=base, at=snapshot, place=place, git_dir=git_dir)

    @property
    def head(self) -> str:
        return _head(self.root, self.git_dir, self.base)

    def reset_to(self, snapshot: str) -> SharedWorktree:
        """Return the tree at this snapshot. Changes that were made in it are lost."""
        head = _recorded_head(self.root, snapshot) or self.base
        try:
            current = _write_tree(self.root, self.place, self.at)
            changes = repository.differences(self.root, current, snapshot)
            git_tree.update(self.root, self.place, changes, force=True)
            if head != self.head:
                # Set HEAD and the index to a commit; the files stay.
                git_dir = self.git_dir
                try:
                    git_dir.mkdir(parents=True, exist_ok=True)
                    (git_dir / "index.lock").unlink(missing_ok=True)
                    _write(git_dir / "HEAD", head)
                except OSError as error:
                    raise StorageFailed(f"{git_dir} cannot be written: {error}") from error
                repository.run(
                    self.root, "read-tree", head, env={"GIT_INDEX_FILE": str(git_dir / "index")}
                )
        except StorageFailed:  # there is a folder that cannot be read
            _add(self.root, self.place, self.git_dir, files=snapshot, head=head)
        return msgspec.structs.replace(self, at=snapshot)

    def take_snapshot(self, message: str) -> SharedWorktree:
        """Commit the files that are there now. Returns the same tree if nothing was changed."""
        files = ""
        for left in (2, 1, 0):
            try:
                files = _write_tree(self.root, self.place, self.at)
                break
            except StorageFailed:  # a program in the tree may have just changed a file
                if not left:
                    raise
        head = self.head
        is_known = repository.is_ancestor(self.root, head, self.at)
        if is_known and files == repository.tree_of(self.root, self.at):
            return self
        if head != self.base:
            message += f"\n\n{_HEAD}: {head}"
        parents = [self.at] if is_known else [self.at, head]
        return msgspec.structs.replace(
            self, at=repository.commit(self.root, files, parents, message)
        )

    def merge(self, other: str, message: str) -> SharedWorktree:
        """Merge the work of others up to the snapshot ``other``. Raises ``Conflict``. Raises
        ``StorageFailed`` if a file that would change was just changed in the tree: then take a
        snapshot first."""
        root = self.root
        if repository.is_ancestor(root, other, self.at):
            return self
        if repository.is_ancestor(root, self.at, other):
            merged = other
        else:
            files = merged_tree(root, self.at, other)
            if head := _recorded_head(root, self.at):
                message += f"\n\n{_HEAD}: {head}"
            merged = repository.commit(root, files, [self.at, other], message)
        changes = repository.differences(root, self.at, merged)
        git_tree.update(root, self.place, changes, force=False)
        return msgspec.structs.replace(self, at=merged)

    def remove(self) -> None:
        """Remove the worktree with everything in it."""
        _remove(self.place, self.git_dir)


def repository_root(folder: Path) -> tuple[Path, str]:
    """The repository around a folder, and the commit it is at. Raises ``ConfigError``. Blocks."""
    command.require("a worktree")
    try:
        root = repository.locate(folder).top
        if root is None:
            raise StorageFailed(f"{folder} is in a bare repository")
    except StorageFailed as error:
        raise _no_commit(folder, error.message) from error
    try:
        return root, repository.commit_of(folder, "HEAD")
    except StorageFailed as error:
        raise _no_commit(folder, "It has no commit yet: make the first one.") from error


def _no_commit(folder: Path, hint: str) -> ConfigError:
    return ConfigError(
        f"this needs a git repository with a commit, got: {folder.absolute()}", hint=hint
    )


def check_branches(root: Path) -> None:
    """Raises ``StorageFailed`` if git can make no branch with a ``branch_name``. Blocks."""
    words = ("show-ref", "--verify", "--quiet", "refs/heads/corral")
    if not repository.call(root, *words).code:
        raise StorageFailed(
            f"{root} has a branch named corral, so git can make none that begins with corral/",
            hint="Rename it: git branch -m corral NAME",
        )


def branch_name(*parts: str) -> str:
    """The name of a branch for these parts, which may contain any characters. Different parts have
    different names."""
    return "/".join(("corral", *map(name_part, parts)))


def task_folder(root: Path, batch: str, task: str, run: str) -> Path:
    """The folder for a task's worktree: always the same for the same names. It is in corral's home,
    which stays, unlike a run's folder."""
    key = "\0".join((str(root), batch, task, run)).encode("utf-8", "surrogateescape")
    name = f"{name_part(task)[:40]}-{blake2b(key, digest_size=8).hexdigest()}"
    return paths.home() / "worktrees" / name / "tree"


def name_part(part: str) -> str:
    """A part of a branch's or folder's name for any text. Different texts have different names."""
    name = _UNFIT.sub("-", part)[:80].strip("-.") or "task"
    if name == part:
        return name
    return f"{name}-{blake2b(part.encode('utf-8', 'replace'), digest_size=3).hexdigest()}"


def _add(root: Path, place: Path, git_dir: Path, *, files: str, head: str) -> None:
    """Make a work tree with the files of one commit and HEAD at another (often the same). What was
    at ``place`` or in ``git_dir`` is removed. Raises ``StorageFailed``."""
    _remove(place, git_dir)
    common = repository.locate(root).common
    try:
        place.mkdir(parents=True)
        git_dir.mkdir(parents=True)
        git_tree.fill(root, place, files, git_dir / "index")
        _write(git_dir / "HEAD", head)
        _write(git_dir / "commondir", str(common))
        _write(git_dir / "gitdir", str(place / ".git"))
        _write(place / ".git", f"gitdir: {git_dir}")
        entries = repository.entries(root, files)
        git_tree.write_cache(_cache(place), git_tree.fresh_cache(place, entries))
    except OSError as error:
        raise StorageFailed(f"the worktree {place} cannot be made: {error}") from error
    if files != head:
        repository.run(root, "read-tree", head, env={"GIT_INDEX_FILE": str(git_dir / "index")})


def _remove(place: Path, git_dir: Path) -> None:
    for each in (place, git_dir):
        if each.is_symlink():
            each.unlink()
        shutil.rmtree(each, ignore_errors=True)
    _cache(place).unlink(missing_ok=True)


def _write_tree(root: Path, place: Path, at: str) -> str:
    """The id of a tree with all files that are there now. The files of the commit ``at`` are
    tracked. Raises ``StorageFailed``."""
    cache = git_tree.read_cache(_cache(place))
    scope = scan.scope_below(place, place, repository.locate(root).common)
    tree = git_tree.write_tree(root, place, at, cache, scope)
    with suppress(OSError):
        git_tree.write_cache(_cache(place), cache)
    return tree


def _head(root: Path, git_dir: Path, default: str) -> str:
    """The commit that HEAD is at; ``default`` if it cannot be read."""
    name = scan.read_head(git_dir)
    if name is None:
        return default
    try:
        return repository.commit_of(root, name)
    except StorageFailed:
        return default


def _recorded_head(root: Path, snapshot: str) -> str:
    """The HEAD that a snapshot records; empty if it records none or that commit is missing."""
    form = f"--format=%(trailers:key={_HEAD},valueonly)"
    found = repository.run(root, "log", "-1", "--no-mailmap", form, snapshot).split()
    with suppress(StorageFailed):
        return repository.commit_of(root, found[0]) if found else ""
    return ""


def _cache(place: Path) -> Path:
    return place.with_name(f"{place.name}.files")


def _write(path: Path, text: str) -> None:
    paths.write_private(path, f"{text}\n".encode("utf-8", "surrogateescape"))
