"""The tasks of a comparison: one prompt, a file of tasks, or a folder of them.

A file is ``.jsonl`` (one task per line), ``.csv`` (with a header) or ``.toml`` (``[[tasks]]``). Its
tasks have the fields of ``FIELDS``; other fields are ignored. A folder contains task folders, or is
one itself: harbor's or exercism's (``task_folders``). Every error names the file and the line, or
the task.

Tasks in a file or a folder may be a stranger's, unless the caller trusts them. Their paths stay in
that folder (``task_folders``), and what they run is run in a sandbox (``CompareTask.is_confined``).
Tasks that the caller's own program passes are the caller's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec

from corral._comparison import task_folders
from corral._comparison.task_folders import CompareTask
from corral._core.durations import seconds
from corral._engine.batch import tasks as batch_tasks
from corral._engine.batch.tasks import TEXT_FIELD, BatchTask, TaskInput
from corral._system import fs
from corral.errors import ConfigError, PromptError
from corral.values import Json, is_object, is_sequence

SUFFIXES = (".jsonl", ".csv", ".toml")
FIELDS = ("id", "prompt", "verify", "tests", "folder", "timeout", "verify_timeout")
"""The fields of a task in a file. Paths are relative to the file."""

Tasks: TypeAlias = str | os.PathLike[str] | Iterable[TaskInput]
"""A prompt; the path of a file or folder of tasks; or the tasks themselves."""


def read(given: Tasks, cwd: Path, *, trusted: bool = False) -> list[CompareTask]:
    """The tasks. ``cwd``: what paths of tasks that are in no file are relative to. ``trusted``:
    those of a file or a folder are the caller's own. Raises ``ConfigError``."""
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
                task,
                is_confined=bool(
                    task.verify or task.usual_verify or task.tests or task.folder or task.layout
                ),
            )
            for task in tasks
        ]
    return _checked(_made(batch_tasks.make_tasks(given), cwd, trusted=True), "the tasks")


def is_path(text: str) -> bool:
    """Whether the text names tasks, and is no prompt: a folder, or a file with one of the
    suffixes. Such a file need not exist: then it is a mistake, and no prompt either."""
    try:
        if fs.is_dir(text):
            return True
    except ValueError:  # a NUL character
        return False
    return text.endswith(SUFFIXES) and len(text.split()) == 1


def _read_path(path: Path, *, trusted: bool) -> list[CompareTask]:
    if fs.is_dir(path):
        return _checked(_read_folder(path), str(path))
    if path.suffix == ".toml":
        found = batch_tasks.make_tasks(_toml(path))
    elif path.suffix in SUFFIXES:
        found = batch_tasks.read_tasks(path)
    else:
        raise ConfigError(
            f"{path} is not a file of tasks", hint=f"Use one of {', '.join(SUFFIXES)}, or a folder."
        )
    return _checked(_made(found, path.absolute().parent, trusted=trusted), path.name)


def _toml(path: Path) -> list[tuple[str, dict[str, Json]]]:
    try:
        text = fs.read_bytes(path).decode()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not TOML: {error}") from error
    tables = task_folders.read_toml(path, text).get("tasks")
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
            task_folders.kind_of(name, folder, path)
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


def _read_folder(path: Path) -> list[CompareTask]:
    """The task in a folder, or those in the folders below it. The folder itself is the caller's
    choice and may be a link; what is in it may not."""
    if (task := _task_folder(path.resolve())) is not None:
        return [task]
    found: list[CompareTask] = []
    for each in sorted(path.resolve() / name for name in fs.list_names(path)):
        if fs.is_dir(each) and not each.name.startswith("."):
            task_folders.check_id(each.name)
            task_folders.kind_of(each.name, each.parent, each.name)
            task = _task_folder(each)
            if task is not None:
                found.append(task)
    if not found:
        raise ConfigError(
            f"{path} contains no tasks",
            hint="A task is a folder with task.toml and instruction.md (harbor), or with"
            " .docs/instructions.md and .meta/config.json (exercism).",
        )
    return found


def _task_folder(path: Path) -> CompareTask | None:
    for reader in (task_folders.read_harbor_task, task_folders.read_exercise):
        if (task := reader(path)) is not None:
            task_folders.check_id(task.id)
            return task
    return None


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
