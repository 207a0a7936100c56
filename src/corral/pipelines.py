# ruff: noqa: I001 (it would split ``import A as A, B as B``)
"""Pipelines: graphs of agents, models, commands and people, in memory or durable.

::

    from corral import pipelines

    result = pipelines.run_sync("review.dot", goal="Review this project")
    print(result.status, result.text)

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral._core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral._engine.pipeline_runs import (
        run as run,
        run_sync as run_sync,
    )
    from corral._engine.run_options import PipelineKwargs as PipelineKwargs
    from corral._engine.run_result import PipelineResult as PipelineResult
    from corral._pipelines import events as events
    from corral._pipelines.dot_parser import DotError as DotError, parse as parse
    from corral._pipelines.execution.handlers import (
        NodeContext as NodeContext,
        NodeResources as NodeResources,
        handler as handler,
        register as register,
    )
    from corral._pipelines.execution.interviewers import (
        AutoApprove as AutoApprove,
        Callback as Callback,
        Console as Console,
        Interviewer as Interviewer,
        Queued as Queued,
        Recording as Recording,
    )
    from corral._pipelines.graph import Edge as Edge, Graph as Graph, Node as Node
    from corral._pipelines.linter.engine import LintError as LintError, lint as lint
    from corral._pipelines.linter.finding import Finding as Finding
    from corral._pipelines.loader import load as load
    from corral._pipelines.render import as_dot as as_dot, as_svg as as_svg, as_text as as_text
    from corral._pipelines.scheduler.commands import (
        Answer as Answer,
        Choice as Choice,
        Question as Question,
    )
    from corral._pipelines.scheduler.outcome import Outcome as Outcome

_HOMES = {
    "corral._engine.pipeline_runs": "run run_sync",
    "corral._engine.run_options": "PipelineKwargs",
    "corral._engine.run_result": "PipelineResult",
    "corral._pipelines.": "events",
    "corral._pipelines.dot_parser": "DotError parse",
    "corral._pipelines.execution.handlers": "NodeContext NodeResources handler register",
    "corral._pipelines.execution.interviewers": "AutoApprove Callback Console Interviewer Queued"
    " Recording",
    "corral._pipelines.graph": "Edge Graph Node",
    "corral._pipelines.linter.engine": "LintError lint",
    "corral._pipelines.linter.finding": "Finding",
    "corral._pipelines.loader": "load",
    "corral._pipelines.render": "as_dot as_svg as_text",
    "corral._pipelines.scheduler.commands": "Answer Choice Question",
    "corral._pipelines.scheduler.outcome": "Outcome",
}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return public_names(_HOMES)
