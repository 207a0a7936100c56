"""The tasks of a batch, read and checked: whatever is wrong with them is said before anything
is spent, with the task and the field, or the line, that it is about."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from corral.errors import ConfigError
from corral.events import Json
from corral.nesting import decode_json
from corral.pipelines import templates
from corral.pipelines.conditions import find

LARGEST = 512 * 1024
"""Bytes of one task: it is kept in the journal, and becomes a prompt."""
LONGEST_ID = 200
"""Characters."""
PLAIN = "task"
"""The field of a task that is a text and nothing else."""

Given: TypeAlias = str | Mapping[str, Any]
"""A task as a caller has it: its fields, or one text (``{{task}}``)."""


class BatchTask(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    fields: dict[str, Json]
    digest: str = ""
    """Of what is asked: the same one is the same question."""


def read(path: str | Path, data: bytes | None = None) -> list[BatchTask]:
    """The tasks of a file: ``.csv`` with a header, ``.txt`` with a task a line, else a JSON
    value a line. Raises ``ConfigError``."""
    path = Path(path)
    if data is None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from error
    data = data.removeprefix(b"\xef\xbb\xbf")
    kinds = {".csv": _csv, ".txt": _lines}
    found = list(kinds.get(path.suffix.lower(), _json)(path.name, data))
    if not found:
        raise ConfigError(f"{path.name} holds no tasks")
    return made(found)


def made(given: Iterable[Given | tuple[str, Given]]) -> list[BatchTask]:
    """Tasks with their ids: the field ``id``, else their number. A pair is a task with the
    place it comes from. Raises ``ConfigError``."""
    tasks: list[BatchTask] = []
    places: dict[str, str] = {}
    for number, each in enumerate(given, 1):
        place, task = each if isinstance(each, tuple) else (f"task {number}", each)
        fields = _fields(place, task)
        name = _id(place, fields, number)
        if name in places:
            raise ConfigError(
                f"{place}: the id {name!r} is that of {places[name]} already",
                hint="Ids are the field `id`, or the task's number where it has none.",
            )
        places[name] = place
        tasks.append(BatchTask(id=name, fields=fields))
    if not tasks:
        raise ConfigError("there are no tasks")
    return tasks


def _fields(place: str, task: Given) -> dict[str, Json]:
    if isinstance(task, str):
        fields: dict[str, Json] = {PLAIN: task}
    else:
        try:
            fields = cast("dict[str, Json]", msgspec.to_builtins(dict(task), enc_hook=str))
            if len(msgspec.json.encode(fields)) > LARGEST:
                raise ConfigError(f"{place}: a task over {LARGEST:,} bytes is no task for a batch")
        except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{place} is no JSON: {error}") from error
    if isinstance(task, str) and len(task) > LARGEST:
        raise ConfigError(f"{place}: a task over {LARGEST:,} bytes is no task for a batch")
    return fields


def _id(place: str, fields: Mapping[str, Json], number: int) -> str:
    given = fields.get("id")
    if given is None or given == "":
        return str(number)
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise ConfigError(f"{place}: an id is a text or a number, not {given!r}")
    name = str(given)
    if len(name) > LONGEST_ID or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"{place}: {name[:60]!r} is no id", hint=f"At most {LONGEST_ID} printable characters."
        )
    return name


def _json(name: str, data: bytes) -> Iterator[tuple[str, Given]]:
    for number, raw in enumerate(data.split(b"\n"), 1):
        line = raw.strip()
        if not line:
            continue
        place = f"{name} line {number}"
        if len(line) > LARGEST:
            raise ConfigError(f"{place}: {len(line):,} bytes, over {LARGEST:,}, are no task")
        try:
            value: object = decode_json(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{place} is no JSON: {error}") from error
        match value:
            case str() | dict():
                yield place, cast("Given", value)
            case _:
                raise ConfigError(f"{place}: a task is an object or a text")


def _lines(name: str, data: bytes) -> Iterator[tuple[str, Given]]:
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
        raise ConfigError(f"{place} holds a NUL character: it is no text")
    return text


def _csv(name: str, data: bytes) -> Iterator[tuple[str, Given]]:
    rows = csv.reader(io.StringIO(_text(name, data), newline=""), strict=True)
    before = csv.field_size_limit(LARGEST)
    try:
        header = [each.strip() for each in next(rows, list[str]())]
        if not any(header):
            return
        doubled = next((each for each in header if header.count(each) > 1), None)
        if doubled is not None or not all(header):
            raise ConfigError(
                f"{name}: the first line must name each column once, got: {doubled or ''!r}"
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


def ready(tasks: Iterable[BatchTask], template: str, terms: Mapping[str, Json]) -> list[BatchTask]:
    """The tasks with their digests. Raises ``ConfigError`` where one lacks a field that the
    template asks for, or its prompt would be empty."""
    if not template.strip():
        raise ConfigError("the prompt is empty")
    holes = list(dict.fromkeys(templates.holes(template)))
    base = blake2b(msgspec.json.encode(terms, order="sorted"), digest_size=8).digest()
    done: list[BatchTask] = []
    for task in tasks:
        for hole in holes:
            if find(task.fields, hole) is None and hole not in task.fields:
                known = ", ".join(task.fields) or "none"
                raise ConfigError(
                    f"task {task.id!r} has no field {hole!r}, which the prompt asks for",
                    hint=f"Its fields: {known}.",
                )
        prompt = templates.fill(template, task.fields)
        if not prompt.strip():
            raise ConfigError(f"the prompt of task {task.id!r} is empty")
        digest = blake2b(prompt.encode("utf-8", "replace"), digest_size=8, key=base).hexdigest()
        done.append(msgspec.structs.replace(task, digest=digest))
    return done


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """In words, what is not as it was, of digests by task; empty: all is."""
    changed = [name for name in now if name in before and before[name] != now[name]]
    new = [name for name in now if name not in before]
    gone = [name for name in before if name not in now]
    said = [
        f"{_count(names)} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for names, what in ((changed, "changed"), (new, "new"), (gone, "gone"))
        if names
    ]
    return ", ".join(said)


def _count(names: list[str]) -> str:
    return "1 task is" if len(names) == 1 else f"{len(names):,} tasks are"
