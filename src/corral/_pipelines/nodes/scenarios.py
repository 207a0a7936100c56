"""``scenarios``: held-out scenarios judge the workspace, as it is now, on a clean tree.

Attributes: ``scenarios`` (their folder), ``threshold``, ``judge`` (a model), ``keep_best``,
``timeout``. The outcome is a success if the threshold is reached. The context gets counts and
classes, and ``scenarios.summary``, a text with them for the prompt of an agent. Names,
texts and outputs are in the report for the user only.

The other nodes of the graph must not read the folder: their agents and commands run in the sandbox,
which hides it (``node_options.hidden_of``).

With ``keep_best`` (the default), a state that is worse than the best one so far is replaced by that
at once, so the files are those of the best state whenever the loop ends. What was replaced stays in
the store of the run: nothing is lost.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from corral._pipelines import node_kinds
from corral._pipelines.execution.agent_call import store_usage
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.node_options import budget_of, scenario_check, scenario_sandbox
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._system import clock, fs, paths
from corral._system.threads import in_thread
from corral._verification.check import JUDGE, CheckContext, ModelSpending
from corral._verification.clean_tree import CleanTree
from corral._verification.run_trees import RunTrees, TreeChoice
from corral._verification.scenarios.scenario_check import ScenarioCheck
from corral.errors import ConfigError, StorageFailed
from corral.events import Done
from corral.receipt import Evidence
from corral.values import (
    Cost,
    JsonObject,
    Usage,
    as_object,
    as_text,
    convert_to,
    number_or_none,
    slug,
)

TIMEOUT = 3600.0
"""Seconds, if the node has no ``timeout``."""
OLD = 30 * 24 * 3600.0
"""Seconds after which the states of a run are removed."""


async def scenarios(work: NodeContext) -> Outcome:
    """See the module."""
    if work.resources.simulate:
        return Outcome()
    try:
        check = await in_thread(scenario_check, work)
    except ConfigError:
        # Its message may name a scenario. Before the run, the person who started it has seen it.
        reason = f"{work.node.id}: the held-out scenarios cannot be read any more"
        raise ConfigError(reason, hint="Start the run again: it says why.") from None
    trees = RunTrees(
        str(work.workspace), await in_thread(_own_folder, work), TreeChoice(verify_from="after")
    )
    evidence, tree = await _judge(work, check, trees)
    spent = _store_usage(work, evidence)
    details = evidence.details
    updates: JsonObject = {
        name: value
        for key, value in details.items()
        if (name := f"scenarios.{key}") in node_kinds.SCENARIOS.sets
    }
    updates["scenarios.summary"] = evidence.reason or "The held-out scenarios are satisfied."
    fraction = number_or_none(details.get("fraction"))
    if fraction is not None and work.node.text("keep_best") != "false":
        updates |= await in_thread(_keep_best, work, trees, tree, fraction)
    work.write_file("scenarios.json", msgspec.json.encode(updates))
    outcome = (
        Outcome()
        if evidence.passed
        else failed(evidence.reason, retryable=evidence.outcome == "missing")
    )
    return msgspec.structs.replace(
        outcome,
        context_updates=updates,
        cost_usd=spent.cost.usd,
        tokens=spent.usage.total,
    )


async def _judge(work: NodeContext, check: ScenarioCheck, trees: RunTrees) -> tuple[Evidence, str]:
    """The evidence, and the id of the files that were judged. Raises ``StorageFailed``."""
    resources = work.resources
    await in_thread(trees.begin_at_commit)
    state = await in_thread(trees.end)
    with contextlib.ExitStack() as stack:
        clean = CleanTree(state, scenario_sandbox(work))
        await in_thread(stack.enter_context, clean)
        context = CheckContext(
            folder=work.workspace,
            run_id=work.run_id,
            left=work.workspace,
            changed=state.changed_files(),
            env=resources.command_env(work),
            pass_env=resources.pass_env(work),
            secrets=resources.secrets,
            budget=budget_of(work),
        )
        return await check.run(clean.context(context)), state.after.tree


def _own_folder(work: NodeContext) -> Path:
    """Where the states of the workspace are stored during the run. Those of old runs are
    removed."""
    above = paths.make_dir(paths.home() / "scenarios" / "states")
    for name in fs.list_names(above):
        with contextlib.suppress(OSError):
            if clock.now() - fs.status(above / name).st_mtime > OLD:
                fs.remove_tree(above / name)
    return paths.make_dir(above / slug(f"{work.run_id}-{work.node.id}", limit=120, allowed="_."))


def _keep_best(work: NodeContext, trees: RunTrees, tree: str, fraction: float) -> JsonObject:
    """What the context remembers of the best state, after it was put back if this one is worse."""
    key = f"internal.scenarios.{work.node.id}"
    known = as_object(work.context.get(key))
    best, best_fraction = as_text(known.get("tree")), number_or_none(known.get("fraction"))
    if best and best_fraction is not None and fraction < best_fraction:
        # Another machine may have stored it.
        with contextlib.suppress(StorageFailed):
            trees.restore(best)
            text = (
                "The files were put back to the best state so far, of which"
                f" {best_fraction:.0%} are satisfied."
            )
            return {"scenarios.restored": True, "scenarios.note": text}
    return {
        "scenarios.restored": False,
        "scenarios.note": "",
        key: {"tree": tree, "fraction": fraction},
    }


def _store_usage(work: NodeContext, evidence: Evidence) -> Done:
    """Store what the judging model has used, and return it."""
    spent = as_object(evidence.details.get(JUDGE))
    if not spent:
        return Done(status="success")
    made = convert_to(spent, ModelSpending)
    done = Done(
        status="success",
        model=made.model,
        usage=Usage(input=made.input_tokens, output=made.output_tokens),
        cost=Cost(usd=made.cost, source="computed"),
        ts=clock.now(),
    )
    store_usage(work, JUDGE, [done])
    return done
