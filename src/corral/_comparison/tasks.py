"""The tasks of a comparison: one prompt, a file of tasks, or the tasks themselves.

A file is ``.jsonl`` (one task per line), ``.csv`` (with a header) or ``.toml`` (``[[tasks]]``). Its
tasks have the fields of ``FIELDS``; other fields are ignored. Every error names the file and the
line, or the task.

Tasks in a file may be a stranger's, unless the caller trusts them. Their paths name regular files
or folders below the folder of the file: relative, without ``..``, without links at any component. A
link could name any file of the user, whose content would then be in the workspace or in the
verifier's sandbox; a FIFO would never end. What is below such a folder is copied without following
links (``corral._system.git`` stores a link as a link, and so does
``corral._pipelines.execution.verifier``). What such tasks run is run in a sandbox
(``CompareTask.is_confined``). Tasks that the caller's own program passes are the caller's.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from corral._core.durations import seconds
from corral._engine.batch import tasks as batch_tasks
from corral._engine.batch.task_scheduler import BatchTask
from corral._engine.batch.tasks import TEXT_FIELD, TaskInput
from corral._system import fs
from corral.errors import ConfigError, PromptError
from corral.values import Json, as_object, is_object, is_sequence

SUFFIXES = (".jsonl", ".csv", ".toml")
FIELDS = ("id", "prompt", "verify", "tests", "folder", "timeout", "verify_timeout")
"""The fields of a task in a file. Paths are relative to the file."""
MAX_PATH = 1_000
"""Characters of a path in a task."""

Kind = Literal["file", "folder"]
Tasks: TypeAlias = str | os.PathLike[str] | Iterable[TaskInput]
"""A prompt; the path of a file of tasks; or the tasks themselves."""


class CompareTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a comparison, however it was written."""

    id: str
    prompt: str
    verify: str = ""
    """A command that verifies the work; empty: that of the comparison, if there is one."""
    tests: str = ""
    """A file or folder that is copied into the workspace before it is verified."""
    folder: str = ""
    """The files that the agent starts with; empty: those of the comparison's working directory."""
    timeout: float | None = None
    """Seconds for the agent."""
    verify_timeout: float | None = None
    is_confined: bool = False
    """Whether its commands, and commands on its files, run in a sandbox only, with what the policy
    of the comparison allows: the task may be a stranger's."""
    skipped: str = ""
    """Why it cannot be run here; empty if it can."""


def read(given: Tasks, cwd: Path, *, trusted: bool = False) -> list[CompareTask]:
    """The tasks. ``cwd``: what paths of tasks that are in no file are relative to. ``trusted``:
    those of a file are the caller's own. Raises ``ConfigError``."""
    if isinstance(given, str) and not is_path(given):
        if not given.strip():
            raise PromptError("the prompt is empty", hint="Pass it as text, as a file or on stdin.")
        return [CompareTask(id="prompt", prompt=given)]
    if isinstance(given, str | os.PathLike):
        tasks = _read_path(Path(given), trusted=trusted)
        if trusted:
            return tasks
        # A task that brings a command or files with it runs them in a sandbox only. Of a task that
        # is a prompt, nothing is run.
        return [
            msgspec.structs.replace(
                task, is_confined=bool(task.verify or task.tests or task.folder)
            )
            for task in tasks
        ]
    return _checked(_made(batch_tasks.make_tasks(given), cwd, trusted=True), "the tasks")


def is_path(text: str) -> bool:
    """Whether the text names tasks, and is no prompt: a file with one of the suffixes. Such a file
    need not exist: then it is a mistake, and no prompt either, as is a folder."""
    try:
        if fs.is_dir(text):
            return True
    except ValueError:  # a NUL character
        return False
    return text.endswith(SUFFIXES) and len(text.split()) == 1


def _read_path(path: Path, *, trusted: bool) -> list[CompareTask]:
    if path.suffix == ".toml":
        found = batch_tasks.make_tasks(_toml(path))
    elif path.suffix in SUFFIXES:
        found = batch_tasks.read_tasks(path)
    else:
        raise ConfigError(
            f"{path} is not a file of tasks",
            hint=f"Use one of {', '.join(SUFFIXES)}. A line of a .jsonl is a task: an object with"
            " prompt, and maybe id, verify, tests and folder.",
        )
    return _checked(_made(found, path.absolute().parent, trusted=trusted), path.name)


def _toml(path: Path) -> list[tuple[str, dict[str, Json]]]:
    try:
        text = fs.read_bytes(path).decode()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not TOML: {error}") from error
    try:
        tables = as_object(tomllib.loads(text)).get("tasks")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path.name} is not TOML: {error}") from error
    if not is_sequence(tables):
        raise ConfigError(f"{path.name} contains no tasks", hint="Write each as [[tasks]].")
    found: list[tuple[str, dict[str, Json]]] = []
    for number, table in enumerate(tables, 1):
        place = f"{path.name} task {number}"
        if not is_object(table):
            raise ConfigError(f"{place} must be a table")
        found.append((place, table))
    return found


def _made(found: Iterable[BatchTask], folder: Path, *, trusted: bool) -> list[CompareTask]:
    return [_from_fields(task, folder, trusted=trusted) for task in found]


def _from_fields(task: BatchTask, folder: Path, *, trusted: bool) -> CompareTask:
    name, fields = task.id, task.fields
    prompt = fields.get("prompt", fields.get(TEXT_FIELD))
    if not isinstance(prompt, str) or not prompt.strip():
        known = ", ".join(fields) or "none"
        raise ConfigError(f"task {name!r} has no prompt", hint=f"Its fields: {known}.")
    texts: dict[str, str] = {}
    for key in ("verify", "tests", "folder"):
        text = fields.get(key)
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"task {name!r}: {key} must be a text, got {text!r}")
        texts[key] = text or ""
    tests, files = (texts[key].removesuffix("/") for key in ("tests", "folder"))
    for path in (tests, files):
        if path and not trusted:
            kind_of(name, folder, path)
    return CompareTask(
        id=name,
        prompt=prompt,
        verify=texts["verify"],
        tests=str(folder / tests) if tests else "",
        folder=str(folder / files) if files else "",
        timeout=_duration(name, "timeout", fields.get("timeout")),
        verify_timeout=_duration(name, "verify_timeout", fields.get("verify_timeout")),
    )


def _duration(task: str, key: str, value: Json) -> float | None:
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"not a duration: {value!r}")
        return seconds(value)
    except ValueError as error:
        raise ConfigError(f"task {task!r}: {key}: {error}") from error


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


def _checked(tasks: list[CompareTask], where: str) -> list[CompareTask]:
    for task in tasks:
        if task.tests and not os.path.lexists(task.tests):
            raise ConfigError(f"task {task.id!r} of {where}: there is no {task.tests}")
        if task.folder and not fs.is_dir(task.folder):
            raise ConfigError(f"task {task.id!r} of {where}: {task.folder} is not a folder")
    return [
        msgspec.structs.replace(task, tests=os.path.abspath(task.tests)) if task.tests else task
        for task in tasks
    ]
