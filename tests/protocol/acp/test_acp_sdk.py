"""The other side is the protocol's official Python SDK, in a separate process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from corral._protocol.acp.client import (
    AcpClient,
    AcpPermissionRequest,
    CallFinished,
    Command,
    Emit,
    FileRequest,
    Offer,
    SentCall,
    read_initialize,
    read_session,
)
from corral._protocol.acp.frames import TextBlock
from corral._protocol.jsonrpc import SendBytes
from corral._protocol.ndjson import RawEvent, TurnEnd
from corral.events import Plan, PlanEntry, Thinking, ToolResult, ToolUse
from corral.values import McpServer, Usage

PROGRAM = Path(__file__).parents[2] / "programs" / "acp_sdk_agent.py"
React = Callable[[Command], list[Command]]


def stand_by(_: Command) -> list[Command]:
    return []


class Wired:
    """``Acp`` at one end of two pipes: all the I/O there is."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        self.acp = AcpClient()
        self.process, self.stdin, self.stdout = process, process.stdin, process.stdout
        self.items: list[RawEvent] = []
        settled = self.settle(self.acp.initialize(Offer(read_files=True)))
        assert not read_initialize(settled.result).agent_capabilities.offers("resume")
        settled = self.settle(self.acp.new_session("/w"))
        assert read_session(settled.result).session_id == "/w:"

    def settle(self, sent: SentCall, react: React = stand_by) -> CallFinished:
        """Write, then carry out what comes until the reply to that call is there."""
        id, data = sent
        self.write(data)
        while True:
            chunk = os.read(self.stdout.fileno(), 65536)
            for command in self.acp.receive(chunk) if chunk else self.acp.end():
                if isinstance(command, CallFinished) and command.id == id:
                    return command
                self._carry_out(command, react)

    def write(self, data: bytes) -> None:
        # An agent that has died reads nothing; that shows at the other pipe.
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(data)

    def _carry_out(self, command: Command, react: React) -> None:
        match command:
            case SendBytes():
                self.write(command.data)
            case Emit():
                self.items += command.events
            case _:
                for next_command in react(command):
                    self._carry_out(next_command, react)

    def prompt(self, text: str, react: React = stand_by) -> CallFinished:
        return self.settle(self.acp.prompt("/w:", [TextBlock(text)]), react)


@contextlib.contextmanager
def started() -> Generator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
            assert process.stdin
            process.stdin.close()
            process.wait(60)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One for all: the SDK takes a second to import."""
    with started() as made:
        yield made


@pytest.fixture
def wired(process: subprocess.Popen[bytes]) -> Wired:
    return Wired(process)


def test_a_turn_is_reported_completely_and_ends(wired: Wired) -> None:
    settled = wired.prompt("say one two three")
    assert settled.error is None
    assert wired.items == [
        Thinking("hm"),
        Plan((PlanEntry("one", "pending", "medium"),)),
        "one",
        "two",
        "three",
        TurnEnd(
            ok=True,
            stop_reason="end_turn",
            usage=Usage(input=10, output=2, coverage="complete"),
        ),
    ]


def test_all_of_many_chunks_arrive(wired: Wired) -> None:
    wired.prompt("many 2000")
    assert wired.items[:-1] == ["x" * 80] * 2000


@pytest.mark.parametrize(
    ("decision", "status"), [("allow_once", "success"), ("deny", "denied"), ("cancel", "cancelled")]
)
def test_permission_is_requested_and_the_answer_is_accepted(
    wired: Wired, decision: Any, status: str
) -> None:
    def react(command: Command) -> list[Command]:
        assert isinstance(command, AcpPermissionRequest)
        return wired.acp.answer_permission(command.request_id, command.option_for(decision))

    wired.prompt("edit /w/a", react)
    use, result, finish = wired.items
    assert isinstance(use, ToolUse)
    assert (use.kind, use.paths) == ("edit", ("/w/a",))
    assert use.input == {"path": "/w/a", "content": "new"}
    assert isinstance(result, ToolResult)
    assert result.status == status
    assert isinstance(finish, TurnEnd)


def test_a_file_is_served(wired: Wired) -> None:
    def react(command: Command) -> list[Command]:
        assert isinstance(command, FileRequest)
        assert command.method == "fs/read_text_file"
        return wired.acp.answer_file_request(command.request_id, {"content": "the file"})

    wired.prompt("read /w/a", react)
    assert wired.items[0] == "the file"


def test_a_turn_is_cancelled(wired: Wired) -> None:
    sent = wired.acp.prompt("/w:", [TextBlock("wait")])
    notice = b"".join(c.data for c in wired.acp.cancel("/w:") if isinstance(c, SendBytes))
    wired.settle((sent[0], sent[1] + notice))
    (finish,) = wired.items
    assert isinstance(finish, TurnEnd)
    assert (finish.ok, finish.stop_reason) == (False, "cancelled")


def test_an_error_has_the_message_of_the_agent(wired: Wired) -> None:
    settled = wired.prompt("dance")
    assert settled.error is not None
    (finish,) = wired.items
    assert isinstance(finish, TurnEnd)
    assert finish.kind == "-32602"
    assert "no such word: dance" in (finish.message or "")


def test_mcp_servers_are_accepted(wired: Wired) -> None:
    servers = [
        McpServer("web", url="http://127.0.0.1:1/mcp", headers={"A": "b"}),
        McpServer("own", ("/bin/tool", "-v"), env={"C": "d"}),
    ]
    settled = wired.settle(wired.acp.new_session("/w", servers))
    assert read_session(settled.result).session_id == "/w:web,own"


@pytest.mark.deep
def test_every_call_finishes_when_the_agent_dies() -> None:
    with started() as process:
        wired = Wired(process)
        sent = wired.acp.prompt("/w:", [TextBlock("wait")])
        wired.process.kill()
        settled = wired.settle(sent)
        assert settled.error is not None
