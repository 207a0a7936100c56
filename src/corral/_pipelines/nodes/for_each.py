"""``for_each``: an agent, a model or a command for each item of a list.

``items`` is a placeholder for a list, the name of a key, JSON, or words separated by commas. A key
or a placeholder may have a list, or a text that is JSON or such words. In ``prompt`` and
``tool_command`` the placeholders ``{{item}}``, ``{{item.field}}`` and ``{{index}}`` stand for the
current item. With ``tool_command`` a command runs; with ``model`` and no ``agent`` that model is
called once; else an agent is. ``max_parallel`` (4) items run at the same time, each within
``item_timeout`` and in its own folder, ``items/<index>``. ``item_key`` is a second name for the
item, ``results_key`` another key for the results.

With ``worktree=branch`` each item works in its own worktree, which starts with the files as
they are before the node. The node is visited again to merge what the items that succeeded changed
(``execution.branch_merge``); what is not merged stays on the branch
``corral/<run>--<visit>-<index>`` of the repository. With ``merge=false`` nothing is merged, and the
context has the names of the branches.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from corral._core.nesting import decode_json
from corral._merging import owners
from corral._merging.owners import BranchOwner
from corral._pipelines.execution import branch_merge, run_dir, simulated_nodes
from corral._pipelines.execution.handlers import Handler, NodeContext
from corral._pipelines.execution.node_options import number_of
from corral._pipelines.graph import Value
from corral._pipelines.nodes.codergen import codergen, truncate_text
from corral._pipelines.nodes.data import value_of
from corral._pipelines.nodes.prompt import prompt
from corral._pipelines.nodes.tool import tool
from corral._pipelines.scheduler.commands import BranchWork
from corral._pipelines.scheduler.merge import has_worktrees, merges_files
from corral._pipelines.scheduler.outcome import MAX_IN_CONTEXT, Outcome, failed, outcome_of_error
from corral._pipelines.scheduler.state import BRANCHES
from corral._pipelines.simulation import SIMULATED, runs_nothing
from corral._pipelines.templates import as_text, find
from corral._system.git import worktree
from corral._system.git.worktree import TaskWorktree, branch_name, check_branches
from corral._system.threads import in_thread
from corral.errors import ConfigError, CorralError
from corral.values import Json, JsonObject

MAX_ITEMS = 1000
"""Items, unless ``max_items`` is set: a model may have made the list."""
MAX_RESULTS = 512 * 1024
"""Bytes of all answers in the context. ``results.json`` has all of them."""
ANSWER = "internal.item"


async def for_each(work: NodeContext) -> Outcome:
    """``<node>.results`` has one entry for each item, in order: ``index``, ``status``, and
    ``output`` or ``error``. If some items failed, it is a partial success; if all did, a
    failure."""
    if work.visit.merges:
        return await branch_merge.merge(work)
    items = items_of(work)
    handler: Handler = tool
    if not work.node.text("tool_command"):
        model = work.node.text("model") or work.node.text("llm_model")
        handler = prompt if model and not work.node.text("agent") else codergen
    elif runs_nothing(work.resources.simulate):
        handler = simulated_nodes.skip
    limit = number_of(work.node, "max_parallel", int) if "max_parallel" in work.node.attrs else 4
    if limit < 1:
        raise ConfigError(f"{work.node.id}: max_parallel must be at least 1, got: {limit}")
    slots = asyncio.Semaphore(limit)
    worktrees: ItemWorktrees | None = None
    if has_worktrees(work.node) and not runs_nothing(work.resources.simulate):
        branch_merge.rule_of(work.node)
        worktrees = await in_thread(ItemWorktrees.of, work)

    async def run_item(index: int, item: Json) -> Outcome:
        async with slots:
            item_work = _item_context(work, index, item)
            try:
                run_dir.clear_node_dir(item_work.folder)
                if worktrees is not None:
                    return await worktrees.run(handler, item_work, index)
                return await handler(item_work) or Outcome()
            except CorralError as error:
                return outcome_of_error(error)
            except (OSError, ValueError) as error:
                return failed(f"{type(error).__name__}: {error}")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_item(index, item)) for index, item in enumerate(items)]
    combined = _combine(work, [task.result() for task in tasks])
    return combined if worktrees is None else worktrees.with_branches(combined)


class ItemWorktrees(msgspec.Struct, kw_only=True):
    """A worktree for each item."""

    work: NodeContext
    root: Path
    base: str
    """The files before the node, as a commit."""
    within: Path
    """The workspace, in the worktree."""
    done: dict[int, BranchWork] = {}
    """What the items that succeeded changed."""

    @classmethod
    def of(cls, work: NodeContext) -> ItemWorktrees:
        """Raises ``ConfigError`` if the workspace is in no repository with a commit. Blocks."""
        root, head = worktree.repository_root(work.workspace)
        within = work.workspace.resolve().relative_to(root.resolve())
        base = worktree.snapshot_of(root, head)
        return cls(work=work, root=root, base=base, within=within)

    async def run(self, handler: Handler, item_work: NodeContext, index: int) -> Outcome:
        """Run an item in its worktree, and commit what it changed to its branch. Raises
        ``StorageFailed`` if that fails; then the worktree stays."""
        name = f"{self.work.visit.id}-{index}"
        run_id = self.work.run_id
        place = worktree.task_folder(self.root, run_id, name, "")
        await in_thread(check_branches, self.root)
        tree = await TaskWorktree.make(self.root, self.base, place)
        sessions: list[BranchOwner] = []
        item_work = msgspec.structs.replace(
            item_work, workspace=tree.place / self.within, on_owner=sessions.append
        )
        try:
            outcome = await handler(item_work)
        except BaseException:
            await asyncio.shield(tree.remove())
            raise
        outcome = outcome or Outcome()
        message = f"corral: item {index} of {self.work.node.id}"
        change = await tree.commit_to(branch_name(f"{run_id}--{name}"), message)
        if change is None:
            await tree.remove()
            return outcome
        owner = sessions[-1] if sessions else None
        await in_thread(owners.record_in, tree, change.branch, owner, str(self.within))
        await tree.remove()
        if outcome.ok:
            self.done[index] = BranchWork(
                base=self.base, commit=change.commit, name=change.branch, id=str(index)
            )
            return outcome
        reason = f"{outcome.failure_reason}; its work is on the branch {change.branch}"
        return msgspec.structs.replace(outcome, failure_reason=reason)

    def with_branches(self, combined: Outcome) -> Outcome:
        """The outcome of the node, with what is to be merged."""
        done = [self.done[index] for index in sorted(self.done)]
        if not merges_files(self.work.node):
            return branch_merge.keep(combined, done)
        branches = [msgspec.to_builtins(branch) for branch in done]
        updates = {**combined.context_updates, BRANCHES: branches}
        return msgspec.structs.replace(combined, context_updates=updates)


def items_of(work: NodeContext) -> list[Json]:
    """Raises ``ConfigError`` if ``items`` is not a list."""
    node = work.node
    items = value_of(work, node.attrs["items"])
    if isinstance(items, str):
        # The name of a key, JSON, or words separated by commas.
        text = items.strip()
        value = find(work.context, text)
        if isinstance(value, str):  # the output of a command or a model
            text = value.strip()
        if value is not None and not isinstance(value, str):
            items = value
        elif work.resources.simulate and text.startswith(SIMULATED):
            simulated: list[Json] = [text]
            items = simulated
        elif not text.startswith(("[", "{")):
            words: list[Json] = [name for item in text.split(",") if (name := item.strip())]
            items = words
        else:
            try:
                items = decode_json(text)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{node.id}: items is not JSON: {error}") from error
    if not isinstance(items, list):
        raise ConfigError(f"{node.id}: items must be a list, got: {type(items).__name__}")
    most = number_of(node, "max_items", int) if "max_items" in node.attrs else MAX_ITEMS
    if len(items) > most:
        raise ConfigError(
            f"{node.id}: there are {len(items):,} items, over {most:,}", hint="Raise max_items."
        )
    return items


def _item_context(work: NodeContext, index: int, item: Json) -> NodeContext:
    """The context of one item: that of the node, with another folder and the item's values."""
    attrs: dict[str, Value] = {**work.node.attrs, "output_key": ANSWER}
    attrs.pop("timeout", None)
    if "item_timeout" in attrs:
        attrs["timeout"] = attrs["item_timeout"]
    node = msgspec.structs.replace(work.node, attrs=attrs)
    context: JsonObject = {**work.context, "item": item, "index": index}
    if name := work.node.text("item_key"):
        context[name] = item
    return msgspec.structs.replace(
        work,
        node=node,
        folder=work.folder / "items" / str(index),
        visit=msgspec.structs.replace(work.visit, context=context, thread=None),
    )


def _combine(work: NodeContext, outcomes: list[Outcome]) -> Outcome:
    node = work.node
    longest = min(MAX_IN_CONTEXT, MAX_RESULTS // max(1, len(outcomes)))
    key = f"{node.id}.output" if node.text("output_schema") else ANSWER
    entries: list[Json] = []
    short: list[Json] = []
    for index, outcome in enumerate(outcomes):
        output = outcome.context_updates.get(key, None if outcome.ok else "")
        entry: JsonObject = {"index": index, "status": outcome.status, "output": output}
        if not outcome.ok:
            entry["error"] = outcome.failure_reason
        entries.append(entry)
        if isinstance(output, str) or len(msgspec.json.encode(output)) > longest:
            entry = {**entry, "output": truncate_text(as_text(output), longest)}
        short.append(entry)
    work.write_file("results.json", msgspec.json.encode(entries))
    failures = [outcome for outcome in outcomes if not outcome.ok]
    combined = Outcome()
    if failures:
        message = f"{len(failures)} of {len(outcomes)} items failed: {failures[0].failure_reason}"
        combined = Outcome(status="partial_success", notes=message)
        if len(failures) == len(outcomes):
            may_help = {outcome.retryable for outcome in failures}
            retryable = True if True in may_help else False if may_help == {False} else None
            combined = failed(message, retryable=retryable)
    costs = [outcome.cost_usd for outcome in outcomes if outcome.cost_usd is not None]
    tokens = [outcome.tokens for outcome in outcomes if outcome.tokens is not None]
    return msgspec.structs.replace(
        combined,
        context_updates={
            node.text("results_key") or f"{node.id}.results": short,
            f"{node.id}.count": len(outcomes),
            f"{node.id}.failed": len(failures),
        },
        cost_usd=sum(costs) if costs else None,
        tokens=sum(tokens) if tokens else None,
    )
