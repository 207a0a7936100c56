"""Pipelines: graphs of agents, models, commands and people, in memory or durable.

::

    from corral import pipelines

    result = pipelines.run_sync("review.dot", goal="Review this project")
    print(result.status, result.text)

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.durable.api import (
        PipelineResult,
        fork,
        fork_sync,
        resume,
        resume_sync,
        run,
        run_sync,
    )
    from corral.durable.existing_runs import (
        add_budget,
        add_budget_sync,
        answer,
        answer_sync,
        answer_with_token,
        answer_with_token_sync,
        cancel,
        cancel_sync,
        runs,
        runs_sync,
        show,
        show_sync,
    )
    from corral.pipelines import events
    from corral.pipelines.dot.errors import DotError
    from corral.pipelines.dot.parser import parse
    from corral.pipelines.dot.writer import as_dot
    from corral.pipelines.execution.handlers import NodeContext, NodeResources, handler, register
    from corral.pipelines.execution.interviewers import (
        AutoApprove,
        Callback,
        Console,
        Interviewer,
        Queued,
        Recording,
    )
    from corral.pipelines.graph import Edge, Graph, Node
    from corral.pipelines.linter.engine import LintError, lint
    from corral.pipelines.linter.finding import Finding
    from corral.pipelines.loader import load
    from corral.pipelines.render.svg import as_svg
    from corral.pipelines.render.text import as_text
    from corral.pipelines.scheduler.commands import Answer, Choice, Question
    from corral.pipelines.scheduler.outcome import Outcome

_HOMES = {
    "corral.durable.api": "PipelineResult fork fork_sync resume resume_sync run run_sync",
    "corral.durable.existing_runs": "add_budget add_budget_sync answer answer_sync"
    " answer_with_token answer_with_token_sync cancel cancel_sync runs runs_sync show show_sync",
    "corral.pipelines": "events",
    "corral.pipelines.dot.errors": "DotError",
    "corral.pipelines.dot.parser": "parse",
    "corral.pipelines.dot.writer": "as_dot",
    "corral.pipelines.graph": "Edge Graph Node",
    "corral.pipelines.execution.handlers": "NodeContext NodeResources handler register",
    "corral.pipelines.linter.finding": "Finding",
    "corral.pipelines.linter.engine": "LintError lint",
    "corral.pipelines.loader": "load",
    "corral.pipelines.scheduler.commands": "Answer Choice Question",
    "corral.pipelines.scheduler.outcome": "Outcome",
    "corral.pipelines.execution.interviewers": "AutoApprove Callback Console Interviewer Queued"
    " Recording",
    "corral.pipelines.render.svg": "as_svg",
    "corral.pipelines.render.text": "as_text",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Answer",
    "AutoApprove",
    "Callback",
    "Choice",
    "Console",
    "DotError",
    "Edge",
    "Finding",
    "Graph",
    "Interviewer",
    "LintError",
    "Node",
    "NodeContext",
    "NodeResources",
    "Outcome",
    "PipelineResult",
    "Question",
    "Queued",
    "Recording",
    "add_budget",
    "add_budget_sync",
    "answer",
    "answer_sync",
    "answer_with_token",
    "answer_with_token_sync",
    "as_dot",
    "as_svg",
    "as_text",
    "cancel",
    "cancel_sync",
    "events",
    "fork",
    "fork_sync",
    "handler",
    "lint",
    "load",
    "parse",
    "register",
    "resume",
    "resume_sync",
    "run",
    "run_sync",
    "runs",
    "runs_sync",
    "show",
    "show_sync",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'corral.pipelines' has no attribute {name!r}")
    if home == "corral.pipelines":
        value: object = import_module(f"corral.pipelines.{name}")
    else:
        value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
