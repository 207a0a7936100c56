"""``read_file`` and ``write_file``: files in the workspace.

A path is resolved, with its links, and rejected if it leads out of the workspace; see
``builtin.tools.workspace`` for the guarantees. Git's own folder cannot be written.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from corral.builtin.tools.workspace import ToolError, Workspace
from corral.core.nesting import decode_json
from corral.errors import ConfigError
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.nodes.data import value_of
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.templates import as_text
from corral.system import fs
from corral.values import Json

MAX_FILE = 512 * 1024
"""Bytes of a file that goes into the context."""


async def read_file(work: NodeContext) -> Outcome:
    """Read ``path`` into ``key`` (by default ``<node>.output``). ``format=json`` parses it.
    ``default`` is the value if the file does not exist."""
    node = work.node
    workspace, path = _resolve(work, write=False)
    key = node.text("key") or f"{node.id}.output"
    try:
        with workspace.folder(path.parent) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(path.name, flags, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return failed(f"{node.id}: {_shown(work)} is not a file", retryable=False)
            raw = file.read(MAX_FILE + 1)
    except FileNotFoundError:
        if "default" in node.attrs:
            return Outcome(context_updates={key: value_of(work, node.attrs["default"])})
        return failed(f"{node.id}: there is no file {_shown(work)}")
    except OSError as error:
        return failed(f"{node.id}: {_shown(work)} cannot be read: {error.strerror}")
    if len(raw) > MAX_FILE:
        return failed(
            f"{node.id}: {_shown(work)} has over {MAX_FILE:,} bytes: too large for the context",
            retryable=False,
        )
    try:
        text = raw.decode("utf-8-sig")
        value: Json = decode_json(text) if node.text("format") == "json" else text
    except UnicodeDecodeError:
        return failed(f"{node.id}: {_shown(work)} is not UTF-8", retryable=False)
    except msgspec.DecodeError as error:
        return failed(f"{node.id}: {_shown(work)} is not JSON: {error}", retryable=False)
    return Outcome(context_updates={key: value})


async def write_file(work: NodeContext) -> Outcome:
    """Write ``content`` (or the value of ``source``) to ``path``, atomically; with ``append=true``
    at the end of the file. Missing folders are created."""
    node = work.node
    if "content" in node.attrs:
        content = as_text(value_of(work, node.attrs["content"]))
    elif source := node.text("source"):
        content = as_text(value_of(work, f"{{{{{source}}}}}"))
    else:
        raise ConfigError(f"the write_file node {node.id} has neither content nor source")
    workspace, path = _resolve(work, write=True)
    raw = content.encode("utf-8", "replace")
    try:
        with workspace.folder(path.parent, write=True, create=True) as folder:
            if node.is_true("append"):
                _append(path.name, raw, folder)
            else:
                fs.write_atomically(path.name, raw, mode=0o666, dir_fd=folder)
    except OSError as error:
        return failed(f"{node.id}: {_shown(work)} cannot be written: {error.strerror}")
    return Outcome(context_updates={f"{node.id}.path": workspace.name(path)})


def _append(name: str, raw: bytes, folder: int) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "ab") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is not a file")
        file.write(raw)


def _shown(work: NodeContext) -> str:
    return as_text(value_of(work, work.node.text("path")))


def _resolve(work: NodeContext, *, write: bool) -> tuple[Workspace, Path]:
    if not work.node.text("path"):
        raise ConfigError(f"the {work.node.kind} node {work.node.id} has no path")
    workspace = Workspace(work.workspace)
    try:
        return workspace, workspace.resolve(_shown(work), write=write)
    except ToolError as error:
        raise ConfigError(f"{work.node.id}: {error}") from error
