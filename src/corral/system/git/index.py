"""Read git's index of a work tree, as data."""

from __future__ import annotations

import os
import re
import stat

import msgspec

from corral.errors import StorageFailed
from corral.system.git import settings, stub
from corral.system.git.command import Limits, call
from corral.system.git.layout import Layout

SECONDS = 30.0

_INDEXED = re.compile(
    rb"  ctime: (\d+):(\d+)\n  mtime: (\d+):(\d+)\n  dev: \d+\tino: (\d+)\n"
    rb"  uid: \d+\tgid: \d+\n  size: (\d+)\tflags: [0-9a-f]+\n"
)
"""What ``--debug`` adds to an entry."""


class Indexed(msgspec.Struct, frozen=True, gc=False):
    """A file in the index."""

    mode: str
    blob: str
    stamp: tuple[int, ...]
    """Size, modification time, change time and inode when git last read the file."""

    def is_still(self, size: int, mtime: int, ctime: int, inode: int) -> bool:
        return self.stamp == (size, mtime, ctime, inode & 0xFFFFFFFF)


def read(found: Layout) -> dict[bytes, Indexed] | None:
    """All entries by their path from the top; None where there is no index that git can read
    alone (a split or sparse index needs the repository)."""
    listed = _listed(found, "--stage", "--debug")
    return None if listed is None else _parse(listed)


def names(found: Layout) -> set[bytes]:
    """The paths alone; none where the index cannot be read."""
    return {path for path in (_listed(found) or b"").split(b"\0") if path}


def _listed(found: Layout, *options: str) -> bytes | None:
    path = found.git_dir / "index"
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
    except FileNotFoundError:
        return b""
    except OSError:
        return None
    words = ("ls-files", "-z", "--cached", *options)
    try:
        place = stub.blank(settings.object_format(found.common))
        env = {"GIT_INDEX_FILE": str(path), "GIT_WORK_TREE": str(place)}
        answer = call(place, *words, env=env, limits=Limits(seconds=SECONDS))
    except StorageFailed:
        return None
    return None if answer.code or answer.is_cut else answer.out


def _parse(listed: bytes) -> dict[bytes, Indexed]:
    entries: dict[bytes, Indexed] = {}
    path = mode = blob = b""
    for row in listed.split(b"\0"):
        # What --debug says of an entry follows its NUL, before the next entry.
        if path and (stamp := _INDEXED.match(row)):
            changed, changed_ns, modified, modified_ns, inode, size = map(int, stamp.groups())
            times = (modified * 10**9 + modified_ns, changed * 10**9 + changed_ns)
            entries[path] = Indexed(mode.decode(), blob.decode(), (size, *times, inode))
            row = row[stamp.end() :]  # noqa: PLW2901
        info, _, path = row.partition(b"\t")
        mode, blob = info.split(b" ")[:2] if path else (b"", b"")
    return entries
