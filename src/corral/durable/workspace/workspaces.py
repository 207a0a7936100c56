"""Where a run works: a folder as it is, shared; or a git worktree of its own, at a commit.

The worktree is in corral's folder: one for each run on each machine that works at it. What is
done there is kept as a branch of the repository (``corral/<run>``), anew after each node:
whoever goes on, on whatever machine, goes on from there, and nobody's own tree is touched.
The branch is there from the beginning: that it can be written is known before anything is
spent. At the end it stays where something was changed, a patch is among the artefacts, and
the folder goes.

The nodes of a run that are at work at once share the tree. Those on other machines have
another: what they keep is joined, and where that cannot be the later one fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from corral.durable.payloads import OwnTree, RunConfig
from corral.durable.workspace import run_worktree
from corral.errors import ConfigError, StorageFailed
from corral.events import Json
from corral.pipelines.scheduler.outcome import Outcome
from corral.system import git, paths
from corral.system.git import shared_worktree, source_repository, task_worktree

COMMIT = "internal.commit"
"""The key of an outcome's updates that holds the snapshot after it."""


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
    await asyncio.to_thread(run_worktree.reserve, own)
    try:
        os.close(await asyncio.to_thread(run_worktree.ready, own))
        yield
    except BaseException:
        await asyncio.shield(asyncio.to_thread(run_worktree.give_up, own))
        raise
    if not stays:
        await asyncio.to_thread(run_worktree.drop, own)


def place_of(own: OwnTree) -> Path:
    """The folder that a run with this tree works in, on this machine."""
    return run_worktree.folder_of(own) / "tree" / own.within


def here(setting: RunConfig) -> RunConfig:
    """With the folders that this machine has for it. As good twice as once."""
    workspace = setting.workspace
    if setting.tree is not None:
        workspace = str(run_worktree.folder_of(setting.tree) / "tree" / workspace)
    return msgspec.structs.replace(setting, folder=folder_here(setting.folder), workspace=workspace)


def folder_here(folder: str) -> str:
    """A run folder that each machine has for itself is below its own home."""
    return str(paths.home() / "runs" / folder) if folder else ""


@contextlib.asynccontextmanager
async def used(setting: RunConfig) -> AsyncGenerator[None]:
    """Somebody works in the tree meanwhile. It is made where it is not there, with all that was
    kept so far, on this machine or another. Raises ``StorageFailed``."""
    if setting.tree is None:
        yield
        return
    fd = await asyncio.to_thread(run_worktree.ready, setting.tree)
    try:
        yield
    finally:
        os.close(fd)


async def kept(setting: RunConfig, outcome: Outcome, visit: str) -> Outcome:
    """With what was done in the tree on the run's branch; a failure where that cannot be."""
    own = setting.tree
    if own is None:
        return outcome
    try:
        tree = await asyncio.to_thread(run_worktree.keep, own, f"corral: {visit}")
    except shared_worktree.Conflict as error:
        aside = await asyncio.to_thread(run_worktree.put_aside, own, visit)
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
        return await asyncio.to_thread(run_worktree.close, setting.tree, here(setting), run_id)
    except (StorageFailed, OSError) as error:
        return {"error": str(error), "folder": str(run_worktree.folder_of(setting.tree) / "tree")}
