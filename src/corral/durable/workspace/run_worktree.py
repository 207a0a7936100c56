"""A run's own worktree on this machine, and what is kept of it. Everything here blocks.

One at a time is at a tree, in all processes of this machine (a gate); those who work in it hold
a lock of their own meanwhile, together.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Generator
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral.durable.payloads import OwnTree, RunConfig
from corral.errors import ConfigError, StorageFailed
from corral.events import Json
from corral.pipelines.execution.run_dir import RunDir
from corral.system import git, paths
from corral.system.git import shared_worktree, source_repository, task_worktree
from corral.system.git.repository import write_patch
from corral.system.git.shared_worktree import Tree
from corral.system.git.source_repository import Repository
from corral.system.process import daemon

PATCH = "changes.patch"
MOST_FILES = 1000
"""That a result names."""
TRIES = 10
"""Of putting work on a branch that others change too."""
PAUSES = (1.0, 5.0)
"""Seconds after each failure to reach a repository elsewhere: networks fail for a moment."""
IDLE = 3600.0
"""Seconds after which a tree that nobody uses goes, where all of it is kept elsewhere."""
ENDING = 10.0
"""Seconds that a run's end waits for work that was told to stop."""


def folder_of(own: OwnTree) -> Path:
    """Of this run, on this machine."""
    name = f"{own.repository} {own.branch}".encode("utf-8", "replace")
    return paths.home() / "workspaces" / blake2b(name, digest_size=8).hexdigest()


def _repository(own: OwnTree) -> Repository:
    if own.is_elsewhere:
        return source_repository.copy_of(own.repository)
    return Repository(root=Path(own.repository))


def reserve(own: OwnTree) -> None:
    try:
        is_ours = _repository(own).advance(own.branch, own.begins or own.commit, None)
    except StorageFailed as error:
        hint = f"A run keeps its work there, as the branch {own.branch}."
        raise ConfigError(error.message, hint=hint) from error
    if not is_ours:
        raise ConfigError(f"there is a branch {own.branch} already in {own.repository}")


def give_up(own: OwnTree) -> None:
    drop(own)
    with contextlib.suppress(StorageFailed):
        _repository(own).advance(own.branch, None, own.begins or own.commit)


@contextlib.contextmanager
def _alone(own: OwnTree) -> Generator[Path]:
    """One at a time may be at the tree, in its folder, which is there."""
    folder = folder_of(own)
    with contextlib.ExitStack() as stack:
        while True:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # somebody has just removed it
                stack.enter_context(git.alone(folder / "gate"))
                break
        yield folder


def ready(own: OwnTree) -> int:
    """A descriptor: while it is open, somebody works in the tree."""
    if not (folder_of(own) / "tree.json").exists():
        _tidy()
    with _alone(own) as folder:
        use = os.open(folder / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            repository, tree = _repository(own), _notes(folder)
            tip = _tip(repository, own)
            if tree is None or not (tree.place / ".git").exists():
                tree = shared_worktree.make(repository.root, own.commit, tip, folder)
            elif tip != tree.at and _is_unused(use):
                # What others did is newer than what was left here when somebody was killed.
                tree = shared_worktree.put(tree, tip)
            elif tip != tree.at:
                tree = _on_the_branch(own, repository, tree, folder, "corral: work under way")
            _note(folder, tree)
            fcntl.flock(use, fcntl.LOCK_SH)
        except BaseException:
            os.close(use)
            raise
        return use


def _is_unused(use: int) -> bool:
    try:
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _tip(repository: Repository, own: OwnTree) -> str:
    for pause in PAUSES if own.is_elsewhere else ():
        with contextlib.suppress(StorageFailed):
            tip = repository.tip(own.branch)
            break
        time.sleep(pause)
    else:
        tip = repository.tip(own.branch)
    if tip is None:
        raise StorageFailed(f"the branch {own.branch} is gone from {own.repository}")
    return tip


def keep(own: OwnTree, message: str) -> Tree:
    with _alone(own) as folder:
        tree = _notes(folder)
        if tree is None:
            raise StorageFailed(f"the worktree {folder} is gone")
        return _on_the_branch(own, _repository(own), tree, folder, message)


def _on_the_branch(
    own: OwnTree, repository: Repository, tree: Tree, folder: Path, message: str
) -> Tree:
    failure = StorageFailed(f"others change {own.branch} all the time")
    for _ in range(TRIES):
        tree = shared_worktree.take(tree, message)
        _note(folder, tree)
        tip = _tip(repository, own)
        if tip != tree.at:
            try:
                tree = shared_worktree.join(tree, tip, "corral: what was done side by side")
            except shared_worktree.Conflict:
                raise
            except StorageFailed as error:
                failure = error
                continue  # another node has just written there: that is taken first
            _note(folder, tree)
        if tip == tree.at or repository.advance(own.branch, tree.at, tip):
            return tree
    raise failure


def put_aside(own: OwnTree, visit: str) -> str:
    """Work that does not fit with what others did is not lost."""
    branch = task_worktree.branch_of(f"{own.branch.partition('/')[2]}--{visit}")
    with _alone(own) as folder, contextlib.suppress(StorageFailed):
        tree, repository = _notes(folder), _repository(own)
        if tree is not None:
            repository.advance(branch, tree.at, repository.tip(branch))
    return branch


def close(own: OwnTree, setting: RunConfig, run_id: str) -> dict[str, Json]:
    repository = _repository(own)
    _until_unused(own)
    with _alone(own) as folder:
        if (tree := _notes(folder)) is not None and tree.place.is_dir():
            _on_the_branch(own, repository, tree, folder, f"corral: the end of {run_id}")
        elif repository.tip(own.branch) is None:
            return {"files": []}  # it was closed before
    tip = _tip(repository, own)
    if tip == own.commit:
        repository.advance(own.branch, None, tip)
        drop(own)
        return {"files": []}
    files = git.changed_files(repository.root, own.commit, tip)
    artefacts = RunDir(setting.folder).artifacts
    artefacts.mkdir(parents=True, exist_ok=True)
    draft = artefacts / f".{PATCH}.{os.urandom(4).hex()}"
    with draft.open("xb") as output:
        write_patch(repository.root, own.commit, tip, output)
    draft.replace(artefacts / PATCH)  # a link that a command put there is not followed
    drop(own)
    return {"branch": own.branch, "commit": tip, "files": [*files[:MOST_FILES]]}


def _until_unused(own: OwnTree) -> None:
    """Who was told to stop may still be at it."""
    try:
        use = os.open(folder_of(own) / "use", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        ends = time.monotonic() + ENDING
        while not _is_unused(use) and time.monotonic() < ends:
            time.sleep(0.05)
    finally:
        os.close(use)


def drop(own: OwnTree) -> None:
    if folder_of(own).is_dir():
        with _alone(own) as folder:
            _remove(folder)


def _remove(folder: Path) -> None:
    tree = _notes(folder)
    if tree is not None:
        shared_worktree.remove(tree)
    shutil.rmtree(folder, ignore_errors=True)


def _tidy() -> None:
    """Trees of runs that other machines have ended: nobody tells us. All of each is kept."""
    for folder in (paths.home() / "workspaces").glob("*/"):
        notes = folder / "tree.json"
        try:
            if time.time() - notes.stat().st_mtime < IDLE:
                continue
            with daemon.alone(folder / "gate"):
                tree = _notes(folder)
                is_copy = tree is not None and tree.root.parent == source_repository.folder()
                if is_copy and not daemon.is_held(folder / "use"):
                    _remove(folder)
        except OSError:
            continue


def _note(folder: Path, tree: Tree) -> None:
    paths.write_private(folder / "tree.json", msgspec.json.encode(tree, enc_hook=str))


def _notes(folder: Path) -> Tree | None:
    try:
        return msgspec.json.decode((folder / "tree.json").read_bytes(), type=Tree, dec_hook=_path)
    except FileNotFoundError:
        return None


def _path(kind: type, value: object) -> Path:
    return Path(str(value))
