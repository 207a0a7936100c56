from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import threading
import time
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from corral._system.environment import SecretRedactor, StreamRedactor
from corral.errors import ConfigError
from corral.testing import Lane, ModelServer, Request, Script, Turn, call, hang, say

CLI = "GeminiCLI-tui/0.61.0/gemini-2.5-flash (linux; x64; terminal)"


def post(
    at: ModelServer | Lane,
    text: str = "hi",
    *,
    method: str = "generateContent",
    agent: str = "test",
    config: dict[str, Any] | None = None,
) -> tuple[int, str]:
    """The status, and the text or the error's message."""
    url = urlsplit(at.url)
    connection = HTTPConnection(url.netloc, timeout=60)
    body = {"contents": [{"parts": [{"text": text}]}], "generationConfig": config or {}}
    try:
        connection.request(
            "POST",
            f"{url.path}/v1beta/models/gemini-2.5-flash:{method}",
            json.dumps(body),
            {"x-goog-api-key": "k", "User-Agent": agent},
        )
        answer = connection.getresponse()
        got: Any = json.loads(answer.read())
    finally:
        connection.close()
    got = got[0] if method == "streamGenerateContent" else got
    if "error" in got:
        return answer.status, got["error"]["message"]
    parts = got["candidates"][0]["content"].get("parts", [{}])
    return answer.status, parts[0].get("text", "")


def test_lanes_do_not_share_their_place_in_the_script() -> None:
    with ModelServer([say("one"), say("two")]) as server:
        own = server.lane("own", [say("mine")])
        assert post(server)[1] == "one"
        assert post(own)[1] == "mine"
        assert post(server.lane("a"))[1] == "one"
        assert post(server)[1] == "two"
        assert post(server.lane("a"))[1] == "two"
        assert server.lane("a") is server.lane("a")
        assert own.url == f"{server.url}/lane/own"
        assert [r.lane for r in server.requests] == ["default", "own", "a", "default", "a"]
        assert len(server.lane("a").requests) == 2
        assert post(own) == (
            400,
            "script exhausted after 1 turn; add one, or set restart (lane own)",
        )
        assert post(server.lane("own", [say("again")]))[1] == "again"


def test_a_script_has_lanes_of_its_own() -> None:
    with ModelServer(Script([say("main")], {"b": [say("beside")]})) as server:
        assert post(server.lane("b"))[1] == "beside"
        assert post(server.lane("c"))[1] == "main"
        assert post(server)[1] == "main"


def test_a_server_and_a_lane_have_the_variables_for_clients() -> None:
    with ModelServer([], key="right") as server:
        assert server.env["OPENAI_BASE_URL"] == f"{server.url}/v1"
        assert server.env["GOOGLE_GEMINI_BASE_URL"] == server.url
        assert server.env["GEMINI_API_KEY"] == server.env["OPENAI_API_KEY"] == "right"
        assert server.lane("a").env["OPENAI_BASE_URL"] == f"{server.url}/lane/a/v1"
    with ModelServer([say("in")]) as server:
        assert server.env["GEMINI_API_KEY"]


def test_a_turn_waits_for_the_request_that_it_matches() -> None:
    script = [
        Turn(text="fixed", match="fix"),
        Turn(text="number", pattern=r"^\d+$", repeat=2),
        Turn(text="any", repeat="forever"),
    ]
    with ModelServer(script) as server:
        output = [post(server, t)[1] for t in ("hi", "7", "please fix", "fix it", "8", "9", "x")]
    assert output == ["any", "number", "fixed", "any", "number", "any", "any"]


def test_requests_of_the_gemini_cli_router_use_no_turn() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "complexity_reasoning": {"type": "STRING"},
            "complexity_score": {"type": "INTEGER"},
            "model_choice": {"type": "string", "enum": ["flash", "pro"]},
            "confidence": {"type": "number"},
            "sure": {"type": "boolean"},
            "list": {"type": "array"},
        },
    }
    config = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    with ModelServer([say("turn")]) as server:
        status, text = post(server, agent=CLI, config=config)
        assert status == 200
        assert json.loads(text) == {
            "complexity_reasoning": "scripted",
            "complexity_score": 1,
            "model_choice": "flash",
            "confidence": 0,
            "sure": False,
            "list": [],
        }
        assert post(server, agent=CLI)[1] == "OK."
        assert post(server, agent=CLI, method="streamGenerateContent")[1] == "turn"
        assert server.failures == []
        assert [request.aside for request in server.requests] == [True, True, False]


def test_a_turn_for_the_router_is_used_only_for_the_router() -> None:
    script = [Turn(text="{}", for_method="generateContent"), say("turn")]
    with ModelServer(script) as server:
        assert post(server, agent=CLI, method="streamGenerateContent")[1] == "turn"
        assert post(server, agent=CLI)[1] == "{}"


def test_a_function_can_be_the_script() -> None:
    def answer(request: Request) -> Turn:
        if request.last_text == "boom":
            raise LookupError("no idea")
        return say(request.last_text.upper())

    with ModelServer(answer) as server:
        assert post(server, "hello")[1] == "HELLO"
        assert post(server.lane("x"), "again")[1] == "AGAIN"
        assert post(server, agent=CLI)[1] == "OK."
        assert post(server, "boom") == (
            400,
            "the script raised LookupError: no idea (lane default)",
        )
        assert server.failures == ["the script raised LookupError: no idea (lane default)"]
        assert post(server, "still")[1] == "STILL"


def test_a_turn_that_cannot_be_encoded_is_a_failure_and_the_server_continues() -> None:
    nonsense: Any = object()
    with ModelServer([call("a", x=nonsense), say("\ud800"), say("on")]) as server:
        assert post(server)[0] == 400
        assert post(server)[0] == 400
        assert post(server)[1] == "on"
        assert len(server.failures) == 2


def test_waiting_for_requests_is_bounded_and_works_across_threads() -> None:
    with ModelServer([say("x")] * 3) as server:
        with pytest.raises(TimeoutError, match=r"0 of 1 requests arrived within 0\.05 s"):
            server.wait_for_requests_sync(1, timeout=0.05)
        poster = threading.Thread(target=lambda: [post(server) for _ in range(3)])
        poster.start()
        assert len(server.wait_for_requests_sync(2)) >= 2

        async def wait() -> int:
            return len(await server.wait_for_requests(3))

        assert asyncio.run(wait()) == 3
        poster.join(60)
        assert len(server.wait_for_requests_sync(3, timeout=0)) == 3


def test_waiting_on_the_loop_that_serves() -> None:
    async def main() -> None:
        async with ModelServer([say("x")]) as server:
            async with asyncio.TaskGroup() as tasks:
                posted = tasks.create_task(asyncio.to_thread(post, server))
                (request,) = await server.wait_for_requests(1)
            assert posted.result() == (200, "x")
            assert request.last_text == "hi"
            with pytest.raises(TimeoutError):
                await server.wait_for_requests(2, timeout=0.05)

    asyncio.run(main())


def test_two_hundred_concurrent_clients_get_their_responses() -> None:
    async def client(port: int, n: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"contents": [{"parts": [{"text": f"n{n}."}]}]}).encode()
        head = f"POST /lane/{n}/v1beta/models/m:generateContent HTTP/1.1\r\nX-Goog-Api-Key: k\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        got = await reader.read()
        writer.close()
        await writer.wait_closed()
        return got

    async def main() -> list[bytes]:
        async with ModelServer(lambda request: say(request.last_text)) as server:
            port = urlsplit(server.url).port
            assert port
            async with asyncio.timeout(60):
                return await asyncio.gather(*(client(port, n) for n in range(200)))

    answers = asyncio.run(main())
    assert all(f'"n{n}."'.encode() in answer for n, answer in enumerate(answers))


def descriptors() -> set[str]:
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue
    return found


@pytest.mark.deep
def test_leaving_closes_every_connection_and_leaves_nothing_behind() -> None:
    gc.collect()
    before, threads = descriptors(), threading.active_count()
    big = Turn(text="x" * 30_000_000)
    for turn in (hang(), hang("first"), big, Turn(text="late", delay=60)):
        server = ModelServer([turn])
        with server:
            url = urlsplit(server.url)
            assert url.port
            stuck, idle = (HTTPConnection("127.0.0.1", url.port, timeout=60) for _ in range(2))
            idle.connect()
            path = "/v1beta/models/m:streamGenerateContent?alt=sse"
            stuck.request("POST", path, b"{}", {"x-goog-api-key": "k"})
            server.wait_for_requests_sync(1)
            began = time.monotonic()
        assert time.monotonic() - began < 50  # not the 60 s of the delay
        assert idle.sock.recv(1) == b""
        idle.close()
        stuck.close()
    gc.collect()
    assert threading.active_count() == threads
    assert descriptors() == before


def test_leaving_on_a_loop_ends_the_tasks_too() -> None:
    async def main() -> None:
        async with ModelServer([hang()]) as server:
            port = urlsplit(server.url).port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"POST /v1beta/models/m:generateContent HTTP/1.1\r\nX-Goog-Api-Key: k\r\n"
                b"Content-Length: 2\r\n\r\n{}"
            )
            await server.wait_for_requests(1)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main(), debug=True)


def test_leaving_immediately_leaves_no_socket() -> None:
    async def main() -> None:
        async with ModelServer():
            pass

    before = descriptors()
    asyncio.run(main())
    with ModelServer():
        pass
    gc.collect()
    assert descriptors() == before


def test_leaving_waits_for_the_thread() -> None:
    threads = threading.active_count()
    for _ in range(100):
        with ModelServer():
            pass
        assert threading.active_count() == threads


def test_a_client_that_connects_while_the_server_ends_is_refused() -> None:
    async def main(ticks: int) -> None:
        async with ModelServer() as server:
            await asyncio.sleep(0.01)
            client = socket.create_connection(("127.0.0.1", urlsplit(server.url).port), timeout=60)
            for _ in range(ticks):
                await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        client.settimeout(60)
        with client, contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
        assert asyncio.all_tasks() == {asyncio.current_task()}

    for ticks in range(6):
        asyncio.run(main(ticks))
    gc.collect()


def test_a_server_can_be_entered_again_but_not_twice() -> None:
    server = ModelServer([call("a"), say("b")])
    with pytest.raises(ConfigError, match="not running"):
        _ = server.url
    with server:
        post(server)
        with pytest.raises(ConfigError, match="already running"):
            server.__enter__()
    with server:
        assert post(server)[1] == "b"
        assert len(server.requests) == 2


def test_a_port_that_is_taken_is_a_config_error() -> None:
    with ModelServer() as server:
        port = urlsplit(server.url).port
        assert port
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            ModelServer(port=port).__enter__()


def test_the_default_key_withholds_no_end_of_an_ordinary_text() -> None:
    """The end of a text that may become a secret is shown late: see ``StreamRedactor``."""
    for _ in range(50):
        shown = StreamRedactor(SecretRedactor({"GEMINI_API_KEY": ModelServer().key}))
        assert shown.add("the quick brown fox jumps over 0123456789") == (
            "the quick brown fox jumps over 0123456789"
        )
        assert [shown.add(letter) for letter in "abcdef0123456789"] == [*"abcdef0123456789"]
