"""Build the hostile tree, and check its effects."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

from corral.errors import ConfigError
from corral.testing.hostile import git_files
from corral.testing.hostile.agent_files import Bait, agent_files, build_files
from corral.testing.http_canary import Address
from corral.testing.model_server.request import Request

ODD_NAME = b"not-\xff\xfe-utf8.txt"
_NAMES = ("AGENTS.md", "CLAUDE.md", "GEMINI.md", "QWEN.md")
DOCUMENTS = frozenset({*_NAMES, "AGENTS.override.md", *(f"sub/{name}" for name in _NAMES)})
"""Texts for the model, which give no permission."""


class HostileRepository:
    """A built tree. ``cwd`` is the repository; the folder above it is hostile as well."""

    def __init__(self, folder: Path, address: Address) -> None:
        self.marker = f"HIJACKED-{secrets.token_hex(6)}"
        self.cwd = folder / "parent" / "repository"
        self.canaries = folder / "canaries"
        self._inside = self.cwd / ".canaries"
        """For what is executed in a sandbox, which does not show the other folder."""
        self._outside = folder / "outside"
        self._address = address
        self._bait = Bait(self._touch, self.marker, f"http://127.0.0.1:{address.port}")

    def effects(self) -> list[str]:
        """What was executed, and the visits to the tree's address. Empty if nothing happened."""
        executed = sorted({*os.listdir(self.canaries), *os.listdir(self._inside)})
        return [*executed, *(f"visit {path}" for path in self._address.visits)]

    def added(self, requests: Iterable[Request]) -> list[str]:
        """Tools, skills, sub-agents, commands and variables of the tree that a model received."""
        found = {name for name in self._names_in_requests(requests) if name not in DOCUMENTS}
        for request in requests:
            if f"HOSTILE_VARIABLE={self.marker}" in json.dumps(request.body, ensure_ascii=False):
                found.add("HOSTILE_VARIABLE")
            found |= {f"tool {name}" for name in request.tools if "evil" in name}
        return sorted(found)

    def documents(self, requests: Iterable[Request]) -> list[str]:
        """Documents of the tree, such as ``AGENTS.md``, that were sent to a model."""
        return sorted(self._names_in_requests(requests) & DOCUMENTS)

    def _names_in_requests(self, requests: Iterable[Request]) -> set[str]:
        bodies = [json.dumps(request.body, ensure_ascii=False) for request in requests]
        return {n for body in bodies for n in re.findall(rf"{self.marker} ([\w./-]*\w)", body)}

    def _touch(self, name: str) -> str:
        flat = re.sub(r"[^A-Za-z0-9.-]", "_", name)
        return " ".join(
            ["touch", *(shlex.quote(str(each / flat)) for each in (self.canaries, self._inside))]
        )

    def build(self, *, fifo: bool) -> None:
        for folder in (self.cwd, self.canaries, self._inside, self._outside):
            folder.mkdir(parents=True)
        (self._outside / "secret.txt").write_text("outside\n")
        _git(self.cwd, "init", "-q", "-b", "main")
        (self.cwd / "seed.txt").write_text("the words of the file\n")
        (self.cwd / "sub").mkdir()
        (self.cwd / "sub" / "file.txt").write_text("deeper words\n")
        _put(self.cwd, {**build_files(self._bait), **agent_files(self._bait)})
        _put(self.cwd.parent, {**build_files(self._bait), **agent_files(self._bait)})
        _put(self.cwd / "sub", {name: self._bait.words(f"sub/{name}") for name in _NAMES})
        (self.cwd / "link.txt").symlink_to(self._outside / "secret.txt")
        (self.cwd / "link").symlink_to(self._outside)
        (self.cwd / "dangling").symlink_to(self._outside / "nothing")
        Path(os.fsdecode(os.fsencode(self.cwd) + b"/" + ODD_NAME)).write_text("odd\n")
        _put(self.cwd, git_files.tree_files(self._touch))
        _git(self.cwd, "add", "--all")
        _git(self.cwd, "commit", "-q", "-m", "first")
        _put(self.cwd, git_files.embedded(self._touch))
        self._arm()
        if fifo:
            self._add_fifos()

    def _add_fifos(self) -> None:
        """FIFOs that git reads and no program writes: a program that opens one blocks."""
        git = self.cwd / ".git"
        (git / "info" / "exclude").unlink(missing_ok=True)
        folder = self.cwd / "fifos"
        folder.mkdir()
        for path in (
            self.cwd / "sub" / ".gitignore",
            folder / ".gitattributes",
            git / "info" / "exclude",
            git / "included",
        ):
            os.mkfifo(path)
        with (git / "config").open("a") as config:
            config.write("[include]\n\tpath = included\n")

    def _arm(self) -> None:
        """Change the git directory, after the last git command of this module."""
        git = self.cwd / ".git"
        (git / "config").write_text(git_files.config(self._touch, "git"))
        (git / "info" / "attributes").write_text("* filter=evil diff=evil\n")
        (git / "objects" / "info" / "alternates").write_text(str(self._outside / "objects") + "\n")
        for name in git_files.HOOKS:
            hook = git / "hooks" / name
            hook.write_text(f"#!/bin/sh\n{self._touch(f'hook-{name}')}\n")
            hook.chmod(0o755)


@contextmanager
def hostile_repository(
    folder: str | Path, *, fifo: bool = False
) -> Generator[HostileRepository, None, None]:
    """Build the tree in ``folder``, which must be empty. With ``fifo``, the files ``.gitignore``,
    ``.gitattributes``, ``info/exclude`` and an include are FIFOs that no program writes. Needs git.
    The tree stays; its address is closed at the end.

    Raises ``ConfigError`` if the folder is not empty.

    ::

        with hostile_repository(tmp_path) as hostile:
            corral.run_sync("gemini-cli", "Look around", cwd=hostile.cwd)
    """
    root = Path(folder).resolve()
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise ConfigError(f"the folder for a hostile repository is not empty: {root}")
    address = Address()
    try:
        built = HostileRepository(root, address)
        built.build(fifo=fifo)
        yield built
    finally:
        address.close()


def _put(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        if content.startswith("#!"):
            path.chmod(0o755)


def _git(folder: Path, *words: str) -> None:
    """Only before the tree is armed."""
    who = ("-c", "user.name=Hostile", "-c", "user.email=hostile@localhost")
    off = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(
        ["git", *who, "-C", str(folder), *words],
        env={"PATH": os.environ.get("PATH", os.defpath), **off},
        check=True,
        capture_output=True,
        timeout=60,
    )
