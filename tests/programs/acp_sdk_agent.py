"""An agent written with the protocol's official Python SDK; its prompt tells it what to do."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from acp import (
    Agent,
    InitializeResponse,
    NewSessionResponse,
    PromptResponse,
    RequestError,
    plan_entry,
    run_agent,
    start_edit_tool_call,
    text_block,
    tool_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
)
from acp.schema import AgentCapabilities, Implementation, PermissionOption, ToolCallUpdate, Usage


class Worker:
    """What it does not do the SDK refuses as a method that is not found."""

    def on_connect(self, conn: Any) -> None:
        self.client = conn
        self.cancelled = asyncio.Event()

    async def initialize(self, protocol_version: int, **more: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=protocol_version,
            agent_info=Implementation(name="sdk", version="1.2.3"),
            agent_capabilities=AgentCapabilities(load_session=False),
        )

    async def new_session(
        self, cwd: str, mcp_servers: Any = None, **more: Any
    ) -> NewSessionResponse:
        names = ",".join(server.name for server in mcp_servers or ())
        return NewSessionResponse(session_id=f"{cwd}:{names}")

    async def cancel(self, session_id: str, **more: Any) -> None:
        self.cancelled.set()

    async def prompt(self, prompt: list[Any], session_id: str, **more: Any) -> PromptResponse:
        word, _, rest = prompt[0].text.partition(" ")
        report = self.client.session_update
        match word:
            case "say":
                await report(session_id, update_agent_thought_text("hm"))
                await report(session_id, update_plan([plan_entry("one")]))
                for piece in rest.split():
                    await report(session_id, update_agent_message_text(piece))
            case "many":
                piece = update_agent_message_text("x" * 80)
                for _ in range(int(rest)):
                    await report(session_id, piece)
            case "edit":
                await self._edit(session_id, rest)
            case "read":
                read = await self.client.read_text_file(path=rest, session_id=session_id)
                await report(session_id, update_agent_message_text(read.content))
            case "wait":
                await self.cancelled.wait()
                return PromptResponse(stop_reason="cancelled")
            case _:
                raise RequestError.invalid_params({"details": f"no such word: {word}"})
        usage = Usage(input_tokens=10, output_tokens=2, total_tokens=12)
        return PromptResponse(stop_reason="end_turn", usage=usage)

    async def _edit(self, session_id: str, path: str) -> None:
        await self.client.session_update(
            session_id, start_edit_tool_call("c1", f"Edit {path}", path, "new")
        )
        answer = await self.client.request_permission(
            session_id=session_id,
            tool_call=ToolCallUpdate(tool_call_id="c1", title=f"Edit {path}", kind="edit"),
            options=[
                PermissionOption(option_id="y", name="Yes", kind="allow_once"),
                PermissionOption(option_id="n", name="No", kind="reject_once"),
            ],
        )
        allowed = getattr(answer.outcome, "option_id", None) == "y"
        await self.client.session_update(
            session_id,
            update_tool_call(
                "c1",
                status="completed" if allowed else "failed",
                content=[tool_content(text_block("done" if allowed else "not done"))],
            ),
        )


asyncio.run(run_agent(cast("Agent", Worker())))
