"""Loads a pipeline: parses, transforms and lints a file or a text."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

from corral._core.display import short_traceback
from corral._pipelines import dot_parser, node_kinds
from corral._pipelines.graph import Graph, Node, Value, dotfile, named_prompt_file
from corral._pipelines.linter import engine
from corral._pipelines.linter.finding import Rule
from corral._pipelines.transforms import (
    UNREAD_PROMPT,
    Transform,
    changed,
    decided_by_values,
    with_names,
)
from corral._pipelines.transforms import apply as apply_transforms
from corral._system import fs
from corral.errors import ConfigError, CorralError
from corral.values import Json

__all__ = ["load", "read", "with_prompt_files"]

MAX_PROMPT_FILE = 1024 * 1024
"""Bytes of a prompt file."""
MAX_DEPTH = 20
"""How deep pipelines may be nested: a deeper one probably includes itself."""


class LoadedFiles(dict[str, bytes]):
    """The files that a pipeline loads, by their absolute paths."""

    is_complete = False
    """Nothing else is loaded, and nothing again from disk."""


_files: ContextVar[LoadedFiles | None] = ContextVar("_files", default=None)


@contextlib.contextmanager
def only(files: LoadedFiles | None) -> Iterator[None]:
    """Within the block, pipelines load these files if they are complete, else they add those that
    they load. What happens to a file meanwhile has no effect on the run."""
    token = _files.set(files)
    try:
        yield
    finally:
        _files.reset(token)


def loaded_files(path: Path, workspace: Path) -> LoadedFiles:
    """All that the pipeline of this file loads: itself, prompts, schemas, and the same of its child
    pipelines. What has a placeholder in its name is not known before a run and not among them.
    Raises ``ConfigError``, also for what the values of callers would decide, and ``DotError``."""
    files = LoadedFiles()
    with only(files):
        waiting = [path]
        while waiting:
            file = waiting.pop()
            if str(file.absolute()) in files:
                continue
            try:
                graph = with_absolute_children(load_unchecked(file, workspace), file.parent)
            except CorralError:
                if file == path:
                    raise
                continue  # a run says so
            if decided := next(decided_by_values(graph), None):
                raise ConfigError(
                    f"{file}: the values of callers would decide {decided}",
                    hint="Write it without a placeholder. Callers set values of texts only.",
                )
            waiting += [workspace / child for _, child in children(graph)]
            for node in graph.nodes.values():
                if (schema := node.text("output_schema").strip()) and not schema.startswith("{"):
                    with contextlib.suppress(OSError):
                        load_file(workspace / schema)
    files.is_complete = True
    return files


def load_file(path: Path) -> bytes:
    """A file that a pipeline loads. Raises ``OSError`` and ``ValueError``."""
    files, name = _files.get(), os.path.abspath(path)
    if files is None:
        return fs.read_bytes(path)
    if not files.is_complete:
        files[name] = fs.read_bytes(path)
    elif name not in files:
        reason = "it is not a file that the pipeline loaded when the server started"
        raise OSError(errno.EACCES, reason, name)
    return files[name]


def _is_file(path: Path) -> bool:
    files = _files.get()
    complete = files is not None and files.is_complete
    return os.path.abspath(path) in (files or ()) if complete else fs.is_file(path)


@short_traceback
def load(
    path_or_text: str | os.PathLike[str],
    *,
    values: Mapping[str, Json] | None = None,
    goal: str | None = None,
    model: str | None = None,
    transforms: Iterable[Transform] = (),
    rules: Iterable[Rule] = (),
    cwd: Path | None = None,
) -> Graph:
    """Load a pipeline from a file, or from a text that contains a ``{``. A prompt ``@file`` is read
    from the directory of the pipeline's file, else from ``cwd`` (by default the current
    directory). Raises ``DotError`` if the text cannot be parsed, ``LintError`` with the findings if
    the pipeline has errors, and ``ConfigError`` if there is no such file.

    ::

        graph = pipelines.load("review.dot", goal="Review this project")
    """
    graph = _read_with_prompts(path_or_text, cwd)
    graph = apply_transforms(graph, values=values, goal=goal, model=model, transforms=transforms)
    engine.raise_on_errors(engine.lint(graph, rules))
    return graph


def load_unchecked(path_or_text: str | os.PathLike[str], cwd: Path | None = None) -> Graph:
    """The same without values, and with errors that only the linter finds."""
    return apply_transforms(_read_with_prompts(path_or_text, cwd))


def _read_with_prompts(path_or_text: str | os.PathLike[str], cwd: Path | None) -> Graph:
    folders = [Path(cwd or ".")]
    if not _is_text(path_or_text):
        folders.insert(0, Path(path_or_text).parent)
    return with_prompt_files(with_names(read(path_or_text)), folders)


def read(path_or_text: str | os.PathLike[str]) -> Graph:
    """The graph as written: without transforms and checks."""
    if _is_text(path_or_text):
        return dot_parser.parse(str(path_or_text))
    path = Path(path_or_text)
    try:
        data = load_file(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"cannot read the pipeline {str(path)!r}: {reason}",
            hint="A pipeline is a file, or a text `digraph name { … }`.",
        ) from error
    return dot_parser.parse(dot_parser.decode(data, str(path)), str(path))


def with_prompt_files(graph: Graph, folders: Iterable[Path]) -> Graph:
    """Replace each prompt that names a file (``prompt="@plan.md"``, ``prompt_file="plan.md"``) with
    its content. The file is searched in each of these folders and must be inside one of them. If it
    cannot be read, the node gets the reason for the linter."""
    roots = [folder.resolve() for folder in folders]

    def change(node: Node) -> dict[str, Value]:
        if not (file := named_prompt_file(node)):
            return {}
        try:
            return {"prompt": _read_text(file, roots)}
        except ValueError as error:
            return {UNREAD_PROMPT: str(error)}

    return changed(graph, graph.attrs, change)


def _read_text(name: str, roots: list[Path]) -> str:
    """Raises ``ValueError`` with the reason if the file cannot be read."""
    paths = [(root / name).resolve() for root in roots]
    inside = [path for path in paths if any(path.is_relative_to(root) for root in roots)]
    file = next((path for path in inside if _is_file(path)), None)
    if file is None:
        if not inside or any(_is_file(path) for path in paths):
            raise ValueError("is outside of the pipeline's folder and of the workspace")
        raise ValueError("does not exist, neither beside the pipeline nor in the workspace")
    try:
        if fs.is_file(file) and file.stat().st_size > MAX_PROMPT_FILE:
            raise ValueError(f"has more than {MAX_PROMPT_FILE:,} bytes")
        return load_file(file).decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def _is_text(pipeline: str | os.PathLike[str]) -> bool:
    return isinstance(pipeline, str) and "{" in pipeline


# Child pipelines.


def load_child(file: str, *, values: Mapping[str, Json], workspace: Path, depth: int) -> Graph:
    """The pipeline of a node, in a run that is nested in ``depth`` others. Raises
    ``ConfigError``."""
    if depth >= MAX_DEPTH:
        raise ConfigError(f"pipelines are nested more than {MAX_DEPTH} deep")
    path = workspace / file
    try:
        graph = load(path, values=values, cwd=workspace)
    except (CorralError, OSError) as error:
        raise ConfigError(f"{file}: {error}") from error
    return with_absolute_children(graph, path.parent)


def with_absolute_children(graph: Graph, folder: Path) -> Graph:
    """Replace the path of every child pipeline in this folder with an absolute one."""

    def change(node: Node) -> dict[str, Value]:
        is_child = node.kind in node_kinds.CHILD_KINDS
        named = node.attrs.keys() & {*node_kinds.CHILD_FILES} if is_child else ()
        return {key: _absolute(node.attrs[key], folder) for key in named}

    attrs, key = dict(graph.attrs), node_kinds.CHILD_FILES[0]
    if key in attrs:
        attrs[key] = _absolute(attrs[key], folder)
    return changed(graph, attrs, change)


def check(graph: Graph, workspace: Path, depth: int = 1) -> None:
    """Check that every child pipeline can be loaded. A child whose name has a placeholder is not
    checked. Raises ``ConfigError`` with the node's name."""
    for node, file in children(graph):
        if "{{" in file:
            continue
        path = workspace / file
        if depth > MAX_DEPTH:
            raise ConfigError(f"{node.id}: {file} includes itself again and again")
        try:
            child = with_absolute_children(load(path, cwd=workspace), path.parent)
        except ConfigError as error:
            raise ConfigError(
                f"the pipeline of node {node.id!r}: {error.message}", hint=error.hint
            ) from error
        check(child, workspace, depth + 1)


def children(graph: Graph) -> Iterator[tuple[Node, str]]:
    """Each node that runs another pipeline, with its file."""
    for node in graph.of_kind(*node_kinds.CHILD_KINDS):
        if file := dotfile(graph, node):
            yield node, file


def _absolute(value: Value, folder: Path) -> Value:
    path = folder / str(value)
    return str(path.absolute()) if value and _is_file(path) else value
