# ruff: noqa: I001 (it would split ``import A as A, B as B``)
"""Workflows: durable programs in Python, whose steps are agents, models, commands and people.

::

    import corral
    from corral import workflows

    @corral.workflow
    async def fix(flow: workflows.Flow, issue: str) -> str:
        done = await flow.run("gemini-cli", f"Fix {issue}", policy="edits")
        check = await flow.command("pytest -q")
        return done.text if check.ok else check.stdout

    result = workflows.run_sync(fix, {"issue": "The login fails"})
    print(result.status, result.output)

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral._core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral._engine.run_options import WorkflowKwargs as WorkflowKwargs
    from corral._engine.run_result import WorkflowResult as WorkflowResult
    from corral._engine.workflow_runs import (
        ResumePlan as ResumePlan,
        run as run,
        run_sync as run_sync,
    )
    from corral._workflows.definition import Workflow as Workflow, workflow as workflow
    from corral._workflows.flow import (
        AgentStep as AgentStep,
        CommandStep as CommandStep,
        Flow as Flow,
        PersonAnswer as PersonAnswer,
    )

_HOMES = {
    "corral._engine.run_options": "WorkflowKwargs",
    "corral._engine.run_result": "WorkflowResult",
    "corral._engine.workflow_runs": "ResumePlan run run_sync",
    "corral._workflows.definition": "Workflow workflow",
    "corral._workflows.flow": "AgentStep CommandStep Flow PersonAnswer",
}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return public_names(_HOMES)
