"""Corral's own files, which no agent may change: its state, its settings and its program.

They are usually far from any workspace. Where one of them is in a folder that an agent may use, the
sandbox hides it or shows it read-only, and the file tools refuse it. Files that a user chose
(a database, the results of a batch) are announced by ``add`` when they are opened; processes that
corral starts for itself inherit the list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from corral.system import paths
from corral.system.sandbox.box import interpreter_folders, is_inside

VARIABLE = "CORRAL_OWN_FILES"
SIDE_FILES = ("-journal", "-wal", "-shm")
"""What SQLite adds to the name of a database file."""

_added: dict[str, None] = {}


def add(path: str | os.PathLike[str]) -> None:
    """Announce a file that corral keeps where the user chose."""
    _added[os.path.abspath(path)] = None


def add_database(path: str | os.PathLike[str]) -> None:
    for end in ("", *SIDE_FILES, ".executors"):
        add(os.fspath(path) + end)


def for_child() -> dict[str, str]:
    """Variables for a process of corral's own."""
    return {VARIABLE: os.pathsep.join(_announced())} if _announced() else {}


def _announced() -> tuple[str, ...]:
    inherited = os.environ.get(VARIABLE, "").split(os.pathsep)
    return tuple(dict.fromkeys((*filter(None, inherited), *_added)))


def files() -> tuple[str, ...]:
    """The folder of corral's state, and the announced files. They need not exist."""
    return (str(paths.home()), *_announced())


def settings(cwd: str) -> tuple[str, ...]:
    """Configuration files that corral obeys, of which one may be in the workspace."""
    given = os.environ.get("CORRAL_CONFIG")
    named = [given] if given else []
    return (*map(os.path.abspath, named), os.path.join(cwd, "corral.toml"))


def programs() -> tuple[str, ...]:
    """The environment that corral itself runs in: what is written there runs outside the sandbox
    when corral next imports it."""
    return interpreter_folders()


def holds(path: str, roots: Iterable[str]) -> bool:
    """Whether a resolved path is one of ``files`` in one of these folders. A folder that is itself
    in corral's state, such as the workspace of a pipeline, is the agent's."""
    for own in map(os.path.realpath, files()):
        if is_inside(path, own) and any(is_inside(own, root) and own != root for root in roots):
            return True
    return False
