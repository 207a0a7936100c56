"""The other side is the protocol's official Python SDK, in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from corral.events import Plan, PlanEntry, Thinking, ToolResult, ToolUse
from corral.protocol.acp.client import Acp, Sent
from corral.protocol.acp.commands import Ask, Command, Emit, Send, Serve, Settled
from corral.protocol.acp.replies import initialized, opened
from corral.protocol.acp.requests import Offer, TextBlock
from corral.protocol.ndjson import Finish, Item
from corral.values import McpServer, Usage

PROGRAM = Path(__file__).parents[1] / "programs" / "acp_sdk_agent.py"
React = Callable[[Command], list[Command]]


def stand_by(_: Command) -> list[Command]:
    return []


class Wired:
    """``Acp`` at one end of two pipes: all the I/O there is."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self.acp = Acp()
        self.process, self.stdin, self.stdout = process, process.stdin, process.stdout
        self.items: list[Item] = []

    async def settle(self, sent: Sent, react: React = stand_by) -> Settled:
        """Write, then carry out what comes until the reply to that call is there."""
        id, data = sent
        self.stdin.write(data)
        while True:
            chunk = await self.stdout.read(65536)
            for command in self.acp.receive(chunk) if chunk else self.acp.end():
                if isinstance(command, Settled) and command.id == id:
                    return command
                self._carry_out(command, react)

    def _carry_out(self, command: Command, react: React) -> None:
        match command:
            case Send():
                self.stdin.write(command.data)
            case Emit():
                self.items += command.items
            case _:
                for next_command in react(command):
                    self._carry_out(next_command, react)

    async def prompt(self, text: str, react: React = stand_by) -> Settled:
        return await self.settle(self.acp.prompt("/w:", [TextBlock(text)]), react)


def run(main: Callable[[Wired], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(60):
                wired = Wired(process)
                settled = await wired.settle(wired.acp.initialize(Offer(read_files=True)))
                assert initialized(settled.result).version == "1.2.3"
                settled = await wired.settle(wired.acp.new_session("/w"))
                assert opened(settled.result).session_id == "/w:"
                await main(wired)
                wired.stdin.close()
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    asyncio.run(whole())


def test_a_turn_is_told_whole_and_ends() -> None:
    async def main(wired: Wired) -> None:
        settled = await wired.prompt("say one two three")
        assert settled.error is None
        assert wired.items == [
            Thinking("hm"),
            Plan((PlanEntry("one", "pending", "medium"),)),
            "one",
            "two",
            "three",
            Finish(
                ok=True,
                stop_reason="end_turn",
                usage=Usage(input=10, output=2, coverage="complete"),
            ),
        ]

    run(main)


def test_many_pieces_all_arrive() -> None:
    async def main(wired: Wired) -> None:
        await wired.prompt("many 2000")
        assert wired.items[:-1] == ["x" * 80] * 2000

    run(main)


@pytest.mark.parametrize(
    ("decision", "status"), [("allow_once", "success"), ("deny", "denied"), ("cancel", "cancelled")]
)
def test_leave_is_asked_and_the_answer_is_understood(decision: Any, status: str) -> None:
    async def main(wired: Wired) -> None:
        def react(command: Command) -> list[Command]:
            assert isinstance(command, Ask)
            return wired.acp.answer_permission(command.request_id, command.option(decision))

        await wired.prompt("edit /w/a", react)
        use, result, finish = wired.items
        assert isinstance(use, ToolUse)
        assert (use.kind, use.paths) == ("edit", ("/w/a",))
        assert use.input == {"path": "/w/a", "content": "new"}
        assert isinstance(result, ToolResult)
        assert result.status == status
        assert isinstance(finish, Finish)

    run(main)


def test_a_file_is_served() -> None:
    async def main(wired: Wired) -> None:
        def react(command: Command) -> list[Command]:
            assert isinstance(command, Serve)
            assert command.method == "fs/read_text_file"
            return wired.acp.answer(command.request_id, {"content": "the file"})

        await wired.prompt("read /w/a", react)
        assert wired.items[0] == "the file"

    run(main)


def test_a_turn_is_cancelled() -> None:
    async def main(wired: Wired) -> None:
        sent = wired.acp.prompt("/w:", [TextBlock("wait")])
        notice = b"".join(c.data for c in wired.acp.cancel("/w:") if isinstance(c, Send))
        await wired.settle((sent[0], sent[1] + notice))
        (finish,) = wired.items
        assert isinstance(finish, Finish)
        assert (finish.ok, finish.stop_reason) == (False, "cancelled")

    run(main)


def test_an_error_says_what_was_wrong() -> None:
    async def main(wired: Wired) -> None:
        settled = await wired.prompt("dance")
        assert settled.error is not None
        (finish,) = wired.items
        assert isinstance(finish, Finish)
        assert finish.kind == "-32602"
        assert "no such word: dance" in (finish.message or "")

    run(main)


def test_tool_servers_are_understood() -> None:
    async def main(wired: Wired) -> None:
        servers = [
            McpServer("web", url="http://127.0.0.1:1/mcp", headers={"A": "b"}),
            McpServer("own", ("/bin/tool", "-v"), env={"C": "d"}),
        ]
        settled = await wired.settle(wired.acp.new_session("/w", servers))
        assert opened(settled.result).session_id == "/w:web,own"

    run(main)


def test_an_agent_that_dies_settles_every_call() -> None:
    async def main(wired: Wired) -> None:
        sent = wired.acp.prompt("/w:", [TextBlock("wait")])
        wired.process.kill()
        settled = await wired.settle(sent)
        assert settled.error is not None

    run(main)
