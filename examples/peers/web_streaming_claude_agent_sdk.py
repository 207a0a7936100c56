"""``web_streaming.py`` with claude-agent-sdk: each kind of message needs its own JSON."""

import json
from collections.abc import AsyncIterator

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ResultMessage,
    StreamEvent,
    ToolUseBlock,
    query,
)
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()
OPTIONS = ClaudeAgentOptions(include_partial_messages=True)


def line(kind: str, data: dict[str, object]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


async def events(prompt: str) -> AsyncIterator[str]:
    async for message in query(prompt=prompt, options=OPTIONS):
        if isinstance(message, StreamEvent):
            delta = message.event.get("delta", {})
            if delta.get("type") == "text_delta":
                yield line("text", {"delta": delta["text"]})
        elif isinstance(message, AssistantMessage):
            for block in message.content:
                if isinstance(block, ToolUseBlock):
                    yield line("tool_use", {"name": block.name, "input": block.input})
        elif isinstance(message, ResultMessage):
            yield line("done", {"error": message.is_error, "usd": message.total_cost_usd})


@app.get("/ask")
async def ask(prompt: str) -> StreamingResponse:
    return StreamingResponse(events(prompt), media_type="text/event-stream")
