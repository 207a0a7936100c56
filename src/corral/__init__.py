# ruff: noqa: I001 (it would split ``import A as A, B as B``)
"""corral: coding agents and models through one interface.

::

    import corral

    result = corral.run_sync("gemini-cli", "What does this project do?")
    print(result.text)

The names below are the public API; each is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral import (
        errors as errors,
        events as events,
        live as live,
        models as models,
        pipelines as pipelines,
        providers as providers,
        serve as serve,
        review as review,
    )
    from corral.comparison.api import (
        Comparison as Comparison,
        compare as compare,
        compare_sync as compare_sync,
    )
    from corral.comparison.summary import ComparisonSummary as ComparisonSummary
    from corral.engine.batch.api import (
        Batch as Batch,
        BatchReport as BatchReport,
        BatchResult as BatchResult,
        batch as batch,
        batch_sync as batch_sync,
    )
    from corral.engine.batch.tasks import file_tasks as file_tasks
    from corral.errors import CorralError as CorralError
    from corral.events import Event as Event, from_json as from_json, to_json as to_json
    from corral.policy import Policy as Policy
    from corral.prompt import Prompt as Prompt, Section as Section
    from corral.protocol.schema import Schema as Schema, schema_of as schema_of
    from corral.result import Result as Result, result_from_events as result_from_events
    from corral.run_kwargs import RunKwargs as RunKwargs
    from corral.sessions.api import (
        is_installed as is_installed,
        pool as pool,
        run as run,
        session as session,
    )
    from corral.metering.budget import Budget as Budget
    from corral.sessions.merge_events import merge as merge
    from corral.sessions.pool import Pool as Pool
    from corral.sessions.session import Session as Session
    from corral.sessions.api import (
        SyncSession as SyncSession,
        run_sync as run_sync,
        session_sync as session_sync,
    )
    from corral.sessions.tools.hooks import (
        Allow as Allow,
        Deny as Deny,
        Edit as Edit,
        Hook as Hook,
        ToolRequest as ToolRequest,
        call_budget as call_budget,
        read_before_write as read_before_write,
        required_order as required_order,
    )
    from corral.sessions.tools.tools import Tool as Tool, Tools as Tools
    from corral.sessions.turn import Turn as Turn
    from corral.sessions.goals import (
        command_succeeds as command_succeeds,
        files_exist as files_exist,
    )
    from corral.values import (
        AgentSession as AgentSession,
        AskedQuestion as AskedQuestion,
        Cost as Cost,
        DeniedCall as DeniedCall,
        FileChanged as FileChanged,
        McpServer as McpServer,
        Usage as Usage,
    )
    from corral.version import __version__ as __version__

_HOMES = {
    "corral": "errors events live models pipelines providers review serve",
    "corral.comparison.api": "Comparison compare compare_sync",
    "corral.comparison.summary": "ComparisonSummary",
    "corral.engine.batch.api": "Batch BatchReport BatchResult batch batch_sync",
    "corral.engine.batch.tasks": "file_tasks",
    "corral.errors": "CorralError",
    "corral.events": "Event from_json to_json",
    "corral.policy": "Policy",
    "corral.prompt": "Prompt Section",
    "corral.protocol.schema": "Schema schema_of",
    "corral.result": "Result result_from_events",
    "corral.run_kwargs": "RunKwargs",
    "corral.sessions.api": "SyncSession is_installed pool run run_sync session session_sync",
    "corral.metering.budget": "Budget",
    "corral.sessions.merge_events": "merge",
    "corral.sessions.pool": "Pool",
    "corral.sessions.session": "Session",
    "corral.sessions.tools.hooks": "Allow Deny Edit Hook ToolRequest call_budget read_before_write"
    " required_order",
    "corral.sessions.tools.tools": "Tool Tools",
    "corral.sessions.turn": "Turn",
    "corral.sessions.goals": "command_succeeds files_exist",
    "corral.values": "AgentSession AskedQuestion Cost DeniedCall FileChanged McpServer Usage",
    "corral.version": "__version__",
}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return public_names(_HOMES)
