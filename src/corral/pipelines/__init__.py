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
    from corral.engine.front import (
        answer,
        cancel,
        fork,
        resume,
        run,
        run_sync,
        runs,
        show,
    )
    from corral.engine.results import PipelineResult
    from corral.pipelines import draw, events, handlers, people
    from corral.pipelines.desk import Desk
    from corral.pipelines.dot import DotError, parse
    from corral.pipelines.findings import Finding
    from corral.pipelines.graph import Edge, Graph, Node
    from corral.pipelines.handlers import Work
    from corral.pipelines.linting import LintError, lint
    from corral.pipelines.loading import load
    from corral.pipelines.orders import Answer, Choice, Question
    from corral.pipelines.outcome import Outcome
    from corral.pipelines.people import Interviewer

_HOMES = {
    "corral.engine.results": "PipelineResult",
    "corral.engine.front": "answer cancel fork resume run run_sync runs show",
    "corral.pipelines": "draw events handlers people",
    "corral.pipelines.desk": "Desk",
    "corral.pipelines.dot": "DotError parse",
    "corral.pipelines.graph": "Edge Graph Node",
    "corral.pipelines.handlers": "Work",
    "corral.pipelines.findings": "Finding",
    "corral.pipelines.linting": "LintError lint",
    "corral.pipelines.loading": "load",
    "corral.pipelines.orders": "Answer Choice Question",
    "corral.pipelines.outcome": "Outcome",
    "corral.pipelines.people": "Interviewer",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Answer",
    "Choice",
    "Desk",
    "DotError",
    "Edge",
    "Finding",
    "Graph",
    "Interviewer",
    "LintError",
    "Node",
    "Outcome",
    "PipelineResult",
    "Question",
    "Work",
    "answer",
    "cancel",
    "draw",
    "events",
    "fork",
    "handlers",
    "lint",
    "load",
    "parse",
    "people",
    "resume",
    "run",
    "run_sync",
    "runs",
    "show",
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
