"""The variables and the text of a command that runs in the clean tree.

The caller's variables often name folders of the workspace: PATH and VIRTUAL_ENV in an activated
environment, PYTHONPATH, NODE_PATH. What stands there the agent may have written. So no variable
leads into the workspace: each such folder is that of the clean tree, or is left out if the clean
tree has none. A folder of PATH in which the run has made or changed a program is left out, too, and
that is a gap. Paths of the workspace in the command itself are those of the clean tree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath

import msgspec

from corral._system import fs, paths
from corral._system.environment import variable
from corral._system.paths import is_inside
from corral.values import printable_path

_SEARCHED = "PATH"


class TreePlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where a workspace and its clean tree are. All paths are absolute."""

    workspace: str
    """The folder of which the tree is one."""
    inside: str
    """The working directory, from there."""
    tree: str
    """As a check sees it."""
    outside_tree: str
    """As this process sees it."""
    provided: tuple[str, ...] = ()
    """Dependencies of the workspace that can be read in the tree."""
    new_programs: frozenset[str] = frozenset()
    """The folders of the tree in which the run has made or changed a program."""

    def moved(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables, with folders of the tree in the place of those of the workspace."""
        found: dict[str, str] = {}
        for name, value in variables.items():
            entries = value.split(os.pathsep)
            kept = [
                new
                for entry in entries
                if not (name == _SEARCHED and self._has_new_programs(entry))
                and (new := self._moved(entry)) is not None
            ]
            if kept:
                found[name] = os.pathsep.join(kept)
        return found

    def in_text(self, text: str) -> str:
        """The text of a command or an option, with the path of the tree in the place of that of the
        workspace."""
        roots = sorted({self.workspace, fs.real_path(self.workspace)}, key=len, reverse=True)
        names = "|".join(map(re.escape, roots))
        return re.sub(rf"(?<![\w./-])(?:{names})(?![\w.-])", lambda _: self.tree, text)

    def gaps(self) -> list[str]:
        """What is left out of PATH, one sentence for each folder."""
        entries = dict.fromkeys((variable(_SEARCHED) or "").split(os.pathsep))
        return [
            f"the run changed programs in {printable_path(entry or '.')}, a folder of PATH: the"
            " checks ran without it"
            for entry in entries
            if self._has_new_programs(entry)
        ]

    def _has_new_programs(self, entry: str) -> bool:
        path = entry if os.path.isabs(entry) else os.path.join(self.workspace, self.inside, entry)
        return any(below in self.new_programs for below in self._below(path))

    def _moved(self, entry: str) -> str | None:
        """The entry of a variable in the tree; None if the tree has none."""
        if not os.path.isabs(entry):
            return self.in_text(entry)  # an option, or a path from the working directory
        own = (os.path.dirname(self.outside_tree), str(paths.home()))
        if any(is_inside(entry, folder) for folder in own):
            return entry
        below = next(self._below(entry), None)
        if below is None:
            return entry
        return os.path.normpath(os.path.join(self.tree, below)) if self._has(below) else None

    def _below(self, path: str) -> Iterator[str]:
        """The path from the root of the workspace: from where it enters the workspace, by its name
        or by a link, and without links; nothing if it does not lead there."""
        name = os.path.normpath(path)
        real = fs.real_path(self.workspace)
        *above, _ = (name, *map(str, PurePath(name).parents))
        for folder in reversed(above):
            for place, root in ((folder, self.workspace), (fs.real_path(folder), real)):
                if is_inside(place, root):
                    found = os.path.join(
                        os.path.relpath(place, root), os.path.relpath(name, folder)
                    )
                    yield os.path.normpath(found)
        if is_inside(target := fs.real_path(name), real):
            yield os.path.relpath(target, real)

    def _has(self, below: str) -> bool:
        is_provided = any(is_inside(below, each) for each in self.provided)
        return fs.exists(os.path.join(self.workspace if is_provided else self.outside_tree, below))
