"""Where a run works: in a shared folder as it is, or in a git worktree of its own, at a commit.

Theory of operation
-------------------
With ``repository`` a run gets a branch ``corral/<run>`` in that repository and, on each machine
that works for it, a worktree in corral's home (``workspaces/<digest>/tree``). Nobody's own
working tree is touched.

* ``choose`` (blocking) decides on repository, commit and branch, before anything is spent.
* ``reserved`` creates the branch and the worktree, so that it is known that both can be written.
  If the block fails, both are removed.
* ``used`` surrounds each node attempt. It creates the worktree if it is missing, at the tip of
  the branch, so that a node continues from all that was saved before, on any machine.
* ``save`` runs after each attempt: it commits the changes and advances the branch. If another
  machine has advanced the branch meanwhile, both are merged. If they conflict, the later one
  fails, and its work is saved to a branch of its own. The commit is recorded in the outcome
  (``COMMIT``), so that a fork can start from it.
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
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral.durable.payloads import OwnTree, RunConfig
from corral.errors import ConfigError, StorageFailed
from corral.events import Json
from corral.pipelines.execution.run_dir import RunDir
from corral.pipelines.scheduler.outcome import Outcome
from corral.system import file_lock, fs, git, paths
from corral.system.git import shared_worktree, source_repository, task_worktree
from corral.system.git.repository import write_patch
from corral.system.git.shared_worktree import Tree
from corral.system.git.source_repository import Repository

COMMIT = "internal.commit"
"""The key of an outcome's updates that holds the commit after it."""
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


def choose(
    run_id: str,
    repository: str | os.PathLike[str],
    commit: str | None = None,
    within: str | None = None,
) -> OwnTree:
    """Without a commit, at the one that is checked out there. Raises ``ConfigError``. Blocking."""
    name, branch = os.fspath(repository), task_worktree.branch_of(run_id)
    if source_repository.is_elsewhere(name):
        if os.path.isdir(name):
            name = os.path.abspath(name)
        try:
            found = source_repository.copy_of(name, fresh=True)
        except StorageFailed as error:
            raise ConfigError(error.message, hint="git itself must be able to fetch it.") from error
        at = source_repository.find(found, commit)
        return OwnTree(
            repository=name, commit=at, branch=branch, within=within or ".", is_elsewhere=True
        )
    found = source_repository.own(Path(name))
    at = source_repository.find(found, commit)
    if within is None:
        within = str(Path(name).resolve().relative_to(found.root.resolve()))
        if within != "." and not git.check(found.root, "cat-file", "-e", f"{at}:{within}/"):
            raise ConfigError(f"{within} is not there at {commit or 'HEAD'} of {found.root}")
    return OwnTree(repository=str(found.root), commit=at, branch=branch, within=within)


def uncommitted(repository: str | os.PathLike[str]) -> bool:
    """Whether a person's tree has changes that a run of it would not see. Blocking."""
    name = os.fspath(repository)
    try:
        return os.path.isdir(name) and source_repository.has_changes(Path(name))
    except StorageFailed:  # no repository, or one without a commit: that is reported later
        return False


@contextlib.asynccontextmanager
async def reserved(own: OwnTree | None, *, stays: bool) -> AsyncGenerator[None]:
    """While this lasts the branch and the tree are there, to be looked at; with ``stays`` the
    tree stays. Where it ends badly, both go. Raises ``ConfigError``."""
    if own is None:
        yield
        return
    await asyncio.to_thread(_reserve, own)
    try:
        os.close(await asyncio.to_thread(_enter, own))
        yield
    except BaseException:
        await asyncio.shield(asyncio.to_thread(_give_up, own))
        raise
    if not stays:
        await asyncio.to_thread(_drop, own)


def workspace_folder(own: OwnTree) -> Path:
    """The folder that a run with this tree works in, on this machine."""
    return worktree_folder(own) / "tree" / own.within


def local_config(setting: RunConfig) -> RunConfig:
    """With the folders that this machine has for it. As good twice as once."""
    workspace = setting.workspace
    if setting.tree is not None:
        workspace = str(worktree_folder(setting.tree) / "tree" / workspace)
    return msgspec.structs.replace(
        setting, folder=local_folder(setting.folder), workspace=workspace
    )


def local_folder(folder: str) -> str:
    """A run folder that each machine has for itself is below its own home."""
    return str(paths.home() / "runs" / folder) if folder else ""


@contextlib.asynccontextmanager
async def used(setting: RunConfig) -> AsyncGenerator[None]:
    """Somebody works in the tree meanwhile. It is made where it is not there, with all that was
    kept so far, on this machine or another. Raises ``StorageFailed``."""
    if setting.tree is None:
        yield
        return
    fd = await asyncio.to_thread(_enter, setting.tree)
    try:
        yield
    finally:
        os.close(fd)


async def save(setting: RunConfig, outcome: Outcome, visit: str) -> Outcome:
    """With what was done in the tree on the run's branch; a failure where that cannot be."""
    own = setting.tree
    if own is None:
        return outcome
    try:
        tree = await asyncio.to_thread(_commit, own, f"corral: {visit}")
    except shared_worktree.Conflict as error:
        aside = await asyncio.to_thread(_save_aside, own, visit)
        words = f"{error.message}; its work is at the branch {aside}"
    except StorageFailed as error:
        words = f"its work could not be kept: {error.message}"
    else:
        updates = {**outcome.context_updates, COMMIT: tree.at}
        return msgspec.structs.replace(outcome, context_updates=updates)
    if not outcome.ok:
        words = f"{outcome.failure_reason}; {words}"
    # Not to be tried again: that would do the work anew, not keep it.
    return msgspec.structs.replace(outcome, status="fail", failure_reason=words, retryable=False)


async def close(setting: RunConfig, run_id: str) -> dict[str, Json]:
    """The run is over: what came of its work. The folder goes, once its work is safe."""
    if setting.tree is None:
        return {}
    try:
        return await asyncio.to_thread(_finish, setting.tree, local_config(setting), run_id)
    except (StorageFailed, OSError) as error:
        return {"error": str(error), "folder": str(worktree_folder(setting.tree) / "tree")}


# Everything below blocks.


def worktree_folder(own: OwnTree) -> Path:
    """Of this run, on this machine."""
    name = f"{own.repository} {own.branch}".encode("utf-8", "replace")
    return paths.home() / "workspaces" / blake2b(name, digest_size=8).hexdigest()


def _repository(own: OwnTree) -> Repository:
    if own.is_elsewhere:
        return source_repository.copy_of(own.repository)
    return Repository(root=Path(own.repository))


def _reserve(own: OwnTree) -> None:
    try:
        is_ours = _repository(own).advance(own.branch, own.begins or own.commit, None)
    except StorageFailed as error:
        hint = f"A run keeps its work there, as the branch {own.branch}."
        raise ConfigError(error.message, hint=hint) from error
    if not is_ours:
        raise ConfigError(f"there is a branch {own.branch} already in {own.repository}")


def _give_up(own: OwnTree) -> None:
    _drop(own)
    with contextlib.suppress(StorageFailed):
        _repository(own).advance(own.branch, None, own.begins or own.commit)


@contextlib.contextmanager
def _locked(own: OwnTree) -> Generator[Path]:
    """One at a time may be at the tree, in its folder, which is there."""
    folder = worktree_folder(own)
    with contextlib.ExitStack() as stack:
        while True:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # somebody has just removed it
                stack.enter_context(git.alone(folder / "gate"))
                break
        yield folder


def _enter(own: OwnTree) -> int:
    """A descriptor: while it is open, somebody works in the tree."""
    if not (worktree_folder(own) / "tree.json").exists():
        _remove_idle()
    with _locked(own) as folder:
        use = os.open(folder / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            repository, tree = _repository(own), _read_notes(folder)
            tip = _tip(repository, own)
            if tree is None or not (tree.place / ".git").exists():
                tree = shared_worktree.make(repository.root, own.commit, tip, folder)
            elif tip != tree.at and file_lock.try_lock(use):
                # What others did is newer than what was left here when somebody was killed.
                tree = shared_worktree.put(tree, tip)
            elif tip != tree.at:
                tree = _advance_branch(own, repository, tree, folder, "corral: work under way")
            _write_notes(folder, tree)
            file_lock.lock_shared(use)
        except BaseException:
            os.close(use)
            raise
        return use


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


def _commit(own: OwnTree, message: str) -> Tree:
    with _locked(own) as folder:
        tree = _read_notes(folder)
        if tree is None:
            raise StorageFailed(f"the worktree {folder} is gone")
        return _advance_branch(own, _repository(own), tree, folder, message)


def _advance_branch(
    own: OwnTree, repository: Repository, tree: Tree, folder: Path, message: str
) -> Tree:
    failure = StorageFailed(f"others change {own.branch} all the time")
    for _ in range(TRIES):
        tree = shared_worktree.take(tree, message)
        _write_notes(folder, tree)
        tip = _tip(repository, own)
        if tip != tree.at:
            try:
                tree = shared_worktree.join(tree, tip, "corral: what was done side by side")
            except shared_worktree.Conflict:
                raise
            except StorageFailed as error:
                failure = error
                continue  # another node has just written there: that is taken first
            _write_notes(folder, tree)
        if tip == tree.at or repository.advance(own.branch, tree.at, tip):
            return tree
    raise failure


def _save_aside(own: OwnTree, visit: str) -> str:
    """Work that does not fit with what others did is not lost."""
    branch = task_worktree.branch_of(f"{own.branch.partition('/')[2]}--{visit}")
    with _locked(own) as folder, contextlib.suppress(StorageFailed):
        tree, repository = _read_notes(folder), _repository(own)
        if tree is not None:
            repository.advance(branch, tree.at, repository.tip(branch))
    return branch


def _finish(own: OwnTree, setting: RunConfig, run_id: str) -> dict[str, Json]:
    repository = _repository(own)
    _wait_until_unused(own)
    with _locked(own) as folder:
        if (tree := _read_notes(folder)) is not None and tree.place.is_dir():
            _advance_branch(own, repository, tree, folder, f"corral: the end of {run_id}")
        elif repository.tip(own.branch) is None:
            return {"files": []}  # it was closed before
    tip = _tip(repository, own)
    if tip == own.commit:
        repository.advance(own.branch, None, tip)
        _drop(own)
        return {"files": []}
    files = git.changed_files(repository.root, own.commit, tip)
    artefacts = RunDir(setting.folder).artifacts
    artefacts.mkdir(parents=True, exist_ok=True)
    fd, draft = fs.create_draft(artefacts / PATCH, mode=0o666)
    with os.fdopen(fd, "wb") as output:
        write_patch(repository.root, own.commit, tip, output)
    fs.move_into_place(draft, artefacts / PATCH)  # a link that a command put there is replaced
    _drop(own)
    return {"branch": own.branch, "commit": tip, "files": [*files[:MOST_FILES]]}


def _wait_until_unused(own: OwnTree) -> None:
    """Who was told to stop may still be at it."""
    try:
        use = os.open(worktree_folder(own) / "use", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        ends = time.monotonic() + ENDING
        while not file_lock.try_lock(use) and time.monotonic() < ends:
            time.sleep(0.05)
    finally:
        os.close(use)


def _drop(own: OwnTree) -> None:
    if worktree_folder(own).is_dir():
        with _locked(own) as folder:
            _remove(folder)


def _remove(folder: Path) -> None:
    tree = _read_notes(folder)
    if tree is not None:
        shared_worktree.remove(tree)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_idle() -> None:
    """Trees of runs that other machines have ended: nobody tells us. All of each is kept."""
    for folder in (paths.home() / "workspaces").glob("*/"):
        notes = folder / "tree.json"
        try:
            if time.time() - notes.stat().st_mtime < IDLE:
                continue
            with file_lock.exclusive(folder / "gate"):
                tree = _read_notes(folder)
                is_copy = tree is not None and tree.root.parent == source_repository.folder()
                if is_copy and not file_lock.is_locked(folder / "use"):
                    _remove(folder)
        except OSError:
            continue


def _write_notes(folder: Path, tree: Tree) -> None:
    paths.write_private(folder / "tree.json", msgspec.json.encode(tree, enc_hook=str))


def _read_notes(folder: Path) -> Tree | None:
    try:
        return msgspec.json.decode((folder / "tree.json").read_bytes(), type=Tree, dec_hook=_path)
    except FileNotFoundError:
        return None


def _path(kind: type, value: object) -> Path:
    return Path(str(value))
