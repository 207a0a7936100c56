"""Read a repository's configuration as data: no include is followed, nothing is obeyed."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from corral.errors import StorageFailed
from corral.system.fs import read_small
from corral.system.git import layout, stub
from corral.system.git.command import Access, Limits, call

LARGEST = 1024 * 1024
"""Bytes of a configuration file that are read."""

_RUNS = re.compile(
    r"""
    core\.(fsmonitor|hookspath|sshcommand|pager|editor|askpass|gitproxy|alternaterefscommand
          |attributesfile|worktree)
  | (sequence|gpg(\..*)?|credential(\..*)?|diff\..*|merge\..*|filter\..*|difftool\..*
    |mergetool\..*|browser\..*|man\..*|guitool\..*)
    \.(editor|program|helper|command|textconv|driver|clean|smudge|process|cmd|path)
  | diff\.external | interactive\.difffilter | pager\..* | alias\..* | include\.path
  | includeif\..*\.path | protocol(\..*)?\.allow | remote\..*\.(vcs|uploadpack|receivepack|proxy)
  | url\..*\.(insteadof|pushinsteadof) | uploadpack\.packobjectshook | gc\.recentobjectshook
  | submodule\..*\.update | sendemail\..*cmd | trailer\..*\.(cmd|command) | hook\..*\.command
  | bigdelta | receive\.procreceiverefs | instaweb\..* | web\.browser | init\.templatedir
  | tar\..*\.command | imap\.tunnel | extensions\.(partialclone|worktreeconfig)
    """,
    re.VERBOSE,
)
_LOOKING = re.compile(r"core\.(fsmonitor|worktree|attributesfile)|filter\.|diff\.|include(if)?\.|/")
"""What counts when git only compares files; a path: a file of settings that cannot be read."""
_HARMLESS = {
    ("core.fsmonitor", "false"),
    ("core.hookspath", "/dev/null"),
    ("protocol.allow", "never"),
    ("protocol.allow", "user"),
}
_REMOTE_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")


class Finding(msgspec.Struct, frozen=True):
    """A setting of a repository that makes git start a program or read another file."""

    name: str
    value: str


def read(path: Path) -> list[tuple[str, str]]:
    """All settings of one file, in its order, names in lower case where git ignores case.

    A file that is missing, too large, not regular or malformed has none.
    """
    return list(_parse(read_small(path, LARGEST) or b""))


def object_format(common: Path) -> str:
    """How a repository's objects are named: ``sha1`` unless it says otherwise. Raises
    ``StorageFailed`` for a format that is not known."""
    data = read_small(common / "config", LARGEST) or b""
    if b"objectformat" not in data.lower():  # as nearly always: git need not be started
        return "sha1"
    found = dict(_parse(data)).get("extensions.objectformat", "sha1").lower()
    if found not in ("sha1", "sha256"):
        raise StorageFailed(f"{common}: objects in the format {found!r} are not supported")
    return found


@functools.lru_cache(maxsize=64)
def _parse(data: bytes) -> tuple[tuple[str, str], ...]:
    if not data.strip():
        return ()
    words = ("config", "--file", "-", "--no-includes", "--null", "--list")
    answer = call(stub.blank(), *words, feed=(data,), limits=Limits(seconds=30.0))
    if answer.code:
        return ()
    rows = (row.partition("\n") for row in answer.text.split("\0") if row)
    return tuple((name, value) for name, _, value in rows)


def dangerous(folder: Path) -> list[Finding]:
    """The settings of the repository around a folder that make git start programs, load other
    files, or change where it looks: whoever runs git there obeys them. Includes count, whatever
    they hold. The user's own configuration is not looked at. Raises ``StorageFailed``."""
    found = layout.find(folder)
    if found is None:
        return []
    paths = dict.fromkeys(
        (found.common / "config", found.git_dir / "config", found.git_dir / "config.worktree")
    )
    findings: list[Finding] = []
    for path in paths:
        data = read_small(path, LARGEST)
        rows = _parse(data or b"")
        if data is None and path.exists():
            findings.append(Finding(str(path), "not a regular file, or too large"))
        elif data and data.strip() and not rows:
            findings.append(Finding(str(path), "git cannot parse this file"))
        findings += [Finding(*row) for row in rows if _is_dangerous(*row)]
    hooks = found.common / "hooks"
    if hooks.is_dir():
        names = sorted(each.name for each in hooks.iterdir() if each.suffix != ".sample")
        findings += [Finding("hook", name) for name in names]
    return findings


def starts_programs(folder: Path) -> list[Finding]:
    """Of these, what git obeys when it only looks: ``git status`` or ``git diff`` there starts
    the program. Raises ``StorageFailed``."""
    return [found for found in dangerous(folder) if _LOOKING.match(found.name.lower())]


def _is_dangerous(name: str, value: str) -> bool:
    if (name.lower(), value.lower()) in _HARMLESS:
        return False
    is_helper = name.lower().endswith("url") and bool(_REMOTE_HELPER.match(value))
    return is_helper or bool(_RUNS.fullmatch(name.lower()))


def identity(common: Path) -> dict[str, str]:
    """Variables that name the author of a commit: as the repository says, else as the user's own
    configuration says, else corral."""
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
    names = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")
    values = tuple(os.environ.get(name, "") for name in names)
    home, xdg, chosen, system = values
    mine = (chosen, f"{home}/.gitconfig", f"{xdg or f'{home}/.config'}/git/config")
    changed = tuple(_changed(file) for file in (*mine, system or "/etc/gitconfig"))
    return _read_user_settings(values, changed)


def _changed(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns if file else 0
    except OSError:
        return 0


@functools.lru_cache(maxsize=8)
def _read_user_settings(values: tuple[str, ...], changed: tuple[int, ...]) -> dict[str, str]:
    """The arguments say when to read again."""
    wanted = r"^(user\.(name|email)|core\.excludesfile)$"
    words = ("config", "--includes", "--show-scope", "--null", "--get-regexp", wanted)
    try:
        access = Access(user_config=True)
        answer = call(stub.blank(), *words, access=access, limits=Limits(seconds=30.0))
    except StorageFailed:
        return {}
    fields = answer.text.split("\0")
    rows = zip(fields[::2], fields[1::2], strict=False)
    pairs = (row.partition("\n") for scope, row in rows if scope in ("system", "global"))
    return {name: value for name, _, value in pairs}
