"""``batch.item``: one task of a batch, whose result is whole: nobody reads its folder for it.

The node has the prompt's template, and what all the tasks share: ``agent``, ``model``,
``timeout``, ``output_schema``, ``worktree`` (a commit; the repository is around the workspace).
The context holds the task's own fields, and nothing else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from corral.errors import CorralError, StorageFailed
from corral.pipelines import templates
from corral.pipelines.execution import agent_call
from corral.pipelines.execution import resources as node_resources
from corral.pipelines.execution.error_mapping import outcome_of_error
from corral.pipelines.execution.handlers import Handler, NodeContext
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.result import Result
from corral.system.git.worktree import TaskWorktree, branch_name, task_folder
from corral.values import Json

LONGEST = 400_000
"""Characters of an answer in its result; the whole is in ``response.md``."""
UPDATE = "item"
"""The key of the outcome's updates that holds the result."""


async def item(work: NodeContext) -> Outcome:
    """A failed run fails the task, with its code and what it said."""
    began = time.monotonic()
    prompt = templates.fill(work.node.text("prompt"), work.context)
    # Its fields are in the prompt already: they must not be told a second time, before it.
    work = dataclasses.replace(work, visit=msgspec.structs.replace(work.visit, context={}))
    told: dict[str, Json] = {}
    try:
        if work.resources.simulate:
            node_resources.write_node_file(work, "prompt.md", prompt)
            node_resources.write_node_file(work, "response.md", prompt)
            told["text"] = f"[Simulated] {prompt}"[:LONGEST]
            outcome = Outcome()
        else:
            outcome, told = await _asked(work, prompt)
    except CorralError as error:
        outcome = outcome_of_error(error)
        told["code"] = error.code
    told["seconds"] = round(time.monotonic() - began, 3)
    return msgspec.structs.replace(outcome, context_updates={UPDATE: told})


async def _asked(work: NodeContext, prompt: str) -> tuple[Outcome, dict[str, Json]]:
    resources = node_resources.resources_of(work)
    commit = work.node.text("worktree")
    async with _place(work, commit) as (place, tree):
        work = dataclasses.replace(work, workspace=place)
        ask = agent_call.build_call(work, resources)
        result = await agent_call.send_prompt(work, resources, ask, prompt)
        outcome = agent_call.outcome_of_result(work, ask, result)
        told = _told(result, outcome)
        if result.text:
            node_resources.write_node_file(work, "response.md", result.text)
        if tree is None:
            return outcome, told
        if outcome.ok:
            try:
                told |= await _kept(work, tree)
            except StorageFailed as error:
                # Not to be tried again: that would do the work anew, in place of what is there.
                reason = f"its work could not be kept: {error.message}; it is in {tree.place}"
                told["code"] = error.code
                return failed(reason, retryable=False), told
        await asyncio.shield(tree.remove())
        return outcome, told


def _told(result: Result, outcome: Outcome) -> dict[str, Json]:
    said = result.text
    files: list[Json] = [file.path for file in result.files]
    denied: list[Json] = [*sorted({refusal.name for refusal in result.denied})]
    told: dict[str, Json] = {
        "text": said[:LONGEST],
        "output": result.output,
        "code": result.error.code if result.error else "" if outcome.ok else result.status,
        "files": files,
        "denied": denied,
        "agent": result.agent,
        "model": result.model,
        "label": result.label,
        "cut": len(said) > LONGEST,
    }
    return {key: value for key, value in told.items() if value not in (None, "", [], False)}


@asynccontextmanager
async def _place(
    work: NodeContext, commit: str
) -> AsyncGenerator[tuple[Path, TaskWorktree | None]]:
    """Where it works: the workspace, or the same folder in a worktree of its own. The worktree is
    removed if the task raises; else its work must be kept first."""
    if not commit:
        yield work.workspace, None
        return
    root = Path(work.node.text("repository"))
    names = (work.node.text("batch"), work.visit.id, str(work.folder))
    tree = await TaskWorktree.make(root, commit, task_folder(root, *names))
    try:
        yield tree.place / work.workspace.relative_to(root), tree
    except BaseException:
        await asyncio.shield(tree.remove())
        raise


async def _kept(work: NodeContext, tree: TaskWorktree) -> dict[str, Json]:
    branch = branch_name(work.node.text("batch"), work.visit.id)
    change = await tree.commit_to(branch, f"{work.node.text('batch')}: {work.visit.id}")
    if change is None:
        return {}
    told: dict[str, Json] = {"branch": change.branch, "commit": change.commit}
    told["files"] = list(change.files)
    if work.node.is_true("patch"):
        told["patch"] = change.patch
    return told


HANDLERS: dict[str, Handler] = {"batch.item": item}
