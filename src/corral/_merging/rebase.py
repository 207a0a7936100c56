"""What a branch would be on the target: one commit, made of the changes of the branch.

A branch becomes one commit, so every commit of the target has passed the gate. Its message and its
author are those of the branch's only commit; of several commits, the subject of the last one and
all messages. Messages that corral wrote, such as those of snapshots, say nothing about the work: a
branch with no others has its name in the subject. If the branch is one commit on the target
already, that commit is taken as it is.
The merge is a three-way merge of trees, in git's objects: no file of the user is touched. Nothing
here moves a branch. Everything blocks.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from corral._system.git import repository
from corral._system.git.repository import CommitInfo
from corral._system.git.worktree import Conflict, merged_tree
from corral.errors import StorageFailed

MAX_MESSAGE = 20_000
MAX_DIFF = 20_000
"""Bytes of a difference in the prompt of an owner."""


HEADS = "refs/heads/"
OWN = "corral: "
"""The beginning of the messages that corral writes."""
REPAIR = f"{OWN}repair "
"""The beginning of the message of a commit that repairs a branch."""


def reference(branch: str) -> str:
    """The full name of a branch."""
    return branch if branch.startswith("refs/") else f"{HEADS}{branch}"


def tip_of(root: Path, branch: str) -> str | None:
    """The commit of a branch; None if there is no such branch. Raises ``StorageFailed``."""
    if {*branch} & {*"^~:"} or "@{" in branch:
        return None  # an expression of git that names a commit
    name = f"{reference(branch)}^{{commit}}"
    answer = repository.call(root, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
    return None if answer.code else answer.text.strip()


def staging_of(into: str) -> str:
    """The branch that has what is merged, while the target is checked out."""
    return f"corral/merge/{into}"


def merged_tip(root: Path, into: str) -> str | None:
    """The last commit of what is merged into a branch; None if it was deleted. Raises
    ``StorageFailed``."""
    return tip_of(root, staging_of(into)) or tip_of(root, into)


class Rebased(msgspec.Struct, frozen=True, kw_only=True):
    """The branch on the target."""

    commit: str
    """Empty: there is a conflict."""
    is_empty: bool = False
    """The target has all changes of the branch already."""
    files: tuple[str, ...] = ()
    """In conflict."""
    tree: str = ""
    """In a conflict, the files with both versions between conflict markers."""


def rebase(root: Path, target: str, branch: str, name: str) -> Rebased:
    """Put the changes of a commit, the tip of the branch ``name``, on the commit ``target``. Raises
    ``StorageFailed``."""
    base = repository.merge_base(root, target, branch)
    if base is None:
        more = "known in this shallow clone (git fetch --unshallow)"
        where = more if repository.is_shallow(root) else "in common with the target"
        raise StorageFailed(f"it has no commit {where}")
    if base == branch:
        return Rebased(commit=target, is_empty=True)
    commits = repository.commits(root, base, branch)
    # Those of repairs say nothing about the branch.
    commits = [each for each in commits if not each.message.startswith(REPAIR)] or commits
    is_named = any(not each.message.startswith(OWN) for each in commits)
    if base == target and is_named and _is_one_commit(root, target, branch):
        return Rebased(commit=branch)
    try:
        tree = merged_tree(root, target, branch)
    except Conflict as error:
        return Rebased(commit="", files=error.files, tree=error.tree)
    if tree == repository.tree_of(root, target):
        return Rebased(commit=target, is_empty=True)
    last = commits[-1] if commits else None
    commit = repository.commit(
        root, tree, [target], _message(commits, name), None if last is None else last.author_env
    )
    return Rebased(commit=commit)


def _is_one_commit(root: Path, target: str, branch: str) -> bool:
    parents = repository.run(root, "rev-list", "--parents", "-n", "1", branch).split()[1:]
    return parents == [target]


def _message(commits: list[CommitInfo], name: str) -> str:
    texts = [each.message for each in commits if each.message and not each.message.startswith(OWN)]
    if len(texts) < 2:
        return (texts or [f"Merge the work of {name}"])[0][:MAX_MESSAGE]
    subject = texts[-1].partition("\n")[0]
    rest = "\n\n".join(f"* {text}" for text in texts)
    return f"{subject}\n\n{rest}"[:MAX_MESSAGE]


def both_sides(root: Path, target: str, branch: str, files: tuple[str, ...]) -> str:
    """What each side changed in the files in conflict, as text of a limited size."""
    base = repository.merge_base(root, target, branch)
    parts: list[str] = []
    for name, commit in (("the target", target), ("your branch", branch)):
        words = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", base or target, commit)
        answer = repository.call(root, *words, "--", *files)
        text = answer.out[:MAX_DIFF].decode("utf-8", "replace")
        parts.append(f"What {name} changed there:\n\n```diff\n{text}\n```")
    return "\n\n".join(parts)
