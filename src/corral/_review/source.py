"""What is reviewed: the diff of a range of commits, of the work tree, or a given one; and the files
that the reviewer may read beside it.

The reviewer never works in the user's folder. It gets a copy of the files of the new version, in a
folder of corral's own that is in no repository. So it sees what the diff describes, and neither
``.git`` (a CI system writes its token there) nor files that are ignored. Links are left out: they
could lead out of the copy. So are files that an agent obeys: the author of the change may have
written them. They are reviewed as a part of the diff, like all others.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from corral._core.protected_paths import is_instruction, is_protected
from corral._review import diff
from corral._system import clock, fs, paths
from corral._system.clock import random_hex
from corral._system.git import command, repository, tree, worktree
from corral.errors import ConfigError, StorageFailed
from corral.values import path_from_printable

MAX_DIFF = 64 * 1024 * 1024
"""Bytes."""
MAX_TEXT, MAX_TEXTS = 1024 * 1024, 50
"""Bytes of the diff of a file that git calls binary, and their number, that are looked at."""
TEXT_SHARE = 0.95
"""Of the bytes of such a diff, if the file is a text: the control characters of a text are few."""
OLD = 24 * 3600.0
"""Seconds after which the copy of a review that was killed is removed."""
MAX_MESSAGES = 16 * 1024
"""Bytes of commit messages that the reviewer sees."""
_DEFAULT_BRANCHES = (
    *("refs/remotes/origin/HEAD", "refs/remotes/origin/main", "refs/remotes/origin/master"),
    *("refs/heads/main", "refs/heads/master"),
)
_SHALLOW = (
    "The clone may be shallow: fetch the history (actions/checkout: fetch-depth: 0; GitLab:"
    ' GIT_DEPTH: "0").'
)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A diff, and where its new version is."""

    title: str
    """For people: the range, or the name of the patch."""
    diff: bytes
    as_text: frozenset[str] = frozenset()
    """Paths of files that the diff names as binary and then shows as a text."""
    messages: str = ""
    """Of the commits."""
    root: Path | None = None
    """The repository of the new version."""
    commit: str = ""


def given_patch(data: bytes, title: str, folder: str | os.PathLike[str]) -> Source:
    """A diff that the caller has. The reviewer sees the files that are in the folder now."""
    if not data.strip():
        return Source(title=title, diff=data)
    try:
        root, head = worktree.repository_root(_absolute(folder))
        commit = worktree.snapshot_of(root, head)
    except (ConfigError, StorageFailed):  # no repository: the diff is all
        return Source(title=title, diff=data)
    return Source(title=title, diff=data, root=root, commit=commit)


def from_repository(change: str | None, folder: str | os.PathLike[str]) -> Source:
    """The diff of ``A..B``, ``A...B`` (since both parted), ``A`` (from there to the files as they
    are), or without a range from where the work began on the default branch to the files as they
    are. Raises ``ConfigError``."""
    root, head = worktree.repository_root(_absolute(folder))
    try:
        old, new, title = _ends(root, head, change)
        data, as_text = _diff(root, old, new)
        return Source(
            title=title,
            diff=data,
            as_text=as_text,
            messages=repository.messages(root, old, new, MAX_MESSAGES),
            root=root,
            commit=new,
        )
    except StorageFailed as error:
        raise ConfigError(f"the diff cannot be made: {error.message}", hint=error.hint) from error


def _absolute(folder: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(folder))


def _diff(root: Path, old: str, new: str) -> tuple[bytes, frozenset[str]]:
    """The diff, and the paths in it that were added as a text: a file with a few control characters
    is binary to git, so that its change would be hidden from the reviewer."""
    data = repository.diff(root, old, new, MAX_DIFF)
    texts: dict[str, bytes] = {}
    for file in diff.parse(data):
        if file.is_binary and len(texts) < MAX_TEXTS:
            path = path_from_printable(file.path)
            with suppress(StorageFailed):  # it is longer
                text = repository.diff(root, old, new, MAX_TEXT, as_text=path)
                shown = sum(byte >= 32 or byte in b"\t\n\r" for byte in text)
                if shown >= len(text) * TEXT_SHARE:
                    texts[file.path] = text
    return b"".join((data, *texts.values())), frozenset(texts)


def _ends(root: Path, head: str, change: str | None) -> tuple[str, str, str]:
    """The old and the new commit, and a title."""
    if change is None:
        branch = _default_branch(root)
        old = _base(root, branch, head)
        title = f"the work tree since {branch.removeprefix('refs/').partition('/')[2]}"
        return old, worktree.snapshot_of(root, head), title
    first, dots, second = change.partition("...")
    if dots:
        new = _commit(root, second or "HEAD")
        return _base(root, _commit(root, first or "HEAD"), new), new, change
    first, dots, second = change.partition("..")
    old = _commit(root, first or "HEAD")
    if dots:
        return old, _commit(root, second or "HEAD"), change
    return old, worktree.snapshot_of(root, head), f"the work tree since {change}"


def _commit(root: Path, name: str) -> str:
    try:
        return repository.commit_of(root, name)
    except StorageFailed as error:
        remote = f"refs/remotes/origin/{name}"  # in CI only the branch at hand is a local one
        try:
            return repository.commit_of(root, remote)
        except StorageFailed:
            raise ConfigError(
                f"there is no commit {name!r}",
                hint=f"Give BASE...HEAD, a commit, or --patch FILE. {_SHALLOW}",
            ) from error


def _base(root: Path, one: str, other: str) -> str:
    base = repository.merge_base(root, one, other)
    if base is None:
        raise ConfigError(f"{one} and {other[:12]} have no common commit here", hint=_SHALLOW)
    return base


def _default_branch(root: Path) -> str:
    for name in _DEFAULT_BRANCHES:
        if repository.check(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"):
            return name
    raise ConfigError(
        "the default branch is not known: there is no origin/HEAD, main or master",
        hint="Give a range: corral review BASE...HEAD.",
    )


@contextmanager
def reviewed_files(source: Source, *, empty: bool) -> Generator[Path]:
    """A folder with the files of the new version; with ``empty``, or without a repository, an
    empty one. It is removed at the end. Blocks. Raises ``StorageFailed``."""
    folder = paths.make_dir(paths.home() / "reviews")
    for name in fs.list_names(folder):  # what killed processes left
        with suppress(OSError):
            if clock.now() - fs.status(folder / name).st_mtime > OLD:
                fs.remove_tree(folder / name)
    own = paths.make_dir(folder / random_hex(6))
    place = paths.make_dir(own / "files")
    try:
        if source.root is not None and not empty:
            command.require("a review of a repository")
            tree.export(source.root, place, source.commit, _is_shown)
        yield place
    finally:
        fs.remove_tree(own)


def _is_shown(path: bytes) -> bool:
    text = os.fsdecode(path)
    return not is_protected(text) and not is_instruction(text)
