"""The minimal program: a raw socket, and msgspec for the fields that are read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

Read: TypeAlias = Callable[[str], Awaitable[int]]

CHUNK = 1 << 16


class Piece(Struct, gc=False):
    text: str = ""


class Content(Struct):
    parts: list[Piece] = []


class Candidate(Struct, rename="camel"):
    content: Content | None = None
    finish_reason: str | None = None


class GeminiUsage(Struct, rename="camel", gc=False):
    prompt_token_count: int = 0
    candidates_token_count: int = 0


class Gemini(Struct, rename="camel"):
    candidates: list[Candidate] = []
    usage_metadata: GeminiUsage | None = None


class Usage(Struct, gc=False):
    input_tokens: int = 0
    output_tokens: int = 0


class Block(Struct, gc=False):
    type: str = ""
    text: str = ""
    stop_reason: str | None = None


class Anthropic(Struct):
    type: str
    delta: Block | None = None
    usage: Usage | None = None
    content: list[Block] = []


class Item(Struct):
    content: list[Piece] = []


class Response(Struct):
    status: str = ""
    usage: Usage | None = None
    output: list[Item] = []


class OpenAi(Struct):
    type: str
    delta: str = ""
    response: Response | None = None


class Delta(Struct, gc=False):
    content: str | None = None


class Choice(Struct):
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class ChatUsage(Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chat(Struct):
    choices: list[Choice] = []
    usage: ChatUsage | None = None


def of_gemini(event: Gemini) -> str:
    content = event.candidates[0].content
    return content.parts[0].text if content else ""


def of_anthropic(event: Anthropic) -> str:
    return event.delta.text if event.delta else ""


def of_openai(event: OpenAi) -> str:
    return event.delta


def of_chat(event: Chat) -> str:
    delta = event.choices[0].delta if event.choices else None
    return (delta.content if delta else None) or ""


TYPES: dict[str, tuple[Any, Callable[[Any], str]]] = {
    "gemini": (Gemini, of_gemini),
    "anthropic": (Anthropic, of_anthropic),
    "openai": (OpenAi, of_openai),
    "chat": (Chat, of_chat),
}
PATHS = {
    "gemini": "/v1beta/models/gemini-2.5-flash:{}enerateContent",
    "anthropic": "/v1/messages",
    "openai": "/v1/responses",
    "chat": "/v1/chat/completions",
}
HEADERS = {
    "gemini": "x-goog-api-key: none-is-needed",
    "anthropic": "x-api-key: none-is-needed\r\nanthropic-version: 2023-06-01",
    "openai": "Authorization: Bearer none-is-needed",
    "chat": "Authorization: Bearer none-is-needed",
}
"""What each vendor needs to accept a request."""


def gemini_body(prompt: str, stream: bool) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}


def anthropic_body(prompt: str, stream: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    model = "claude-sonnet-4-5"
    return {"model": model, "max_tokens": 1000, "messages": messages, "stream": stream}


def openai_body(prompt: str, stream: bool) -> dict[str, Any]:
    return {"model": "gpt-5-mini", "input": prompt, "stream": stream}


def chat_body(prompt: str, stream: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "gpt-5-mini", "messages": messages, "stream": stream}


BODIES = {
    "gemini": gemini_body,
    "anthropic": anthropic_body,
    "openai": openai_body,
    "chat": chat_body,
}
"""The smallest request with a prompt that the vendor accepts."""


def requests(wire: str, *, stream: bool) -> Callable[[str], bytes]:
    """From a prompt to a request. Its head up to the length is the same for every prompt."""
    path = PATHS[wire].format("streamG" if stream else "g")
    lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    start = f"{lines}{HEADERS[wire]}\r\nContent-Length: ".encode()
    body, encode = BODIES[wire], msgspec.json.encode

    def request(prompt: str) -> bytes:
        data = encode(body(prompt, stream))
        return b"%b%d\r\n\r\n%b" % (start, len(data), data)

    return request


def unchunked(held: bytes) -> tuple[list[bytes], bytes, bool]:
    """Every complete chunk without its frame, the rest, and whether the last chunk was there."""
    at, size = 0, -1
    pieces: list[bytes] = []
    while (end := held.find(b"\r\n", at)) > 0:
        size = int(held[at:end], 16)
        if end + size + 4 > len(held):
            size = -1
            break
        pieces.append(held[end + 2 : end + 2 + size])
        at = end + size + 4
        if size == 0:
            break
    return pieces, held[at:], size == 0


def datas(events: list[bytes]) -> Iterator[bytes]:
    for event in events:
        data = event if event[:5] == b"data:" else event[event.index(b"\ndata:") + 1 :]
        if data != b"data: [DONE]":
            yield data


def streamed(wire: str, port: int) -> Read:
    kind, text_of = TYPES[wire]
    decode = msgspec.json.Decoder(kind).decode
    blank, start = (b"\r\n\r\n", 6) if wire == "gemini" else (b"\n\n", 6)
    request = requests(wire, stream=True)

    async def read(prompt: str) -> int:
        count = 0
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request(prompt))
            receive = connection.recv
            held = receive(CHUNK)
            while b"\r\n\r\n" not in held:
                held += receive(CHUNK)
            held = held.partition(b"\r\n\r\n")[2]
            rest = b""
            while True:
                pieces, held, is_over = unchunked(held)
                *events, rest = b"".join([rest, *pieces]).split(blank)
                for data in datas(events):
                    count += len(text_of(decode(data[start:])))
                if is_over:
                    return count
                held += receive(CHUNK)

    return read


class _Receiver(asyncio.Protocol):
    """Keeps what arrives until it is taken, and wakes the one that waits for it."""

    def __init__(self) -> None:
        self.held = b""
        self.waiter: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        self.held += data
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def in_loop(wire: str, port: int) -> Read:
    """``streamed`` with a protocol of asyncio instead of a socket that blocks: one turn of the
    event loop for each read."""
    kind, text_of = TYPES[wire]
    decode = msgspec.json.Decoder(kind).decode
    blank, start = (b"\r\n\r\n", 6) if wire == "gemini" else (b"\n\n", 6)
    request = requests(wire, stream=True)

    async def read(prompt: str) -> int:
        loop = asyncio.get_running_loop()
        transport, receiver = await loop.create_connection(_Receiver, "127.0.0.1", port)
        transport.write(request(prompt))

        async def arrived() -> None:
            waiter = receiver.waiter = loop.create_future()
            await waiter

        while b"\r\n\r\n" not in receiver.held:
            await arrived()
        receiver.held = receiver.held.partition(b"\r\n\r\n")[2]
        count, rest = 0, b""
        while True:
            while not receiver.held:
                await arrived()
            pieces, receiver.held, is_over = unchunked(receiver.held)
            *events, rest = b"".join([rest, *pieces]).split(blank)
            count += sum(len(text_of(decode(data[start:]))) for data in datas(events))
            if is_over:
                transport.abort()
                return count

    return read


def completed(wire: str, port: int) -> Read:
    kind, _ = TYPES[wire]
    if wire == "openai":
        kind = Response
    decode = msgspec.json.Decoder(kind).decode
    request = requests(wire, stream=False)
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def read(prompt: str) -> int:
        reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(prompt))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(head.decode("latin-1"))
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = decode(await reader.readexactly(length))
        idle.append((reader, writer))
        match answer:
            case Gemini():
                return len(of_gemini(answer))
            case Anthropic():
                return len(answer.content[0].text)
            case Response():
                return len(answer.output[0].content[0].text)
            case _:
                return len(answer.choices[0].message.content)

    return read
