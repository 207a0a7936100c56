"""The digest of a program's files: it says whether this is the program that was tested or probed.

It covers what decides how the program behaves:

- of a program in the agent's own npm package, all files of that package but for its
  ``node_modules``; the packages with the agent's program for one kind of machine, wherever npm put
  them; and the versions of what else is in ``node_modules``;
- of a program in the agent's own PyPI package, all files of that package, and the lists with the
  hashes of the files of the packages beside it;
- of any other program, its own file. What a wrapper starts is not known.

Reading hundreds of megabytes takes a second. So a digest is kept with the sizes, times and inode
numbers of these files. A file that is replaced or changed has another time of change (``ctime``),
which no program can set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from corral._agents.spec import AgentSpec
from corral._system import paths, programs
from corral._system.programs import FoundProgram
from corral.errors import BrokenInstall

_TOPIC = "program-files"
_DEPENDENCIES = ("*/package.json", "@*/*/package.json", ".package-lock.json")


def digest(agent: AgentSpec, program: FoundProgram) -> str:
    """The digest of the program's files. Raises ``BrokenInstall`` if one cannot be read."""
    try:
        files = dict(_files(agent, program))
        stamp = _stamp(files)
        known = paths.known_answer(_TOPIC, stamp)
        if known is not None:
            return known
        content = blake2b(digest_size=20)
        for name, path in sorted(files.items()):
            content.update(f"{len(name)}:{name}:{path.stat().st_size}:".encode())
            with path.open("rb") as file:
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
        return paths.known_answer(_TOPIC, _stamp(dict(_files(agent, program))))
    except OSError:
        return None


def _files(agent: AgentSpec, program: FoundProgram) -> Iterator[tuple[str, Path]]:
    """Name → path. The names do not depend on where the package is."""
    script = Path(os.path.realpath(program.argv[-1]))
    folder = programs.package_folder(str(script), agent)
    if folder is None:
        yield "program", script
        return
    yield from _tree("", folder)
    if agent.package.registry == "PyPI":
        for path in script.glob("*.dist-info/RECORD"):
            yield str(path.relative_to(script)), path
        return
    nested = folder / "node_modules"
    above = next((each for each in folder.parents if each.name == "node_modules"), nested)
    for package in programs.binary_packages(agent):
        for modules in (nested, above):
            if (modules / package).is_dir() and modules / package != folder:
                yield from _tree(f"{package}/", modules / package)
    for pattern in _DEPENDENCIES:
        for path in nested.glob(pattern):
            yield f"node_modules/{path.relative_to(nested)}", path
    lock = above / ".package-lock.json"
    if lock.is_file():
        yield "lock", lock


def _tree(prefix: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for parent, folders, names in os.walk(folder):
        if "node_modules" in folders:
            folders.remove("node_modules")
        for name in names:
            path = Path(parent, name)
            if path.is_file():
                yield f"{prefix}{path.relative_to(folder)}", path


def _stamp(files: dict[str, Path]) -> str:
    stamp = blake2b(digest_size=20)
    for name, path in sorted(files.items()):
        info = path.stat()
        facts = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_dev)
        stamp.update(repr((name, str(path), facts)).encode())
    return stamp.hexdigest()
