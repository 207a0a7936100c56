"""A folder of dependencies in the clean tree, without a sandbox that could show it there.

It is a link to that of the workspace. But packages may be installed in place: files that name the
workspace (``*.pth``, ``__editable__*``, programs whose first line names their Python) and links
to other folders of it (workspaces of npm, path repositories of composer). They would lead checks
to what the agent left. So where there are any, the folder is made of links to single files, these
files name the tree, and these links lead into it. Blocking.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from corral._system import fs
from corral._system.paths import is_inside
from corral._verification.check_environment import TreePlaces

LARGEST = 256 * 1024
"""Bytes of a file that may name the workspace."""
DEEPEST = 2
"""Folders below one of dependencies in which packages are: ``vendor/NAME/PACKAGE``."""


def make_linked(source: str, place: str, places: TreePlaces) -> None:
    """Make the folder ``place``, which must not be there."""
    leading = {*_leading(source, places)}
    if not leading:
        os.symlink(source, place)
        return
    folders = {folder for path in leading for folder in _above(path)}
    for folder in sorted(folders):
        os.mkdir(os.path.join(place, folder) if folder else place)
        with os.scandir(os.path.join(source, folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                if path not in folders:
                    _make_entry(entry, os.path.join(place, path), path in leading, places)


def _make_entry(entry: os.DirEntry[str], new: str, is_leading: bool, places: TreePlaces) -> None:
    if entry.is_symlink():
        target = os.readlink(entry.path)
        if is_leading:
            root = fs.real_path(places.workspace)
            below = os.path.relpath(fs.real_path(entry.path), root)
            target = os.path.join(places.tree, below)
        os.symlink(target, new)
    elif is_leading:
        with open(entry.path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            text = places.in_text(file.read())
        with open(new, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
        os.chmod(new, entry.stat().st_mode & 0o777)
    else:
        os.symlink(entry.path, new)


def _leading(source: str, places: TreePlaces) -> Iterator[str]:
    """The files that name the workspace and the links that lead into it, but for those that stay
    in the folder."""
    roots = {os.fsencode(places.workspace), os.fsencode(fs.real_path(places.workspace))}
    real, real_root = fs.real_path(source), fs.real_path(places.workspace)
    for folder in _package_folders(source):
        with os.scandir(os.path.join(source, folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                if entry.is_symlink():
                    target = fs.real_path(entry.path)
                    if is_inside(target, real_root) and not is_inside(target, real):
                        yield path
                elif entry.is_file() and entry.stat().st_size <= LARGEST:
                    with open(entry.path, "rb") as file:
                        data = file.read()
                    if any(root in data for root in roots):
                        yield path


def _package_folders(source: str) -> Iterator[str]:
    """The folders in which packages and programs are, from the folder."""
    for above, names, _ in os.walk(source):
        folder = os.path.relpath(above, source)
        folder = "" if folder == "." else folder
        depth = len(folder.split("/")) if folder else 0
        is_python = folder.startswith("lib") and depth < 3
        if os.path.basename(folder) == "site-packages" or (depth >= DEEPEST and not is_python):
            names.clear()
        yield folder


def _above(path: str) -> list[str]:
    """The folders above, from the one that all are in."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]
