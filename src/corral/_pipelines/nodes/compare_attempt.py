"""``compare.attempt``: one agent tries one task, and its work is verified.

The context of the visit is an ``AttemptTask``. The agent works in its own worktree of a repository.
When it and its processes have ended, its work is stored as a commit and a patch; only then the
verifier runs, in a clean tree of it into which its files are copied. Then the worktree is removed.

The outcome is a success if there is a verdict, passed or failed. An attempt without one is
*missing*: the outcome is a failure, and another attempt may be made (``retryable``). Missing is
what says nothing about the agent's ability (``MISSING``):

* it could not be started or used: not installed, too old, its settings, policy, sandbox or folder
  were rejected, no key, no access, no such model, the call was wrong;
* the vendor or the network failed: rate limit, spent quota, server error, no connection;
* corral stopped it itself: it did not start in time, sent nothing for
  ``idle_timeout``, was cancelled, a disk was full;
* a signal from outside killed it;
* the verifier could not run (``corral._pipelines.execution.verifier``).

Everything else is the agent's own result, and is verified as it is: also after a crash of the
agent, and after ``timeout``, ``max_turns`` or a budget, which are terms of the task and the same
for all agents. Without a verifier an attempt passes if the agent's turn succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from corral._merging import owners
from corral._merging.owners import BranchOwner
from corral._pipelines.attempts import (
    ANSWER,
    PATCH,
    VERIFIER_LOG,
    AttemptRecord,
    AttemptTask,
)
from corral._pipelines.execution import agent_call, verifier
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.verifier import Judgement
from corral._pipelines.nodes.item import find_left, result_fields
from corral._pipelines.scheduler.outcome import (
    TASK_RESULT,
    UNUSABLE,
    Outcome,
    failed,
    outcome_of_error,
)
from corral._protocol.schema import schema_of
from corral._sessions.api import run
from corral._system import clock, fs, paths
from corral._system.clock import Stopwatch
from corral._system.git import repository
from corral._system.git.worktree import Change, TaskWorktree, task_folder
from corral._system.threads import in_thread
from corral._verification.verification import Verification
from corral.errors import (
    CorralError,
    IdleTimeout,
    Interrupted,
    KilledBySignal,
    NetworkFailed,
    RateLimited,
    ServerFailed,
    StartupTimeout,
    StorageFailed,
    from_event,
)
from corral.result import Result
from corral.values import JsonObject, as_object, convert_to

MISSING: tuple[type[CorralError], ...] = (
    *UNUSABLE,
    IdleTimeout,
    Interrupted,
    KilledBySignal,
    NetworkFailed,
    RateLimited,
    ServerFailed,
    StartupTimeout,
    StorageFailed,
)
"""Errors after which there is no verdict. The module's docstring says why."""


class WorkNotStored(StorageFailed):
    """The agent's work is in the worktree only, which therefore stays."""


async def attempt(work: NodeContext) -> Outcome:
    """See the module."""
    if (left := await find_left(work)) is not None:
        return left
    task = convert_to(work.context, AttemptTask)
    record = AttemptRecord(
        task=task.task,
        agent=task.agent,
        repeat=task.repeat,
        verdict="missing",
        started=clock.now(),
        base=task.commit,
        repository=task.repository,
        folder=task.folder,
    )
    stopwatch = Stopwatch()
    fields: JsonObject = {}
    try:
        if work.resources.simulate:
            outcome, record = Outcome(), msgspec.structs.replace(record, verdict="passed")
        else:
            async with _workspace(work, task) as (inner, tree):
                outcome, fields, record = await _run(inner, task, tree, record)
    except CorralError as error:
        outcome = _final(outcome_of_error(error))
        fields["code"] = error.code
        record = msgspec.structs.replace(record, reason=error.message)
    fields |= {"seconds": round(stopwatch.seconds, 3)}
    fields["attempt"] = as_object(msgspec.to_builtins(record))
    return msgspec.structs.replace(outcome, context_updates={TASK_RESULT: fields})


def _final(outcome: Outcome) -> Outcome:
    """Only what may succeed later is tried again."""
    return msgspec.structs.replace(outcome, retryable=bool(outcome.retryable))


@asynccontextmanager
async def _workspace(
    work: NodeContext, task: AttemptTask
) -> AsyncGenerator[tuple[NodeContext, TaskWorktree | None]]:
    """The node's context with the agent's options, in its worktree. The worktree is removed, unless
    the work in it could not be stored."""
    attrs = {**work.node.attrs, "agent": task.backend}
    if task.model:
        attrs["model"] = task.model
    if task.timeout is not None:
        attrs["timeout"] = task.timeout
    node = msgspec.structs.replace(work.node, attrs=attrs)
    # The fields of the task are no context: a preamble must not show them to the agent.
    visit = msgspec.structs.replace(work.visit, context={})
    work = msgspec.structs.replace(work, node=node, visit=visit)
    if not task.repository:
        yield work, None
        return
    root = Path(task.repository)
    place = task_folder(root, work.run_id, task.id, task.folder)
    tree = await TaskWorktree.make(root, task.commit, place)
    try:
        yield msgspec.structs.replace(work, workspace=place / task.inside), tree
    except WorkNotStored:
        raise
    except BaseException:
        await asyncio.shield(_remove(tree))
        raise
    await asyncio.shield(_remove(tree))


def _own_folder(tree: TaskWorktree) -> Path:
    """The folder for the verifier's files, beside the worktree."""
    return tree.place.with_name("verifier")


async def _remove(tree: TaskWorktree) -> None:
    for folder in (_own_folder(tree), _trees_folder(tree)):
        await in_thread(fs.remove_tree, folder)
    await tree.remove()


def _trees_folder(tree: TaskWorktree) -> Path:
    """The folder for the states of its files."""
    return tree.place.with_name("trees")


async def _run(
    work: NodeContext, task: AttemptTask, tree: TaskWorktree | None, record: AttemptRecord
) -> tuple[Outcome, JsonObject, AttemptRecord]:
    await in_thread(paths.make_dir, Path(task.folder))
    verification = await _begin(work, task, tree)
    result, owner = await _run_agent(work, task)
    fields = result_fields(result, Outcome())
    record = msgspec.structs.replace(
        record,
        status=result.status,
        agent_version=result.agent_version or "",
        session=result.run_id.rpartition(".")[0],
        sandbox=result.sandbox or "",
        usage=result.usage,
        agent_seconds=round(result.duration, 3),
    )
    await _write(work, task, ANSWER, result.text)
    if tree is not None:
        if verification is not None:
            with contextlib.suppress(StorageFailed):  # the checks say so
                await in_thread(verification.put_back)
        change = await _store_work(task, tree, owner)
        if change is not None:
            fields |= {"commit": change.commit, "files": list(change.files)}
            record = msgspec.structs.replace(record, commit=change.commit)
    error = None if result.error is None else from_event(result.error)
    if isinstance(error, MISSING):
        record = msgspec.structs.replace(record, reason=error.message)
        outcome = _final(outcome_of_error(error))
    else:
        judgement = await _verify(work, task, tree, result, verification)
        await _write(work, task, VERIFIER_LOG, judgement.output)
        record = msgspec.structs.replace(
            record,
            verdict=judgement.verdict,
            reason=judgement.reason,
            exit_code=judgement.exit_code,
            verifier_seconds=judgement.seconds,
        )
        outcome = Outcome()
        if judgement.verdict == "missing":
            outcome = failed(judgement.reason, retryable=False)
            fields["code"] = "verifier"
    outcome = msgspec.structs.replace(outcome, cost_usd=result.cost.usd, tokens=result.usage.total)
    return outcome, fields, record


async def _run_agent(work: NodeContext, task: AttemptTask) -> tuple[Result, BranchOwner]:
    """Run the agent in its own process. When this returns, all its processes have ended. Its
    session may be asked later to repair what it has made (``corral merge``)."""
    call = agent_call.build_call(work, alone=True)
    options = call.options.copy()
    options["keep"] = options["record"] = True
    options["label"] = options.get("label") or task.id
    result = await run(
        call.agent,
        work.resources.redactor.clean_text(task.prompt),
        on_event=work.emit,
        budget=work.budget,
        output=None if call.schema is None else schema_of(call.schema),
        **options,
    )
    session, kept = result.resume_token or "", owners.options_to_keep(options)
    return result, BranchOwner(agent=call.agent, session=session, options=kept)


async def _begin(
    work: NodeContext, task: AttemptTask, tree: TaskWorktree | None
) -> Verification | None:
    """Store the files from before the attempt; None if there is nothing to verify. Raises
    ``StorageFailed`` if that is not possible: nothing is spent then."""
    if tree is None or not task.verifier.is_given:
        return None
    found = verifier.verification_of(work, task.verifier, _own_folder(tree), _trees_folder(tree))
    await found.begin()
    if found.problem:
        raise StorageFailed(found.problem, retryable=False)
    return found


async def _verify(
    work: NodeContext,
    task: AttemptTask,
    tree: TaskWorktree | None,
    result: Result,
    verification: Verification | None,
) -> Judgement:
    if tree is None or verification is None:
        reason = "" if result.ok else _reason(result)
        return Judgement(verdict="passed" if result.ok else "failed", reason=reason)
    if _is_moved(work.workspace, tree.place, task.inside):
        reason = "the agent has replaced its working directory by a link"
        return Judgement(verdict="failed", reason=reason)
    own = _own_folder(tree)
    judgement = await verifier.judge(work, task.verifier, verification, result, own)
    if judgement.verdict == "failed" and not result.ok:
        reason = f"{judgement.reason}; the agent: {_reason(result)}"
        return msgspec.structs.replace(judgement, reason=reason)
    return judgement


def _is_moved(workspace: Path, worktree: Path, inside: str) -> bool:
    """Whether the working directory in the worktree leads elsewhere: through a link that the agent
    made, the tests would be copied to where that leads."""
    expected = os.path.normpath(os.path.join(fs.real_path(str(worktree)), inside))
    return fs.real_path(str(workspace)) != expected


def _reason(result: Result) -> str:
    return result.status if result.error is None else result.error.message


async def _store_work(task: AttemptTask, tree: TaskWorktree, owner: BranchOwner) -> Change | None:
    """Store the agent's work as a commit and as a patch. Raises ``WorkNotStored``."""
    name = Path(task.folder)
    reference = f"refs/corral/{name.parent.parent.name}/{name.name}"
    try:
        change = await tree.commit_to(reference, task.id)
        if change is not None:
            await in_thread(_write_patch, tree, change, name / PATCH)
            await in_thread(owners.record_in, tree, reference, owner, task.inside or ".")
    except (StorageFailed, OSError) as error:
        reason = f"its work could not be stored: {error}; it is in {tree.place}"
        raise WorkNotStored(reason, retryable=False) from error
    return change


def _write_patch(tree: TaskWorktree, change: Change, path: Path) -> None:
    with path.open("wb") as output:
        repository.write_patch(tree.root, tree.commit, change.commit, output)


async def _write(work: NodeContext, task: AttemptTask, name: str, text: str) -> None:
    if not text:
        return
    data = work.resources.redactor.clean(text.encode("utf-8", "replace"))
    path = Path(task.folder, name)
    try:
        await in_thread(fs.write_atomically, path, data)
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror or error}") from error
