"""Open files of the workspace without following links, and preserve the form of their text.

Text that is read and written back keeps bytes that are not UTF-8, the byte order mark, the line
endings, and a missing newline at the end.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from corral._builtin.tools.workspace import ToolError, Workspace, replace_surrogates
from corral._system import fs

LARGEST = 16 * 1024 * 1024
"""Largest file that can be edited, in bytes."""
HEAD = 8_192
"""Bytes in which a NUL marks a binary file, as in git."""
NEAR = 1_000
"""Names in a folder that are compared with a misspelt one."""

READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

IMAGES = {
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"BM": "a BMP image",
    b"\0\0\1\0": "an icon",
    b"%PDF-": "a PDF document",
}


class FileText(msgspec.Struct, frozen=True):
    """A file's text: ``bom`` and ``body`` together. Bytes that are not UTF-8 are lone surrogates
    in the body, which become the same bytes again."""

    body: str
    bom: str = ""

    def encoded(self, body: str) -> bytes:
        """This file with another body, as bytes. Raises ``ToolError``."""
        return encoded(self.bom + body)


def encoded(text: str) -> bytes:
    """The text as bytes. Raises ``ToolError`` if it cannot be encoded."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ToolError(f"the text contains half a character: {text[error.start]!r}") from error


def open_file(workspace: Workspace, resolved: Path) -> BinaryIO:
    """Open a regular file of the workspace for reading. Raises ``ToolError`` for anything else:
    a pipe or a device would block the event loop."""
    name = workspace.name(resolved)
    _check_root(workspace, resolved)
    try:
        with workspace.folder(resolved.parent) as folder:
            fd = os.open(resolved.name, READING, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ToolError(f"{name} does not exist{_near(workspace, resolved)}") from error
    except OSError as error:
        raise ToolError(f"{name} cannot be read: {error.strerror}") from error
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        _check_kind(os.fstat(fd).st_mode, name)
        undo.pop_all()
    return os.fdopen(fd, "rb")


def _check_kind(mode: int, name: str) -> None:
    if stat.S_ISDIR(mode):
        raise ToolError(f"{name} is a folder")
    if not stat.S_ISREG(mode):
        raise ToolError(f"{name} is not a regular file")


def _check_root(workspace: Workspace, resolved: Path) -> None:
    # The parent of a root is outside the workspace and must not be opened.
    if resolved in workspace.readable:
        raise ToolError(f"{workspace.name(resolved)} is a folder")


def _near(workspace: Workspace, resolved: Path) -> str:
    names: list[str] = []
    with (
        contextlib.suppress(OSError),
        workspace.folder(resolved.parent) as folder,
        os.scandir(folder) as entries,
    ):
        names += (entry.name for entry in islice(entries, NEAR))
    near = get_close_matches(resolved.name, names, 3)
    return replace_surrogates(f"; did you mean {' or '.join(near)}?") if near else ""


def find_binary_kind(head: bytes) -> str | None:
    """The kind of a file that is not text, by its first bytes; None for text."""
    for magic, kind in IMAGES.items():
        # Two letters are not enough: a text may start with them.
        if head.startswith(magic) and (len(magic) > 2 or b"\0" in head):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "a WebP image"
    return "a binary file" if b"\0" in head else None


def read_text(workspace: Workspace, resolved: Path, *, binary: bool = False) -> FileText:
    """The complete text of a file. Raises ``ToolError`` if it is too large, and if it is not text,
    unless ``binary`` allows that."""
    name = workspace.name(resolved)
    with open_file(workspace, resolved) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ToolError(f"{name} is over {LARGEST:,} bytes: too large to edit")
    if not binary and (kind := find_binary_kind(data[:HEAD])):
        raise ToolError(f"{name} is {kind}, which cannot be edited as text")
    return file_text(data.decode("utf-8", "surrogateescape"))


def file_text(text: str) -> FileText:
    bom = "\ufeff" if text.startswith("\ufeff") else ""
    return FileText(text[len(bom) :], bom)


class Staged(msgspec.Struct, frozen=True):
    """A file that can be written, and is not yet. ``commit`` raises ``ToolError`` or
    ``OSError``."""

    commit: Callable[[], Awaitable[None]]
    discard: Callable[[], None]


def stage(workspace: Workspace, resolved: Path, data: bytes, *, mode: int | None = None) -> Staged:
    """Write ``data`` beside ``resolved``; ``commit`` moves it there atomically. Missing folders are
    created. The mode and, if possible, the owner of the old file are preserved; ``mode`` is for a
    file that is moved from another path. Raises ``ToolError``."""
    name = workspace.name(resolved)
    _check_root(workspace, resolved)
    try:
        with workspace.folder(resolved.parent, write=True, create=True) as folder:
            old = _check_target(folder, resolved.name, name)
            fd, beside = fs.create_draft(resolved.name, mode=0o666, dir_fd=folder)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    if old is not None:
                        mode = old.st_mode
                        if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                            with contextlib.suppress(PermissionError):
                                os.fchown(file.fileno(), old.st_uid, old.st_gid)
                    if mode is not None:
                        # Not the set-user-id and set-group-id bits: they must not apply to other
                        # content.
                        os.fchmod(file.fileno(), mode & 0o1777)
            except BaseException:
                os.unlink(beside, dir_fd=folder)
                raise
    except OSError as error:
        raise ToolError(f"{name} cannot be written: {error.strerror}") from error

    async def commit() -> None:
        with workspace.folder(resolved.parent, write=True) as folder:
            fs.move_into_place(beside, resolved.name, dir_fd=folder)

    def discard() -> None:
        with contextlib.suppress(OSError), workspace.folder(resolved.parent, write=True) as folder:
            os.unlink(beside, dir_fd=folder)

    return Staged(commit, discard)


def prepare_target(workspace: Workspace, resolved: Path) -> None:
    """Check that a file can be written, and create missing folders. Raises ``ToolError``."""
    name = workspace.name(resolved)
    _check_root(workspace, resolved)
    try:
        with workspace.folder(resolved.parent, write=True, create=True) as folder:
            _check_target(folder, resolved.name, name)
    except OSError as error:
        raise ToolError(f"{name} cannot be written: {error.strerror}") from error


def _check_target(folder: int, file: str, name: str) -> os.stat_result | None:
    """The status of the file that is to be replaced; None if there is none yet."""
    try:
        old = os.stat(file, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_kind(old.st_mode, name)
    # Replacing a file needs no permission on the file itself, so that is checked here.
    if not os.access(file, os.W_OK, dir_fd=folder):
        raise ToolError(f"{name} is read-only")
    return old


def remove(workspace: Workspace, resolved: Path) -> None:
    """Remove a file. Raises ``OSError``."""
    with workspace.folder(resolved.parent, write=True) as folder:
        os.unlink(resolved.name, dir_fd=folder)


def find_mode(workspace: Workspace, resolved: Path) -> int | None:
    """The mode of the file, link or folder; None if it does not exist."""
    if resolved in workspace.readable:
        return stat.S_IFDIR
    try:
        with workspace.folder(resolved.parent) as folder:
            return os.stat(resolved.name, dir_fd=folder, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
