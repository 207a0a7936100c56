"""The client is the protocol's official Python SDK."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from corral.testing import Call, ModelServer, Turn, hang

if TYPE_CHECKING:
    from acp.schema import RequestPermissionResponse

COMMAND = (sys.executable, "-m", "corral", "acp", "--model", "gemini:gemini-2.5-flash")
WRITE = Call("write_file", {"file_path": "a.txt", "content": "new\n"})


class Client:
    """Answers every permission request in the same way, and collects the updates."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.updates: list[Any] = []
        self.titles: list[str] = []
        self.started = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        pass

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.started.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> RequestPermissionResponse:
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        self.titles.append(tool_call.title)
        found = [option for option in options if option.kind == self._kind]
        outcome: Any = DeniedOutcome(outcome="cancelled")
        if found:
            outcome = AllowedOutcome(outcome="selected", option_id=found[0].option_id)
        return RequestPermissionResponse(outcome=outcome)

    def kinds(self) -> list[str]:
        return [update.session_update for update in self.updates]


@pytest.mark.deep
async def test_the_official_client_prompts_asks_loads_and_cancels(workspace: Path) -> None:
    import acp
    from acp.schema import ClientCapabilities, ElicitationCapabilities, ElicitationFormCapabilities

    def answer(request: Any) -> Turn:
        if "story" in request.texts[-1]:
            return hang("Once ")
        if request.tool_results or "write_file" not in request.tools:
            return Turn(text="Done.", usage={"input": 10, "output": 2})
        return Turn(text="I write. ", calls=[WRITE])

    with ModelServer(answer) as model:
        client: Any = Client("allow_once")
        env = {**os.environ, **model.env}
        async with acp.spawn_agent_process(client, *COMMAND, env=env) as (connection, _):
            about: Any = await connection.initialize(
                protocol_version=1,
                client_capabilities=ClientCapabilities(
                    elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities())
                ),
            )
            assert about.agent_capabilities.load_session
            assert about.agent_info.name == "corral"
            opened: Any = await connection.new_session(cwd=str(workspace), mcp_servers=[])
            session = opened.session_id
            assert opened.modes.current_mode_id == "ask"
            assert [option.id for option in opened.config_options] == ["mode", "model", "effort"]
            reply = await connection.prompt(session_id=session, prompt=[acp.text_block("Write it")])
            assert reply.stop_reason == "end_turn"
            assert client.titles == ["Write a.txt"]
            assert (workspace / "a.txt").read_text() == "new\n"
            assert {"agent_message_chunk", "tool_call", "tool_call_update", "usage_update"} <= set(
                client.kinds()
            )
            await connection.set_session_mode(session_id=session, mode_id="reads")
            listed = await connection.list_sessions()
            assert [each.session_id for each in listed.sessions] == [session]
            client.started.clear()
            story = asyncio.create_task(
                connection.prompt(session_id=session, prompt=[acp.text_block("a story")])
            )
            await asyncio.wait_for(client.started.wait(), 30)
            with pytest.raises(acp.RequestError) as failed:
                await connection.prompt(session_id=session, prompt=[acp.text_block("more")])
            assert failed.value.code == -32600
            await connection.cancel(session_id=session)
            assert (await story).stop_reason == "cancelled"
            await connection.close_session(session_id=session)
            client.updates.clear()
            await connection.load_session(session_id=session, cwd=str(workspace), mcp_servers=[])
            await until(lambda: "user_message_chunk" in client.kinds())
            assert client.updates[0].content.text == "Write it"
            with pytest.raises(acp.RequestError) as failed:
                await connection.ext_method("unknown", {})
            assert failed.value.code == -32601


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)
