"""Own worktrees for the branches of parallel nodes (``worktree=branch``).

Theory of operation
-------------------
A run works in a folder: the user's, or the worktree of the run (``run_worktree``). A lane with its
own worktree has a git branch ``corral/<run>--<lane>`` in the repository of that folder, and
a worktree for it, which is made and used as that of a run. Lanes may be nested: an inner lane
starts from the branch of the outer one.

* ``check`` tells before the run starts that there is no repository to make worktrees in.
* ``in_place`` surrounds each attempt of a node: it chooses the folder, and saves what was done.
  The first attempt in a lane creates its branch, from all that the outer folder has then: also
  what is not committed there. After each attempt the outcome has the commit of the lane, and the
  one that it started from (``BranchWork``), so that the scheduler knows what to merge.
* The node is visited again when its branches are over (``scheduler.merge``); its handler
  (``execution.branch_merge``) merges their commits into the files of the outer folder. Then the
  branches that were merged are removed. The items of a ``for_each`` make their worktrees
  themselves, and are merged in the same way.
* ``close`` runs when the run has ended: work that was not merged is committed to its branch, which
  stays, and the worktrees are removed.

The commit that a lane started from is the reference ``refs/corral/base/<run>/<branch>`` of the
repository, created before the branch. A run that continues another one (a fork) has no such branch
for a lane whose nodes it takes over: it is created from the commit of their outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral._engine.payloads import RunInput, RunWorktree
from corral._engine.workspace import run_worktree
from corral._merging import owners
from corral._merging.owners import BranchOwner
from corral._pipelines import node_kinds
from corral._pipelines.execution.branch_merge import MERGED
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler.commands import BranchWork
from corral._pipelines.scheduler.merge import has_worktrees, merges_files
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.scheduler.state import BRANCHES, WORKTREE
from corral._pipelines.simulation import Simulate, runs_nothing
from corral._pipelines.templates import PLACEHOLDER
from corral._system.git import repository, source_repository, worktree
from corral._system.git.worktree import branch_name, name_part
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.values import Json, as_list, as_texts, convert_to

BASE = "refs/corral/base/"


class RunPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run works on this machine."""

    run_id: str
    workspace: Path
    tree: RunWorktree | None = None
    """The worktree of the run, or of the lane that started it; ``workspace`` is in it."""


def place_of(run_input: RunInput) -> RunPlace:
    """Where a durable run works on this machine."""
    config = run_input.config.on_this_machine()
    return RunPlace(run_id=run_input.run_id, workspace=Path(config.workspace), tree=config.tree)


def check(graph: Graph, workspace: Path, simulate: Simulate) -> None:
    """Raises ``ConfigError`` if the workspace is in no repository with a commit, or if branches of
    it could not be merged. Blocks."""
    nodes = [node for node in graph.nodes.values() if has_worktrees(node)]
    merging = [*graph.of_kind(node_kinds.MERGE.name)]
    if not (nodes or merging) or runs_nothing(simulate):
        return
    try:
        root, _ = worktree.repository_root(workspace)
    except ConfigError as error:
        name = f"node {nodes[0].id!r}: worktree=branch" if nodes else f"node {merging[0].id!r}"
        raise ConfigError(f"{name}: {error.message}", hint=error.hint) from error
    if simulate:
        return
    _check_targets(root, merging)
    kept = [node.id for node in nodes if not merges_files(node)]
    if kept and source_repository.has_changes(root):
        raise ConfigError(
            f"node {kept[0]!r}: {root} has changes that are not committed, and merge=false would"
            " make them a part of every branch",
            hint="Commit or stash them, or run in a worktree: --repository .",
        )


def check_merges(merging: list[Node], tree: RunWorktree) -> None:
    """``check`` of the nodes ``merge`` of a run that has its own worktree. Blocks."""
    if merging and tree.is_remote:
        raise ConfigError(
            f"node {merging[0].id!r} merges branches of a repository on this machine, and"
            f" {tree.repository} is a remote one",
            hint="Name the folder of a clone with --repository.",
        )
    _check_targets(Path(tree.repository), merging)


def _check_targets(root: Path, merging: list[Node]) -> None:
    for node in merging:
        into = node.text("into")
        if PLACEHOLDER.search(into) or repository.check(
            root, "show-ref", "--verify", "--quiet", f"refs/heads/{into}"
        ):
            continue
        raise ConfigError(
            f"node {node.id!r}: {root} has no branch {into!r}",
            hint="`git branch` lists the branches.",
        )


async def in_place(
    place: RunPlace, work: Callable[[NodeContext], Awaitable[Outcome]], context: NodeContext
) -> Outcome:
    """Run an attempt where its lane works, and save what it changed."""
    visit = context.visit
    is_plain = place.tree is None and not visit.worktrees and not visit.merges
    if is_plain or runs_nothing(context.resources.simulate):
        return await work(context)
    tree, lane = place.tree, ""
    if visit.worktrees:
        lane = visit.worktrees[-1]
        tree = await asyncio.to_thread(_open, place, visit.worktrees, visit.context)
        context = replace(context, workspace=run_worktree.workspace_folder(tree))
    await asyncio.to_thread(_fetch, tree, visit.merges)
    if visit.merges:
        # All is on the branches. A session that must repair one works in the folder where it was.
        await asyncio.to_thread(_drop_worktrees, place, [each.name for each in visit.merges])
    if tree is None:
        outcome = await work(context)
    else:
        sessions: list[BranchOwner] = []
        context = replace(context, on_owner=sessions.append)
        if context.node.kind == node_kinds.MERGE_STEP.name and not context.resources.simulate:
            await asyncio.to_thread(check_merges, [context.node], tree)
        async with run_worktree.used(tree):
            outcome = await work(context)
            await asyncio.to_thread(_publish, tree, outcome)
            outcome = await run_worktree.save(tree, outcome, visit.id, lane)
        if sessions and not tree.is_remote:
            own = replace(
                sessions[-1], folder=str(run_worktree.top_folder(tree)), within=tree.within
            )
            root = Path(tree.repository)
            await asyncio.to_thread(owners.record, root, tree.branch, own)
    if visit.merges and outcome.ok:
        merged = as_texts(outcome.context_updates.get(MERGED))
        done = [branch.name for branch in visit.merges if branch.id in merged]
        await asyncio.to_thread(_remove_branches, place, done)
    return outcome


async def open_lane(place: RunPlace, worktrees: tuple[str, ...]) -> RunWorktree:
    """The worktree of a child run that starts in these lanes. Raises ``StorageFailed``."""
    return await asyncio.to_thread(_open, place, worktrees, {})


async def with_commit(outcome: Outcome, tree: RunWorktree, lane: str) -> Outcome:
    """The outcome of a child run that worked in this lane, with the commit of the lane. Raises
    ``StorageFailed``."""
    at = await asyncio.to_thread(run_worktree.tip_of, tree)
    return run_worktree.with_work(outcome, tree, at, lane)


def _open(place: RunPlace, lanes: tuple[str, ...], context: Mapping[str, Json]) -> RunWorktree:
    """The worktree of the innermost lane; its branch exists then."""
    lane = lanes[-1]
    tree = _tree_of(place, lane)
    with run_worktree.locked(tree):
        source = run_worktree.open_repository(tree)
        reference = _base_of(place, tree.branch)
        tip = source.tip(tree.branch)
        known = context.get(WORKTREE + lane)
        done = None if known is None else convert_to(known, BranchWork)
        if tip is None:
            base = start = _start(place, lanes, context)
            if done is not None and _has(source.root, done.commit):
                base, start = done.base, done.commit
            repository.run(source.root, "update-ref", reference, base)
            if not source.advance(tree.branch, start, None):
                tip = source.tip(tree.branch)  # another machine was faster
                base = start
        elif _has(source.root, reference):
            base = repository.commit_of(source.root, reference)
        elif done is not None:
            base = done.base
        else:  # it was created on another machine
            outer = _start(place, lanes, context)
            base = repository.merge_base(source.root, tip, outer) or outer
    return replace(tree, commit=base)


def _has(root: Path, name: str) -> bool:
    return repository.check(root, "cat-file", "-e", f"{name}^{{commit}}")


def _tree_of(place: RunPlace, lane: str) -> RunWorktree:
    """Without the commit that it started from."""
    branch = branch_name(f"{place.run_id}--{lane}")
    if place.tree is not None:
        within = os.path.relpath(place.workspace, run_worktree.top_folder(place.tree))
        return replace(place.tree, branch=branch, within=within, start_commit="")
    root, head = worktree.repository_root(place.workspace)
    within = str(place.workspace.resolve().relative_to(root.resolve()))
    return RunWorktree(repository=str(root), commit=head, branch=branch, within=within)


def _start(place: RunPlace, lanes: tuple[str, ...], context: Mapping[str, Json]) -> str:
    """The commit that a new lane starts from: all that the outer folder has."""
    outer = place.tree if len(lanes) == 1 else _open(place, lanes[:-1], context)
    if outer is None:
        root, head = worktree.repository_root(place.workspace)
        return worktree.snapshot_of(root, head)
    return run_worktree.tip_of(outer)


def _fetch(tree: RunWorktree | None, branches: tuple[BranchWork, ...]) -> None:
    """Get the commits of these branches from a repository on another machine."""
    if tree is not None and tree.is_remote:
        source = run_worktree.open_repository(tree)
        for branch in branches:
            source.tip(branch.name)


def _publish(tree: RunWorktree, outcome: Outcome) -> None:
    """Send the branches of items to a repository on another machine, which may merge them."""
    if tree.is_remote:
        source = run_worktree.open_repository(tree)
        for raw in as_list(outcome.context_updates.get(BRANCHES)):
            branch = convert_to(raw, BranchWork)
            source.advance(branch.name, branch.commit, source.tip(branch.name))


def _remove_branches(place: RunPlace, names: list[str]) -> None:
    """Remove the branches and the worktrees of lanes that were merged."""
    for name in names:
        tree = replace(_tree_of(place, ""), branch=name)
        with contextlib.suppress(StorageFailed):  # it stays, with work that is known elsewhere
            run_worktree.drop(tree)
            source = run_worktree.open_repository(tree)
            if (tip := source.tip(name)) is not None:
                source.advance(name, None, tip)
            repository.run(source.root, "update-ref", "-d", _base_of(place, name))


def _drop_worktrees(place: RunPlace, names: list[str]) -> None:
    """Remove the worktrees of lanes whose branches stay."""
    for name in names:
        run_worktree.drop(replace(_tree_of(place, ""), branch=name))


def _base_of(place: RunPlace, branch: str) -> str:
    """The reference to the commit that a lane started from."""
    return f"{BASE}{name_part(place.run_id)}/{branch}"


async def close(place: RunPlace) -> list[str]:
    """The run has ended: commit what its lanes left, and remove their worktrees. Returns the
    branches that stay, because their work was not merged."""
    try:
        return await asyncio.to_thread(_close, place)
    except (CorralError, OSError):
        return []  # the branches and the worktrees stay


def _close(place: RunPlace) -> list[str]:
    tree = _tree_of(place, "")
    root = run_worktree.open_repository(tree).root
    prefix = _base_of(place, "")
    listed = repository.run(root, "for-each-ref", "--format=%(refname)", prefix)
    stays: list[str] = []
    for reference in listed.splitlines():
        name, base = reference.removeprefix(prefix), repository.commit_of(root, reference)
        if run_worktree.save_rest(replace(tree, branch=name, commit=base)) in (None, base):
            _remove_branches(place, [name])
        else:
            stays.append(name)
            repository.run(root, "update-ref", "-d", reference)
    return stays
