"""The names of a task, and its files: checked here, for every reader.

A task may be a stranger's. So its id is a short printable text, and a path in it names a regular
file or a folder below the folder of the task: relative, without ``..``, without links at any
component. A link could name any file of the user, whose content would then be in the prompt, in the
workspace or in the verifier's sandbox; a FIFO would never end.

What is below such a folder is copied without following links (``corral.system.git`` stores a link
as a link, and so does ``corral.pipelines.execution.verifier``).
"""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path
from typing import Literal

from corral.engine.batch.tasks import MAX_ID
from corral.errors import ConfigError
from corral.system import fs
from corral.values import JsonObject, as_object

MAX_PATH = 1_000
"""Characters of a path in a task."""
MAX_TEXT = 512 * 1024
"""Bytes of a file that becomes a prompt, or that describes a task."""

Kind = Literal["file", "folder"]


def check_id(name: str) -> str:
    """The id of a task, from the name of its folder. Raises ``ConfigError``."""
    if not name or len(name) > MAX_ID or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"{name[:60]!r} is not a valid name of a task",
            hint=f"Use at most {MAX_ID} printable characters.",
        )
    return name


def check_path(task: str, path: str) -> str:
    """A path in a task, as it is. Raises ``ConfigError``."""
    parts = path.split("/")
    wrong = {
        "is empty": not path,
        f"has more than {MAX_PATH} characters": len(path) > MAX_PATH,
        "is not printable": not path.isprintable(),
        "is not relative": path.startswith(("/", "~")),
        "leads out of the task": ".." in parts,
        "has an empty part": bool(path) and ("" in parts[:-1] or "." in parts or parts[-1] == ""),
    }
    reason = next((reason for reason, applies in wrong.items() if applies), None)
    if reason is not None:
        raise ConfigError(
            f"task {task!r}: the path {path[:80]!r} {reason}",
            hint="Paths of a task name files in its own folder, such as tests/test.sh.",
        )
    return path


def kind_of(task: str, folder: Path, path: str) -> Kind | None:
    """What a path of a task names below a folder; None if there is nothing. Raises ``ConfigError``
    for anything but a regular file or a folder, and for a link on the way."""
    try:
        mode = fs.mode_below(folder, check_path(task, path))
    except OSError as error:
        raise ConfigError(f"task {task!r}: {folder / path}: {error.strerror or error}") from error
    if mode is None:
        return None
    if stat.S_ISLNK(mode):
        raise ConfigError(
            f"task {task!r}: {folder / path} leads through a link",
            hint="Links of a task are not followed: put the files themselves there.",
        )
    if stat.S_ISDIR(mode):
        return "folder"
    if not stat.S_ISREG(mode):
        raise ConfigError(f"task {task!r}: {folder / path} is neither a file nor a folder")
    return "file"


def read_file(task: str, folder: Path, path: str) -> bytes | None:
    """The content of a small file of a task; None if there is none. Raises ``ConfigError``."""
    if kind_of(task, folder, path) != "file":
        return None
    data = fs.read_small(folder / path, MAX_TEXT)
    if data is None:
        raise ConfigError(
            f"task {task!r}: {folder / path} cannot be read, or has more than {MAX_TEXT:,} bytes"
        )
    return data


def read_text(task: str, folder: Path, path: str) -> str | None:
    """The same as text. Raises ``ConfigError``."""
    data = read_file(task, folder, path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"task {task!r}: {folder / path} is not UTF-8: {error}") from error


def read_toml(path: Path, text: str) -> JsonObject:
    """Raises ``ConfigError``."""
    try:
        return as_object(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
