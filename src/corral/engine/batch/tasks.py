"""The tasks of a batch, read and checked before anything is spent.

Each error names the task and the field, or the line, that it is about.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import msgspec

from corral.core.nesting import decode_json
from corral.errors import ConfigError
from corral.pipelines import templates
from corral.pipelines.scheduler.commands import RunNode
from corral.pipelines.templates import find
from corral.system import fs
from corral.values import Json, as_object, is_object

MAX_BYTES = 512 * 1024
"""Maximum bytes of a task: it is stored in the journal and becomes a prompt."""
MAX_ID = 200
"""Maximum characters of a task id."""
TEXT_FIELD = "task"
"""The field name of a task that is only a text."""

NODE = "item"
"""The id of the only node of a batch's graph."""

TaskInput: TypeAlias = str | Mapping[str, object]
"""A task as the caller gives it: its fields, or one text (``{{task}}``)."""


class BatchTask(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    fields: dict[str, Json]
    digest: str = ""
    """Digest of the prompt and the options that affect the answer."""


def task_visit(task: BatchTask, round: int = 1) -> RunNode:
    """The visit of the batch's node that runs this task."""
    return RunNode(id=task.id, node=NODE, number=round, context=task.fields)


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
                    hint=f"Its fields: {known}.",
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
