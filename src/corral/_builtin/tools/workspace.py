"""Which paths the tools may read and write, and which variables their commands see.

A path is resolved with all links and then compared: a link that leads out is outside, and so is
``/repo-evil`` next to ``/repo``. A resolved path is opened through ``folder``, one name at a time
from the root down, without following links: if a link was put in the way meanwhile, that is an
error and nothing outside is used.

Known limits: a folder that is moved out of the root while it is open is followed; a file with a
hard link outside can be read, but not written: writing replaces the file. The folders above the
root, and mounts below it, are trusted. Commands are confined by the sandbox, if there is one; the
policy decides whether they run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from corral._core.protected_paths import protection_of
from corral._system import paths
from corral._system.environment import QUIET, for_commands
from corral.errors import ConfigError

if TYPE_CHECKING:
    from corral._sessions.prepared_run import EditorFiles
    from corral._system.sandbox.sandbox import Sandbox

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ToolError(Exception):
    """An error with a message that the model can act on."""


class Workspace:
    """The folders of one session. Relative paths are relative to ``root``."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        extra: Iterable[str | os.PathLike[str]] = (),
        writable: Iterable[str | os.PathLike[str]] = (),
        *,
        env: Mapping[str, str] | None = None,
        pass_env: Iterable[str] = (),
        scratch: Path | None = None,
        protects: bool = False,
        sandbox: Sandbox | None = None,
    ) -> None:
        """``extra`` may be read, ``writable`` also written. ``env`` is added to the environment of
        commands; ``pass_env`` names variables of corral's environment that they get too. With
        ``protects``, no protected name (``corral._core.protected_paths``) is written; ``.git``
        never is. Commands run in ``sandbox``. Raises ``ConfigError`` if a path is not a folder."""
        self.protects = protects
        self.root: Path = _existing(Path(root))
        self.writable: tuple[Path, ...] = (
            self.root,
            *(_existing(self.root / folder) for folder in writable),
        )
        self.readable: tuple[Path, ...] = (
            *self.writable,
            *(_existing(self.root / folder) for folder in extra),
        )
        self.env: dict[str, str] = dict(env or {})
        self.pass_env: frozenset[str] = frozenset(pass_env)
        self.scratch = scratch
        self.sandbox = sandbox
        self.editor: EditorFiles | None = None
        """Reads and writes the files that it has."""

    def resolve(self, path: str, *, write: bool = False) -> Path:
        """The path without links, whether or not it exists. Raises ``ToolError`` if the tools may
        not use it."""
        if not path:
            raise ToolError("the path is empty")
        if "\0" in path:
            raise ToolError(f"not a path: {path!r}")
        if path.startswith("~"):
            raise ToolError(f"~ is not expanded: give {path} relative to the workspace's root")
        try:
            resolved = Path(os.path.realpath(self.root / path))
        except (OSError, ValueError) as error:  # a name that no file system allows
            raise ToolError(f"not a path: {path!r}") from error
        root = self._root_of(resolved, write=write)
        if root is None:
            if write and self._root_of(resolved, write=False):
                raise ToolError(f"{path} may be read but not written")
            raise ToolError(f"{path} is outside the workspace {self.root}")
        if paths.is_own(str(resolved), map(str, self.readable)):
            raise ToolError(f"{path} belongs to corral")
        if write:
            inside = resolved.relative_to(root)
            if ".git" in inside.parts:
                # A hook or a setting there would run a command later, without permission.
                raise ToolError(f"{path} belongs to git: the file tools may not write it")
            if self.protects and (protection := protection_of(str(inside))):
                raise ToolError(f"{path} is protected: {protection.reason}")
        _check_no_link(path, resolved, root)
        return resolved

    def _root_of(self, resolved: Path, *, write: bool) -> Path | None:
        roots = self.writable if write else self.readable
        return next((root for root in roots if resolved.is_relative_to(root)), None)

    def is_writable(self, resolved: Path) -> bool:
        return self._root_of(resolved, write=True) is not None

    def name(self, resolved: Path) -> str:
        """A path for messages to the model: relative to the root if inside, else absolute."""
        inside = resolved.is_relative_to(self.root)
        return replace_surrogates(str(resolved.relative_to(self.root) if inside else resolved))

    @contextlib.contextmanager
    def folder(
        self, resolved: Path, *, write: bool = False, create: bool = False
    ) -> Generator[int]:
        """A descriptor of a folder that ``resolve`` returned, for ``dir_fd``. Raises ``OSError`` if
        a folder on the way is missing, or has become a link."""
        root = self._root_of(resolved, write=write)
        if root is None:
            raise ToolError(f"{self.name(resolved)} is outside the workspace {self.root}")
        fd = os.open(root, _FOLDER)
        try:
            for part in resolved.relative_to(root).parts:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=fd)
                below = os.open(part, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def child_env(self) -> dict[str, str]:
        """The environment of commands. See ``corral._system.environment``."""
        return for_commands(self.pass_env, {**QUIET, **self.env})


def _check_no_link(path: str, resolved: Path, root: Path) -> None:
    """``realpath`` leaves links that lead in a circle as they are."""
    for step in (resolved, *resolved.parents):
        if step == root:
            return
        if step.is_symlink():
            raise ToolError(f"{path} is a link that leads in a circle")


def _existing(path: Path) -> Path:
    try:
        resolved = path.expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"no such folder: {path}") from error
    if not resolved.is_dir():
        raise ConfigError(f"not a folder: {path}")
    return resolved


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode: file names may be any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
