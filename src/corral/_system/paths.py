"""The folders that corral uses, the files that no agent may change, and answers of programs.

The answers are cached by the program's path, size and modification time. It is only a
cache: if it cannot be read or written, the program is asked again.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache as once
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral.errors import StorageFailed


def home() -> Path:
    """``CORRAL_HOME``, or the platform's folder for state. If that cannot be written, as for a user
    without a home, a folder for temporary files; the first call warns. Raises ``StorageFailed`` if
    there is none."""
    if given := os.environ.get("CORRAL_HOME"):
        return Path(os.path.abspath(os.path.expanduser(given)))
    usual = _usual_home()
    if is_writable(usual):
        return usual
    folder = temporary() / "home"
    _warn_of_temporary_home(f"{usual} cannot be written", folder)
    return folder


def _usual_home() -> Path:
    if sys.platform == "darwin":
        return user_home() / "Library" / "Application Support" / "corral"
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else user_home() / ".local" / "state") / "corral"


@once
def _warn_of_temporary_home(why: str, folder: Path) -> None:
    import warnings

    warnings.warn(
        f"{why}: sessions and runs are stored in {folder} until it is cleared; set CORRAL_HOME to"
        " keep them",
        stacklevel=3,
    )


def user_home() -> Path:
    """The user's home folder. If there is none, a folder for temporary files."""
    # An empty HOME counts as one that is not set: for Python it is the root folder.
    if user := os.environ.get("HOME"):
        return Path(os.path.abspath(user))
    with suppress(KeyError):
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    folder = temporary() / "user"
    if not os.environ.get("CORRAL_HOME"):
        _warn_of_temporary_home("this user has no home folder", folder)
    return folder


def local_run_folder(folder: str) -> str:
    """The path of a stored run directory on this machine: a relative one is below corral's home.
    Empty if nothing is stored."""
    return str(home() / "runs" / folder) if folder else ""


def worktree(repository: str, branch: str) -> Path:
    """The directory of a run's worktree and its notes, on this machine."""
    name = f"{repository} {branch}".encode("utf-8", "replace")
    return home() / "workspaces" / blake2b(name, digest_size=8).hexdigest()


def managed() -> Path:
    """Agents that ``corral agents install`` installed. They can be used also where nothing else can
    be stored, as in an image whose file system is read-only."""
    usual = _usual_home() / "agents"
    is_readable = not os.environ.get("CORRAL_HOME") and os.access(usual, os.R_OK | os.X_OK)
    return usual if is_readable else home() / "agents"


def proofs() -> Path:
    """What probes found out about agents' programs. It is read where agents were installed."""
    return managed().with_name("proofs")


def sessions() -> Path:
    return home() / "sessions"


def git_checks() -> Path:
    """What was in the folders of sandboxed programs that run (``sandbox/repository_guard``), where
    the process registry is. The folder exists only while there are some."""
    return runtime() / "git-checks"


def process_registry() -> Path:
    return runtime() / "processes"


def runtime() -> Path:
    """Where files are that are needed only while a process runs: corral's home; if the one that
    ``CORRAL_HOME`` names cannot be written, the user's folder for temporary files."""
    return home() if is_writable(home()) else temporary()


def temporary() -> Path:
    """A folder for temporary files that only this user can use. Raises ``StorageFailed``."""
    import tempfile  # slow to load, and seldom needed

    folder = Path(tempfile.gettempdir()) / f"corral-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise StorageFailed(
            f"{folder} cannot be made: {error.strerror}",
            hint="Set CORRAL_HOME to a folder that can be written.",
        ) from error
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise StorageFailed(f"{folder} belongs to another user, or others can read it")
    return folder


def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which may not exist yet."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def cache() -> Path:
    return home() / "cache"


def user_config() -> Path:
    """The user's ``corral.toml``."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else user_home() / ".config") / "corral" / "corral.toml"


def make_dir(folder: Path) -> Path:
    """Create a folder and its parents, accessible to the owner only. Existing folders in corral's
    home that others can read are made private. Raises ``OSError``."""
    ours = home()
    above = [folder, *folder.parents]
    if ours not in above:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder
    inside = above[: above.index(ours) + 1]
    for place in reversed(above):
        if place.exists():
            # Not the home itself if the user chose it: it may be a shared folder.
            if place in inside and (place != ours or not os.environ.get("CORRAL_HOME")):
                status = place.lstat()
                is_open = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o077
                if is_open and status.st_uid == os.getuid():
                    place.chmod(stat.S_IMODE(status.st_mode) & 0o700)
        else:
            place.mkdir(mode=0o700, exist_ok=True)
    return folder


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by its owner only. Missing folders are created."""
    from corral._system import fs

    make_dir(path.parent)
    fs.write_atomically(path, data)


OWN_FILES = "CORRAL_OWN_FILES"
"""The variable that names the announced files to processes of corral's own."""
SIDE_FILES = ("-journal", "-wal", "-shm")
"""What SQLite adds to the name of a database file."""

_announced: dict[str, None] = {}


def announce(path: str | os.PathLike[str]) -> None:
    """A file of corral's own is where the user chose: it is one of ``own_files`` from here on."""
    _announced[os.path.abspath(path)] = None


def announce_database(path: str | os.PathLike[str]) -> None:
    for end in ("", *SIDE_FILES, ".executors"):
        announce(os.fspath(path) + end)


def announced() -> tuple[str, ...]:
    """The files that this process and those that started it announced, and those to which their
    stdout and stderr are redirected."""
    found = [path for path in os.environ.get(OWN_FILES, "").split(os.pathsep) if path]
    for number in (1, 2):
        with suppress(OSError):
            if stat.S_ISREG(os.fstat(number).st_mode):
                found.append(os.readlink(f"/proc/self/fd/{number}"))
    return tuple(dict.fromkeys((*found, *_announced)))


def own_files() -> tuple[str, ...]:
    """Corral's own files, which no agent may change: the folder of its state, and the announced
    files. They need not exist.

    They are usually far from any workspace. Where one of them is in a folder that an agent may use,
    the sandbox hides it, and the file tools refuse it."""
    return (str(home()), *announced())


def own_settings(cwd: str) -> tuple[str, ...]:
    """Configuration files that corral obeys, of which one may be in the workspace."""
    given = os.environ.get("CORRAL_CONFIG")
    return (*([os.path.abspath(given)] if given else []), os.path.join(cwd, "corral.toml"))


def own_files_in(folders: Iterable[str]) -> list[str]:
    """The resolved paths of ``own_files`` that are in one of these folders. A folder that is itself
    in corral's state, such as the workspace of a pipeline, is the agent's."""
    roots = [*folders]
    return [
        own
        for own in map(os.path.realpath, own_files())
        if any(is_inside(own, root) and own != root for root in roots)
    ]


def is_own(path: str, folders: Iterable[str]) -> bool:
    """Whether a resolved path is one of ``own_files_in`` these folders, or below it."""
    return any(is_inside(path, own) for own in own_files_in(folders))


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is this folder or below it. Both are absolute, and compared as text."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def for_child() -> dict[str, str]:
    """Variables for a process of corral's own. It has the same home, and warns of none."""
    known, own_home = announced(), {"CORRAL_HOME": str(home())}
    return {OWN_FILES: os.pathsep.join(known), **own_home} if known else own_home


def answer_key(program: str, *words: str) -> str:
    """The key of a program's answer. It changes when the file at this path changes."""
    info = os.stat(program)
    return ":".join((program, str(info.st_size), str(info.st_mtime_ns), *words))


def known_answer(topic: str, key: str) -> str | None:
    return _read_answers(topic).get(key)


def remember_answer(topic: str, key: str, answer: str) -> None:
    known = {**_read_answers(topic), key: answer}
    with suppress(OSError):
        write_private(cache() / f"{topic}.json", msgspec.json.encode(known))


def _read_answers(topic: str) -> dict[str, str]:
    with suppress(OSError, msgspec.MsgspecError):
        file = cache() / f"{topic}.json"
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    return {}
