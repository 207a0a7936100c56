"""Runs of the built-in agent against a scripted model, through the public API."""

from __future__ import annotations

import asyncio
import os
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from support.model_scripts import ModelClient, Script
from support.stream_checks import check_stream

import corral
from corral._sessions.permissions import Asker
from corral._sessions.session import Session
from corral._system.process.process import Process, ProcessSpec
from corral.events import Error, Event, ToolResult
from corral.result import Result, result_from_events
from corral.run_kwargs import RunKwargs
from corral.testing import Lane, ModelServer, Request
from corral.values import Json

KEY = "canary-key-0123456789abcdef"
MODELS = {
    "gemini": "gemini:gemini-2.5-flash",
    "anthropic": "anthropic:claude-sonnet-4-5",
    "openai": "openai:gpt-5",
    "chat": "chat:some-model",
}
"""A model behind each wire."""

E = TypeVar("E", bound=Event)


class BuiltinAgent(ModelClient):
    """The built-in agent, connected to a scripted model."""

    def __init__(self, server: ModelServer, workspace: Path, name: str) -> None:
        super().__init__(server, name)
        self.workspace = workspace

    def options(
        self, script: Script, wire: str = "gemini", **options: Unpack[RunKwargs]
    ) -> RunKwargs:
        """The options that connect a run to this script."""
        lane = self.add_lane(script)
        combined: RunKwargs = {
            "cwd": self.workspace,
            "model": MODELS[wire],
            "timeout": 60,
            "retries": 0,
            **options,
            "env": {**model_env(lane, wire), **options.get("env", {})},
        }
        return combined

    def session(
        self,
        script: Script,
        *,
        ask: Asker | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        **options: Unpack[RunKwargs],
    ) -> Session:
        return corral.session(ask=ask, tools=tools, **self.options(script, **options))

    async def events(
        self,
        script: Script,
        prompt: str = "do it",
        *,
        ask: Asker | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        wire: str = "gemini",
        **options: Unpack[RunKwargs],
    ) -> list[Event]:
        """The events of one prompt, checked by ``check_stream``."""
        given_options = self.options(script, wire, **options)
        async with corral.session(ask=ask, tools=tools, **given_options) as session:
            return check_stream([event async for event in session.prompt(prompt)])

    async def run(self, script: Script, prompt: str = "do it", **given: Any) -> Result:
        return result_from_events(await self.events(script, prompt, **given))


def model_env(lane: Lane, wire: str = "gemini") -> dict[str, str]:
    """The variables with the base URL and the key of a vendor."""
    address, key = {
        "gemini": ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"),
        "anthropic": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
        "openai": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
        "chat": ("CHAT_BASE_URL", "CHAT_API_KEY"),
    }[wire]
    url = lane.env[address.replace("CHAT", "OPENAI")]
    return {address: url, key: KEY}


def events_of(events: Sequence[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def tool_outcomes(events: Sequence[Event]) -> list[tuple[str | None, str]]:
    """Tool and status of each result."""
    return [(event.name, event.status) for event in events_of(events, ToolResult)]


def warning_codes(events: Sequence[Event]) -> list[str]:
    """The codes of the warnings."""
    return [event.code for event in events_of(events, Error) if event.level == "warning"]


def last_tool_result(request: Request, tool: str) -> str:
    """The last result of this tool that the model received."""
    response = [text for name, text in request.tool_results if name == tool][-1]
    match response:
        case {"result": str(text)} | {"error": str(text)} | str(text):
            return text
        case _:
            return str(response)


def inline_media(request: Request) -> list[tuple[str, bytes]]:
    """Kind and content of what went along in a request to Gemini."""
    found: list[tuple[str, bytes]] = []
    waiting: list[Json] = [request.body]
    while waiting:
        match waiting.pop(0):
            case {"mimeType": str(kind), "data": str(data)}:
                found.append((kind, b64decode(data)))
            case dict(table):
                waiting += table.values()
            case list(entries):
                waiting += entries
            case _:
                pass
    return found


async def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until the condition holds, for a limited time."""
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("the condition did not become true")


async def read_pid(path: Path) -> int:
    """Wait for the pid that a command writes to this file."""
    await wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def process_exists(pid: int) -> bool:
    """Whether there is such a process, a zombie included."""
    return Path(f"/proc/{pid}").exists()


COMMAND = (sys.executable, "-c", "from corral._cli.main import main; main()")


async def run_command(
    ours: BuiltinAgent, script: Script, *args: str, prompt: str = "do it"
) -> tuple[int | None, str, str]:
    """Exit code, answer and progress of ``corral run --model``."""
    ours.options(script)
    argv = [*COMMAND, "run", "--model", MODELS["gemini"], "--retries", "0", *args, prompt]
    env = {**os.environ, **model_env(ours.lane)}
    process = await Process.start(ProcessSpec(argv, cwd=ours.workspace, env=env, stderr_tail=4000))
    out = b""
    try:
        while chunk := await process.read():
            out += chunk
        exited = await process.wait()
    finally:
        await process.end(1)
    return exited.code, out.decode(), process.stderr
