"""corral: coding agents and models through one interface.

::

    import corral

    result = corral.run_sync("gemini-cli", "What does this project do?")
    print(result.text)

The names below are the public API; each is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral import errors, events, live, models, pipelines, providers
    from corral.comparison.api import Comparison, compare, compare_sync
    from corral.comparison.summary import ComparisonSummary
    from corral.durable.batch.api import Batch, BatchReport, BatchResult, batch, batch_sync
    from corral.durable.batch.files import file_tasks
    from corral.errors import CorralError
    from corral.events import Event, from_json, to_json
    from corral.metering.budget import Budget
    from corral.policy import Policy
    from corral.prompt import Prompt, Section
    from corral.result import Result, result_from_events
    from corral.run_kwargs import RunKwargs
    from corral.sessions.api import is_installed, pool, run, session
    from corral.sessions.merge_events import merge
    from corral.sessions.pool import Pool
    from corral.sessions.session import Session
    from corral.sessions.sync_session import SyncSession, run_sync, session_sync
    from corral.sessions.tools.hooks import (
        Allow,
        Deny,
        Edit,
        Hook,
        ToolRequest,
        call_budget,
        read_before_write,
        required_order,
    )
    from corral.sessions.tools.tools import Tool, Tools
    from corral.sessions.turn import Turn
    from corral.sessions.until import command_succeeds, files_exist
    from corral.values import (
        AgentSession,
        AskedQuestion,
        Cost,
        DeniedCall,
        FileChanged,
        McpServer,
        Usage,
    )
    from corral.version import __version__

_HOME = {
    "errors": "corral",
    "events": "corral",
    "live": "corral",
    "models": "corral",
    "pipelines": "corral",
    "providers": "corral",
    "AgentSession": "corral.values",
    "AskedQuestion": "corral.values",
    "Cost": "corral.values",
    "FileChanged": "corral.values",
    "McpServer": "corral.values",
    "DeniedCall": "corral.values",
    "Usage": "corral.values",
    "Comparison": "corral.comparison.api",
    "ComparisonSummary": "corral.comparison.summary",
    "compare": "corral.comparison.api",
    "compare_sync": "corral.comparison.api",
    "Batch": "corral.durable.batch.api",
    "BatchReport": "corral.durable.batch.api",
    "BatchResult": "corral.durable.batch.api",
    "batch": "corral.durable.batch.api",
    "batch_sync": "corral.durable.batch.api",
    "file_tasks": "corral.durable.batch.files",
    "CorralError": "corral.errors",
    "Event": "corral.events",
    "from_json": "corral.events",
    "to_json": "corral.events",
    "RunKwargs": "corral.run_kwargs",
    "Policy": "corral.policy",
    "Prompt": "corral.prompt",
    "Section": "corral.prompt",
    "Result": "corral.result",
    "result_from_events": "corral.result",
    "is_installed": "corral.sessions.api",
    "pool": "corral.sessions.api",
    "run": "corral.sessions.api",
    "run_sync": "corral.sessions.sync_session",
    "session": "corral.sessions.api",
    "session_sync": "corral.sessions.sync_session",
    "Budget": "corral.metering.budget",
    "merge": "corral.sessions.merge_events",
    "Pool": "corral.sessions.pool",
    "Session": "corral.sessions.session",
    "Allow": "corral.sessions.tools.hooks",
    "Deny": "corral.sessions.tools.hooks",
    "Edit": "corral.sessions.tools.hooks",
    "SyncSession": "corral.sessions.sync_session",
    "Hook": "corral.sessions.tools.hooks",
    "ToolRequest": "corral.sessions.tools.hooks",
    "call_budget": "corral.sessions.tools.hooks",
    "read_before_write": "corral.sessions.tools.hooks",
    "required_order": "corral.sessions.tools.hooks",
    "Tool": "corral.sessions.tools.tools",
    "Tools": "corral.sessions.tools.tools",
    "Turn": "corral.sessions.turn",
    "command_succeeds": "corral.sessions.until",
    "files_exist": "corral.sessions.until",
    "__version__": "corral.version",
}

__all__ = [
    "AgentSession",
    "Allow",
    "AskedQuestion",
    "Batch",
    "BatchReport",
    "BatchResult",
    "Budget",
    "Comparison",
    "ComparisonSummary",
    "CorralError",
    "Cost",
    "DeniedCall",
    "Deny",
    "Edit",
    "Event",
    "FileChanged",
    "Hook",
    "McpServer",
    "Policy",
    "Pool",
    "Prompt",
    "Result",
    "RunKwargs",
    "Section",
    "Session",
    "SyncSession",
    "Tool",
    "ToolRequest",
    "Tools",
    "Turn",
    "Usage",
    "__version__",
    "batch",
    "batch_sync",
    "call_budget",
    "command_succeeds",
    "compare",
    "compare_sync",
    "errors",
    "events",
    "file_tasks",
    "files_exist",
    "from_json",
    "is_installed",
    "live",
    "merge",
    "models",
    "pipelines",
    "pool",
    "providers",
    "read_before_write",
    "required_order",
    "result_from_events",
    "run",
    "run_sync",
    "session",
    "session_sync",
    "to_json",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    try:
        if home == "corral":
            value: object = import_module(f"corral.{name}")
        else:
            value = getattr(import_module(home), name)
    except (OSError, ImportError) as error:
        from corral.errors import lacks_descriptors, no_descriptor_error

        if not lacks_descriptors(error):
            raise
        raise no_descriptor_error(error) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
