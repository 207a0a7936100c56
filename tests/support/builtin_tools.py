"""What the tests of the tools share: a call, as the loop makes it."""

from __future__ import annotations

from corral.builtin.tools import by_name
from corral.builtin.tools.tool import Outcome
from corral.builtin.tools.workspace import Workspace
from corral.events import Json


async def call_tool(workspace: Workspace, tool: str, **args: Json) -> Outcome:
    """Done or refused; what was said to the model is in ``shown``."""
    found = by_name(tool)
    assert found is not None
    return await found.call(workspace, args)


async def call_ok(workspace: Workspace, tool: str, **args: Json) -> str:
    """What the model is shown of a call that goes well."""
    outcome = await call_tool(workspace, tool, **args)
    assert not outcome.is_error, outcome.text
    return outcome.shown


async def call_error(workspace: Workspace, tool: str, **args: Json) -> str:
    """What the model is told of a call that does not go, and that it changed nothing."""
    outcome = await call_tool(workspace, tool, **args)
    assert outcome.is_error, outcome.text
    assert outcome.effects == ()
    return outcome.shown
