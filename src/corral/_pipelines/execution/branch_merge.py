"""The files of branches that had their own worktrees are merged into those of the node.

A branch is a commit, and the commit it started from. The branches are merged one after another, in
the order of the graph or of the items, into the files as they are now. All is computed first and
written at the end: a conflict leaves the files as they were.

If two branches changed the same lines, the node's ``on_conflict`` decides:

* ``fail``: the node fails, and nothing is merged;
* ``first``: the branch that comes first is merged, and the later one is left out;
* ``ask``: nothing is merged, and a person chooses the branch that is merged first
  (``scheduler.merge``);
* ``resume``: the session that made the later branch is asked to resolve the conflict, in a worktree
  with both sides. What it leaves becomes a commit of its branch, which is merged. If it cannot,
  the node fails, and nothing is merged.

With ``merge=false`` nothing is merged: the branches are kept for a node ``merge``, and the context
has their names.

What is not merged stays on its git branch, which the outcome names. To do it again after a crash
changes nothing: what is merged already is no change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from corral._merging import owners
from corral._merging.queue import MergeEntry
from corral._merging.rebase import tip_of
from corral._merging.repair import repair
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.owner_call import ask_owner
from corral._pipelines.graph import Node
from corral._pipelines.scheduler.commands import BranchWork
from corral._pipelines.scheduler.merge import merges_files
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.scheduler.state import LEFT_OUT
from corral._system.git import repository, worktree
from corral._system.git.worktree import Conflict
from corral._system.threads import in_thread
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.values import Json

TRIES = 5
"""Attempts to write the merged files while other nodes write, too."""
RULES = ("fail", "first", "ask", "resume")
ROUNDS = 2
"""How often the session of a branch is asked."""
MERGED = "parallel.merged"
"""The key of the context that has the ids of the branches whose files were merged."""
KEPT = "parallel.branches"
"""The key of the context that has the git branches which are kept for a node ``merge``."""


class LeftOut(msgspec.Struct, frozen=True):
    id: str
    branch: str
    files: list[str]


class Merged(msgspec.Struct, frozen=True):
    """The branches, merged."""

    ours: str
    """The files as they were, as a commit."""
    commit: str
    ids: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    reason: str = ""
    """Why no session resolved the conflict."""


def rule_of(node: Node) -> str:
    """Raises ``ConfigError``."""
    rule = node.text("on_conflict", "fail")
    if rule not in RULES:
        raise ConfigError(f"{node.id}: on_conflict={rule}", hint=f"Write {', '.join(RULES)}.")
    return rule


async def merge(work: NodeContext) -> Outcome:
    """Merge the branches of the visit into the files of the workspace, as the node's rule says.
    Raises ``ConfigError`` and ``StorageFailed``; then no file was changed."""
    branches = [*work.visit.merges]
    if not merges_files(work.node):
        return keep(Outcome(), branches)
    rule, chosen = rule_of(work.node), work.visit.chosen
    if chosen:
        rule, branches = "first", sorted(branches, key=lambda branch: branch.id != chosen)
    top = repository.locate(work.workspace).top
    if top is None:
        raise StorageFailed(f"{work.workspace} is in a bare repository")
    tries_left, cost = TRIES, 0.0
    if rule == "resume":
        branches = [await in_thread(_as_repaired, top, branch) for branch in branches]
    while True:
        tries_left -= 1
        merged = await in_thread(_merge_all, top, branches)
        if merged.left_out and rule == "resume":
            reason, spent = await _resolve(work, top, branches)
            cost += spent
            if reason:
                merged = msgspec.structs.replace(merged, reason=reason)
            else:
                branches = [await in_thread(_as_repaired, top, branch) for branch in branches]
                merged = await in_thread(_merge_all, top, branches)
        if merged.left_out and rule != "first":
            reason = f"the same lines were changed twice: {_describe(merged.left_out)}"
            reason += f"; {merged.reason}" if merged.reason else ""
            kept = ", ".join(f"{branch.id} on {branch.name}" for branch in branches)
            outcome = failed(f"{reason}; nothing is merged, their work is kept: {kept}")
            outcome = msgspec.structs.replace(outcome, cost_usd=cost or None)
            return _with_updates(outcome, (), merged.left_out)
        try:
            await in_thread(worktree.write_merged, top, top, merged.ours, merged.commit)
            break
        except StorageFailed:  # another node has just changed a file
            if not tries_left:
                raise
    notes = f"merged: {', '.join(merged.ids)}" if merged.ids else ""
    outcome = Outcome(notes=notes, cost_usd=cost or None)
    if merged.left_out:
        notes += f"; left out: {_describe(merged.left_out)}"
        outcome = Outcome(status="partial_success", notes=notes.removeprefix("; "))
    return _with_updates(outcome, merged.ids, merged.left_out)


def keep(outcome: Outcome, branches: Sequence[BranchWork]) -> Outcome:
    """The outcome, with the names of those branches that changed something."""
    names: list[Json] = [branch.name for branch in branches if branch.commit != branch.base]
    updates = {**outcome.context_updates, KEPT: names}
    return msgspec.structs.replace(outcome, context_updates=updates)


def _with_updates(
    outcome: Outcome, merged: tuple[str, ...], left_out: tuple[LeftOut, ...]
) -> Outcome:
    updates: dict[str, Json] = {
        MERGED: list(merged),
        LEFT_OUT: [msgspec.to_builtins(each) for each in left_out],
    }
    return msgspec.structs.replace(outcome, context_updates=updates, retryable=False)


def _describe(left_out: Sequence[LeftOut]) -> str:
    return "; ".join(
        f"{each.id} ({', '.join(each.files[:10])}; branch {each.branch})" for each in left_out
    )


def _as_repaired(top: Path, branch: BranchWork) -> BranchWork:
    """The branch with what its session has added to it since. Blocks."""
    tip = tip_of(top, branch.name)
    if tip is None or not repository.is_ancestor(top, branch.commit, tip):
        return branch
    return msgspec.structs.replace(branch, commit=tip)


async def _resolve(
    work: NodeContext, top: Path, branches: Sequence[BranchWork]
) -> tuple[str, float]:
    """Let the sessions of branches resolve their conflicts with those before, one after another.
    Returns why that is not possible, empty if all are resolved, and what they have spent in USD."""
    commit, cost = await in_thread(_our_files, top, branches), 0.0
    ask = partial(ask_owner, work)
    for branch in branches:
        rounds = 0
        while True:
            try:
                tree = await in_thread(worktree.merged_tree, top, commit, branch.commit)
                break
            except Conflict as error:
                owner = await in_thread(owners.find, top, branch.name)
                if owner is None:
                    return f"no session made {branch.id}", cost
                if rounds >= ROUNDS:
                    return f"its session has not resolved it in {ROUNDS} rounds", cost
                rounds += 1
                conflict = MergeEntry(
                    number=0, branch=branch.name, commit=branch.commit, files=error.files
                )
                tree, into = error.tree, f"the files of {work.node.id}"
                try:
                    reason, spent = await repair(top, conflict, owner, tree, commit, ask, into=into)
                except CorralError as failure:
                    return f"its session could not be asked: {failure.message}", cost
                cost += spent
                if reason:
                    return reason, cost
                branch = await in_thread(_as_repaired, top, branch)  # noqa: PLW2901
        both = [commit, branch.commit]
        commit = await in_thread(repository.commit, top, tree, both, f"merge {branch.id}")
    return "", cost


def _our_files(top: Path, branches: Sequence[BranchWork]) -> str:
    """The files as they are, as a commit."""
    bases = [*dict.fromkeys(branch.base for branch in branches)]
    return worktree.files_as_commit(top, top, bases or [repository.commit_of(top, "HEAD")])


def _merge_all(top: Path, branches: Sequence[BranchWork]) -> Merged:
    """Blocks."""
    ours = _our_files(top, branches)
    commit, ids, left_out = ours, list[str](), list[LeftOut]()
    for branch in branches:
        try:
            tree = worktree.merged_tree(top, commit, branch.commit)
        except Conflict as error:
            left_out.append(LeftOut(branch.id, branch.name, [*error.files]))
            continue
        commit = repository.commit(top, tree, [commit, branch.commit], f"merge {branch.id}")
        ids.append(branch.id)
    return Merged(ours, commit, tuple(ids), tuple(left_out))
