"""The worktree of a run: a branch in the user's repository, and a folder on each machine.

Theory of operation
-------------------
With ``repository`` a run gets a branch ``corral/<run>`` in that repository and, on each machine
that works for it, a worktree in corral's home (``workspaces/<digest>/tree``). The user's own
working tree is not touched. This module is imported for runs that have a worktree.

* ``choose`` (blocking) decides on repository, commit and branch, before anything is spent.
* ``reserved`` creates the branch and the worktree, so that it is known that both can be written.
  If the block fails, both are removed.
* ``used`` surrounds each node attempt. It creates the worktree if it is missing, at the tip of
  the branch, so that a node continues from all that was saved before, on any machine.
* ``save`` runs after each attempt: it commits the changes and advances the branch. If another
  machine has advanced the branch meanwhile, both are merged. If they conflict, the later one
  fails, and its work is saved to a separate branch. The commit is recorded in the outcome
  (``payloads.COMMIT``), so that a fork can start from it.
* ``close`` runs when the run has ended: it writes ``changes.patch`` into the artifacts and
  removes the worktree. A branch without changes is removed.

Locks, in the folder of a worktree: ``gate`` is exclusive and held while the worktree or its notes
(``tree.json``) are changed; ``use`` is shared and held by each attempt that works in it.

Crash: a killed process releases its locks. Uncommitted changes stay in the worktree and are
committed by the next attempt on this machine, unless another machine has advanced the branch
meanwhile: then the tip of the branch replaces them, because the attempt is run again anyway.
Worktrees of runs that ended on another machine are removed when they are idle (``IDLE``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral._engine.payloads import COMMIT, RunWorktree
from corral._pipelines.execution.run_dir import RunDir
from corral._pipelines.scheduler.commands import BranchWork
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.scheduler.state import WORKTREE
from corral._system import fs, paths
from corral._system.git import source_repository
from corral._system.git.repository import changed_files, check, write_patch
from corral._system.git.source_repository import Repository
from corral._system.git.worktree import Conflict, SharedWorktree, branch_name
from corral.errors import ConfigError, StorageFailed
from corral.values import Json, decode_as

PATCH = "changes.patch"
MOST_FILES = 1000
"""Maximum number of changed files in a result."""
TRIES = 10
"""Attempts to advance a branch that other machines advance too."""
PAUSES = (1.0, 5.0)
"""Seconds after each failure to reach a remote repository: networks fail for a moment."""
IDLE = 3600.0
"""Seconds after which an unused worktree is removed if all its work is saved elsewhere."""
ENDING = 10.0
"""Seconds that the end of a run waits for attempts that were cancelled."""


def choose(
    run_id: str,
    repository: str | os.PathLike[str],
    commit: str | None = None,
    within: str | None = None,
) -> RunWorktree:
    """The worktree for a run: at ``commit``, or at the one that is checked out in the repository.
    Raises ``ConfigError``. Blocking."""
    name, branch = os.fspath(repository), branch_name(run_id)
    if source_repository.is_remote(name):
        if os.path.isdir(name):
            name = os.path.abspath(name)
        try:
            found = source_repository.copy_of(name, fresh=True)
        except StorageFailed as error:
            raise ConfigError(error.message, hint="Check that `git fetch` works for it.") from error
        at = source_repository.find(found, commit)
        return RunWorktree(
            repository=name, commit=at, branch=branch, within=within or ".", is_remote=True
        )
    found = source_repository.own(Path(name))
    at = source_repository.find(found, commit)
    if within is None:
        within = str(Path(name).resolve().relative_to(found.root.resolve()))
        if within != "." and not check(found.root, "cat-file", "-e", f"{at}:{within}/"):
            raise ConfigError(f"{within} does not exist at {commit or 'HEAD'} of {found.root}")
    return RunWorktree(repository=str(found.root), commit=at, branch=branch, within=within)


def uncommitted(repository: str | os.PathLike[str]) -> bool:
    """Whether the repository has uncommitted changes, which a run would not see. Blocking."""
    name = os.fspath(repository)
    try:
        return os.path.isdir(name) and source_repository.has_changes(Path(name))
    except StorageFailed:  # not a repository, or without a commit: that is reported later
        return False


@contextlib.asynccontextmanager
async def reserved(worktree: RunWorktree, *, stays: bool) -> AsyncGenerator[None]:
    """Within the block the branch and the worktree exist; with ``stays`` the worktree stays
    afterwards. If the block fails, both are removed. Raises ``ConfigError``."""
    await asyncio.to_thread(_reserve, worktree)
    try:
        os.close(await asyncio.to_thread(_enter, worktree))
        yield
    except BaseException:
        await asyncio.shield(asyncio.to_thread(_give_up, worktree))
        raise
    if not stays:
        await asyncio.to_thread(drop, worktree)


@contextlib.asynccontextmanager
async def used(worktree: RunWorktree) -> AsyncGenerator[None]:
    """Within the block an attempt works in the worktree. It is created if it is missing, with all
    that was saved so far, on any machine. Raises ``StorageFailed``."""
    use = await asyncio.to_thread(_enter, worktree)
    try:
        yield
    finally:
        os.close(use)


async def save(worktree: RunWorktree, outcome: Outcome, visit: str, lane: str = "") -> Outcome:
    """Save the changes to the run's branch; returns the outcome with the commit, or a failure.
    ``lane``: that of the worktree, if it belongs to a branch of a parallel node."""
    try:
        at = await asyncio.to_thread(_commit, worktree, f"corral: {visit}")
    except Conflict as error:
        aside = await asyncio.to_thread(_save_aside, worktree, visit)
        reason = f"{error.message}; its work is on the branch {aside}"
    except StorageFailed as error:
        reason = f"its work could not be saved: {error.message}"
    else:
        return with_work(outcome, worktree, at, lane)
    if not outcome.ok:
        reason = f"{outcome.failure_reason}; {reason}"
    # No retry: that would do the work again, not save it.
    return replace(outcome, status="fail", failure_reason=reason, retryable=False)


def with_work(outcome: Outcome, worktree: RunWorktree, at: str, lane: str) -> Outcome:
    """The outcome with the commit of the run, or of this lane of it."""
    updates: dict[str, Json] = {COMMIT: at}
    if lane:
        done = BranchWork(base=worktree.commit, commit=at, name=worktree.branch)
        updates = {WORKTREE + lane: msgspec.to_builtins(done)}
    return replace(outcome, context_updates={**outcome.context_updates, **updates})


async def close(worktree: RunWorktree, run_folder: str, run_id: str) -> dict[str, Json]:
    """The run has ended: save its work and remove the worktree."""
    try:
        return await asyncio.to_thread(_finish, worktree, run_folder, run_id)
    except (StorageFailed, OSError) as error:
        folder = paths.worktree(worktree.repository, worktree.branch) / "tree"
        return {"error": str(error), "folder": str(folder)}


def workspace_folder(worktree: RunWorktree) -> Path:
    """The directory that the run works in, on this machine."""
    return top_folder(worktree) / worktree.within


def top_folder(worktree: RunWorktree) -> Path:
    """The directory of the worktree on this machine."""
    return paths.worktree(worktree.repository, worktree.branch) / "tree"


def open_repository(worktree: RunWorktree) -> Repository:
    if worktree.is_remote:
        return source_repository.copy_of(worktree.repository)
    return Repository(root=Path(worktree.repository))


def _reserve(worktree: RunWorktree) -> None:
    try:
        is_ours = open_repository(worktree).advance(
            worktree.branch, worktree.start_commit or worktree.commit, None
        )
    except StorageFailed as error:
        hint = f"A run saves its work there, as the branch {worktree.branch}."
        raise ConfigError(error.message, hint=hint) from error
    if not is_ours:
        raise ConfigError(f"the branch {worktree.branch} already exists in {worktree.repository}")


def _give_up(worktree: RunWorktree) -> None:
    drop(worktree)
    with contextlib.suppress(StorageFailed):
        open_repository(worktree).advance(
            worktree.branch, None, worktree.start_commit or worktree.commit
        )


@contextlib.contextmanager
def locked(worktree: RunWorktree) -> Generator[Path]:
    """Lock the gate of the worktree; its directory exists within the block. Do not nest."""
    folder = paths.worktree(worktree.repository, worktree.branch)
    with contextlib.ExitStack() as stack:
        while True:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                stack.enter_context(fs.exclusive_lock(folder / "gate"))
                break
        yield folder


def _enter(worktree: RunWorktree) -> int:
    """Create or update the worktree. Returns a descriptor: while it is open, the tree is in use."""
    if not (paths.worktree(worktree.repository, worktree.branch) / "tree.json").exists():
        _remove_idle()
    with locked(worktree) as folder:
        use = os.open(folder / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            repository, tree = open_repository(worktree), _read_notes(folder)
            tip = _tip(repository, worktree)
            if tree is None or not (tree.place / ".git").exists():
                tree = SharedWorktree.make(repository.root, worktree.commit, tip, folder)
            elif tip != tree.at and fs.try_lock(use):
                # The branch is newer than what a killed process left here.
                tree = tree.reset_to(tip)
            elif tip != tree.at:
                tree = _advance_branch(worktree, repository, tree, folder, "corral: work under way")
            _write_notes(folder, tree)
            fs.lock_shared(use)
        except BaseException:
            os.close(use)
            raise
        return use


def tip_of(worktree: RunWorktree) -> str:
    """The commit of its branch. Raises ``StorageFailed``."""
    return _tip(open_repository(worktree), worktree)


def save_rest(worktree: RunWorktree) -> str | None:
    """Save what cancelled attempts left in a worktree, and remove it. Returns the commit of its
    branch; None if there is no such branch. Raises ``StorageFailed``."""
    repository = open_repository(worktree)
    if repository.tip(worktree.branch) is None:
        return None
    _wait_until_unused(worktree)
    with locked(worktree) as folder:
        if (tree := _read_notes(folder)) is not None and tree.place.is_dir():
            _advance_branch(worktree, repository, tree, folder, "corral: work that was not merged")
    drop(worktree)
    return _tip(repository, worktree)


def _tip(repository: Repository, worktree: RunWorktree) -> str:
    for pause in PAUSES if worktree.is_remote else ():
        with contextlib.suppress(StorageFailed):
            tip = repository.tip(worktree.branch)
            break
        time.sleep(pause)
    else:
        tip = repository.tip(worktree.branch)
    if tip is None:
        raise StorageFailed(f"the branch {worktree.branch} was deleted in {worktree.repository}")
    return tip


def _commit(worktree: RunWorktree, message: str) -> str:
    """Commit the changes and advance the branch; returns the commit. Raises ``Conflict``."""
    with locked(worktree) as folder:
        tree = _read_notes(folder)
        if tree is None:
            raise StorageFailed(f"the worktree {folder} was deleted")
        return _advance_branch(worktree, open_repository(worktree), tree, folder, message).at


def _advance_branch(
    worktree: RunWorktree, repository: Repository, tree: SharedWorktree, folder: Path, message: str
) -> SharedWorktree:
    failure = StorageFailed(f"{worktree.branch} is changed by others too often")
    for _ in range(TRIES):
        tree = tree.take_snapshot(message)
        _write_notes(folder, tree)
        tip = _tip(repository, worktree)
        if tip != tree.at:
            try:
                tree = tree.merge(tip, "corral: merge parallel work")
            except Conflict:
                raise
            except StorageFailed as error:
                failure = error
                continue  # another node has just written there: its changes are committed first
            _write_notes(folder, tree)
        if tip == tree.at or repository.advance(worktree.branch, tree.at, tip):
            return tree
    raise failure


def _save_aside(worktree: RunWorktree, visit: str) -> str:
    """Save work that conflicts to a separate branch."""
    branch = branch_name(f"{worktree.branch.partition('/')[2]}--{visit}")
    with locked(worktree) as folder, contextlib.suppress(StorageFailed):
        tree, repository = _read_notes(folder), open_repository(worktree)
        if tree is not None:
            repository.advance(branch, tree.at, repository.tip(branch))
    return branch


def _finish(worktree: RunWorktree, run_folder: str, run_id: str) -> dict[str, Json]:
    """Save the work of a run that has ended, and remove the worktree; returns what was saved."""
    repository = open_repository(worktree)
    _wait_until_unused(worktree)
    with locked(worktree) as folder:
        if (tree := _read_notes(folder)) is not None and tree.place.is_dir():
            _advance_branch(worktree, repository, tree, folder, f"corral: the end of {run_id}")
        elif repository.tip(worktree.branch) is None:
            return {"files": []}  # it was closed before
    tip = _tip(repository, worktree)
    if tip == worktree.commit:
        repository.advance(worktree.branch, None, tip)
        drop(worktree)
        return {"files": []}
    files = changed_files(repository.root, worktree.commit, tip)
    artifacts = RunDir(run_folder).artifacts
    artifacts.mkdir(parents=True, exist_ok=True)
    fd, draft = fs.create_draft(artifacts / PATCH, mode=0o666)
    with os.fdopen(fd, "wb") as output:
        write_patch(repository.root, worktree.commit, tip, output)
    fs.move_into_place(draft, artifacts / PATCH)  # a symlink there is replaced
    drop(worktree)
    return {"branch": worktree.branch, "commit": tip, "files": [*files[:MOST_FILES]]}


def _wait_until_unused(worktree: RunWorktree) -> None:
    """Cancelled attempts may still be running."""
    try:
        use = os.open(
            paths.worktree(worktree.repository, worktree.branch) / "use", os.O_RDWR | os.O_CLOEXEC
        )
    except FileNotFoundError:
        return
    try:
        ends = time.monotonic() + ENDING
        while not fs.try_lock(use) and time.monotonic() < ends:
            time.sleep(0.05)
    finally:
        os.close(use)


def drop(worktree: RunWorktree) -> None:
    """Remove the worktree on this machine; its branch stays."""
    if paths.worktree(worktree.repository, worktree.branch).is_dir():
        with locked(worktree) as folder:
            _remove(folder)


def _remove(folder: Path) -> None:
    tree = _read_notes(folder)
    if tree is not None:
        tree.remove()
    shutil.rmtree(folder, ignore_errors=True)


def _remove_idle() -> None:
    """Remove worktrees of runs that ended on other machines: all their work is saved."""
    for folder in (paths.home() / "workspaces").glob("*/"):
        notes = folder / "tree.json"
        try:
            if time.time() - notes.stat().st_mtime < IDLE:
                continue
            with fs.exclusive_lock(folder / "gate"):
                tree = _read_notes(folder)
                is_copy = tree is not None and tree.root.parent == source_repository.folder()
                if is_copy and not fs.is_locked(folder / "use"):
                    _remove(folder)
        except OSError:
            continue


def _write_notes(folder: Path, tree: SharedWorktree) -> None:
    paths.write_private(folder / "tree.json", msgspec.json.encode(tree, enc_hook=str))


def _read_notes(folder: Path) -> SharedWorktree | None:
    try:
        return decode_as((folder / "tree.json").read_bytes(), SharedWorktree, dec_hook=_path)
    except FileNotFoundError:
        return None


def _path(kind: type, value: object) -> Path:
    return Path(str(value))
