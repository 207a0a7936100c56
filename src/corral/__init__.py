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

from corral._core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral import (
        errors as errors,
        events as events,
        live as live,
        merge_queue as merge_queue,
        models as models,
        pipelines as pipelines,
        providers as providers,
        serve as serve,
        review as review,
        runs as runs,
        workflows as workflows,
    )
    from corral._comparison.api import (
        CompareKwargs as CompareKwargs,
        Comparison as Comparison,
        compare as compare,
        compare_sync as compare_sync,
    )
    from corral._comparison.summary import ComparisonSummary as ComparisonSummary
    from corral._engine.batch.api import (
        Batch as Batch,
        BatchReport as BatchReport,
        BatchResult as BatchResult,
        batch as batch,
        batch_sync as batch_sync,
    )
    from corral._engine.batch.spec import BatchKwargs as BatchKwargs
    from corral._engine.batch.tasks import file_tasks as file_tasks
    from corral.errors import CorralError as CorralError
    from corral.events import Event as Event, from_json as from_json, to_json as to_json
    from corral.policy import Policy as Policy
    from corral.prompt import Prompt as Prompt, Section as Section
    from corral._protocol.schema import Schema as Schema, schema_of as schema_of
    from corral.result import Result as Result, result_from_events as result_from_events
    from corral.run_kwargs import RunKwargs as RunKwargs
    from corral._sessions.api import (
        is_installed as is_installed,
        pool as pool,
        run as run,
        session as session,
    )
    from corral._metering.budget import Budget as Budget
    from corral._sessions.merge_events import merge as merge
    from corral._sessions.pool import Pool as Pool
    from corral._sessions.session import Session as Session
    from corral._sessions.api import (
        SyncSession as SyncSession,
        run_sync as run_sync,
        session_sync as session_sync,
    )
    from corral._sessions.tools.hooks import (
        Allow as Allow,
        Deny as Deny,
        Edit as Edit,
        Hook as Hook,
        HookAnswer as HookAnswer,
        ToolRequest as ToolRequest,
        call_budget as call_budget,
        read_before_write as read_before_write,
        required_order as required_order,
    )
    from corral._sessions.tools.tools import Tool as Tool, Tools as Tools
    from corral._sessions.turn import Turn as Turn
    from corral._verification.command_check import command_succeeds as command_succeeds
    from corral._verification.check import files_exist as files_exist
    from corral._verification.scenarios.scenario_check import scenarios as scenarios
    from corral._verification.verified import verified as verified
    from corral.values import (
        AgentSession as AgentSession,
        AskedQuestion as AskedQuestion,
        Cost as Cost,
        DeniedCall as DeniedCall,
        FileChanged as FileChanged,
        McpServer as McpServer,
        Usage as Usage,
    )
    from corral._workflows.definition import workflow as workflow
    from corral.version import __version__ as __version__

_HOMES = {
    "corral.": "errors events live merge_queue models pipelines providers review runs serve"
    " workflows",
    "corral._comparison.api": "CompareKwargs Comparison compare compare_sync",
    "corral._comparison.summary": "ComparisonSummary",
    "corral._engine.batch.api": "Batch BatchReport BatchResult batch batch_sync",
    "corral._engine.batch.spec": "BatchKwargs",
    "corral._engine.batch.tasks": "file_tasks",
    "corral.errors": "CorralError",
    "corral.events": "Event from_json to_json",
    "corral.policy": "Policy",
    "corral.prompt": "Prompt Section",
    "corral._protocol.schema": "Schema schema_of",
    "corral.result": "Result result_from_events",
    "corral.run_kwargs": "RunKwargs",
    "corral._sessions.api": "SyncSession is_installed pool run run_sync session session_sync",
    "corral._metering.budget": "Budget",
    "corral._sessions.merge_events": "merge",
    "corral._sessions.pool": "Pool",
    "corral._sessions.session": "Session",
    "corral._sessions.tools.hooks": "Allow Deny Edit Hook HookAnswer ToolRequest call_budget"
    " read_before_write required_order",
    "corral._sessions.tools.tools": "Tool Tools",
    "corral._sessions.turn": "Turn",
    "corral._verification.command_check": "command_succeeds",
    "corral._verification.check": "files_exist",
    "corral._verification.scenarios.scenario_check": "scenarios",
    "corral._verification.verified": "verified",
    "corral.values": "AgentSession AskedQuestion Cost DeniedCall FileChanged McpServer Usage",
    "corral._workflows.definition": "workflow",
    "corral.version": "__version__",
}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return public_names(_HOMES)
