"""Corral's own files, which no agent may change: its state, its settings and its program.

They are usually far from any workspace. Where one of them is in a folder that an agent may use, the
sandbox hides it or shows it read-only, and the file tools refuse it. Files that a user chose
(a database, the results of a batch) are announced with ``paths.announce`` when they are opened;
processes that corral starts for itself inherit the list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from corral.system import paths


def for_child() -> dict[str, str]:
    """Variables for a process of corral's own. It has the same home, and warns of none."""
    announced, home = paths.announced(), {"CORRAL_HOME": str(paths.home())}
    return {paths.OWN_FILES: os.pathsep.join(announced), **home} if announced else home


def files() -> tuple[str, ...]:
    """The folder of corral's state, and the announced files. They need not exist."""
    return (str(paths.home()), *paths.announced())


def settings(cwd: str) -> tuple[str, ...]:
    """Configuration files that corral obeys, of which one may be in the workspace."""
    given = os.environ.get("CORRAL_CONFIG")
    named = [given] if given else []
    return (*map(os.path.abspath, named), os.path.join(cwd, "corral.toml"))


def programs() -> tuple[str, ...]:
    """The environment that corral itself runs in: what is written there runs outside the sandbox
    when corral next imports it."""
    from corral.system.sandbox.box import interpreter_folders  # only a sandbox asks

    return interpreter_folders()


def inside(roots: Iterable[str]) -> list[str]:
    """The resolved paths of ``files`` that are in one of these folders. A folder that is itself in
    corral's state, such as the workspace of a pipeline, is the agent's."""
    from corral.system.sandbox.box import is_inside

    folders = [*roots]
    return [
        own
        for own in map(os.path.realpath, files())
        if any(is_inside(own, root) and own != root for root in folders)
    ]


def holds(path: str, roots: Iterable[str]) -> bool:
    """Whether a resolved path is one of those that are ``inside`` these folders, or below it."""
    from corral.system.sandbox.box import is_inside

    return any(is_inside(path, own) for own in inside(roots))
