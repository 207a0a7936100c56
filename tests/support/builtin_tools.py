"""Call a built-in tool as the agent loop does."""

from __future__ import annotations

from corral._builtin.tools import all_tools
from corral._builtin.tools.tool import ToolOutcome
from corral._builtin.tools.workspace import Workspace
from corral.values import Json


async def call_tool(workspace: Workspace, tool: str, **args: Json) -> ToolOutcome:
    """The outcome of a call; ``shown`` is the text for the model."""
    return await all_tools()[tool].call(workspace, args)


async def call_ok(workspace: Workspace, tool: str, **args: Json) -> str:
    """The text for the model; the call must succeed."""
    outcome = await call_tool(workspace, tool, **args)
    assert not outcome.is_error, outcome.text
    return outcome.shown


async def call_error(workspace: Workspace, tool: str, **args: Json) -> str:
    """The text for the model; the call must fail and change nothing."""
    outcome = await call_tool(workspace, tool, **args)
    assert outcome.is_error, outcome.text
    assert outcome.effects == ()
    return outcome.shown
