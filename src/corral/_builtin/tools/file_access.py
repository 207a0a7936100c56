"""How the tools read and write files: on disk, or through the editor of the session.

The tools resolve and check a path first; then ``file_access`` says who reads and writes it. Both
ways obey the same rules: an editor is asked only for files that the workspace permits, by their
real paths.

The editor has text files in its own folder, in UTF-8 and at most ``LARGEST`` bytes, and files that
do not exist yet. All others stay on disk, where the tools say what they are, or preserve their
bytes. A file that the editor does not know (``EditorError.is_missing``) is read from the disk. Any
other error is one of the tool: what the disk has may not be what a person sees, and a write that
the editor refused must not be made behind its back.

Listing, searching, deleting and moving files has no form in the protocol of editors, and is done on
disk.
"""

from __future__ import annotations

import io
import stat
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from corral._builtin.tools.files import (
    HEAD,
    LARGEST,
    FileText,
    Staged,
    file_text,
    find_binary_kind,
    find_mode,
    open_file,
    prepare_target,
    read_text,
    stage,
)
from corral._builtin.tools.tool import count_lines
from corral._builtin.tools.workspace import ToolError, Workspace
from corral._sessions.prepared_run import EditorError, EditorFiles, EditorTimeout


class OutcomeUnknown(ToolError):
    """Whether a file was written is not known."""


class OpenedFile(msgspec.Struct):
    """A file for reading, or a window of its lines."""

    file: BinaryIO
    skipped: int = 0
    """Lines before those in ``file``."""
    goes_on: bool = False
    """Lines may follow those in ``file``."""


class FileAccess(Protocol):
    """Paths were returned by ``Workspace.resolve``. The methods raise ``ToolError``."""

    async def open(self, resolved: Path, first: int, count: int) -> OpenedFile:
        """At least ``count`` lines from ``first`` (counted from 1), and one more if there is."""
        ...

    async def read(self, resolved: Path, *, binary: bool = False) -> FileText:
        """The complete text. A file that is not text is an error, unless ``binary``."""
        ...

    async def stage(self, resolved: Path, data: bytes, *, mode: int | None = None) -> Staged:
        """Prepare everything to write a file. ``mode`` is for a file that is moved from another
        path."""
        ...


def file_access(workspace: Workspace) -> FileAccess:
    disk = DiskAccess(workspace)
    return disk if workspace.editor is None else EditorAccess(workspace, workspace.editor, disk)


async def write(access: FileAccess, workspace: Workspace, resolved: Path, data: bytes) -> None:
    """Replace the file. Raises ``ToolError``; then nothing has changed, unless it is
    ``OutcomeUnknown``."""
    staged = await access.stage(resolved, data)
    try:
        await staged.commit()
    except OSError as error:
        staged.discard()
        name = workspace.name(resolved)
        raise ToolError(f"{name} cannot be written: {error.strerror}") from error


class DiskAccess:
    """See ``corral._builtin.tools.files``. Files are replaced atomically: a reader sees all of the
    old or all of the new content."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def open(self, resolved: Path, first: int, count: int) -> OpenedFile:
        return OpenedFile(open_file(self._workspace, resolved))

    async def read(self, resolved: Path, *, binary: bool = False) -> FileText:
        return read_text(self._workspace, resolved, binary=binary)

    async def stage(self, resolved: Path, data: bytes, *, mode: int | None = None) -> Staged:
        return stage(self._workspace, resolved, data, mode=mode)


class EditorAccess:
    def __init__(self, workspace: Workspace, editor: EditorFiles, disk: DiskAccess) -> None:
        self._workspace = workspace
        self._editor = editor
        self._disk = disk

    async def open(self, resolved: Path, first: int, count: int) -> OpenedFile:
        text = await self._ask(resolved, first, count + 1)
        if text is None:
            return await self._disk.open(resolved, first, count)
        lines = count_lines(text)
        is_window = lines <= count + 1  # more: an editor that ignores what was asked sends all
        return OpenedFile(
            io.BytesIO(text.encode()),
            skipped=first - 1 if is_window else 0,
            goes_on=is_window and lines > count,
        )

    async def read(self, resolved: Path, *, binary: bool = False) -> FileText:
        text = await self._ask(resolved)
        return await self._disk.read(resolved, binary=binary) if text is None else file_text(text)

    async def stage(self, resolved: Path, data: bytes, *, mode: int | None = None) -> Staged:
        exists = find_mode(self._workspace, resolved) is not None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = None
        if (
            text is None
            or (mode is not None and not exists)  # a moved program would lose its mode
            or not self._editor.writes(str(resolved))
            or not self._is_text(resolved)
        ):
            return await self._disk.stage(resolved, data, mode=mode)
        prepare_target(self._workspace, resolved)
        return Staged(partial(self._write, resolved, text), lambda: None)

    async def _write(self, resolved: Path, text: str) -> None:
        name = self._workspace.name(resolved)
        try:
            await self._editor.write(str(resolved), text)
        except EditorTimeout as error:
            raise OutcomeUnknown(
                f"the editor was asked to write {name}, but {error}: it is not known whether the"
                " file was written"
            ) from error
        except EditorError as error:
            raise ToolError(f"the editor cannot write {name}: {error}") from error

    async def _ask(
        self, resolved: Path, line: int | None = None, limit: int | None = None
    ) -> str | None:
        """The editor's text of a file; None for a file that is read from the disk, or does not
        exist at all."""
        if not self._editor.reads(str(resolved)) or not self._is_text(resolved):
            return None
        name = self._workspace.name(resolved)
        try:
            text = await self._editor.read(str(resolved), line, limit)
        except EditorError as error:
            if error.is_missing:
                return None
            raise ToolError(f"the editor cannot read {name}: {error}") from error
        if len(text) > LARGEST:
            raise ToolError(f"the editor's text of {name} is over {LARGEST:,} characters")
        return text

    def _is_text(self, resolved: Path) -> bool:
        """Whether the file is one that an editor has: text in UTF-8, or no file yet."""
        mode = find_mode(self._workspace, resolved)
        if mode is None:  # or a folder on the way was just replaced by a link
            return self._workspace.resolve(str(resolved)) == resolved
        if not stat.S_ISREG(mode):
            return False
        with open_file(self._workspace, resolved) as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST or find_binary_kind(data[:HEAD]):
            return False
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
        return True
