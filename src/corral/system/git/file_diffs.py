"""The diff of the files that changed since a snapshot, as one text in the unified format.

The content before is in the snapshot, or it is the blob that git's index had. Where neither is
known, a line says so. Binary and large files are named only. The text is bounded: it is stored with
a session and read by people. Blocking.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from corral.errors import StorageFailed
from corral.system.fs import read_small
from corral.system.git import repository
from corral.system.git.changes import Snapshot
from corral.values import FileChanged

MAX_FILE = 256 * 1024
"""Bytes of a file whose diff is made."""
MAX_COMPARED = 2_000
"""Lines of a changed part that are compared one by one; a longer part is replaced as a whole."""
MAX_TOTAL = 1024 * 1024
"""Characters of the complete diff."""
CONTEXT = 3
"""Unchanged lines around a change."""
_NO_NEWLINE = "\n\\ No newline at end of file"


def diff_since(before: Snapshot, files: Sequence[FileChanged]) -> str:
    """The diff of these files, which have changed since the snapshot."""
    paths = {file.path: os.path.relpath(file.path, before.root) for file in files}
    blobs = _blobs(before, paths.values())
    parts: list[str] = []
    size = 0
    for number, file in enumerate(files):
        part = _file_diff(file, paths[file.path], _old(before, blobs, file, paths[file.path]))
        size += len(part)
        if size > MAX_TOTAL:
            parts.append(
                f"# {len(files) - number:,} more files are not shown: the diff is too long\n"
            )
            break
        parts.append(part)
    return "".join(parts)


def _blobs(before: Snapshot, paths: Iterable[str]) -> Mapping[str, bytes]:
    """The contents that git's index had, by blob id."""
    wanted = sorted({before.staged[path] for path in paths if path in before.staged})
    if not wanted:
        return {}
    try:
        return repository.blobs(Path(before.root), wanted, MAX_FILE)
    except StorageFailed:  # the repository is gone, or git is
        return {}


def _old(
    before: Snapshot, blobs: Mapping[str, bytes], file: FileChanged, path: str
) -> bytes | None:
    """The content before; None if it is not known."""
    if file.kind == "created":
        return b""
    if path in before.contents:
        return before.contents[path]
    return blobs.get(before.staged.get(path, ""))


def _file_diff(file: FileChanged, path: str, old: bytes | None) -> str:
    new = b"" if file.kind == "deleted" else _read(file.path)
    if old is None:
        return f"# {file.kind} {path}: the content before is not known\n"
    if new is None:
        return f"# {file.kind} {path}: the file is large or cannot be read\n"
    if b"\0" in old or b"\0" in new:
        return f"# {file.kind} {path}: the file is binary\n"
    head = (
        f"--- {'/dev/null' if file.kind == 'created' else f'a/{path}'}\n"
        f"+++ {'/dev/null' if file.kind == 'deleted' else f'b/{path}'}\n"
    )
    return head + "".join(f"{line}\n" for line in unified(split_lines(old), split_lines(new)))


def _read(path: str) -> bytes | None:
    try:
        return read_small(path, MAX_FILE)
    except OSError:
        return None


def split_lines(data: bytes) -> list[str]:
    """Lines without their ends; a last line without an end has a mark."""
    lines = data.decode("utf-8", "replace").split("\n")
    if lines[-1]:
        lines[-1] += _NO_NEWLINE
    else:
        lines.pop()
    return lines


def unified(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """The hunks of a unified diff. Equal beginnings and ends are not compared again, so that the
    cost depends on the size of the change."""
    start = _common(old, new)
    end = min(_common(old[::-1], new[::-1]), len(old) - start, len(new) - start)
    first = max(0, start - CONTEXT)
    old_part = old[first : len(old) - max(0, end - CONTEXT)]
    new_part = new[first : len(new) - max(0, end - CONTEXT)]
    for hunk in _hunks(old_part, new_part, start - first, min(end, CONTEXT)):
        (_, a, _, c, _), (_, _, b, _, d) = hunk[0], hunk[-1]
        yield f"@@ -{_range(first + a, first + b)} +{_range(first + c, first + d)} @@"
        for kind, i, j, k, m in hunk:
            if kind == "equal":
                yield from (f" {line}" for line in old_part[i:j])
            else:
                yield from (f"-{line}" for line in old_part[i:j])
                yield from (f"+{line}" for line in new_part[k:m])


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """How many lines are equal at the beginning."""
    return next(
        (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )


_Opcode = tuple[str, int, int, int, int]


def _hunks(
    old: Sequence[str], new: Sequence[str], head: int, tail: int
) -> Iterable[Sequence[_Opcode]]:
    if max(len(old), len(new)) <= MAX_COMPARED:
        return SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT)
    a, b = len(old) - tail, len(new) - tail
    complete: list[_Opcode] = [
        ("equal", 0, head, 0, head),
        ("replace", head, a, head, b),
        ("equal", a, len(old), b, len(new)),
    ]
    return [complete]


def _range(start: int, stop: int) -> str:
    """As in the unified format: the first line and the number of lines."""
    count = stop - start
    return f"{start + 1 if count else start},{count}"
