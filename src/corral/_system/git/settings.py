"""Read git's configuration as data: the includes of a repository are not followed."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from pathlib import Path

from corral._system.fs import read_small
from corral._system.git import stub
from corral._system.git.command import GitAccess, GitLimits, call
from corral.errors import StorageFailed

LARGEST = 1024 * 1024
"""Bytes of a configuration file that are read."""

_LOCATIONS = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")
"""Variables that decide which configuration files git reads."""


def read(path: Path) -> list[tuple[str, str]]:
    """All settings of one file, in its order, names in lower case where git ignores case.

    A file that is missing, too large, not regular or malformed has none.
    """
    return list(parse(read_small(path, LARGEST) or b""))


def object_format(common: Path) -> str:
    """How a repository's objects are named: ``sha1`` if its configuration has no other. Raises
    ``StorageFailed`` for a format that is not known."""
    data = read_small(common / "config", LARGEST) or b""
    if b"objectformat" not in data.lower():  # as nearly always: git need not be started
        return "sha1"
    found = dict(parse(data)).get("extensions.objectformat", "sha1").lower()
    if found not in ("sha1", "sha256"):
        raise StorageFailed(f"{common}: objects in the format {found!r} are not supported")
    return found


@functools.lru_cache(maxsize=64)
def parse(data: bytes) -> tuple[tuple[str, str], ...]:
    """All settings of a file's content. Empty if git cannot parse it."""
    if not data.strip():
        return ()
    words = ("config", "--file", "-", "--no-includes", "--null", "--list")
    answer = call(stub.blank(), *words, feed=(data,), limits=GitLimits(seconds=30.0))
    if answer.code:
        return ()
    rows = (row.partition("\n") for row in answer.text.split("\0") if row)
    return tuple((name, value) for name, _, value in rows)


def identity(common: Path) -> dict[str, str]:
    """Variables that name the author of a commit: from the repository's configuration, else from
    the user's own, else corral."""
    found = {**_user_settings(), **dict(read(common / "config"))}
    name, email = _clean(found, "user.name"), _clean(found, "user.email")
    if not email:
        name, email = "corral", "corral@localhost"
    name = name or email
    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": email,
    }


def user_ignore_file() -> str | None:
    """The user's own file of ignore patterns; it need not exist."""
    if chosen := _user_settings().get("core.excludesfile"):
        return os.path.expanduser(chosen)
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "git", "ignore") if os.path.isabs(base) else None


def _clean(found: Mapping[str, str], key: str) -> str:
    text = "".join(char for char in found.get(key, "") if char.isprintable() and char not in "<>")
    return text.strip()[:200]


def _user_settings() -> dict[str, str]:
    values = home, xdg, chosen, system = [os.environ.get(name, "") for name in _LOCATIONS]
    changed: list[int] = []
    own = (chosen, f"{home}/.gitconfig", f"{xdg or f'{home}/.config'}/git/config")
    for file in filter(None, (*own, system or "/etc/gitconfig")):
        with contextlib.suppress(OSError):
            changed.append(os.stat(file).st_mtime_ns)
    return _read_user_settings(tuple(values), tuple(changed))


@functools.lru_cache(maxsize=8)
def _read_user_settings(values: tuple[str, ...], changed: tuple[int, ...]) -> dict[str, str]:
    """The arguments are the key of the cache."""
    wanted = r"^(user\.(name|email)|core\.excludesfile)$"
    words = ("config", "--includes", "--show-scope", "--null", "--get-regexp", wanted)
    try:
        access = GitAccess(user_config=True)
        answer = call(stub.blank(), *words, access=access, limits=GitLimits(seconds=30.0))
    except StorageFailed:
        return {}
    fields = answer.text.split("\0")
    rows = zip(fields[::2], fields[1::2], strict=False)
    pairs = (row.partition("\n") for scope, row in rows if scope in ("system", "global"))
    return {name: value for name, _, value in pairs}
