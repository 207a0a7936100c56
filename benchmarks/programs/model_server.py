"""The APIs of three vendors with prepared answers: ``model_server.py``; prints its port.

The path says which API is meant. The prompt says how long the answer is and how it is sent, such as
``events=20000 packed``. A stream is chunked. ``packed``: a chunk has as many events as fit into
8 KiB, as from a proxy. ``framed``: every event is a chunk, and they are sent as fast as
they are read. ``singly``: every event is a chunk and arrives alone.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache
from typing import Any

WORDS = ("The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", ".\n")
"""Tokens: most vendors send text in such pieces."""
ASKED = re.compile(rb"events=(\d+) (\w+)")
PACK = 8 * 1024
STREAMED = re.compile(rb'"stream": ?true')
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
USAGE = {"input_tokens": 11, "output_tokens": 7}


def written(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def named(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {written(event)}\n\n".encode()


def plain(event: dict[str, Any]) -> bytes:
    return f"data: {written(event)}\n\n".encode()


def gemini_chunk(text: str, *, ends: bool = False) -> dict[str, Any]:
    finish = {"finishReason": "STOP"} if ends else {}
    return {
        "candidates": [
            {"content": {"parts": [{"text": text}], "role": "model"}, **finish, "index": 0}
        ],
        "usageMetadata": {
            "promptTokenCount": 11,
            "candidatesTokenCount": 7,
            "totalTokenCount": 18,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 11}],
        },
        "modelVersion": "gemini-2.5-flash",
        "responseId": "q1oXaYr4Oq2nkdUPkZ2Q6Ao",
    }


def gemini(texts: list[str]) -> list[bytes]:
    chunks = [gemini_chunk(text) for text in texts[:-1]]
    chunks.append(gemini_chunk(texts[-1], ends=True))
    # The only vendor that ends its lines with CRLF.
    return [f"data: {written(chunk)}\r\n\r\n".encode() for chunk in chunks]


def anthropic_message(content: list[Any], reason: str | None) -> dict[str, Any]:
    return {
        "id": "msg_014p7gG3wDgGV9EUtLvnow3U",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "stop_sequence": None,
        "usage": USAGE,
        "content": content,
        "stop_reason": reason,
    }


def anthropic(texts: list[str]) -> list[bytes]:
    def delta(text: str) -> dict[str, Any]:
        piece = {"type": "text_delta", "text": text}
        return {"type": "content_block_delta", "index": 0, "delta": piece}

    block = {"type": "text", "text": ""}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        named({"type": "message_start", "message": anthropic_message([], None)}),
        named({"type": "content_block_start", "index": 0, "content_block": block}),
        named({"type": "ping"}),
        *(named(delta(text)) for text in texts),
        named({"type": "content_block_stop", "index": 0}),
        named({"type": "message_delta", "delta": end, "usage": {"output_tokens": 7}}),
        named({"type": "message_stop"}),
    ]


ITEM = "msg_67c9fdcf37fc8190ba82116e33fb28c507b8b0ad4e5eb654"


def openai_response(output: list[Any], status: str) -> dict[str, Any]:
    return {
        "id": "resp_67c9fdcecf488190bdd9a0409de3a1ec07b8b0ad4e5eb654",
        "object": "response",
        "created_at": 1741290958,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "model": "gpt-5-mini-2025-08-07",
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            **USAGE,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 18,
        }
        if status == "completed"
        else None,
        "user": None,
        "metadata": {},
    }


def openai_item(text: str) -> dict[str, Any]:
    content: list[Any] = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "id": ITEM,
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": content,
    }


def openai(texts: list[str]) -> list[bytes]:
    place = {"item_id": ITEM, "output_index": 0, "content_index": 0}
    empty: dict[str, Any] = {**openai_item(""), "status": "in_progress", "content": []}
    part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
    item = openai_item("".join(texts))
    content = item["content"][0]
    started, done = openai_response([], "in_progress"), openai_response([item], "completed")
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": empty},
        {"type": "response.content_part.added", **place, "part": part},
        *(
            {
                "type": "response.output_text.delta",
                **place,
                "delta": text,
                "logprobs": [],
                "obfuscation": "k3JvQ2mXw9"[len(text) :],
            }
            for text in texts
        ),
        {"type": "response.output_text.done", **place, "text": content["text"], "logprobs": []},
        {"type": "response.content_part.done", **place, "part": content},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": done},
    ]
    return [named({**event, "sequence_number": n}) for n, event in enumerate(events)]


def chat_head(kind: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
        "object": kind,
        "created": 1741570283,
        "model": "gpt-5-mini-2025-08-07",
        "service_tier": "default",
        "system_fingerprint": "fp_06737a9306",
    }


CHAT_USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def chat(texts: list[str]) -> list[bytes]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return plain({**chat_head("chat.completion.chunk"), "choices": [choice], "usage": None})

    return [
        chunk({"role": "assistant", "content": "", "refusal": None}),
        *(chunk({"content": text}) for text in texts),
        chunk({}, "stop"),
        plain({**chat_head("chat.completion.chunk"), "choices": [], "usage": CHAT_USAGE}),
        b"data: [DONE]\n\n",
    ]


def item(wire: str, text: str) -> dict[str, Any]:
    match wire:
        case "gemini":
            return gemini_chunk(text, ends=True)
        case "anthropic":
            return anthropic_message([{"type": "text", "text": text}], "end_turn")
        case "openai":
            return openai_response([openai_item(text)], "completed")
        case _:
            message = {"role": "assistant", "content": text, "refusal": None}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
            return {**chat_head("chat.completion"), "choices": [choice], "usage": CHAT_USAGE}


STREAMS = {"gemini": gemini, "anthropic": anthropic, "openai": openai, "chat": chat}
PATHS = {
    b"enerateContent": "gemini",
    b"/messages": "anthropic",
    b"/responses": "openai",
    b"/chat/completions": "chat",
}


def head(kind: str, length: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{length}\r\n\r\n".encode()


@cache
def streamed(wire: str, count: int, pace: str) -> list[bytes]:
    pieces = STREAMS[wire]([WORDS[number % len(WORDS)] for number in range(count)])
    if pace == "packed":
        item = b"".join(pieces)
        pieces = [item[start : start + PACK] for start in range(0, len(item), PACK)]
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    opening = head("text/event-stream; charset=utf-8", "Transfer-Encoding: chunked")
    return [opening, *chunks, b"0\r\n\r\n"]


@cache
def at_once(wire: str, count: int, pace: str) -> bytes:
    return b"".join(streamed(wire, count, pace))


@cache
def completed(wire: str, count: int) -> bytes:
    body = written(item(wire, "".join(WORDS[number % len(WORDS)] for number in range(count))))
    return head("application/json", f"Content-Length: {len(body)}") + body.encode()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            found = LENGTH.search(request)
            body = await reader.readexactly(int(found[1])) if found else b""
            path = request.partition(b"\r\n")[0]
            wire = next(wire for part, wire in PATHS.items() if part in path)
            asked = ASKED.search(body)
            count, pace = (int(asked[1]), asked[2].decode()) if asked else (1, "packed")
            is_streamed = b"streamGenerateContent" in path or STREAMED.search(body)
            if not is_streamed:
                writer.write(completed(wire, count))
            elif pace == "singly":
                for event in streamed(wire, count, pace):
                    writer.write(event)
                    await writer.drain()
                    await asyncio.sleep(0.0002)
            else:
                writer.write(at_once(wire, count, pace))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
