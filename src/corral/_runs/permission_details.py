"""What a permission request would do, as lines for a person: the command, the change of a file as a
diff, the other arguments. A diff leaves out only lines that stay as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from corral._core.terminal_text import one_line, visible
from corral._system.fs import open_regular
from corral.values import Json, JsonObject, is_object


class DetailLine(NamedTuple):
    text: str
    style: str = ""
    """``bold``, ``green``, ``red`` or ``cyan``."""


class ProposedEdit(NamedTuple):
    """One change of a file among the arguments of a call."""

    path: str
    old: str | None
    """The text that is replaced; None for a new file."""
    new: str


MAX_DEPTH = 6
"""Levels of nested arguments that are laid out; below, they are shown as JSON."""
LARGEST_FILE = 512 * 1024
"""Bytes of a file that is compared with its new content."""
MOST_LINES = 3_000
"""Lines of a text that is compared with another. Longer ones are shown in full: the comparison may
take quadratic time."""
CONTEXT = 3
"""Unchanged lines around a change."""

_PATH = ("path", "file_path", "filePath", "absolute_path", "notebook_path")
_OLD = ("old_text", "old_string", "oldText", "oldString", "old_str")
_NEW = ("new_text", "new_string", "newText", "newString", "new_str")
_CONTENT = ("content", "file_text")
NEW_FILE = " (new file)"
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def details(arguments: Json, request_title: str | None, cwd: str = ".") -> list[DetailLine]:
    """What a request with these arguments would do. ``cwd`` is the folder of the session."""
    lines: list[DetailLine] = []
    title = " ".join((request_title or "").split())
    values = arguments.values() if isinstance(arguments, dict) else ()
    texts = (value for value in values if isinstance(value, str) and len(value) > 3)
    # A title that only repeats an argument is left out: all arguments are shown.
    if not any(title.endswith(" ".join(text.split())) for text in texts):
        lines.append(DetailLine(one_line(request_title or "")))
    if is_object(arguments):
        effects, arguments = _effects(arguments, cwd)
        lines += effects
    lines += (DetailLine(line) for line in _arguments(arguments, 0))
    return [line for line in lines if line.text] or [DetailLine("(no details are known)")]


def file_edits(arguments: Json, cwd: str) -> list[ProposedEdit]:
    """The changes of files in the arguments of a call that is about to be made."""
    if not is_object(arguments):
        return []
    changes = arguments.get("changes")
    listed: list[Json] = changes if isinstance(changes, list) and changes else [arguments]
    return [
        _take_edit(dict(each), cwd)[0] for each in listed if is_object(each) and _is_change(each)
    ]


def _effects(given: JsonObject, cwd: str) -> tuple[list[DetailLine], JsonObject]:
    """The command and the changes of files among the arguments, and the other arguments."""
    rest = dict(given)
    lines: list[DetailLine] = []
    if isinstance(command := rest.get("command"), str) and command:
        del rest["command"]
        first, *more = visible(command).expandtabs(4).split("\n")
        lines += [
            DetailLine(f"$ {first}", "bold"),
            *(DetailLine(f"  {line}", "bold") for line in more),
        ]
    changes = rest.get("changes")
    if isinstance(changes, list) and changes and all(map(_is_change, changes)):
        del rest["changes"]
        for change in changes:
            if is_object(change):
                lines += _change(dict(change), cwd)
    elif _is_change(rest):
        lines += _change(rest, cwd)
    return lines, rest


def _is_change(value: Json) -> bool:
    """Whether this is a path with its new content, or with an old and a new text."""
    if not is_object(value) or not _key(value, _PATH):
        return False
    old, new = _key(value, _OLD), _key(value, _NEW)
    return bool((new and (old or value.get("old_text", "") is None)) or _key(value, _CONTENT))


def _key(value: JsonObject, names: Sequence[str]) -> str | None:
    return next((name for name in names if isinstance(value.get(name), str)), None)


def _take(change: JsonObject, names: Sequence[str]) -> str | None:
    """Remove the argument with one of these names, and return it."""
    name = _key(change, names)
    found = change.pop(name) if name else None
    return found if isinstance(found, str) else None


def _take_edit(change: JsonObject, cwd: str) -> tuple[ProposedEdit, str]:
    """The edit, and a note about the file; ``change`` keeps the other arguments."""
    path = _take(change, _PATH) or ""
    old, new = _take(change, _OLD), _take(change, _NEW)
    if old is None:
        change.pop("old_text", None)
    note = ""
    if new is None:
        new = _take(change, _CONTENT) or ""
        old, note = _current(os.path.join(cwd, path))
    elif old is None:
        note = NEW_FILE
    return ProposedEdit(path, None if note == NEW_FILE else old, new), note


def _change(change: JsonObject, cwd: str) -> Iterator[DetailLine]:
    """The change of a file as a diff; ``change`` keeps what is not shown."""
    edit, note = _take_edit(change, cwd)
    yield DetailLine(f"{one_line(edit.path)}{note}", "bold")
    yield from _diff(edit.old or "", edit.new)


def _current(path: str) -> tuple[str, str]:
    """The content of a file now, and a note about it."""
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        return "", NEW_FILE
    except OSError as error:
        return "", f" (it cannot be read: {error.strerror})"
    if len(data) > LARGEST_FILE:
        return "", " (replaces a large file)"
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        return "", " (replaces a binary file)"


def _diff(old: str, new: str) -> Iterator[DetailLine]:
    before = _shown_lines(old)
    after = _shown_lines(new)
    if old == new:
        yield DetailLine("(no change)")
        return
    if not before or len(before) + len(after) > MOST_LINES:
        yield from (DetailLine(f"-{line}", "red") for line in before)
        yield from (DetailLine(f"+{line}", "green") for line in after)
        return
    from difflib import unified_diff

    lines = list(unified_diff(before, after, lineterm="", n=CONTEXT))[2:]
    if lines[0].startswith("@@ -1") and sum(line.startswith("@@") for line in lines) == 1:
        del lines[0]  # where it is says nothing: it is all of the text
    for line in lines:
        yield DetailLine(line, _STYLES.get(line[:1], ""))


def _shown_lines(text: str) -> list[str]:
    return visible(text).expandtabs(4).removesuffix("\n").split("\n") if text else []


def _arguments(value: Json, depth: int) -> Iterator[str]:
    pad = "  " * depth
    items = (
        value.items()
        if isinstance(value, dict)
        else ((str(number), each) for number, each in enumerate(value, 1))
        if isinstance(value, list)
        else ()
    )
    for name, each in items:
        label = f"{pad}{one_line(name)}:"
        if isinstance(each, str) and "\n" in each:
            yield label
            text = visible(each).expandtabs(4)
            yield from (f"{pad}  {line}" for line in text.split("\n"))
        elif isinstance(each, str):
            yield f"{label} {one_line(each)}"
        elif isinstance(each, dict | list) and each and depth < MAX_DEPTH:
            yield label
            yield from _arguments(each, depth + 1)
        else:
            yield f"{label} {one_line(msgspec.json.encode(each).decode())}"
    if isinstance(value, str) and value:
        yield from (pad + line for line in visible(value).expandtabs(4).split("\n"))
