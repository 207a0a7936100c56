"""The tools of the caller are there in Claude Code's first request, however slowly they come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import corral
from corral.sessions.tools.mcp_server import ToolServer
from corral.testing import Turn

if TYPE_CHECKING:
    from claude.conftest import Claude

pytestmark = [pytest.mark.claude, pytest.mark.timeout(600)]

TOOL = "mcp__versions__deployed_version"


def deployed_version() -> str:
    """The version that is deployed."""
    return "4.5.6"


async def first_tools(claude: Claude, starts: int) -> list[bool]:
    """For each of so many starts at once, whether its first request had the tool."""

    async def start() -> bool:
        async with ToolServer([deployed_version], name="versions") as server:
            options = claude.options(
                [Turn(text="done", repeat="forever")],
                policy="all",
                mcp_servers=[server.mcp_server],
                timeout=500,
                startup_timeout=500,
            )
            lane = claude.lane
            result = await corral.run("claude", "which?", **options)
        assert result.ok, result.error
        return TOOL in lane.requests[0].tools

    return list(await asyncio.gather(*(start() for _ in range(starts))))


async def test_the_first_request_waits_for_a_slow_tool_server(
    claude: Claude, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = ToolServer._app  # pyright: ignore[reportPrivateUsage]

    async def slowly(self: ToolServer, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1)
        await serve(self, scope, receive, send)

    monkeypatch.setattr(ToolServer, "_app", slowly)
    assert await first_tools(claude, 1) == [True]


@pytest.mark.slow
async def test_the_first_requests_of_fifty_starts_at_once_have_the_tool(claude: Claude) -> None:
    assert await first_tools(claude, 50) == [True] * 50
