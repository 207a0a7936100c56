"""Find the settings of a repository that make git start programs, load other files, or search
elsewhere. They have an effect on every git process that is started in the repository.

``find`` is for the repository of a user, who is asked: it reports the settings that are known to
start programs. ``find_not_harmless`` is the other way round, for a repository that an agent made or
changed: what is not known to be harmless is reported. ``git init``, ``git clone`` and the usual
commands write nothing else. So no program of git's is needed to read the file, and a line that git
might read in another way than this module is reported, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from corral._system.fs import read_small
from corral._system.git import scan, settings

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


class DangerousSetting(msgspec.Struct, frozen=True):
    """A setting of a repository that makes git start a program or read another file."""

    name: str
    value: str


def find(folder: Path) -> list[DangerousSetting]:
    """The dangerous settings of the repository around a folder. Includes count, whatever they
    contain. The user's own configuration is not read. Raises ``StorageFailed``."""
    found = scan.find_repository(folder)
    if found is None:
        return []
    paths = dict.fromkeys(
        (found.common / "config", found.git_dir / "config", found.git_dir / "config.worktree")
    )
    findings: list[DangerousSetting] = []
    for path in paths:
        data = read_small(path, settings.LARGEST)
        rows = settings.parse(data or b"")
        if data is None and path.exists():
            findings.append(DangerousSetting(str(path), "not a regular file, or too large"))
        elif data and data.strip() and not rows:
            findings.append(DangerousSetting(str(path), "git cannot parse this file"))
        findings += [DangerousSetting(*row) for row in rows if is_dangerous(*row)]
    hooks = found.common / "hooks"
    if hooks.is_dir():
        names = sorted(each.name for each in hooks.iterdir() if each.suffix != ".sample")
        findings += [DangerousSetting("hook", name) for name in names]
    return findings


def starts_programs(folder: Path) -> list[DangerousSetting]:
    """The settings that have an effect already when git only compares files: ``git status`` or
    ``git diff`` there starts the program. Raises ``StorageFailed``."""
    return [found for found in find(folder) if _LOOKING.match(found.name.lower())]


def is_dangerous(name: str, value: str) -> bool:
    """Whether this setting is known to make git start a program or read another file."""
    if (name.lower(), value.lower()) in _HARMLESS:
        return False
    is_helper = name.lower().endswith("url") and bool(_REMOTE_HELPER.match(value))
    return is_helper or bool(_RUNS.fullmatch(name.lower()))


LARGEST = 64 * 1024
"""Bytes of a settings file that is read. Larger ones are reported."""

_SECTION = re.compile(rb"[A-Za-z0-9.-]+")
_KEY = re.compile(rb"[A-Za-z][A-Za-z0-9-]*")
_CONTROL = re.compile(rb"[^\t\n\x20-\x7e\x80-\xff]")
_ANY = ("advice", "color")
"""Sections of which every setting is harmless."""
_HARMLESS_KEYS: Mapping[str, frozenset[str]] = {
    section: frozenset(keys.split())
    for section, keys in {
        "branch": "autosetupmerge autosetuprebase",
        "branch.": "description merge rebase",
        "core": "abbrev autocrlf bare bigfilethreshold checkstat commitgraph compression eol"
        " filemode hidedotfiles ignorecase logallrefupdates longpaths loosecompression"
        " multipackindex precomposeunicode preloadindex protecthfs protectntfs quotepath"
        " repositoryformatversion safecrlf sharedrepository sparsecheckout sparsecheckoutcone"
        " splitindex symlinks trustctime untrackedcache whitespace",
        "extensions": "compatobjectformat noop objectformat partialclone preciousobjects"
        " refstorage worktreeconfig",
        "feature": "experimental manyfiles",
        "fetch": "parallel prune prunetags",
        "gc": "auto autodetach",
        "index": "sparse threads version",
        "init": "defaultbranch",
        "lfs": "repositoryformatversion",
        "lfs.": "access",
        "maintenance": "auto",
        "merge": "conflictstyle ff",
        "pull": "ff rebase",
        "push": "autosetupremote default followtags",
        "remote.": "fetch mirror partialclonefilter promisor prune prunetags push"
        " skipdefaultupdate skipfetchall tagopt",
        "submodule": "active recurse",
        "submodule.": "active branch fetchrecursesubmodules ignore shallow",
        "user": "email name",
    }.items()
}
"""Section → keys. A section with a point at its end has a name for each of its kind."""
_SCHEMES = ("file", "ftp", "ftps", "git", "http", "https", "ssh")


def _is_place(value: str) -> bool:
    """Whether a value that git uses as the place of a repository starts no remote helper."""
    scheme, found, _ = value.partition("://")
    known = scheme.lower() in _SCHEMES if found else True
    return known and "::" not in value and not value.startswith("-")


_BY_VALUE: Mapping[str, Callable[[str], bool]] = {
    "branch..pushremote": _is_place,
    "branch..remote": _is_place,
    "core.fsmonitor": lambda value: value.lower() == "false",
    "core.hookspath": lambda value: value == "/dev/null",
    "remote..pushurl": _is_place,
    "remote..url": _is_place,
    "remote.pushdefault": _is_place,
    "submodule..update": lambda value: value in ("checkout", "merge", "none", "rebase"),
    "submodule..url": _is_place,
}
"""Settings of which some values are harmless."""


def find_not_harmless(data: bytes, is_tree: Callable[[str], bool]) -> list[str]:
    """The settings that are not known to be harmless (``core.fsmonitor = x``), and the lines that
    are not understood. ``is_tree``: whether a value of ``core.worktree`` is acceptable."""
    if len(data) > LARGEST or _CONTROL.search(data):
        return ["the settings are too large, or not a text"]
    found: list[str] = []
    section, sub = "", ""
    for raw in data.split(b"\n"):
        line = raw.strip(b" \t")
        if not line or line[:1] in (b"#", b";"):
            continue
        if line[:1] == b"[":
            header = _read_header(line)
            if header is None:
                found.append(os.fsdecode(line))
            section, sub = header or ("?", "")
            continue
        setting = _read_setting(line)
        if setting is None:
            found.append(os.fsdecode(line))
        elif not _is_harmless(section, *setting, is_tree=is_tree):
            name = ".".join(filter(None, (section.rstrip("."), sub, setting[0])))
            found.append(f"{name} = {setting[1]}" if setting[1] else name)
    return found


def _read_header(line: bytes) -> tuple[str, str] | None:
    """The section, with a point if it has a name, and the name."""
    name, quote, rest = line[1:].partition(b'"')
    if not quote:
        name, bracket, rest = name.partition(b"]")
        is_read = bool(bracket) and not rest and _SECTION.fullmatch(name)
        return (name.decode().lower(), "") if is_read else None
    name = name.strip(b" \t")
    sub, end, more = rest.partition(b'"')
    if not end or more != b"]" or b"\\" in sub or not _SECTION.fullmatch(name):
        return None
    return name.decode().lower() + ".", os.fsdecode(sub)


def _read_setting(line: bytes) -> tuple[str, str] | None:
    key, _, value = line.partition(b"=")
    key, value = key.strip(b" \t"), value.strip(b" \t")
    if len(value) > 1 and value[:1] == value[-1:] == b'"':
        value = value[1:-1]
        is_read = not any(char in value for char in b'"\\')
    else:
        is_read = not any(char in value for char in b'"\\#;')
    return (key.decode().lower(), os.fsdecode(value)) if is_read and _KEY.fullmatch(key) else None


def _is_harmless(section: str, key: str, value: str, *, is_tree: Callable[[str], bool]) -> bool:
    name = f"{section}.{key}"
    if name == "core.worktree":
        return is_tree(value)
    if (check := _BY_VALUE.get(name)) is not None:
        return check(value)
    return section in _ANY or key in _HARMLESS_KEYS.get(section, ())
