"""Repositories in folders that an agent writes, and the files of them that make git start programs.

``find`` looks for every repository below some folders: a ``.git`` of any kind (a folder, a link,
the file of a submodule or a work tree), and bare repositories, which git also obeys when it is
started in them. ``read_parts`` reads the *parts* of a repository that decide what git starts: its
settings, hooks and remotes, where they really are. Nothing is changed here, and git is not started
in any repository.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral._system.fs import open_regular, read_small
from corral._system.paths import is_inside

MOST_ENTRIES = 1_000_000
"""Files and folders that one search looks at. This takes about a second."""
MOST_UNREADABLE = 1_000
"""Folders that cannot be read, before a search counts as not complete."""
MOST_FILES = 1_000
"""Hooks of a repository that are read."""
_LARGEST = 64 * 1024
"""Bytes of a file whose content is kept, so that it can be put back."""
_DIGESTED = 1 << 20
"""Bytes of a file of which a digest is made. A larger one is compared by its size and times."""
_LENGTH = len(".git")
_SETTINGS = ("config", "config.worktree")
_FOLDERS = ("hooks", "remotes", "branches")
"""Each file of these is a part. The last two name places to fetch from, as git did once."""
QUARANTINED = ".quarantined-"
"""In the name of a file that was renamed so that git does not obey it. No hook of git has such a
name: another program's guard of the same folder must not rename it again."""


class GitPart(msgspec.Struct, frozen=True, gc=False):
    """A file of a repository that git obeys."""

    path: str
    stamp: bytes
    """Differs if it is another file or has another content."""
    content: bytes | None = None
    """Of a settings file."""
    git_dir: str = ""
    """The folder of the repository, for settings."""


class FoundRepositories(msgspec.Struct, frozen=True):
    """The repositories below some folders."""

    entries: tuple[str, ...]
    """The path of each ``.git``, and the folder of each bare repository; the highest first."""
    unreadable: frozenset[str] = frozenset()
    """Folders that could not be listed."""
    is_complete: bool = True
    """False if there were too many files."""


def find(folders: Iterable[str], skipped: Iterable[str] = ()) -> FoundRepositories:
    """Search these folders, but not those in ``skipped``. All are absolute and without links. Links
    are not followed."""
    entries: list[str] = []
    unreadable: set[str] = set()
    omitted, seen, is_complete = {*skipped}, 0, True
    pending = [*dict.fromkeys(folders)]
    while pending and is_complete:
        folder = pending.pop()
        try:
            found = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            continue  # it is gone by now
        except OSError:
            unreadable.add(folder)
            continue
        seen += len(found)
        is_complete = seen <= MOST_ENTRIES and len(unreadable) <= MOST_UNREADABLE
        if is_complete:
            below = _take_folders(folder, found, entries)
            pending += [path for path in below if path not in omitted]
    highest_first = sorted(entries, key=lambda path: (path.count("/"), path))
    return FoundRepositories(tuple(highest_first), frozenset(unreadable), is_complete)


def _take_folders(
    folder: str, found: Iterable[os.DirEntry[str]], entries: list[str]
) -> Iterator[str]:
    """The folders in a folder. Adds repositories to ``entries``."""
    has_head = False
    for entry in found:
        # A file system may ignore case, and so would git.
        short = entry.name.lower() if len(entry.name) == _LENGTH else ""
        if short == ".git":
            entries.append(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            yield entry.path
        elif short == "head":
            has_head = True
    names = ("objects", "refs", "commondir") if has_head else ()
    has = [os.path.exists(os.path.join(folder, name)) for name in names]
    if has and (all(has[:2]) or has[2]):  # a bare repository
        entries.append(folder)


def git_dirs(entry: str) -> Iterator[str]:
    """The folders whose settings and hooks git obeys for this ``.git`` or bare repository, without
    links: its own, and the one that work trees share."""
    git_dir = os.path.realpath(entry)
    if not os.path.isdir(git_dir):
        head = _read_line(git_dir)
        if not head.startswith("gitdir:"):
            return
        name = head.removeprefix("gitdir:").strip()
        git_dir = os.path.realpath(os.path.join(os.path.dirname(git_dir), name))
    yield git_dir
    other = _read_line(os.path.join(git_dir, "commondir"))
    if other:
        common = os.path.realpath(os.path.join(git_dir, other))
        if common != git_dir:
            yield common


def _read_line(path: str) -> str:
    return os.fsdecode(read_small(os.path.realpath(path), _LARGEST) or b"").strip()


def read_parts(entry: str) -> Iterator[GitPart]:
    """The parts of a repository that exist."""
    top = os.path.dirname(entry) if os.path.basename(entry).lower() == ".git" else entry
    for git_dir in git_dirs(entry):
        for name in _SETTINGS:
            path = os.path.join(git_dir, name)
            if os.path.lexists(path):
                part = _read(path, git_dir)
                yield part
                for folder in hook_folders(part, top):
                    yield from _read_all(folder)
        for name in _FOLDERS:
            yield from _read_all(os.path.join(git_dir, name), is_remotes=name != "hooks")


def _read_all(folder: str, *, is_remotes: bool = False) -> Iterator[GitPart]:
    """Those in a folder. A link to a folder is a part itself: it can lead elsewhere later. git
    starts hooks of known names only, but any name can be a remote."""
    if os.path.islink(folder):
        yield _read(folder)
    try:
        with os.scandir(os.path.realpath(folder)) as entries:
            paths = sorted(entry.path for entry in entries)
    except OSError:
        return
    for path in paths[:MOST_FILES]:
        name = os.path.basename(path)
        is_hook = not name.endswith(".sample") and QUARANTINED not in name
        if is_hook or is_remotes:
            yield _read(path)
    if len(paths) > MOST_FILES:
        yield GitPart(folder, b"too many files")


def _read(path: str, git_dir: str = "") -> GitPart:
    digest = blake2b(digest_size=16)
    content: bytes | None = None
    try:
        info = os.lstat(path)
        digest.update(b"%d" % info.st_mode)
        real = path
        if stat.S_ISLNK(info.st_mode):
            digest.update(os.fsencode(os.readlink(path)))
            real = os.path.realpath(path)
        if git_dir and real == path:
            content = read_small(path, _LARGEST)
        with open_regular(real) as file:
            info = os.fstat(file.fileno())
            if info.st_size <= _DIGESTED:
                digest.update(file.read(_DIGESTED))
            else:
                digest.update(b"%d %d %d" % (info.st_ino, info.st_size, info.st_ctime_ns))
    except OSError as error:  # a folder, a pipe, or without permission to read
        digest.update(b"%d" % (error.errno or 0))
    return GitPart(path, digest.digest(), content, git_dir)


def hook_folders(settings: GitPart, top: str) -> Iterator[str]:
    """The folder of ``core.hooksPath`` in a settings file, if there is one. ``top``: the work tree.
    Includes are not followed."""
    if settings.content is None or b"hookspath" not in settings.content.lower():
        return
    from corral._system.git.settings import parse
    from corral.errors import StorageFailed

    try:
        rows = parse(settings.content)
    except StorageFailed:  # without git, no hook is run
        return
    for name, value in rows:
        if name == "core.hookspath" and value:
            yield os.path.realpath(os.path.join(top, os.path.expanduser(value)))


def find_dangers(part: GitPart, old: bytes | None, folders: Iterable[str]) -> list[str]:
    """Why git may start a program because of this part, which an agent made or changed; empty if it
    does not. ``old``: the settings that were there before. ``folders``: those of the agent."""
    if not part.git_dir:
        return [f"{Path(part.path).parent.name}/{Path(part.path).name}"]
    if part.content is None:
        return [f"{Path(part.path).name} is a link, too large or no plain file"]
    from corral._system.git.dangerous_settings import find_not_harmless

    roots = [*folders]

    def is_tree(value: str) -> bool:
        tree = os.path.realpath(os.path.join(part.git_dir, value))
        return any(is_inside(tree, root) for root in roots)

    known = {*find_not_harmless(old or b"", is_tree)}
    return [each for each in find_not_harmless(part.content, is_tree) if each not in known]
