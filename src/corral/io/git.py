"""git, called: no hook of a repository runs, nobody is asked at a terminal, and nothing in the
environment leads it elsewhere. Everything here blocks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from corral.errors import ConfigError, StorageFailed
from corral.io import detached

_SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0")
_NOBODY = ("-c", "user.name=corral", "-c", "user.email=corral@localhost")
"""Who commits where the person has told git no name."""
_OURS = (
    "GIT_SSH",
    "GIT_SSL_",
    "GIT_HTTP_",
    "GIT_ASKPASS",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
)
"""What of a person's settings for git may hold: how to log in, and their own file."""
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
TIMEOUT = 300.0
"""Seconds for one call of git."""

_held: ContextVar[tuple[int, ...]] = ContextVar("_held", default=())


@contextmanager
def alone(gate: Path) -> Generator[None]:
    """One at a time, in all processes of this machine. What git is called within holds the
    gate too: where we are killed, nobody comes in before that has ended."""
    with detached.alone(gate) as fd:
        token = _held.set((*_held.get(), fd))
        try:
            yield
        finally:
            _held.reset(token)


def is_installed() -> bool:
    return shutil.which("git") is not None


def require(what: str) -> None:
    """Raises ``ConfigError``."""
    if not is_installed():
        raise ConfigError(f"{what} needs git, which is not installed")


def run(folder: Path, *words: str, strip: bool = True, index: Path | None = None) -> str:
    """What it wrote. ``index`` in place of the tree's own. Raises ``StorageFailed``."""
    code, out, said = tell(folder, *words, index=index)
    if code:
        raise StorageFailed(f"git {_shown(words)}: {said or code}")
    return out.strip() if strip else out


def is_so(folder: Path, *words: str) -> bool:
    """Whether it says yes, where one of its commands is a question."""
    return tell(folder, *words)[0] == 0


def tell(folder: Path, *words: str, index: Path | None = None) -> tuple[int, str, str]:
    """Its exit code, what it wrote, and what it complained of, first and last. Raises
    ``StorageFailed`` where it cannot be called or does not end."""
    command = ["git", *_SAFE, "-C", str(folder), *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            env=_environment(index),
            check=False,
            # Not where it logs in: a helper that stays would stay at the gate.
            pass_fds=() if words[0] in ("fetch", "push") else _held.get(),
            start_new_session=True,  # without a terminal ssh cannot ask for a password there
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageFailed(f"git {_shown(words)}: {error}") from error
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    fatal = [line for line in lines if line.startswith("fatal: ")]
    said = "; ".join(dict.fromkeys([*lines[:1], *(fatal or lines)[-1:]]))
    return done.returncode, done.stdout.decode("utf-8", "replace"), _LOGIN.sub("…@", said)


def commit_of(root: Path, name: str) -> str:
    """The commit that a branch, a tag or part of an id stands for. Raises ``StorageFailed``."""
    return run(root, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")


def commit(root: Path, tree: str, parents: Sequence[str], message: str) -> str:
    """A commit of this tree; no branch leads to it yet. Raises ``StorageFailed``."""
    who = () if is_so(root, "config", "user.email") else _NOBODY
    before = [word for parent in parents for word in ("-p", parent)]
    return run(root, *who, "commit-tree", tree, *before, "-m", message)


def changed_files(root: Path, since: str, until: str) -> tuple[str, ...]:
    """Raises ``StorageFailed``."""
    names = run(root, "diff", "--name-only", "-z", "--no-ext-diff", since, until)
    return tuple(name for name in names.split("\0") if name)


def _environment(index: Path | None) -> dict[str, str]:
    """Without what would lead git elsewhere, as inside a hook of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(_OURS)
    }
    kept |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}  # what it says is read by us
    if index is not None:
        kept["GIT_INDEX_FILE"] = str(index)
    return kept


def _shown(words: Sequence[str]) -> str:
    return _LOGIN.sub("…@", " ".join(word for word in words if not word.startswith("-")))[:80]
