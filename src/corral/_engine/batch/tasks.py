"""The tasks of a batch, read and checked before anything is spent.

Each error names the task and the field, or the line, that it is about.

Files can be tasks, too: each file is one task with the fields ``path`` and ``content``.

* A pattern is a glob: ``*``, ``?``, ``[...]``, and ``**`` for any number of folders. A path that
  exists is taken as it is, whatever characters it has.
* Hidden names (``.env``) match only a pattern that has the dot. ``**`` does not enter hidden
  folders, ``node_modules`` and ``__pycache__``, and follows no links to folders.
* Each file is one task, in the order of the paths. Paths are relative to the working directory.
* If the content is needed, files that are binary, not UTF-8, unreadable or too large are skipped
  and reported. A file that is named without a wildcard is an error instead.
"""

from __future__ import annotations

import csv
import fnmatch
import io
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from corral._core.nesting import decode_json
from corral._engine.batch.task_scheduler import BatchTask
from corral._pipelines import templates
from corral._pipelines.templates import find
from corral._system import fs
from corral.errors import ConfigError
from corral.values import Json, as_object, is_object, printable_path, slug

MAX_BYTES = 512 * 1024
"""Maximum bytes of a task: it is stored in the journal and becomes a prompt."""
MAX_ID = 200
"""Maximum characters of a task id."""
TEXT_FIELD = "task"
"""The field name of a task that is only a text."""

TaskInput: TypeAlias = str | Mapping[str, object]
"""A task as the caller gives it: its fields, or one text (``{{task}}``)."""


def read_tasks(path: str | Path, data: bytes | None = None) -> list[BatchTask]:
    """The tasks of a file: ``.csv`` with a header, ``.txt`` with one task per line, else one JSON
    value per line. Raises ``ConfigError``."""
    path = Path(path)
    if data is None:
        try:
            data = fs.read_bytes(path)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from error
    data = data.removeprefix(b"\xef\xbb\xbf")
    kinds = {".csv": _csv, ".txt": _lines}
    found = list(kinds.get(path.suffix.lower(), _json)(path.name, data))
    if not found:
        raise ConfigError(f"{path.name} contains no tasks")
    return make_tasks(found)


def make_tasks(given: Iterable[TaskInput | tuple[str, TaskInput]]) -> list[BatchTask]:
    """Tasks with their ids: the field ``id``, else their number. A pair is a task with its position
    in a file. Raises ``ConfigError``."""
    if isinstance(given, Mapping):
        raise ConfigError("the tasks must be a list or a file, got one dict", hint="Write [task].")
    tasks: list[BatchTask] = []
    places: dict[str, str] = {}
    for number, each in enumerate(given, 1):
        place, task = each if isinstance(each, tuple) else (f"task {number}", each)
        fields = _fields(place, task)
        name = _id(place, fields, number)
        if name in places:
            raise ConfigError(
                f"{place}: {places[name]} already has the id {name!r}",
                hint="The id is the field `id`, or the number of a task without one.",
            )
        places[name] = place
        tasks.append(BatchTask(id=name, fields=fields))
    if not tasks:
        raise ConfigError("there are no tasks")
    return tasks


def _fields(place: str, task: TaskInput) -> dict[str, Json]:
    if isinstance(task, str):
        fields: dict[str, Json] = {TEXT_FIELD: task}
    else:
        try:
            fields = as_object(msgspec.to_builtins(dict(task), enc_hook=str))
            if len(msgspec.json.encode(fields)) > MAX_BYTES:
                raise ConfigError(f"{place}: the task has more than {MAX_BYTES:,} bytes")
        except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{place} is not JSON: {error}") from error
    if isinstance(task, str) and len(task) > MAX_BYTES:
        raise ConfigError(f"{place}: the task has more than {MAX_BYTES:,} bytes")
    return fields


def _id(place: str, fields: Mapping[str, Json], number: int) -> str:
    given = fields.get("id")
    if given is None or given == "":
        return str(number)
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise ConfigError(f"{place}: an id must be a text or a number, got {given!r}")
    name = str(given)
    if len(name) > MAX_ID or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"{place}: {name[:60]!r} is not a valid id",
            hint=f"Use at most {MAX_ID} characters.",
        )
    return name


def _json(name: str, data: bytes) -> Iterator[tuple[str, TaskInput]]:
    for number, raw in enumerate(data.split(b"\n"), 1):
        line = raw.strip()
        if not line:
            continue
        place = f"{name} line {number}"
        if len(line) > MAX_BYTES:
            raise ConfigError(f"{place}: the task has {len(line):,} bytes, more than {MAX_BYTES:,}")
        try:
            value = decode_json(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{place} is not JSON: {error}") from error
        if not isinstance(value, str) and not is_object(value):
            raise ConfigError(f"{place}: a task must be an object or a text")
        yield place, value


def _lines(name: str, data: bytes) -> Iterator[tuple[str, TaskInput]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            place = f"{name} line {number}"
            yield place, _text(place, line).strip()


def _text(place: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8: {error}") from error
    if "\0" in text:
        raise ConfigError(f"{place} contains a NUL character: it is not a text")
    return text


def _csv(name: str, data: bytes) -> Iterator[tuple[str, TaskInput]]:
    rows = csv.reader(io.StringIO(_text(name, data), newline=""), strict=True)
    before = csv.field_size_limit(MAX_BYTES)
    try:
        header = [each.strip() for each in next(rows, list[str]())]
        if not any(header):
            return
        repeated = next((each for each in header if header.count(each) > 1), None)
        if repeated is not None or not all(header):
            raise ConfigError(
                f"{name}: the first line must name each column once, got: {repeated or ''!r}"
            )
        for row in rows:
            place = f"{name} line {rows.line_num}"
            if not row:
                continue
            if len(row) != len(header):
                raise ConfigError(f"{place} has {len(row)} columns, the header {len(header)}")
            yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise ConfigError(f"{name} line {rows.line_num}: {error}") from error
    finally:
        csv.field_size_limit(before)


def check_tasks(
    tasks: Iterable[BatchTask],
    template: str,
    shared: Mapping[str, Json],
    *,
    all_fields: bool = False,
) -> list[BatchTask]:
    """The tasks with their digests: of the prompt, or of ``all_fields``. Raises ``ConfigError`` if
    one lacks a field that the template uses, or if its prompt would be empty."""
    if not template.strip():
        raise ConfigError("the prompt is empty")
    holes = list(dict.fromkeys(templates.placeholders(template)))
    base = blake2b(msgspec.json.encode(shared, order="sorted"), digest_size=8).digest()
    done: list[BatchTask] = []
    for task in tasks:
        for hole in holes:
            if find(task.fields, hole) is None and hole not in task.fields:
                known = ", ".join(task.fields) or "none"
                raise ConfigError(
                    f"task {task.id!r} has no field {hole!r}, which the prompt uses",
                    hint=f"Its fields: {known}. Write them into --prompt, as {{{{name}}}}.",
                )
        prompt = templates.fill(template, task.fields)
        if not prompt.strip():
            raise ConfigError(f"the prompt of task {task.id!r} is empty")
        covered = prompt.encode("utf-8", "replace")
        if all_fields:
            covered = msgspec.json.encode(task.fields, order="sorted")
        digest = blake2b(covered, digest_size=8, key=base).hexdigest()
        done.append(msgspec.structs.replace(task, digest=digest))
    return done


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What has changed between two sets of digests by task, as text; empty if nothing has."""
    changed = [name for name in now if name in before and before[name] != now[name]]
    new = [name for name in now if name not in before]
    gone = [name for name in before if name not in now]
    parts: list[str] = []
    for names, what in ((changed, "changed"), (new, "new"), (gone, "gone")):
        if names:
            count = "1 task is" if len(names) == 1 else f"{len(names):,} tasks are"
            more = ", …" if len(names) > 3 else ""
            parts.append(f"{count} {what} ({', '.join(names[:3])}{more})")
    return ", ".join(parts)


SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})
"""Folders that ``**`` does not enter: generated, and very large."""
MAX_LISTED = 3
"""Skipped files that a message names."""

_WILDCARD = re.compile(r"[*?\[]")


class FileTasks(NamedTuple):
    tasks: list[dict[str, str]]
    skipped: dict[str, str]
    """Path to the reason."""

    @property
    def note(self) -> str:
        """What was skipped, in one line; empty if nothing was."""
        if not self.skipped:
            return ""
        reasons: dict[str, list[str]] = {}
        for path, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(path)
        parts = [
            f"{len(paths):,} {reason} ({', '.join(paths[:MAX_LISTED])}"
            f"{', …' if len(paths) > MAX_LISTED else ''})"
            for reason, paths in reasons.items()
        ]
        total = len(self.tasks) + len(self.skipped)
        return f"skipped {len(self.skipped):,} of {total:,} files: {', '.join(parts)}"


def file_tasks(
    *patterns: str, cwd: str | os.PathLike[str] | None = None, content: bool = True
) -> list[dict[str, str]]:
    """Tasks for ``corral.batch``, one for each file that matches a pattern, with the fields ``id``,
    ``path`` and ``content``.

    ::

        tasks = corral.file_tasks("src/**/*.py")
        report = await corral.batch(tasks, "Review {{path}}:\\n\\n{{content}}")

    ``cwd``: the folder that patterns and paths are relative to; the current one if it is not given.
    ``content=False``: do not read the files. Files that cannot be read as text are left out, with a
    warning. Raises ``ConfigError`` if no file matches.
    """
    found = find_files(patterns, cwd=cwd, content=content)
    if found.note:
        warnings.warn(found.note, stacklevel=2)
    return found.tasks


def find_files(
    patterns: Sequence[str], *, cwd: str | os.PathLike[str] | None = None, content: bool
) -> FileTasks:
    """The files that match any of the patterns. Raises ``ConfigError`` if a pattern matches none,
    or if nothing is left."""
    root = os.path.abspath(cwd or ".")
    named: dict[str, bool] = {}
    for pattern in patterns:
        found, is_literal = _matches(root, pattern)
        for path in found:
            named[path] = named.get(path, False) or is_literal
    tasks: list[dict[str, str]] = []
    skipped: dict[str, str] = {}
    for path in sorted(named):
        try:
            tasks.append(_task(root, path, content=content))
        except _Unusable as reason:
            if named[path]:
                shown = printable_path(path)
                raise ConfigError(f"{shown} {reason.alone}", hint=reason.hint) from reason
            skipped[printable_path(path)] = reason.several
    done = FileTasks(tasks, skipped)
    if not tasks:
        raise ConfigError(f"there are no tasks: {done.note}")
    return done


def batch_name(patterns: Sequence[str], cwd: str | os.PathLike[str] | None = None) -> str:
    """The name of a batch of these files: the same patterns in the same folder continue it."""
    key = "\0".join([os.path.realpath(cwd or "."), *patterns])
    stem = slug(patterns[0], limit=30, default="files")
    return f"{stem}-{blake2b(os.fsencode(key), digest_size=4).hexdigest()}"


class _Unusable(Exception):
    """Why a file is no task: as the end of a sentence about it, and about several."""

    def __init__(self, alone: str, several: str, hint: str | None = None) -> None:
        self.alone, self.several, self.hint = alone, several, hint
        super().__init__(alone)


def _task(root: str, path: str, *, content: bool) -> dict[str, str]:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Unusable("has a name that is not UTF-8", "with names that are not UTF-8") from error
    # The path is the id, unless it is no valid one.
    task = {"id": path, "path": path}
    if len(path) > MAX_ID or not path.isprintable() or path != path.strip():
        task["id"] = f"file-{blake2b(path.encode(), digest_size=8).hexdigest()}"
    if content:
        task["content"] = _content(os.path.join(root, path))
        if len(msgspec.json.encode(task)) > MAX_BYTES:
            raise _too_large()
    return task


def _content(path: str) -> str:
    try:
        if os.path.getsize(path) > MAX_BYTES:
            raise _too_large()
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _Unusable(
            f"cannot be read: {error.strerror}", f"cannot be read: {error.strerror}"
        ) from error
    if b"\0" in data:
        raise _Unusable("is binary", "binary")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Unusable("is not UTF-8", "not UTF-8") from error


def _too_large() -> _Unusable:
    return _Unusable(
        f"has more than {MAX_BYTES // 1024:,} KB",
        f"larger than {MAX_BYTES // 1024:,} KB",
        "Leave {{content}} out of the prompt: the agent can read the file at {{path}}.",
    )


def _matches(root: str, pattern: str) -> tuple[list[str], bool]:
    """The files that match, and whether the pattern is the path of one."""
    full = os.path.join(root, os.path.expanduser(pattern))
    if os.path.isfile(full):
        return [_relative(root, full)], True
    if os.path.isdir(full):
        raise ConfigError(
            f"{pattern} is a folder", hint=f"For all files in it: {pattern.rstrip('/')}/**"
        )
    if not pattern.strip() or not _WILDCARD.search(pattern):
        raise ConfigError(f"there is no file {pattern!r} in {root}")
    drive, rest = os.path.splitdrive(os.path.normpath(full))
    parts = [part for part in rest.split(os.sep) if part]
    if parts[-1] == "**":
        parts.append("*")
    found = [_relative(root, path) for path in _expand(drive + os.sep, parts)]
    if not found:
        raise ConfigError(
            f"no file matches {pattern!r} in {root}",
            hint="Quote the pattern. Hidden files match only a pattern with their dot.",
        )
    return found, False


def _relative(root: str, path: str) -> str:
    return os.path.relpath(path, root).replace(os.sep, "/")


def _expand(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """The files below ``folder`` whose path matches ``parts``."""
    head, rest = parts[0], parts[1:]
    if head == "**":
        yield from _expand(folder, rest)
        for entry in _entries(folder):
            # Whether ``**`` enters this folder.
            is_open = not entry.name.startswith(".") and entry.name not in SKIPPED_FOLDERS
            if is_open and entry.is_dir(follow_symlinks=False):
                yield from _expand(entry.path, parts)
    elif _WILDCARD.search(head):
        for entry in _entries(folder):
            name = entry.name
            is_hidden = name.startswith(".") and not head.startswith(".")
            if not is_hidden and fnmatch.fnmatchcase(name, head):
                yield from _below(entry.path, rest)
    else:
        yield from _below(os.path.join(folder, head), rest)


def _below(path: str, rest: Sequence[str]) -> Iterator[str]:
    if rest:
        yield from _expand(path, rest)
    elif os.path.isfile(path):
        yield path


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
