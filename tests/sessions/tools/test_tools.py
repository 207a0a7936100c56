"""Python functions as tools: called in-process, over MCP, and by the real Gemini CLI."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import dataclasses
import functools
import gc
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import httpx2
import msgspec
import pydantic
import pytest

from corral import errors
from corral._sessions.tools.hooks import (
    Deny,
    Edit,
    Hook,
    HookAnswer,
    ToolRequest,
    call_budget,
    read_before_write,
    required_order,
)
from corral._sessions.tools.mcp_server import ToolServer
from corral._sessions.tools.tools import Tool, Tools
from corral.events import Event, ToolResult, ToolUse
from corral.messages import Image
from corral.policy import Policy
from corral.testing import call, say
from corral.values import Json, McpServer
from corral.version import __version__

if TYPE_CHECKING:
    from mcp import Client
    from support.real_agents import RealAgent

WAIT = 60.0
"""Seconds that anything here may take."""


@dataclasses.dataclass
class Place:
    city: str
    country: str = "BE"


class Forecast(pydantic.BaseModel):
    city: str
    degrees: list[int]


def weather(
    place: Place, days: Annotated[int, "How many days."] = 1, unit: Literal["C", "F"] = "C"
) -> Forecast:
    """The forecast for a place.

    It is never wrong.

    Args:
        place: Where, as a city
            and a country.
        unit (str): Celsius or Fahrenheit.

    Returns:
        The forecast.
    """
    return Forecast(city=place.city, degrees=[20] * days)


async def answer(name: str, arguments: Json = None, *tools: Any) -> HookAnswer:
    return await Tools(tools).call(name, arguments)


def test_name_parameters_and_descriptions_come_from_the_function() -> None:
    tool = Tool.of(weather)
    assert tool.name == "weather"
    assert tool.description == "The forecast for a place.\n\nIt is never wrong."
    json: Any = tool.parameters.json
    assert json["type"] == "object"
    assert json["required"] == ["place"]
    assert json["additionalProperties"] is False
    assert json["properties"]["place"]["description"] == "Where, as a city and a country."
    assert json["properties"]["days"] == {
        "type": "integer",
        "description": "How many days.",
        "default": 1,
    }
    assert json["properties"]["unit"]["enum"] == ["C", "F"]
    assert json["properties"]["unit"]["description"] == "Celsius or Fahrenheit."


def numpy_style(path: str, depth: int = 1) -> None:
    """Looks.

    Parameters
    ----------
    path : str
        Where to look.
    depth : int, optional
        How deep.

    Returns
    -------
    None
    """


def rest_style(path: str, depth: int = 1) -> None:
    """Looks.

    :param path: Where to look.
    :param int depth: How
        deep.
    :returns: nothing
    """


@pytest.mark.parametrize("function", [numpy_style, rest_style])
def test_other_docstrings_are_read_too(function: Any) -> None:
    tool = Tool.of(function)
    assert tool.description == "Looks."
    properties: Any = tool.parameters.json["properties"]
    assert properties["path"]["description"] == "Where to look."
    assert properties["depth"]["description"] == "How deep."


async def test_arguments_arrive_typed_and_results_leave_as_text() -> None:
    found = await answer("weather", {"place": {"city": "Ghent"}, "days": 2}, weather)
    assert found == HookAnswer('{"city":"Ghent","degrees":[20,20]}')

    def plain() -> str:
        return "as it is"

    def nothing() -> None: ...

    assert await answer("plain", None, plain) == HookAnswer("as it is")
    assert await answer("nothing", {}, nothing) == HookAnswer("null")


PIXEL = b"\x89PNG\r\n\x1a\n a dot"


def screenshot() -> list[object]:
    """A picture and what it shows."""
    return ["the page", Image(PIXEL), {"width": 1}]


async def test_images_are_part_of_the_answer(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PIXEL)
    (tmp_path / "a.txt").write_text("no picture")
    picture = Image(PIXEL, "image/png")
    found = await answer("screenshot", {}, screenshot)
    assert found == HookAnswer('the page\n[image: image/png]\n{"width":1}', images=(picture,))

    def show(name: str) -> Image:
        return Image(name)

    found = await answer("show", {"name": str(tmp_path / "a.png")}, show)
    assert found == HookAnswer("[image: image/png]", images=(picture,))
    assert await answer("show", {"name": "https://x.org/a.png"}, show) == HookAnswer(
        "https://x.org/a.png"
    )
    for name in ("a.txt", "missing.png"):
        found = await answer("show", {"name": str(tmp_path / name)}, show)
        assert found.status == "error"
        assert "returned an image that cannot be sent" in found.text


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, by: int, /, *, twice: bool = False) -> int:
        """Adds."""
        self.count += by * (2 if twice else 1)
        return self.count

    async def __call__(self, by: int) -> int:
        return self.add(by)


async def test_methods_partials_and_callable_objects_are_tools() -> None:
    counter = Counter()
    tools = Tools(
        [
            counter.add,
            Tool.of(functools.partial(counter.add, 5), name="five"),
            Tool.of(counter, name="count"),
            Tool.of(lambda: "hi", name="greet"),
        ]
    )
    assert tools.by_name["add"].description == "Adds."
    assert (await tools.call("add", {"by": 1, "twice": True})).text == "2"
    assert (await tools.call("five", {})).text == "7"
    assert (await tools.call("count", {"by": 1})).text == "8"
    assert (await tools.call("greet")).text == "hi"


async def test_all_wrong_arguments_are_reported_together_and_nothing_runs() -> None:
    outcome = await answer("weather", {"place": {"city": 5}, "days": "x", "units": "C"}, weather)
    assert outcome.status == "error"
    assert outcome.text.splitlines()[1:] == [
        "- place.city: expected a string, got 5",
        "- days: expected an integer, got the string 'x'",
        "- units: is not a known property; did you mean unit?",
    ]
    others: list[Json] = [[], "x", 5]
    for wrong in others:
        assert (await answer("weather", wrong, weather)).status == "error"


async def test_an_unknown_tool_is_an_error_answer() -> None:
    outcome = await answer("wether", {}, weather)
    assert outcome == HookAnswer("there is no tool 'wether'; known are: weather", "error")


def raises() -> None:
    raise KeyError("lost")


async def raises_later() -> None:
    await asyncio.sleep(0)
    raise ValueError


def leaves() -> None:
    sys.exit(3)


def stops() -> None:
    raise StopIteration


async def cancels_itself() -> None:
    raise asyncio.CancelledError


def returns_a_socket() -> Any:
    return object()


def returns_a_circle() -> Any:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("function", "expected_text"),
    [
        (raises, "raises failed: KeyError: 'lost'"),
        (raises_later, "raises_later failed: ValueError"),
        (leaves, "leaves failed: SystemExit: 3"),
        (stops, "stops failed: RuntimeError: StopIteration()"),
        (cancels_itself, "cancels_itself failed: CancelledError"),
        (returns_a_socket, "returns_a_socket returned a value that is not JSON"),
        (returns_a_circle, "returns_a_circle returned a value that is not JSON"),
    ],
)
async def test_every_outcome_of_a_tool_is_an_answer(function: Any, expected_text: str) -> None:
    found = await answer(function.__name__, {}, function)
    assert found.status == "error"
    assert found.text.startswith(expected_text)
    assert "Traceback" not in found.text


async def test_a_lone_surrogate_is_replaced() -> None:
    def half() -> str:
        return "a\ud83d"

    (await answer("half", {}, half)).text.encode()


async def test_a_hanging_tool_times_out_sync_or_async() -> None:
    release = threading.Event()

    def sync_hang() -> None:
        release.wait(WAIT)

    async def async_hang() -> None:
        await asyncio.Event().wait()

    tools = Tools([Tool.of(sync_hang, timeout=0.05), Tool.of(async_hang, timeout=0.05)])
    both = await asyncio.gather(tools.call("sync_hang"), tools.call("async_hang"))
    assert [each.text for each in both] == [
        "sync_hang timed out after 0.05s",
        "async_hang timed out after 0.05s",
    ]
    release.set()


def test_a_hanging_sync_tool_does_not_keep_the_program_from_ending() -> None:
    code = """
import asyncio, time
from corral._sessions.tools.tools import Tool, Tools
def hang(): time.sleep(600)
print(asyncio.run(Tools([Tool.of(hang, timeout=0.05)]).call("hang")).text)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=WAIT
    )
    assert (done.returncode, done.stdout) == (0, "hang timed out after 0.05s\n"), done.stderr


async def test_the_tools_own_timeout_is_not_taken_for_ours() -> None:
    def late() -> None:
        raise TimeoutError("its own")

    assert (await answer("late", {}, late)).text == "late failed: TimeoutError: its own"


async def test_sync_tools_run_in_parallel_threads_with_the_callers_context() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("ours")
    meeting = threading.Barrier(2)

    def meet() -> str:
        meeting.wait(WAIT)
        return variable.get()

    tools = Tools([meet])
    both = await asyncio.gather(tools.call("meet"), tools.call("meet"))
    assert [each.text for each in both] == ["ours", "ours"]


async def test_cancelling_a_call_cancels_the_tool_and_is_reported() -> None:
    seen: list[Event] = []
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(Tools([wait], on_event=seen.append).call("wait"))
    await asyncio.wait_for(started.wait(), WAIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert isinstance(seen[-1], ToolResult)
    assert seen[-1].status == "cancelled"


async def test_each_call_is_a_pair_of_events_unless_it_is_quiet() -> None:
    seen: list[Event] = []
    tools = Tools([weather], on_event=seen.append)
    arguments: Json = {"place": {"city": "Ghent"}}
    await tools.call("weather", arguments, call_id="c1")
    await tools.call("weather", arguments, quiet=True)
    await tools.call("nope")
    use, result, other, failed = seen
    assert isinstance(use, ToolUse)
    assert (use.call_id, use.name, use.kind, use.input) == ("c1", "weather", "mcp", arguments)
    assert isinstance(result, ToolResult)
    assert (result.call_id, result.status, result.name) == ("c1", "success", "weather")
    assert result.output is not None
    assert result.duration_ms is not None
    assert isinstance(other, ToolUse)
    assert other.call_id not in ("", "c1")
    assert isinstance(failed, ToolResult)
    assert (failed.status, failed.output) == ("error", None)
    assert "no tool" in (failed.error or "")


def sideways(*args: int) -> None: ...


def undescribed(**options: int) -> None: ...


def odd(thing: complex) -> None: ...


def lost(thing: int) -> None: ...


lost.__annotations__["thing"] = "Nowhere"


@pytest.mark.parametrize("function", [sideways, undescribed, odd, lost])
def test_parameters_that_cannot_be_described_are_refused(function: Any) -> None:
    with pytest.raises(errors.SchemaInvalid, match=function.__name__):
        Tool.of(function)


def test_names_and_timeouts_are_checked() -> None:
    with pytest.raises(errors.ConfigError, match="<lambda>"):
        Tool.of(lambda: 1)
    with pytest.raises(errors.ConfigError, match="name"):
        Tool.of(weather, name="a" * 49)
    with pytest.raises(errors.ConfigError, match="timeout"):
        Tool.of(weather, timeout=0)
    with pytest.raises(errors.ConfigError, match="two tools are called weather"):
        Tools([weather, weather])


def echo(text: str) -> str:
    return text


async def test_hooks_deny_change_and_replace() -> None:
    def before(call: ToolRequest) -> Deny | Edit | None:
        match call.arguments["text"]:
            case "secret":
                return Deny("it is secret")
            case "change":
                return Edit({"text": "changed"})
            case "break":
                return Edit({"text": 5})
            case _:
                return None

    async def after(call: ToolRequest, answer: HookAnswer) -> HookAnswer | None:
        await asyncio.sleep(0)
        return HookAnswer(answer.text.upper()) if answer.ok else None

    tools = Tools([echo], hooks=[Hook(before, after)])
    assert await tools.call("echo", {"text": "a"}) == HookAnswer("A")
    assert await tools.call("echo", {"text": "secret"}) == HookAnswer(
        "denied: it is secret", "denied"
    )
    assert await tools.call("echo", {"text": "change"}) == HookAnswer("CHANGED")
    assert "text: expected a string" in (await tools.call("echo", {"text": "break"})).text


async def test_a_hook_that_raises_stops_the_call() -> None:
    ran: list[str] = []

    def note(text: str) -> str:
        ran.append(text)
        return text

    def before(call: ToolRequest) -> None:
        raise RuntimeError("broken")

    def after(call: ToolRequest, answer: HookAnswer) -> None:
        raise RuntimeError("broken")

    outcome = await Tools([note], hooks=[Hook(before)]).call("note", {"text": "a"})
    assert (outcome.status, ran) == ("error", [])
    assert "was not run" in outcome.text
    outcome = await Tools([note], hooks=[Hook(None, after)]).call("note", {"text": "a"})
    assert (outcome.status, ran) == ("error", ["a"])
    assert "has run" in outcome.text


async def test_a_file_is_read_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")

    def read_file(path: str, encoding: str = "utf-8") -> str:
        return (tmp_path / path).read_text(encoding)

    def write_file(path: str, text: str) -> None:
        (tmp_path / path).write_text(text)

    guard = read_before_write({"read_file": "path"}, {"write_file": "path"}, root=tmp_path)
    tools = Tools([read_file, write_file], hooks=[guard])
    new: Json = {"path": "new.txt", "text": "1"}
    assert (await tools.call("write_file", new)).ok
    assert (await tools.call("write_file", new)).ok
    old: Json = {"path": "./old.txt", "text": "2"}
    assert (await tools.call("write_file", old)).status == "denied"
    assert (tmp_path / "old.txt").read_text() == "old"
    failed = await tools.call("read_file", {"path": "old.txt", "encoding": "no such"})
    assert failed.status == "error"
    assert (await tools.call("write_file", old)).status == "denied"
    assert (await tools.call("read_file", {"path": "old.txt"})).ok
    assert (await tools.call("write_file", old)).ok


async def test_required_order_counts_only_successful_calls() -> None:
    fails = [True]

    def check() -> None:
        if fails.pop():
            raise ValueError

    def submit() -> str:
        return "done"

    tools = Tools([check, submit, echo], hooks=[required_order("check", "submit")])
    assert (await tools.call("submit")).text == "denied: submit comes after check"
    assert (await tools.call("check")).status == "error"
    assert (await tools.call("submit")).status == "denied"
    fails.append(False)
    assert (await tools.call("check")).ok
    assert (await tools.call("submit")).ok
    assert (await tools.call("echo", {"text": "free"})).ok


async def test_parallel_calls_share_one_budget() -> None:
    tools = Tools([echo, weather], hooks=[call_budget(4, echo=2)])
    made = await asyncio.gather(*(tools.call("echo", {"text": "a"}) for _ in range(5)))
    assert [each.ok for each in made] == [True, True, False, False, False]
    place: Json = {"place": {"city": "Ghent"}}
    made = await asyncio.gather(*(tools.call("weather", place) for _ in range(3)))
    assert [each.ok for each in made] == [True, True, False]
    with pytest.raises(errors.ConfigError):
        call_budget(-1)


async def test_a_call_that_an_earlier_hook_denied_is_not_counted() -> None:
    hooks = [required_order("weather", "echo"), call_budget(echo=1)]
    tools = Tools([echo, weather], hooks=hooks)
    assert "comes after weather" in (await tools.call("echo", {"text": "a"})).text
    assert (await tools.call("weather", {"place": {"city": "Ghent"}})).ok
    assert (await tools.call("echo", {"text": "a"})).ok
    assert "may be called 1 time, and was" in (await tools.call("echo", {"text": "a"})).text


Mode = Literal["legacy", "auto"]
"""The handshake of 2025, which agents speak, and what came after."""


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Mode:
    found: Mode = request.param
    return found


@pytest.fixture(autouse=True)
def _no_noise(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The server's libraries log what they think went wrong; nothing may."""
    yield
    ours = ("uvicorn", "mcp.server", "asyncio")
    loud = [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith(ours)]
    assert loud == []


@asynccontextmanager
async def client_of(
    server: ToolServer, mode: Mode = "legacy", headers: dict[str, str] | None = None
) -> AsyncGenerator[Client]:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    reported = server.mcp_server
    assert reported.url is not None
    sent = reported.headers if headers is None else headers
    async with (
        asyncio.timeout(WAIT),
        httpx2.AsyncClient(headers=sent, timeout=WAIT) as http,
        Client(streamable_http_client(reported.url, http_client=http), mode=mode) as client,
    ):
        yield client


async def text_of(client: Client, name: str, arguments: dict[str, Any] | None = None) -> str:
    from mcp_types import TextContent

    result = await client.call_tool(name, arguments or {})
    (part,) = result.content
    assert isinstance(part, TextContent)
    return f"error: {part.text}" if result.is_error else part.text


async def test_the_sdks_own_client_lists_and_calls_the_tools(mode: Mode) -> None:
    from mcp_types import ImageContent

    async with ToolServer([weather, screenshot]) as server:
        reported = server.mcp_server
        assert reported.name == "corral"
        async with client_of(server, mode) as client:
            assert client.server_info is not None
            assert client.server_info.version == __version__
            assert not server.connected.is_set()
            tool, _ = (await client.list_tools()).tools
            assert server.connected.is_set()
            assert (tool.name, tool.input_schema) == ("weather", Tool.of(weather).parameters.json)
            outcome = await text_of(client, "weather", {"place": {"city": "Ghent"}})
            assert outcome == '{"city":"Ghent","degrees":[20]}'
            shown = await client.call_tool("screenshot", {})
            assert [part.type for part in shown.content] == ["text", "image"]
            picture = shown.content[1]
            assert isinstance(picture, ImageContent)
            assert (base64.b64decode(picture.data), picture.mime_type) == (PIXEL, "image/png")
            typed = await client.call_tool("weather", {"place": {"city": "Ghent"}})
            assert typed.structured_content == {"city": "Ghent", "degrees": [20]}
            assert (await text_of(client, "weather", {"place": 5})).startswith("error: ")
            assert (await text_of(client, "nope")).startswith("error: there is no tool")
            assert server.calls == 5


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": ""}])
async def test_without_the_token_every_request_is_refused(
    mode: Mode, headers: dict[str, str]
) -> None:
    from mcp import MCPError

    async with ToolServer([echo]) as server:
        async with httpx2.AsyncClient(headers=headers) as http:
            for method in ("POST", "GET", "DELETE"):
                assert (await http.request(method, server.url, json={})).status_code == 401
            elsewhere = server.url.replace("/mcp", "/")
            assert (await http.get(elsewhere)).status_code == 401
        with pytest.raises((MCPError, ExceptionGroup)):
            async with client_of(server, mode, headers):
                pass
        assert not server.connected.is_set()
        assert server.calls == 0


async def test_other_requests_are_refused_and_other_hosts_too() -> None:
    async with (
        ToolServer([echo]) as server,
        httpx2.AsyncClient(headers=server.mcp_server.headers) as http,
    ):
        assert (await http.get(server.url)).status_code == 405
        assert (await http.delete(server.url)).status_code == 405
        assert (await http.post(server.url.replace("/mcp", "/x"), json={})).status_code == 404
        headers = {"Host": "evil.example", "Accept": "application/json, text/event-stream"}
        assert (await http.post(server.url, json={}, headers=headers)).status_code == 421


async def test_it_listens_only_on_this_machine() -> None:
    async with ToolServer([echo]) as one, ToolServer([echo]) as other:
        assert one.url.startswith("http://127.0.0.1:")
        assert one.url != other.url
        assert one.mcp_server.headers != other.mcp_server.headers


async def test_parallel_calls_run_at_the_same_time(mode: Mode) -> None:
    meeting = asyncio.Barrier(2)

    async def meet() -> str:
        await meeting.wait()
        return "met"

    async with ToolServer([meet]) as server, client_of(server, mode) as client:
        both = await asyncio.gather(text_of(client, "meet"), text_of(client, "meet"))
        assert [*both] == ["met", "met"]


class Hanging:
    """A tool that waits for ever, and tells how it fares."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    async def hang(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def test_a_hanging_tool_times_out_over_the_wire(mode: Mode) -> None:
    tool = Tool.of(Hanging().hang, timeout=0.05)
    async with ToolServer([tool]) as server, client_of(server, mode) as client:
        assert await text_of(client, "hang") == "error: hang timed out after 0.05s"


async def test_a_call_that_the_client_cancels_ends(mode: Mode) -> None:
    hanging = Hanging()
    async with ToolServer([hanging.hang]) as server, client_of(server, mode) as client:
        task = asyncio.create_task(client.call_tool("hang", {}))
        await asyncio.wait_for(hanging.started.wait(), WAIT)
        task.cancel()
        await asyncio.wait_for(hanging.ended.wait(), WAIT)
        with pytest.raises(asyncio.CancelledError):
            await task


CALL: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "hang", "arguments": {}},
}
TAKE_BACK: dict[str, Any] = {
    "jsonrpc": "2.0",
    "method": "notifications/cancelled",
    "params": {"requestId": 7},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


async def test_cancelling_a_call_answers_it_as_cancelled() -> None:
    hanging = Hanging()
    async with ToolServer([hanging.hang]) as server:
        headers = {**server.mcp_server.headers, **ACCEPT}
        async with httpx2.AsyncClient(headers=headers, timeout=WAIT) as http:
            task = asyncio.create_task(http.post(server.url, json=CALL))
            await asyncio.wait_for(hanging.started.wait(), WAIT)
            assert (await http.post(server.url, json=TAKE_BACK)).status_code == 202
            result = (await task).json()["result"]
            assert result["isError"] is True
            assert hanging.ended.is_set()
    assert not server.connected.is_set()  # calling is not listing


async def test_the_call_of_a_client_that_dies_is_cancelled() -> None:
    hanging = Hanging()
    async with ToolServer([hanging.hang]) as server:
        headers = {**server.mcp_server.headers, **ACCEPT}
        body = msgspec.json.encode(CALL)
        host, port = "127.0.0.1", int(server.url.split(":")[2].split("/")[0])
        _, writer = await asyncio.open_connection(host, port)
        head = [f"POST /mcp HTTP/1.1\r\nHost: {host}:{port}", "Content-Type: application/json"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        head += [f"Content-Length: {len(body)}", "\r\n"]
        writer.write("\r\n".join(head).encode() + body)
        await asyncio.wait_for(hanging.started.wait(), WAIT)
        writer.transport.abort()
        await asyncio.wait_for(hanging.ended.wait(), WAIT)


async def test_leaving_the_block_ends_calls_sockets_and_threads(mode: Mode) -> None:
    hanging = Hanging()
    threads = threading.active_count()
    async with ToolServer([hanging.hang]) as server, client_of(server, mode) as client:
        task = asyncio.create_task(text_of(client, "hang"))
        await asyncio.wait_for(hanging.started.wait(), WAIT)
        async with asyncio.timeout(WAIT):
            await server.__aexit__(None, None, None)
        assert hanging.ended.is_set()
        assert await task == "error: cancelled"
    port = int(server.url.split(":")[2].split("/")[0])
    with pytest.raises(OSError, match=r".+"):
        socket.create_connection(("127.0.0.1", port), 1).close()
    assert threading.active_count() == threads
    gc.collect()  # an open socket would warn here


async def test_an_idle_connection_is_closed_too() -> None:
    async with ToolServer([echo]) as server:
        port = int(server.url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT)
        assert head.startswith(b"HTTP/1.1 401")
    with suppress(ConnectionResetError):
        # By itself it would be closed after five seconds of silence.
        assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def test_cancelling_the_run_cancels_its_calls() -> None:
    hanging = Hanging()

    async def run() -> None:
        async with ToolServer([hanging.hang]) as server, client_of(server) as client:
            await client.call_tool("hang", {})

    task = asyncio.create_task(run())
    await asyncio.wait_for(hanging.started.wait(), WAIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert hanging.ended.is_set()


async def test_what_the_agent_reports_is_not_reported_again() -> None:
    seen: list[Event] = []
    for reports in (True, False):
        tools = Tools([echo], on_event=seen.append)
        async with ToolServer(tools, agent_reports=reports) as server, client_of(server) as client:
            await text_of(client, "echo", {"text": "a"})
    assert [type(event) for event in seen] == [ToolUse, ToolResult]


async def test_a_server_is_open_only_in_its_block() -> None:
    server = ToolServer([echo])
    with pytest.raises(RuntimeError, match="open the server first"):
        server.mcp_server
    async with server:
        assert isinstance(server.mcp_server, McpServer)
    with pytest.raises(RuntimeError, match="once"):
        await server.__aenter__()


async def test_without_the_sdk_the_error_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    with pytest.raises(errors.NotInstalled, match=r"pip install 'corral\[tools\]'"):
        async with ToolServer([echo]):
            pass


def test_the_sdk_is_loaded_only_when_a_server_starts() -> None:
    code = (
        "import sys, corral._sessions.tools.mcp_server, corral._sessions.structured_output;"
        "print(*{n.split('.')[0] for n in sys.modules} & {'mcp', 'uvicorn', 'pydantic'})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.deep
@pytest.mark.gemini_cli
async def test_the_real_cli_calls_a_python_tool_and_passes_its_result_to_the_model(
    gemini: RealAgent,
) -> None:
    asked: list[str] = []

    async def secret_number(whose: str) -> dict[str, int]:
        """The secret number of a person.

        Args:
            whose: Their name.
        """
        asked.append(whose)
        return {"number": 4217}

    async with ToolServer([secret_number]) as server:
        result = await gemini.run(
            [call("mcp_corral_secret_number", whose="Ada"), say("It is 4217.")],
            policy=Policy(mcp="allow"),
            mcp_servers=[server.mcp_server],
        )
        assert server.connected.is_set()
        assert server.calls == 1
    assert result.ok
    assert asked == ["Ada"]
    assert "mcp_corral_secret_number" in gemini.requests[0].tools
    name, response = gemini.requests[-1].tool_results[-1]
    assert name == "mcp_corral_secret_number"
    assert "4217" in str(response)
