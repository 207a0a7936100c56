"""Store the files of a work tree as a git tree, and write files of a commit into a work tree.

The files are listed and read here; git gets their contents and a list of names. It never looks
at the work tree, so nothing there can make it start a program or wait. An embedded repository
becomes the files that are in it. A submodule of the commit stays a submodule as long as its
folder is empty or holds exactly the commit's files.

The id of a file that has not changed is taken from a cache beside the tree. An entry is used only
if it was made when the file had not been changed for a while. So a change within the clock's
resolution is not missed.

A new folder is filled by git (``fill``). Later changes are written here (``update``), file by file:
no part of a path is followed if it is a link, and a file is replaced only if it holds what the
earlier commit holds.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from corral._system import fs
from corral._system import paths as system_paths
from corral._system.fs import open_regular, parent_below
from corral._system.git import repository, scan, stub
from corral._system.git.command import GitLimits
from corral._system.git.repository import Stamp, TreeDifference, TreeEntry, stamp_of
from corral._system.git.scan import Scope
from corral.errors import StorageFailed
from corral.values import printable_path

SUBMODULE = "160000"
LINK = "120000"
EXECUTABLE = "100755"
_CHUNK = 1024 * 1024
_REST = 2_000_000_000
"""Nanoseconds that a file must have rested before its id is cached."""
_TICK = 0.02
"""Seconds. Longer than the resolution of a local file system's clock."""


class Known(msgspec.Struct, frozen=True, gc=False, array_like=True):
    stamp: Stamp
    id: str


Cache = dict[bytes, Known]


def read_cache(path: Path) -> Cache:
    try:
        rows = msgspec.msgpack.decode(path.read_bytes(), type=list[tuple[bytes, Known]])
    except (OSError, msgspec.MsgspecError):
        return {}
    return dict(rows)


def write_cache(path: Path, cache: Mapping[bytes, Known]) -> None:
    system_paths.write_private(path, msgspec.msgpack.encode(list(cache.items())))


def fresh_cache(place: Path, entries: Mapping[bytes, TreeEntry]) -> Cache:
    """For a tree that was checked out just now, before anybody works in it."""
    base, cache = os.fsencode(place), Cache()
    for path, entry in entries.items():
        with contextlib.suppress(OSError):
            info = os.lstat(os.path.join(base, path))
            has_fine_clock = info.st_ctime_ns % 1_000_000_000 != 0
            if has_fine_clock and _mode(info) == entry.mode:
                cache[path] = Known(stamp_of(info), entry.id)
    time.sleep(_TICK)  # every later change of a file changes its stamp
    return cache


def write_tree(root: Path, place: Path, at: str, cache: Cache, scope: Scope) -> str:
    """The id of a tree with all that is at ``place`` now. Files of the commit ``at`` are tracked,
    so they count even if they are ignored. ``cache`` is brought up to date. Raises
    ``StorageFailed`` if anything cannot be read: work is never left out silently."""
    base = repository.entries(root, at)
    found = store_files(root, place, base, cache, scope)
    return repository.tree_of(root, at) if found == base else make_tree(root, found)


def store_files(
    root: Path, place: Path, base: Mapping[bytes, TreeEntry], cache: Cache, scope: Scope
) -> dict[bytes, TreeEntry]:
    """All files that are at ``place`` now. Those whose content is new are stored. ``base``: the
    files that are tracked. The rest is as for ``write_tree``."""
    return _submodules(root, place, base, _look(root, place, base, cache, scope))


def compare_entries(
    old: Mapping[bytes, TreeEntry], new: Mapping[bytes, TreeEntry]
) -> list[TreeDifference]:
    """What differs between the files of two trees, in the order of their paths."""
    paths = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    return [TreeDifference(path=path, old=old.get(path), new=new.get(path)) for path in paths]


def _look(
    root: Path, place: Path, base: Mapping[bytes, TreeEntry], cache: Cache, scope: Scope
) -> dict[bytes, TreeEntry]:
    """Every file with its id. Files whose content is new are stored."""
    found: dict[bytes, TreeEntry] = {}
    fresh: list[bytes] = []
    some = next(iter(base.values()), None)
    algorithm = "sha256" if some is not None and len(some.id) == 64 else "sha1"
    old = dict(cache)
    cache.clear()
    with contextlib.ExitStack() as opened:
        try:
            top = opened.enter_context(fs.opened_folder(place, follow=True))
        except OSError as error:
            raise StorageFailed(f"{place} cannot be read: {error.strerror}") from error
        try:
            paths = list(scan.files(place, scope, base.keys(), on_error=_refuse_unreadable))
        except scan.TooManyFiles as error:
            limit = f"{scan.MOST_ENTRIES:,}"
            raise StorageFailed(f"{place} has more than {limit} files") from error
        for path in paths:
            try:
                seen = _identify(top, path, old.get(path), algorithm)
            except FileNotFoundError:
                continue  # removed just now
            except OSError as error:
                raise StorageFailed(f"{_shown(path)} cannot be read: {_reason(error)}") from error
            if seen is None:
                continue
            found[path], known = seen
            if known is not None:
                cache[path] = known
            stored = old.get(path) or base.get(path)
            if stored is None or stored.id != found[path].id:
                fresh.append(path)
        for path, name in _store(root, top, fresh).items() if fresh else ():
            if found[path].id != name:  # changed since
                cache.pop(path, None)
                found[path] = TreeEntry(found[path].mode, name)
    return found


def _refuse_unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        where = printable_path(os.fsdecode(error.filename or b""))
        raise StorageFailed(f"{where} cannot be read: {error.strerror}") from error


def _identify(
    top: int, path: bytes, known: Known | None, algorithm: str
) -> tuple[TreeEntry, Known | None] | None:
    """A file's entry, and what to remember of it; None for what git does not store. Raises
    ``OSError``."""
    info = os.stat(path, dir_fd=top, follow_symlinks=False)
    if known is not None and known.stamp == stamp_of(info):
        return TreeEntry(_mode(info) or "", known.id), known
    # Read it only through real folders: a link to elsewhere may have been put there meanwhile.
    with parent_below(top, path) as (folder, name):
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode = _mode(info)
        if mode is None:
            return None
        stamp, now = stamp_of(info), time.time_ns()
        blob = _hash(*_content(folder, name), algorithm)
    rested = now - info.st_ctime_ns > _REST
    return TreeEntry(mode, blob), Known(stamp, blob) if rested else None


def _submodules(
    root: Path, place: Path, base: Mapping[bytes, TreeEntry], found: dict[bytes, TreeEntry]
) -> dict[bytes, TreeEntry]:
    """With the submodules of the base that are as they were."""
    entries = found
    for path, entry in base.items():
        if entry.mode != SUBMODULE or path in found:
            continue
        folder = place / os.fsdecode(path)
        if folder.is_symlink() or not folder.is_dir():
            continue
        inside = {name: each for name, each in found.items() if name.startswith(path + b"/")}
        if inside:
            # It stays a submodule only if its folder holds this commit's files and nothing else.
            its_own = scan.find_repository(folder)
            if its_own is None or its_own.top != folder:
                continue
            env = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(its_own.common / "objects")}
            try:
                if repository.commit_of(folder, "HEAD") != entry.id:  # HEAD may name a branch
                    continue
                files = repository.entries(root, entry.id, env)
            except StorageFailed:  # it does not have the commit
                continue
            its_files = {path + b"/" + name: each for name, each in files.items()}
            if _submodules(root, place, its_files, inside) != its_files:
                continue
        entries = {name: each for name, each in entries.items() if name not in inside}
        entries[path] = entry
    return entries


def make_tree(root: Path, found: Mapping[bytes, TreeEntry]) -> str:
    """The id of a tree with these files, whose contents are stored. Raises ``StorageFailed``."""
    with stub.temporary() as place:
        env = {"GIT_INDEX_FILE": str(place / "index")}
        rows = b"".join(
            b"%s %s\t%s\0" % (entry.mode.encode(), entry.id.encode(), path)
            for path, entry in found.items()
        )
        words = ("update-index", "-z", "--index-info")
        answer = repository.checked(words, repository.call(root, *words, env=env, feed=(rows,)))
        if answer.errors:  # git passes over a name that it does not store, and succeeds
            raise StorageFailed(f"git cannot store a file: {answer.errors}")
        return repository.run(root, "write-tree", env=env)


def _store(root: Path, top: int, paths: Collection[bytes]) -> dict[bytes, str]:
    """Write contents into the repository's object store. Returns their ids."""
    numbered = dict(enumerate(paths, start=1))
    stored: dict[bytes, str] = {}
    with stub.temporary() as place:
        marks = place / "marks"
        # A blob above this size is streamed, not held in memory.
        words = ("-c", "core.bigFileThreshold=1m", "fast-import", "--quiet", "--done")
        answer = repository.call(
            root, *words, f"--export-marks={marks}", feed=_blobs(top, numbered)
        )
        repository.checked(("fast-import",), answer)
        for row in marks.read_text().splitlines():
            mark, name = row.split(" ")
            stored[numbered[int(mark.removeprefix(":"))]] = name
    return stored


def _blobs(top: int, numbered: Mapping[int, bytes]) -> Iterator[bytes]:
    for mark, path in numbered.items():
        try:
            with parent_below(top, path) as (folder, name):
                size, chunks = _content(folder, name)
                yield b"blob\nmark :%d\ndata %d\n" % (mark, size)
                yield from chunks
                yield b"\n"
        except OSError as error:
            raise StorageFailed(f"{_shown(path)} cannot be read: {_reason(error)}") from error
    yield b"done\n"


def _reason(error: OSError) -> str:
    return error.strerror or "it changed while it was read"


def _content(folder: int | None, name: bytes) -> tuple[int, Iterator[bytes]]:
    """The size, and exactly that many bytes. Raises ``OSError``, also while it is read."""
    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(info.st_mode):
        target = os.readlink(name, dir_fd=folder)
        return len(target), iter((target,))
    file = open_regular(name, dir_fd=folder)
    size = os.fstat(file.fileno()).st_size

    def chunks() -> Iterator[bytes]:
        left = size
        with file:
            while left:
                data = file.read(min(left, _CHUNK))
                if not data:
                    raise OSError
                left -= len(data)
                yield data

    return size, chunks()


def hash_blob(path: bytes | str, id_length: int) -> str | None:
    """The id that git gives to a file's content, byte for byte; None if it cannot be read."""
    try:
        algorithm = "sha1" if id_length == 40 else "sha256"
        return _hash(*_content(None, os.fsencode(path)), algorithm)
    except OSError:
        return None


def _hash(size: int, chunks: Iterator[bytes], algorithm: str) -> str:
    import hashlib

    digest = hashlib.new(algorithm, b"blob %d\0" % size, usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _mode(info: os.stat_result) -> str | None:
    """None for what git does not store: FIFOs, sockets, devices."""
    if stat.S_ISLNK(info.st_mode):
        return LINK
    if stat.S_ISREG(info.st_mode):
        return EXECUTABLE if info.st_mode & 0o100 else "100644"
    return None


def _shown(path: bytes) -> str:
    return printable_path(os.fsdecode(path))


def fill(root: Path, place: Path, commit: str, index: Path) -> None:
    """Write all files of a commit into an empty folder, and an index of them. Raises
    ``StorageFailed``."""
    env = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(place)}
    repository.run(root, "read-tree", "--reset", "-u", commit, env=env)


def export(root: Path, place: Path, commit: str, wanted: Callable[[bytes], bool]) -> None:
    """Write the regular files of a commit whose paths are ``wanted`` into an empty folder, which
    is in no repository. Links and submodules are left out. Raises ``StorageFailed``."""
    kept = b"".join(
        b"%s %s\t%s\0" % (entry.mode.encode(), entry.id.encode(), path)
        for path, entry in repository.entries(root, commit).items()
        if entry.mode not in (LINK, SUBMODULE) and wanted(path)
    )
    with stub.temporary() as own:
        env = {"GIT_INDEX_FILE": str(own / "index"), "GIT_WORK_TREE": str(place)}
        repository.run(root, "update-index", "-z", "--index-info", env=env, feed=(kept,))
        repository.run(root, "checkout-index", "--all", "--quiet", env=env)


def update(root: Path, place: Path, changes: Sequence[TreeDifference], *, force: bool) -> None:
    """Bring a work tree from one commit to another. Without ``force`` nothing is touched unless
    every file to change is as in the earlier commit. Raises ``StorageFailed``."""
    try:
        with fs.opened_folder(place, follow=True) as top:
            if not force:
                for change in changes:
                    _verify(top, place, change)
            for change in changes:
                if change.old is not None and (change.new is None or force):
                    _remove(top, change.path, change.old, force=force)
            written = [(change.path, change.new) for change in changes if change.new is not None]
            _write(root, top, written, force=force)
    except OSError as error:
        raise StorageFailed(f"{place} cannot be updated: {error}") from error


def revert(root: Path, place: Path, changes: Sequence[TreeDifference]) -> None:
    """Undo an ``update`` that has failed, or one that has not. A file that somebody has changed
    since then stays as it is. Raises ``StorageFailed``."""
    undone = [TreeDifference(path=each.path, old=each.new, new=each.old) for each in changes]
    # First what is removed: a file may have been where a folder is now.
    removed = [each for each in undone if each.new is None]
    written = [each for each in undone if each.new is not None]
    for part in (removed, written):
        own: list[TreeDifference] = []
        try:
            with fs.opened_folder(place, follow=True) as top:
                for change in part:
                    with contextlib.suppress(StorageFailed):
                        _verify(top, place, change)
                        own.append(change)
        except OSError as error:
            raise StorageFailed(f"{place} cannot be updated: {error}") from error
        update(root, place, own, force=False)


def _verify(top: int, place: Path, change: TreeDifference) -> None:
    """Raise ``StorageFailed`` unless the file is as before or after the change."""
    try:
        with parent_below(top, change.path) as (folder, name):
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        info = None
    if change.old is None and info is None:
        return
    if change.old is not None and change.old.mode == SUBMODULE:
        return
    some = change.old or change.new
    if info is not None and some is not None:
        current = hash_blob(os.path.join(os.fsencode(place), change.path), len(some.id))
        if current and TreeEntry(_mode(info) or "", current) in (change.old, change.new):
            return
    raise StorageFailed(f"{_shown(change.path)} was changed meanwhile")


def _remove(top: int, path: bytes, entry: TreeEntry, *, force: bool) -> None:
    """Remove a file, and the folders above it that are empty then."""
    try:
        with parent_below(top, path) as (folder, name):
            if entry.mode == SUBMODULE:
                with contextlib.suppress(OSError):  # not empty: it has other files
                    os.rmdir(name, dir_fd=folder)
            else:
                try:
                    os.unlink(name, dir_fd=folder)
                except IsADirectoryError:
                    if force:
                        import shutil

                        shutil.rmtree(name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        try:
            with parent_below(top, path) as (folder, name):
                os.rmdir(name, dir_fd=folder)
        except OSError:
            return  # not empty


def _write(
    root: Path, top: int, written: Sequence[tuple[bytes, TreeEntry]], *, force: bool
) -> None:
    import tempfile  # slow to load, and most runs write no files

    blobs = [entry.id for _, entry in written if entry.mode != SUBMODULE]
    with tempfile.TemporaryFile(dir=stub.folder()) as contents:
        if blobs:
            feed = (f"{name}\n".encode() for name in blobs)
            limits = GitLimits(output=1 << 62)
            words = ("cat-file", "--batch")
            answer = repository.call(root, *words, feed=feed, output=contents, limits=limits)
            repository.checked(words, answer)
            contents.seek(0)
        for path, entry in written:
            with parent_below(top, path, make=True, force=force) as (folder, name):
                if entry.mode == SUBMODULE:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=folder)
                    continue
                size = int(contents.readline().split(b" ")[2])
                _replace(folder, name, entry, contents, size, force=force)
                contents.read(1)


def _replace(
    folder: int, name: bytes, entry: TreeEntry, contents: IO[bytes], size: int, *, force: bool
) -> None:
    """Replace a file in an open folder by the next ``size`` bytes of ``contents``."""
    draft = b".corral-" + os.urandom(8).hex().encode()
    try:
        if entry.mode == LINK:
            os.symlink(contents.read(size), draft, dir_fd=folder)
        else:
            mode = 0o777 if entry.mode == EXECUTABLE else 0o666
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, mode, dir_fd=folder), "wb") as file:
                while size:
                    data = contents.read(min(size, _CHUNK))
                    if not data:
                        raise StorageFailed("git cat-file: the output ended too early")
                    size -= len(data)
                    file.write(data)
        try:
            fs.move_into_place(draft, name, dir_fd=folder)
        except IsADirectoryError:
            if not force:
                raise
            import shutil

            shutil.rmtree(name, dir_fd=folder)
            fs.move_into_place(draft, name, dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
