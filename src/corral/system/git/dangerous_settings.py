"""Find the settings of a repository that make git start programs, load other files, or search
elsewhere. They have an effect on every git process that is started in the repository."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from corral.system.fs import read_small
from corral.system.git import scan, settings

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
"""What has an effect when git only compares files. A path names an unreadable settings file."""
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


def find(folder: Path) -> list[Finding]:
    """The dangerous settings of the repository around a folder. Includes count, whatever they
    contain. The user's own configuration is not read. Raises ``StorageFailed``."""
    found = scan.find_repository(folder)
    if found is None:
        return []
    paths = dict.fromkeys(
        (found.common / "config", found.git_dir / "config", found.git_dir / "config.worktree")
    )
    findings: list[Finding] = []
    for path in paths:
        data = read_small(path, settings.LARGEST)
        rows = settings.parse(data or b"")
        if data is None and path.exists():
            findings.append(Finding(str(path), "not a regular file, or too large"))
        elif data and data.strip() and not rows:
            findings.append(Finding(str(path), "git cannot parse this file"))
        findings += [Finding(*row) for row in rows if is_dangerous(*row)]
    hooks = found.common / "hooks"
    if hooks.is_dir():
        names = sorted(each.name for each in hooks.iterdir() if each.suffix != ".sample")
        findings += [Finding("hook", name) for name in names]
    return findings


def starts_programs(folder: Path) -> list[Finding]:
    """The settings that have an effect already when git only compares files: ``git status`` or
    ``git diff`` there starts the program. Raises ``StorageFailed``."""
    return [found for found in find(folder) if _LOOKING.match(found.name.lower())]


def is_dangerous(name: str, value: str) -> bool:
    """Whether this setting is known to make git start a program or read another file."""
    if (name.lower(), value.lower()) in _HARMLESS:
        return False
    is_helper = name.lower().endswith("url") and bool(_REMOTE_HELPER.match(value))
    return is_helper or bool(_RUNS.fullmatch(name.lower()))
