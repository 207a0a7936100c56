"""The digest of a program's files: it says whether this is the program that was tested or probed.

It covers what decides how the program behaves:

- of a program in the agent's own npm package, all files of that package but for its
  ``node_modules``; the packages with the agent's program for one kind of machine, wherever npm put
  them; and the versions of what else is in ``node_modules``;
- of a program in the agent's own PyPI package, all files of that package, and the lists with the
  hashes of the files of the packages beside it;
- of any other program, its own file. What a wrapper starts is not known.

A link to a file counts as that file. A link to a folder counts as what it leads to: by its place if
that is in the package, by its files if it is elsewhere.

Reading hundreds of megabytes takes a second. So a digest is kept with the sizes, times and inode
numbers of these files. A file that is replaced or changed has another time of change (``ctime``),
which no program can set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import msgspec

from corral._agents.spec import AgentSpec
from corral._system import paths, programs
from corral._system.paths import is_inside
from corral._system.programs import FoundProgram
from corral.errors import BrokenInstall
from corral.values import decode_as

MOST_FILES = 200_000
"""A package with a link to a large folder cannot be compared."""
_TOPIC = "program-files"
_LOCK = "/.package-lock.json"


class _Package(msgspec.Struct):
    version: str | None = None
    integrity: str | None = None


class _Lock(msgspec.Struct):
    """What npm has put into a ``node_modules``."""

    packages: dict[str, _Package] = {}


def digest(agent: AgentSpec, program: FoundProgram) -> str:
    """The digest of the program's files. Raises ``BrokenInstall`` if one cannot be read."""
    try:
        files = _all_files(agent, program)
        stamp = _stamp(files)
        known = paths.known_answer(_TOPIC, stamp)
        if known is not None:
            return known
        content = blake2b(digest_size=20)
        for name, path in sorted(files.items()):
            if not path:
                content.update(f"{len(name)}:{name}:".encode())
                continue
            with open(path, "rb") as file:
                if path.endswith(_LOCK):
                    content.update(f"{len(name)}:{name}:{_packages(file.read())}:".encode())
                    continue
                content.update(f"{len(name)}:{name}:{os.fstat(file.fileno()).st_size}:".encode())
                while block := file.read(1 << 20):
                    content.update(block)
    except OSError as error:
        raise BrokenInstall(
            f"{error.filename} cannot be read: {error.strerror}",
            hint=f"Run: {programs.install_command(agent)}",
        ) from error
    found = content.hexdigest()
    paths.remember_answer(_TOPIC, stamp, found)
    return found


def known_digest(agent: AgentSpec, program: FoundProgram) -> str | None:
    """The digest if it was computed before; no file is read for it."""
    try:
        return paths.known_answer(_TOPIC, _stamp(_all_files(agent, program)))
    except (OSError, BrokenInstall):
        return None


def _all_files(agent: AgentSpec, program: FoundProgram) -> dict[str, str]:
    files = dict(islice(_files(agent, program), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise BrokenInstall(
            f"{program.argv[-1]} is in a package with over {MOST_FILES:,} files",
            hint="Remove links to other folders from the package, or install it again.",
        )
    return files


def _files(agent: AgentSpec, program: FoundProgram) -> Iterator[tuple[str, str]]:
    """Name → path; of a link to a folder of the package, the path is empty and the name has the
    place. The names do not depend on where the package is."""
    script = Path(os.path.realpath(program.argv[-1]))
    folder = programs.package_folder(str(script), agent)
    if folder is None:
        yield "program", str(script)
        return
    yield from _tree("", str(folder), [os.path.realpath(folder)])
    if agent.package.registry == "PyPI":
        for path in script.glob("*.dist-info/RECORD"):
            yield str(path.relative_to(script)), str(path)
        return
    nested = folder / "node_modules"
    above = next((parent for parent in folder.parents if parent.name == "node_modules"), nested)
    for package in programs.binary_packages(agent):
        for modules in (nested, above):
            if (modules / package).is_dir() and modules / package != folder:
                place = os.path.realpath(modules / package)
                yield from _tree(f"{package}/", place, [place])
    yield from _dependencies("node_modules/", str(nested))
    for name, lock in (
        (f"node_modules{_LOCK}", nested / _LOCK[1:]),
        ("lock", above / _LOCK[1:]),
    ):
        if lock.is_file():
            yield name, str(lock)


def _tree(prefix: str, folder: str, tops: list[str]) -> Iterator[tuple[str, str]]:
    """The files of a folder. ``tops``: the package, and the folders elsewhere that links led to,
    without links in their paths."""
    # Every run looks at these files: os.scandir takes a fifth of the time of pathlib.
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.is_file():
            yield name, entry.path
        elif entry.name == "node_modules" or not entry.is_dir():
            continue
        elif not entry.is_symlink():
            yield from _tree(f"{name}/", entry.path, tops)
        else:
            place = os.path.realpath(entry.path)
            number = next((at for at, top in enumerate(tops) if is_inside(place, top)), None)
            if number is None:
                tops.append(place)
                yield from _tree(f"{name}/", place, tops)
            else:
                yield f"{name} -> {number}:{os.path.relpath(place, tops[number])}", ""


def _dependencies(prefix: str, modules: str) -> Iterator[tuple[str, str]]:
    """The ``package.json`` of each package in a ``node_modules``."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(modules) as entries:
        for entry in entries:
            if entry.name.startswith("@"):
                yield from _dependencies(f"{prefix}{entry.name}/", entry.path)
            elif os.path.isfile(path := f"{entry.path}/package.json"):
                yield f"{prefix}{entry.name}/package.json", path


def _packages(lock: bytes) -> str:
    """The versions and hashes of packages. What else is in the file depends on npm's version."""
    try:
        found = decode_as(lock, _Lock).packages
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return repr(lock)
    return repr(sorted((place, each.version, each.integrity) for place, each in found.items()))


def _stamp(files: dict[str, str]) -> str:
    stamp = blake2b(digest_size=20)
    for name, path in sorted(files.items()):
        facts: tuple[int, ...] = ()
        if path:
            info = os.stat(path)
            facts = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_dev)
        stamp.update(repr((name, path, facts)).encode())
    return stamp.hexdigest()
