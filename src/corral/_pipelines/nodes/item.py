"""``batch.item``: one task of a batch. Its outcome has the complete result.

The node has the template of the prompt, and the attributes that all tasks share: ``agent``,
``model``, ``timeout``, ``output_schema``, ``worktree`` (a commit; the repository is around the
workspace), ``branches`` (how the names of branches begin, if not with the batch). The context has
only the fields of the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from corral._merging import owners
from corral._merging.owners import BranchOwner
from corral._pipelines import templates
from corral._pipelines.execution import agent_call
from corral._pipelines.execution.agent_call import AgentCall
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.scheduler.outcome import (
    LEFT,
    TASK_RESULT,
    Outcome,
    failed,
    failed_task,
    outcome_of_error,
)
from corral._system.clock import Stopwatch
from corral._system.git.worktree import TaskWorktree, branch_name, check_branches, task_folder
from corral._system.threads import in_thread
from corral.errors import BudgetExceeded, CorralError, StorageFailed
from corral.result import Result
from corral.values import Json, JsonObject

MAX_TEXT = 400_000
"""Characters of an answer in its result. ``response.md`` has all of it."""


async def find_left(work: NodeContext) -> Outcome | None:
    """The outcome of a task that is not started; None if its batch has a budget left."""
    if work.budget is not None and work.attempt == 1:
        try:
            await in_thread(work.budget.check)
        except BudgetExceeded as error:
            return failed_task(error.message, error.code, **{LEFT: True})
    return None


async def item(work: NodeContext) -> Outcome:
    """If the agent's run fails, the task fails with its error code and reason."""
    if (left := await find_left(work)) is not None:
        return left
    stopwatch = Stopwatch()
    prompt = templates.fill(work.node.text("prompt"), work.context)
    # The prompt contains the fields already: the preamble must not repeat them.
    work = msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, context={}))
    fields: JsonObject = {}
    try:
        if work.resources.simulate:
            work.write_file("prompt.md", prompt)
            work.write_file("response.md", prompt)
            fields["text"] = f"[Simulated] {prompt}"[:MAX_TEXT]
            outcome = Outcome()
        else:
            outcome, fields = await run_agent(work, prompt)
    except CorralError as error:
        outcome = outcome_of_error(error)
        fields["code"] = error.code
    fields["seconds"] = round(stopwatch.seconds, 3)
    return msgspec.structs.replace(outcome, context_updates={TASK_RESULT: fields})


async def run_agent(
    work: NodeContext, prompt: str, prepare: Callable[[NodeContext, AgentCall], None] | None = None
) -> tuple[Outcome, JsonObject]:
    """Run the agent of the node, in its own worktree if the node has one; ``prepare`` may
    change the call. Returns the outcome and the fields of the result. Raises ``CorralError``."""
    commit = work.node.text("worktree")
    async with _workspace(work, commit) as (workspace, tree):
        sessions: list[BranchOwner] = []
        on_owner = work.on_owner if tree is None else sessions.append
        work = msgspec.structs.replace(work, workspace=workspace, on_owner=on_owner)
        call = agent_call.build_call(work)
        if prepare is not None:
            prepare(work, call)
        result = await agent_call.send_prompt(work, call, prompt)
        outcome = agent_call.outcome_of_result(work, call, result)
        fields = result_fields(result, outcome)
        if result.text:
            work.write_file("response.md", result.text)
        if tree is None:
            return outcome, fields
        # What git saves is all that is left of the task's changes.
        fields["files"], fields["files_incomplete"] = [], False
        if outcome.ok:
            try:
                batch = work.node.text("batch")
                branch = branch_name(work.node.text("branches") or batch, work.visit.id)
                change = await tree.commit_to(branch, f"{batch}: {work.visit.id}")
                if change is not None:
                    owner = sessions[-1] if sessions else None
                    within = str(workspace.relative_to(tree.place))
                    await in_thread(owners.record_in, tree, branch, owner, within)
                    fields |= {"branch": change.branch, "commit": change.commit}
                    fields["files"] = list(change.files)
                    if work.node.is_true("patch"):
                        fields["patch"] = change.patch
            except StorageFailed as error:
                # Not retryable: another attempt would replace the work that is in the worktree.
                reason = f"its work could not be saved: {error.message}; it is in {tree.place}"
                fields["code"] = error.code
                return failed(reason, retryable=False), fields
        await asyncio.shield(tree.remove())
        return outcome, fields


def result_fields(result: Result, outcome: Outcome) -> JsonObject:
    """The fields of a result that are not empty."""
    text = result.text
    files: list[Json] = [file.path for file in result.files]
    denied: list[Json] = [*sorted({denied.name for denied in result.denied})]
    fields: JsonObject = {
        "text": text[:MAX_TEXT],
        "output": result.output if result.ok else None,
        "code": result.error.code if result.error else "" if outcome.ok else result.status,
        "files": files,
        "files_incomplete": not result.files_complete,
        "denied": denied,
        "agent": result.agent,
        "model": result.model,
        "label": result.label,
        "cut": len(text) > MAX_TEXT,
        "verdict": "" if result.receipt is None else result.verdict,
        "gaps": [*result.gaps],
    }
    return {key: value for key, value in fields.items() if value not in (None, "", [], False)}


@asynccontextmanager
async def _workspace(
    work: NodeContext, commit: str
) -> AsyncGenerator[tuple[Path, TaskWorktree | None]]:
    """The workspace of the task: that of the node, or the same folder in a new worktree. The
    worktree is removed if the task raises; otherwise its changes must be saved first."""
    if not commit:
        yield work.workspace, None
        return
    root = Path(work.node.text("repository"))
    names = (work.node.text("batch"), work.visit.id, str(work.folder))
    await in_thread(check_branches, root)
    tree = await TaskWorktree.make(root, commit, task_folder(root, *names))
    try:
        yield tree.place / work.workspace.relative_to(root), tree
    except BaseException:
        await asyncio.shield(tree.remove())
        raise
