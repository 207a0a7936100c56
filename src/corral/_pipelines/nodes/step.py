"""The steps of a workflow: an agent, a model call, a command, the merge queue.

The context has the inputs of the step, as ``corral._workflows.flow`` makes them, and of a thread
its session. The outcome has the result, as JSON, under ``RESULT``. Nothing in a prompt or a command
is replaced: the program has made the text. In a simulation agents and models have the result of
``_simulated``, and nothing is merged; commands run, unless nothing does (``pipelines.simulation``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from msgspec import to_builtins
from msgspec.structs import replace

from corral._pipelines import node_kinds
from corral._pipelines.execution.agent_call import AgentCall
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.node_options import command_sandbox
from corral._pipelines.execution.shell import last_bytes, node_env, run_shell_command
from corral._pipelines.scheduler.outcome import RESULT, Outcome, failed
from corral._pipelines.simulation import runs_nothing, simulated_answer
from corral._protocol.schema_sample import sample_value
from corral._system.threads import in_thread
from corral.options import RunOptions
from corral.policy import Policy
from corral.values import Json, JsonObject, as_object, as_text, as_texts, convert_to, is_object

if TYPE_CHECKING:
    from corral._merging.api import MergeReport
    from corral.run_kwargs import RunKwargs

TIMEOUT = 3600.0
"""Seconds for a command, if its step has no ``timeout``."""
MAX_OUTPUT = 128 * 1024
"""Bytes of stdout and of stderr in a result: the last ones. ``tool_output.txt`` has more."""
MAX_OUTPUTS, MAX_FILES = 200_000, 20
"""Characters of all outputs in the report of a merge, and files in conflict of each branch."""


async def run_agent(work: NodeContext) -> Outcome:
    """The result has the fields of a batch's result."""
    from corral._pipelines.nodes import item

    inputs, visit = work.context, work.visit
    if work.resources.simulate:
        return _simulated(work)
    # The session of the thread stays; the inputs are not a part of the prompt.
    context = {key: value for key, value in inputs.items() if key.startswith("internal.")}
    work = replace(work, visit=replace(visit, context=context))
    if inputs.get("worktree"):
        from corral._system.git.worktree import repository_root

        root, commit = await in_thread(repository_root, work.workspace)
        own = {"worktree": commit, "repository": str(root), "batch": work.run_id}
        own["branches"] = _steps_of(work)
        work = replace(work, node=replace(work.node, attrs={**work.node.attrs, **own}))

    def prepare(inner: NodeContext, call: AgentCall) -> None:
        given = _options_of(work)
        given["cwd"] = os.path.join(inner.workspace, as_text(given.get("cwd")))
        cast("dict[str, object]", call.options).update(given)
        call.has_preamble = False
        if is_object(schema := inputs.get("output")):
            call.schema = schema
        if command := as_text(inputs.get("until")):
            from corral._verification.command_check import command_succeeds

            env = {**inner.resources.command_env(inner), **node_env(inner)}
            passed = inner.resources.pass_env(inner)
            call.until = command_succeeds(command, env=env, pass_env=passed)
        if isinstance(rounds := inputs.get("rounds"), int):
            call.rounds = rounds

    outcome, fields = await item.run_agent(work, as_text(inputs["prompt"]), prepare)
    session = outcome.context_updates.get(f"internal.thread.{visit.thread}")
    if session is not None:
        fields["session"] = session
    if outcome.cost_usd is not None:
        fields["cost_usd"] = outcome.cost_usd
    if outcome.tokens is not None:
        fields["tokens"] = outcome.tokens
    # What a wait for a rate limit must know stays.
    return replace(outcome, context_updates={**outcome.context_updates, RESULT: fields})


async def generate(work: NodeContext) -> Outcome:
    """The result is the text, or the value of the schema."""
    from corral._pipelines.nodes.prompt import ask_model, outcome_with_cost

    inputs = work.context
    if work.resources.simulate:
        return _simulated(work)
    prompt = as_text(inputs["prompt"])
    work.write_file("prompt.md", prompt)
    schema = inputs.get("output")
    generation = await ask_model(work, prompt, schema if is_object(schema) else None)
    work.write_file("response.md", generation.text)
    text = work.resources.redactor.clean_text(generation.text)
    return outcome_with_cost(generation, {RESULT: text if schema is None else generation.output})


async def command(work: NodeContext) -> Outcome:
    """The result says how the command ended; without ``check`` any exit code is a success of the
    step."""
    inputs, resources = work.context, work.resources
    env = {key: as_text(value) for key, value in as_object(inputs.get("env")).items()}
    text = as_text(inputs["command"])
    timeout = work.node.seconds("timeout") or TIMEOUT
    work.write_file("prompt.md", text)
    if runs_nothing(resources.simulate):
        answer = simulated_answer(work.node)
        work.write_file("tool_output.txt", answer)
        simulated: JsonObject = {"ok": True, "exit_code": 0, "stdout": answer, "stderr": ""}
        return Outcome(context_updates={RESULT: simulated})
    done = await run_shell_command(
        text,
        cwd=work.workspace / as_text(inputs.get("cwd")),
        env={**resources.command_env(work), **env, **node_env(work)},
        pass_env=resources.pass_env(work),
        timeout=timeout,
        sandbox=command_sandbox(work),
    )
    done = done.redacted(resources.redactor)
    work.write_file("tool_output.txt", done.stdout)
    result: JsonObject = {
        "ok": done.ok,
        "exit_code": done.code,
        "stdout": last_bytes(done.stdout.decode("utf-8", "replace"), MAX_OUTPUT),
        "stderr": last_bytes(done.stderr, MAX_OUTPUT),
        "timed_out": done.timed_out,
    }
    outcome = Outcome(context_updates={RESULT: result})
    if done.ok or not inputs.get("check"):
        return outcome
    tail = done.output_tail()
    return replace(
        outcome,
        status="fail",
        failure_reason=f"`{text}` {done.end(timeout)}" + (f": {tail}" if tail else ""),
        failure_class="timeout" if done.timed_out else "permanent",
    )


async def merge(work: NodeContext) -> Outcome:
    """The result is the report of the merge queue; with ``check`` a branch that is not merged is a
    failure of the step."""
    from corral._merging.api import MergeReport
    from corral._merging.queue import MergeEntry
    from corral._pipelines.nodes import merging

    node, inputs = work.node, work.context
    branches, into = as_texts(inputs["branches"]), node.text("into")
    if work.resources.simulate:
        text = simulated_answer(node)
        entries = [
            MergeEntry(number=number, branch=branch, commit="", state="merged", reason=text)
            for number, branch in enumerate(branches, 1)
        ]
        report = MergeReport(queue="", into=into, tip="", entries=entries)
    else:
        options = _options_of(work)
        RunOptions.build("corral", options)  # raises before anything is merged
        gates = as_texts(inputs["gates"])
        report = await merging.merge_branches(
            work, branches, into, gates, cast("RunKwargs", options)
        )
    left = report.reasons
    stored = as_object(to_builtins(_shortened(report)))
    outcome = Outcome(
        status="partial_success" if left else "success",
        notes=report.summary,
        context_updates={RESULT: stored},
        cost_usd=report.cost_usd or None,
    )
    if not left or not inputs.get("check"):
        return outcome
    reason = f"{len(left)} of {len(branches)} branches were not merged: {'; '.join(left)}"
    return replace(outcome, status="fail", failure_reason=reason, failure_class="permanent")


def _shortened(report: MergeReport) -> MergeReport:
    """The report with so much of the outputs that a step can have it as its result."""
    most = MAX_OUTPUTS // max(1, len(report.entries))
    entries = [
        replace(entry, output=entry.output[-most:], files=entry.files[:MAX_FILES])
        for entry in report.entries
    ]
    return replace(report, entries=entries)


def _steps_of(work: NodeContext) -> str:
    """What the branches of the steps of a run are below. A run with its own worktree has the branch
    ``corral/RUN``: git allows none below it."""
    return f"{work.run_id}--steps"


def _options_of(work: NodeContext) -> dict[str, object]:
    """The options of ``corral.run`` that the step was called with."""
    given: dict[str, object] = {**as_object(work.context.get("options"))}
    if is_object(policy := given.get("policy")):
        given["policy"] = convert_to(policy, Policy)
    return given


def _simulated(work: NodeContext) -> Outcome:
    """The outcome of an agent or a model in a simulation: a text that says so, or a value that
    fits the schema. An agent that may write in its own worktree has the name of its branch, which
    does not exist: only a simulated merge takes it."""
    answer, schema = simulated_answer(work.node), work.context.get("output")
    work.write_file("prompt.md", as_text(work.context["prompt"]))
    value: Json = answer
    if is_object(schema):
        try:
            value = sample_value(schema, answer)
        except ValueError as error:
            reason = f"no simulated value fits the output of {work.node.id}: {error}"
            return failed(reason, retryable=False)
    work.write_file("response.md", as_text(value))
    if work.node.kind == node_kinds.GENERATE_STEP.name:
        return Outcome(context_updates={RESULT: value})
    fields: JsonObject = {"text": answer, "output": value}
    if work.context.get("worktree") and _options_of(work).get("policy") != "reads":
        from corral._system.git.worktree import branch_name

        fields["branch"] = branch_name(_steps_of(work), work.visit.id)
    return Outcome(context_updates={RESULT: fields})
