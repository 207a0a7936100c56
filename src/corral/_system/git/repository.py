"""Commands on the repository around a folder, through a stub of corral's own."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

from corral._system import fs, paths
from corral._system.git import command, scan, settings, stub
from corral._system.git.command import LOCAL, GitAccess, GitLimits, GitOutput
from corral._system.git.scan import RepositoryLayout
from corral.errors import ConfigError, StorageFailed
from corral.values import path_from_printable, printable_path

# Kept as text: re compiles them when first needed.
_HEAD = r"(HEAD|@)(?=$|[~^:])"
_SHARED = r"group|all|world|everybody|true|umask|false|0[0-7]{3}"

INDEX_SECONDS = 30.0

_INDEX_FACTS = re.compile(
    rb"  ctime: (\d+):(\d+)\n  mtime: (\d+):(\d+)\n  dev: \d+\tino: (\d+)\n"
    rb"  uid: \d+\tgid: \d+\n  size: (\d+)\tflags: [0-9a-f]+\n"
)
"""What follows the path of an entry in the output of ``ls-files -z --stage --debug``."""


class TreeEntry(msgspec.Struct, frozen=True, gc=False):
    """A file of a commit."""

    mode: str
    """As git writes it: 100644, 100755, 120000 (a link), 160000 (a submodule)."""
    id: str


class TreeDifference(msgspec.Struct, frozen=True, gc=False):
    path: bytes
    old: TreeEntry | None
    new: TreeEntry | None


Stamp: TypeAlias = tuple[int, int, int, int, int]
"""Of a file: size, modification time, change time, inode, mode."""


def stamp_of(info: os.stat_result) -> Stamp:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_mode


_FULL = ("unable to write", "No space left", "file write error", "Disk quota exceeded")
"""git's messages if a file cannot be written. They rarely name the reason."""


def make_bare(place: Path, object_format: str = "sha1", *alternates: Path) -> None:
    """Make an empty bare repository in a folder, readable by its owner only. It uses the objects of
    the ``alternates`` too. Raises ``OSError``."""
    for name in ("", "objects", "objects/info", "refs", "refs/heads"):
        paths.make_dir(place / name)
    if alternates:
        objects = b"".join(os.fsencode(alternate / "objects") + b"\n" for alternate in alternates)
        paths.write_private(place / "objects" / "info" / "alternates", objects)
    version, more = 0, ""
    if object_format != "sha1":
        version, more = 1, f"[extensions]\n\tobjectFormat = {object_format}\n"
    config = f"[core]\n\trepositoryformatversion = {version}\n\tbare = true\n{more}"
    paths.write_private(place / "config", config.encode())
    paths.write_private(place / "HEAD", b"ref: refs/heads/main\n")


def locate(folder: Path) -> RepositoryLayout:
    """The repository around a folder. Raises ``StorageFailed``."""
    found = scan.find_repository(folder)
    if found is None:
        raise StorageFailed(f"{folder} is not in a git repository")
    return found


def stub_of(folder: Path) -> Path:
    """The stub for the repository around a folder. Raises ``StorageFailed``."""
    common = locate(folder).common
    found = dict(settings.read(common / "config"))
    if (storage := found.get("extensions.refstorage", "files").lower()) != "files":
        raise StorageFailed(f"{folder}: references in the format {storage!r} are not supported")
    version = found.get("core.repositoryformatversion", "0")
    kind = settings.object_format(common)
    if version not in ("0", "1"):
        raise StorageFailed(f"{folder}: this repository format is not supported")
    core: dict[str, str] = {}
    shared = found.get("core.sharedrepository", "")
    if shared and re.fullmatch(_SHARED, shared):
        core["sharedRepository"] = shared
    return stub.of(common, kind, core)


def call(
    folder: Path,
    *words: str,
    access: GitAccess = LOCAL,
    limits: GitLimits | None = None,
    env: Mapping[str, str] | None = None,
    feed: Iterable[bytes] = (),
    output: IO[bytes] | None = None,
) -> GitOutput:
    """``command.call`` on the repository around a folder. Raises ``StorageFailed`` if git cannot be
    run; its exit code is in the result."""
    return command.call(
        stub_of(folder), *words, access=access, limits=limits, env=env, feed=feed, output=output
    )


def run(
    folder: Path, *words: str, env: Mapping[str, str] | None = None, feed: Iterable[bytes] = ()
) -> str:
    """The output of a command that must succeed, stripped. Raises ``StorageFailed``."""
    return checked(words, call(folder, *words, env=env, feed=feed)).text.strip()


def checked(words: Sequence[str], answer: GitOutput) -> GitOutput:
    """Raises ``StorageFailed`` if the command failed or its output was cut."""
    if answer.code or answer.is_cut:
        reason = "too much output" if answer.is_cut else answer.errors or answer.code
        is_full = any(sign in str(reason) for sign in _FULL)
        hint = "Free some disk space in CORRAL_HOME and in the repository."
        raise StorageFailed(f"git {words[0]}: {reason}", hint=hint if is_full else None)
    return answer


def check(folder: Path, *words: str) -> bool:
    """Whether a command exits with 0."""
    return call(folder, *words).code == 0


def commit_of(folder: Path, name: str) -> str:
    """The commit of a branch, a tag or a part of an id. Raises ``StorageFailed``."""
    if re.match(_HEAD, name):
        found = locate(folder)
        name = re.sub(_HEAD, found.head or "HEAD", name, count=1)
    return run(folder, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")


def tree_of(folder: Path, commit: str) -> str:
    """Raises ``StorageFailed``."""
    return run(folder, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")


def is_ancestor(folder: Path, one: str, other: str) -> bool:
    return check(folder, "merge-base", "--is-ancestor", one, other)


def commit(
    folder: Path,
    tree: str,
    parents: Sequence[str],
    message: str,
    author: Mapping[str, str] | None = None,
) -> str:
    """Make a commit of a tree; no branch names it yet. ``author``: the ``GIT_AUTHOR_*`` variables
    of another author than the user. Raises ``StorageFailed``."""
    before = [word for parent in parents for word in ("-p", parent)]
    text = message.encode("utf-8", "backslashreplace")
    who = {**settings.identity(locate(folder).common), **(author or {})}
    return run(folder, "commit-tree", tree, *before, "-F", "-", env=who, feed=(text,))


def entries(
    folder: Path, tree: str, env: Mapping[str, str] | None = None
) -> dict[bytes, TreeEntry]:
    """All files of a tree or commit. Raises ``StorageFailed``."""
    words = ("ls-tree", "-r", "-z", "--full-tree", tree)
    found: dict[bytes, TreeEntry] = {}
    for row in checked(words, call(folder, *words, env=env)).out.split(b"\0"):
        info, tab, path = row.partition(b"\t")
        if tab:
            mode, _, name = info.split(b" ")
            found[path] = TreeEntry(mode.decode(), name.decode())
    return found


def differences(folder: Path, old: str, new: str) -> list[TreeDifference]:
    """What differs between two trees or commits. Raises ``StorageFailed``."""
    words = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", old, new)
    fields = checked(words, call(folder, *words)).out.split(b"\0")
    found: list[TreeDifference] = []
    for info, path in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode, old_id, new_id, _ = info.decode().removeprefix(":").split(" ")
        was, now = TreeEntry(old_mode, old_id), TreeEntry(new_mode, new_id)
        found.append(
            TreeDifference(
                path=path,
                old=was if was.mode != "000000" else None,
                new=now if now.mode != "000000" else None,
            )
        )
    return found


def changed_files(folder: Path, old: str, new: str) -> tuple[str, ...]:
    """Names, printable (see ``corral.values.printable_path``). Raises ``StorageFailed``."""
    return tuple(printable_path(os.fsdecode(each.path)) for each in differences(folder, old, new))


def blobs(folder: Path, ids: Sequence[str], limit: int) -> dict[str, bytes]:
    """The contents of blobs of at most ``limit`` bytes, by id. Those that are not there, or do not
    fit into git's output, are missing. Raises ``StorageFailed``."""
    feed = "".join(f"{each}\n" for each in ids).encode()
    listed = call(folder, "cat-file", "--batch-check", feed=[feed]).out.split(b"\n")
    rows = (row.split(b" ") for row in listed)
    small = [row[0] for row in rows if len(row) == 3 and row[1] == b"blob" and int(row[2]) <= limit]
    if not small:
        return {}
    data = call(folder, "cat-file", "--batch", feed=[b"\n".join(small) + b"\n"]).out
    found: dict[str, bytes] = {}
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        name, _, size = data[at:end].split(b" ")
        start, at = end + 1, end + 2 + int(size)
        if at > len(data):
            break  # cut
        found[name.decode()] = data[start : at - 1]
    return found


_DIFF = ("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color")


def patch(folder: Path, old: str, new: str, limit: int) -> str:
    """The difference as text; empty if it is longer than ``limit`` bytes or not UTF-8. Raises
    ``StorageFailed``."""
    answer = call(folder, *_DIFF, old, new, limits=GitLimits(output=limit))
    if answer.is_cut:
        return ""
    try:
        return checked(_DIFF, answer).out.decode()
    except UnicodeDecodeError:
        return ""


def write_patch(folder: Path, old: str, new: str, output: IO[bytes]) -> None:
    """Write the difference, of any size, to a file. Raises ``StorageFailed``."""
    limits = GitLimits(output=1 << 62)
    checked(_DIFF, call(folder, *_DIFF, old, new, output=output, limits=limits))


def diff(folder: Path, old: str, new: str, limit: int, *, as_text: str | None = None) -> bytes:
    """The difference for a reader: renames are found, binary files are named only. ``as_text``:
    that of this file alone, also if it is binary. Raises ``StorageFailed``, also if it is longer
    than ``limit`` bytes."""
    words = ("diff", "--find-renames", "--no-ext-diff", "--no-textconv", "--no-color")
    options = ("--src-prefix=a/", "--dst-prefix=b/", "--submodule=short")
    one = () if as_text is None else ("--text", "--", as_text)
    answer = call(folder, *words, *options, old, new, *one, limits=GitLimits(output=limit))
    return checked(words, answer).out


def merge_base(folder: Path, one: str, other: str) -> str | None:
    """The commit in which two histories meet; None if it is not known here. Raises
    ``StorageFailed``."""
    answer = call(folder, "merge-base", one, other)
    return None if answer.code == 1 else checked(("merge-base",), answer).text.strip()


def messages(folder: Path, old: str, new: str, limit: int) -> str:
    """The messages of the commits that ``new`` has and ``old`` has not, the newest first, cut at
    ``limit`` bytes. Raises ``StorageFailed``."""
    words = ("log", "--no-color", "--format=%B", f"{old}..{new}")
    answer = call(folder, *words, limits=GitLimits(output=limit))
    if answer.code and not answer.is_cut:
        checked(words, answer)
    return answer.out[:limit].decode("utf-8", "replace").strip()


class CommitInfo(msgspec.Struct, frozen=True):
    """A commit as its author wrote it."""

    author: str
    email: str
    date: str
    message: str

    @property
    def author_env(self) -> dict[str, str]:
        """What makes another commit by the same author."""
        return {
            "GIT_AUTHOR_NAME": self.author,
            "GIT_AUTHOR_EMAIL": self.email,
            "GIT_AUTHOR_DATE": self.date,
        }


def commits(folder: Path, old: str, new: str) -> list[CommitInfo]:
    """The commits without merges that ``new`` has and ``old`` has not, the oldest first. Raises
    ``StorageFailed``."""
    form = "--format=%an%x00%ae%x00%ad%x00%B%x00%x00"
    words = ("log", "--no-merges", "--reverse", "--no-mailmap", "--date=raw", "-z", form)
    answer = checked(words, call(folder, *words, f"{old}..{new}"))
    found: list[CommitInfo] = []
    for row in answer.out.decode("utf-8", "replace").split("\0\0\0"):
        fields = row.split("\0")
        if len(fields) >= 4:
            found.append(CommitInfo(*(field.strip() for field in fields[:4])))
    return found


def checkouts(folder: Path) -> dict[str, Path]:
    """The branches that are checked out, or are being rebased, in the user's own and in linked work
    trees, by their full names, with the folder of the work tree. One whose folder was removed is
    left out, unless it is locked. Raises ``StorageFailed``."""
    common = locate(folder).common
    found: dict[str, Path] = {}
    if common.name == ".git":
        found |= dict.fromkeys(_branches_in_use(common), common.parent)
    for git_dir in common.glob("worktrees/*"):
        pointer = fs.read_small(git_dir / "gitdir", 4096)
        if pointer is None:
            continue
        link = Path(os.fsdecode(pointer.strip()))
        if fs.exists(link) or fs.exists(git_dir / "locked"):
            found |= dict.fromkeys(_branches_in_use(git_dir), link.parent)
    return {name: top for name, top in found.items() if name.startswith("refs/heads/")}


_REBASES = ("rebase-merge", "rebase-apply")
_IN_PROGRESS = (*_REBASES, "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD")
"""Files of a work tree's git folder that git keeps while a command of the user is not over."""


def is_in_progress(git_dir: Path) -> bool:
    """Whether a rebase, a merge, a cherry-pick or a revert is not over."""
    return any(fs.exists(git_dir / name) for name in _IN_PROGRESS)


def is_sparse(layout: RepositoryLayout) -> bool:
    """Whether the work tree has only some of the files (``git sparse-checkout``)."""
    files = (layout.common / "config", layout.git_dir / "config.worktree")
    found = {key: value for file in files for key, value in settings.read(file)}
    return found.get("core.sparsecheckout", "").lower() in ("true", "yes", "on", "1")


def is_shallow(folder: Path) -> bool:
    """Whether a part of the history is not here. Raises ``StorageFailed``."""
    return fs.exists(locate(folder).common / "shallow")


def _branches_in_use(git_dir: Path) -> list[str]:
    """The branch of HEAD, and the one that git moves when a rebase is over."""
    names = [fs.read_small(git_dir / each / "head-name", 4096) or b"" for each in _REBASES]
    return [scan.read_head(git_dir) or "", *(os.fsdecode(name.strip()) for name in names)]


def patched_tree(folder: Path, commit: str, patch: bytes) -> str:
    """The tree that a patch makes of a commit's files. No file is touched. Raises
    ``StorageFailed`` if it does not apply."""
    with stub.temporary() as place:
        env = {"GIT_INDEX_FILE": str(place / "index")}
        run(folder, "read-tree", commit, env=env)
        run(folder, "apply", "--cached", "--whitespace=nowarn", "-", env=env, feed=(patch,))
        return run(folder, "write-tree", env=env)


class IndexEntry(msgspec.Struct, frozen=True, gc=False):
    """A file in the index."""

    mode: str
    blob: str
    stamp: tuple[int, ...]
    """Size, modification time, change time and inode when git last read the file."""

    def is_still(self, stamp: Stamp) -> bool:
        """Whether the file is as it was then."""
        return self.stamp == (*stamp[:3], stamp[3] & 0xFFFFFFFF)


def read_index(found: RepositoryLayout, below: bytes = b"") -> dict[bytes, IndexEntry] | None:
    """The entries of the index by their path from the top; only those in the folder ``below``,
    which ends with a slash. None if git cannot read the index file alone (a split or sparse index
    needs the repository)."""
    listed = _list_index(found, below, "--stage", "--debug")
    if listed is None:
        return None
    entries: dict[bytes, IndexEntry] = {}
    entry, *rest = listed.split(b"\0")
    for text in rest:
        facts = _INDEX_FACTS.match(text)
        if facts is None:
            break
        changed, changed_ns, modified, modified_ns, inode, size = map(int, facts.groups())
        times = (modified * 10**9 + modified_ns, changed * 10**9 + changed_ns)
        stage, _, path = entry.partition(b"\t")
        mode, blob, _ = stage.decode().split(" ")
        entries[path] = IndexEntry(mode, blob, (size, *times, inode))
        entry = text[facts.end() :]
    return entries


def index_names(found: RepositoryLayout, below: bytes = b"") -> set[bytes]:
    """The paths in the index; empty if the index cannot be read."""
    return {path for path in (_list_index(found, below) or b"").split(b"\0") if path}


def _list_index(found: RepositoryLayout, below: bytes, *options: str) -> bytes | None:
    path = found.git_dir / "index"
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
    except FileNotFoundError:
        return b""
    except OSError:
        return None
    folder = ("--", os.fsdecode(below)) if below else ()
    words = ("ls-files", "-z", "--cached", *options, *folder)
    try:
        place = stub.blank(settings.object_format(found.common))
        env = {"GIT_INDEX_FILE": str(path), "GIT_WORK_TREE": str(place)}
        answer = command.call(place, *words, env=env, limits=GitLimits(seconds=INDEX_SECONDS))
    except StorageFailed:
        return None
    return None if answer.code or answer.is_cut else answer.out


RECEIPTS = "corral-receipts"
"""The name of the notes with receipts: ``git notes --ref=corral-receipts show COMMIT``."""
MAX_DIFF = 64 * 1024 * 1024
_HUNK = re.compile(r"@@ -[0-9,]+ \+(\d+)(?:,(\d+))? @@")


def commit_with(folder: Path, tree: str) -> str | None:
    """The current commit, if it has exactly the files of this tree. Raises ``StorageFailed``."""
    commit = commit_of(folder, "HEAD")
    return commit if tree_of(folder, commit) == tree else None


def add_note(folder: Path, commit: str, text: bytes) -> None:
    """Add a note with a receipt to a commit, in place of an earlier one. Raises
    ``StorageFailed``."""
    who = settings.identity(locate(folder).common)
    words = ("notes", f"--ref={RECEIPTS}", "add", "--force", "--file=-", commit)
    run(folder, *words, env=who, feed=(text,))


def written_lines(store: Path, old: str, new: str) -> dict[str, list[tuple[int, int]]]:
    """The lines of the new files that the old ones do not have: path → the first and the last of
    each part. Raises ``StorageFailed``."""
    words = ("diff", "--unified=0", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
    answer = call(store, *words, *prefixes, old, new, limits=GitLimits(output=MAX_DIFF))
    lines: dict[str, list[tuple[int, int]]] = {}
    current: list[tuple[int, int]] = []
    in_head = False
    text = checked(words, answer).out.decode("utf-8", "surrogateescape")
    for line in text.split("\n"):
        if line.startswith("diff --git "):
            in_head = True
        elif in_head and line.startswith("+++ "):
            path = path_from_printable(line.removeprefix("+++ ").removesuffix("\t"))
            current = [] if path == "/dev/null" else lines.setdefault(path.removeprefix("b/"), [])
        elif match := _HUNK.match(line):
            in_head = False
            first, count = int(match[1]), int(match[2] or "1")
            if count:
                current.append((first, first + count - 1))
    return lines


def require_repository(folder: Path) -> None:
    """Raises ``ConfigError``."""
    found = scan.find_repository(folder)
    if found is None or found.top is None:
        raise ConfigError(f"a note needs a git repository, got: {folder}")
