"""Where a run works: in a shared folder, or in its own git worktree at a commit.

Theory of operation
-------------------
With ``repository`` a run gets a branch ``corral/<run>`` in that repository and, on each machine
that works for it, a worktree in corral's home (``workspaces/<digest>/tree``). The user's own
working tree is not touched. ``branch_worktree`` does all that needs git; it is imported for runs
that have a worktree.

* ``branch_worktree.choose`` (blocking) decides on repository, commit and branch, before anything is
  spent.
* ``reserved`` creates the branch and the worktree, so that it is known that both can be written.
  If the block fails, both are removed.
* ``used`` surrounds each node attempt. It creates the worktree if it is missing, at the tip of
  the branch, so that a node continues from all that was saved before, on any machine.
* ``save`` runs after each attempt: it commits the changes and advances the branch. If another
  machine has advanced the branch meanwhile, both are merged. If they conflict, the later one
  fails, and its work is saved to a separate branch. The commit is recorded in the outcome
  (``COMMIT``), so that a fork can start from it.
* ``close`` runs when the run has ended: it writes ``changes.patch`` into the artifacts and
  removes the worktree. A branch without changes is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from corral.engine.payloads import RunConfig, RunWorktree
from corral.errors import StorageFailed
from corral.pipelines.scheduler.outcome import Outcome
from corral.system import paths
from corral.values import Json

COMMIT = "internal.commit"
"""The key of an outcome's updates that has the commit after it."""


@contextlib.asynccontextmanager
async def reserved(worktree: RunWorktree | None, *, stays: bool) -> AsyncGenerator[None]:
    """Within the block the branch and the worktree exist; with ``stays`` the worktree stays
    afterwards. If the block fails, both are removed. Raises ``ConfigError``."""
    if worktree is None:
        yield
        return
    from corral.engine.workspace import branch_worktree

    await asyncio.to_thread(branch_worktree.reserve, worktree)
    try:
        branch_worktree.leave(await asyncio.to_thread(branch_worktree.enter, worktree))
        yield
    except BaseException:
        await asyncio.shield(asyncio.to_thread(branch_worktree.give_up, worktree))
        raise
    if not stays:
        await asyncio.to_thread(branch_worktree.drop, worktree)


def workspace_folder(worktree: RunWorktree) -> Path:
    """The directory that the run works in, on this machine."""
    return paths.worktree(worktree.repository, worktree.branch) / "tree" / worktree.within


def local_config(config: RunConfig) -> RunConfig:
    """The configuration with the paths of this machine. Applying it twice changes nothing."""
    workspace = config.workspace
    if config.tree is not None:
        workspace = str(
            paths.worktree(config.tree.repository, config.tree.branch) / "tree" / workspace
        )
    return msgspec.structs.replace(
        config, folder=paths.local_run_folder(config.folder), workspace=workspace
    )


@contextlib.asynccontextmanager
async def used(config: RunConfig) -> AsyncGenerator[None]:
    """Within the block an attempt works in the worktree. It is created if it is missing, with all
    that was saved so far, on any machine. Raises ``StorageFailed``."""
    if config.tree is None:
        yield
        return
    from corral.engine.workspace import branch_worktree

    fd = await asyncio.to_thread(branch_worktree.enter, config.tree)
    try:
        yield
    finally:
        branch_worktree.leave(fd)


async def save(config: RunConfig, outcome: Outcome, visit: str) -> Outcome:
    """Save the changes to the run's branch; returns the outcome with the commit, or a failure."""
    worktree = config.tree
    if worktree is None:
        return outcome
    from corral.engine.workspace import branch_worktree
    from corral.system.git.worktree import Conflict

    try:
        at = await asyncio.to_thread(branch_worktree.commit, worktree, f"corral: {visit}")
    except Conflict as error:
        aside = await asyncio.to_thread(branch_worktree.save_aside, worktree, visit)
        reason = f"{error.message}; its work is on the branch {aside}"
    except StorageFailed as error:
        reason = f"its work could not be saved: {error.message}"
    else:
        updates = {**outcome.context_updates, COMMIT: at}
        return msgspec.structs.replace(outcome, context_updates=updates)
    if not outcome.ok:
        reason = f"{outcome.failure_reason}; {reason}"
    # No retry: that would do the work again, not save it.
    return msgspec.structs.replace(outcome, status="fail", failure_reason=reason, retryable=False)


async def close(config: RunConfig, run_id: str) -> dict[str, Json]:
    """The run has ended: save its work and remove the worktree."""
    if config.tree is None:
        return {}
    from corral.engine.workspace import branch_worktree

    folder = local_config(config).folder
    try:
        return await asyncio.to_thread(branch_worktree.finish, config.tree, folder, run_id)
    except (StorageFailed, OSError) as error:
        return {
            "error": str(error),
            "folder": str(paths.worktree(config.tree.repository, config.tree.branch) / "tree"),
        }
